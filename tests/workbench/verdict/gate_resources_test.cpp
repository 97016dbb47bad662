// A gate's resources on a GPU: what the binary holds, against the limits of a rung.
#include "workbench/verdict/gate_resources.hpp"

#include <gtest/gtest.h>

namespace greenfast::workbench::test {
namespace {

Plan plan(const std::string& kernel, int shared) {
  Plan plan;
  plan.kernel = kernel;
  plan.shared_bytes = shared;
  plan.grid = {4, 1, 1};
  plan.block = {128, 1, 1};
  return plan;
}
std::vector<PlannedShape> shapes(const Plan& baseline, const Plan& candidate) {
  return {{.name = "mission",
           .problem = "",
           .primary = true,
           .refused = "",
           .baseline = baseline,
           .candidate = candidate}};
}
/// A binary that holds machine code of "slim", which is inside its limit; "fat", which breaks one;
/// and "wide", over the same limit with a waiver.
std::optional<KernelResources> binary(const std::string& kernel) {
  if (kernel == "slim")
    return KernelResources{"sm_90a", 80,   1024,
                           0,        "5e", {{"registers", 80, 128, "a test", true, "", ""}}};
  if (kernel == "fat")
    return KernelResources{"sm_90a", 200,  0,
                           16,       "fa", {{"registers", 200, 128, "a test", false, "", ""}}};
  if (kernel == "wide")
    return KernelResources{
        "sm_90a", 140, 0, 0, "de", {{"registers", 140, 128, "a test", false, "wide", "its idea"}}};
  return std::nullopt;
}
std::string status_of(const ResourceJudgement& judged, const std::string& gate) {
  for (const GateCheck& check : judged.checklist) {
    if (check.gate.find(gate) != std::string::npos) return std::string(name_of(check.status));
  }
  return "";
}

TEST(GateResources, ABrokenLimitRejects) {
  auto judged = judge_kernels(shapes(plan("fat", 0), plan("slim", 30 * 1024)), binary);
  EXPECT_FALSE(judged.reason) << judged.reason->detail;
  EXPECT_EQ(status_of(judged, "registers"), "PASS");
  EXPECT_EQ(status_of(judged, "kernel"), "PASS");
  EXPECT_TRUE(judged.no_op.empty());

  judged = judge_kernels(shapes(plan("slim", 0), plan("fat", 0)), binary);
  ASSERT_TRUE(judged.reason);
  EXPECT_EQ(judged.reason->code, ReasonCode::resources);
  EXPECT_NE(judged.reason->detail.find("fat (sm_90a): registers 200 > 128 (a test)"),
            std::string::npos)
      << judged.reason->detail;
  EXPECT_EQ(status_of(judged, "registers"), "FAIL");
  EXPECT_EQ(status_of(judged, "kernel"), "FAIL");
}

TEST(GateResources, AWaivedLimitPassesAndSaysWhoWaivedItAndWhy) {
  const auto judged = judge_kernels(shapes(plan("slim", 0), plan("wide", 2048)), binary);
  EXPECT_FALSE(judged.reason);
  ASSERT_EQ(status_of(judged, "registers"), "WAIVED") << "over its limit, so no PASS";
  EXPECT_NE(judged.checklist[0].actual.find("waiver 'wide': its idea"), std::string::npos);
  EXPECT_EQ(judged.rows[0].status, CheckStatus::waived);
  ASSERT_TRUE(judged.rows[0].waiver);
  EXPECT_EQ(judged.rows[0].waiver->first, "wide");
  EXPECT_EQ(judged.rows[0].limit, 128);
  EXPECT_EQ(judged.rows[1].value, 2048) << "shared memory is told, limited or not";
}

TEST(GateResources, WhatTheBinaryDoesNotHoldIsNoPass) {
  for (const char* kernel : {"elsewhere", ""}) {
    const auto judged = judge_kernels(shapes(plan("slim", 0), plan(kernel, 0)), binary);
    ASSERT_TRUE(judged.reason);
    EXPECT_EQ(judged.reason->code, ReasonCode::tool_missing);
    EXPECT_EQ(judged.checklist[0].status, CheckStatus::skipped);
  }
  EXPECT_EQ(judge_kernels({}, binary).reason->code, ReasonCode::tool_missing);
}

TEST(GateResources, TheSameMachineCodeAndPlanIsNoComparison) {
  const auto no_op = [](const Plan& a, const Plan& b) {
    return judge_kernels(shapes(a, b), binary).no_op;
  };
  EXPECT_FALSE(no_op(plan("slim", 8), plan("slim", 8)).empty());
  EXPECT_TRUE(no_op(plan("slim", 8), plan("slim", 16)).empty()) << "another plan, another speed";
  EXPECT_TRUE(no_op(plan("fat", 8), plan("slim", 8)).empty());
}

TEST(GateResources, TheCodeOfBothSidesIsTold) {
  DeviceCode code;
  for (const char* name : {"first", "second", "nobodys"}) {
    KernelCode& kernel = code.kernels.emplace_back();
    kernel.name = name;
    kernel.arch = "sm_90a";
    kernel.sha256 = std::string("digest of ") + name;
  }
  Plan baseline = plan("first", 0), candidate = plan("second", 0);
  baseline.variant = "cuda.a";
  candidate.variant = "cuda.b";
  std::vector<PlannedShape> asked = shapes(baseline, candidate);
  Plan third = plan("first", 8);
  third.variant = "cuda.b";
  asked.push_back(shapes(baseline, third).front());
  const auto rows = code_of_sides(asked, 90, code);
  ASSERT_EQ(rows.size(), 2u) << rows.dump(1);
  EXPECT_EQ(rows[0]["kernel"], "first");
  EXPECT_EQ(rows[0]["sha256"], "digest of first");
  EXPECT_EQ(rows[0]["variants"], nlohmann::json({"cuda.a", "cuda.b"}));
  EXPECT_EQ(rows[1]["kernel"], "second");
  EXPECT_EQ(rows[1]["variants"], nlohmann::json({"cuda.b"}));
  // A plugin's kernels are in no binary of ours.
  candidate.variant = "plugin:mine";
  EXPECT_EQ(code_of_sides(shapes(baseline, candidate), 90, code).size(), 1u);
}

// A build may complain of kernels that neither side launches, and knows nothing of a plugin's.
TEST(GateResources, CompilersAreHeardAboutBothSidesAlone) {
  std::vector<std::string> asked;
  LogLookup lookup;
  lookup.objects = [&](std::span<const std::string> kernels) -> std::optional<CompilerLogs> {
    asked.assign(kernels.begin(), kernels.end());
    for (const std::string& kernel : kernels)
      if (kernel != "slim" && kernel != "fat") return std::nullopt;
    return CompilerLogs{2, {}};
  };
  lookup.plugin = [](const std::string& kernel) -> std::optional<CompilerLogs> {
    if (kernel != "plugin:mine") return std::nullopt;
    return CompilerLogs{1, {"plugin:mine: ptxas warning : spilled"}};
  };
  auto logs = logs_of_sides(shapes(plan("slim", 0), plan("fat", 0)), lookup);
  ASSERT_TRUE(logs);
  EXPECT_EQ(logs->logs, 2);
  EXPECT_EQ(asked, (std::vector<std::string>{"fat", "slim"}));
  logs = logs_of_sides(shapes(plan("slim", 0), plan("plugin:mine", 0)), lookup);
  ASSERT_TRUE(logs);
  EXPECT_EQ(logs->logs, 3);
  EXPECT_EQ(logs->complaints.size(), 1u) << "its own, which the build's logs do not hold";
  EXPECT_EQ(asked, std::vector<std::string>{"slim"});
  for (const char* unknown : {"plugin:shared_object", ""})
    EXPECT_FALSE(logs_of_sides(shapes(plan("slim", 0), plan(unknown, 0)), lookup)) << unknown;
  EXPECT_FALSE(logs_of_sides({}, lookup));
}

}  // namespace
}  // namespace greenfast::workbench::test
