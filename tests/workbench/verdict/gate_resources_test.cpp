// A gate's resources on a GPU: what the binary holds, against the limits of a rung.
#include "workbench/verdict/gate_resources.hpp"

#include <gtest/gtest.h>

#include "workbench/verdict/gate_policy.hpp"

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
/// A binary that holds machine code of "slim" and "fat"; the latter spills and breaks a limit that
/// holds for every build.
std::optional<KernelResources> binary(const std::string& kernel) {
  if (kernel == "slim") return KernelResources{"sm_90a", 80, 1024, 0, "5e", {}};
  if (kernel == "fat")
    return KernelResources{"sm_90a", 200, 0, 16, "fa", {"local memory 16 > 0 (spills)"}};
  return std::nullopt;
}
std::string status_of(const ResourceJudgement& judged, const std::string& gate) {
  for (const auto& row : judged.checklist) {
    if (row[0].find(gate) != std::string::npos) return row[3];
  }
  return "";
}

TEST(GateResources, LimitsOfTheRungDecide) {
  RungRule rule;
  rule.registers = 128;
  rule.shared_bytes = 31 * 1024;
  rule.spill_bytes = 0;
  auto judged = judge_kernels(shapes(plan("fat", 0), plan("slim", 30 * 1024)), rule, binary);
  EXPECT_FALSE(judged.reason) << judged.reason->detail;
  EXPECT_EQ(status_of(judged, "registers"), "PASS");
  EXPECT_EQ(status_of(judged, "shared"), "PASS") << "31 KB, of them 1 KB static";
  EXPECT_EQ(status_of(judged, "local memory"), "PASS");
  EXPECT_TRUE(judged.no_op.empty());

  judged = judge_kernels(shapes(plan("fat", 0), plan("slim", 30 * 1024 + 1)), rule, binary);
  ASSERT_TRUE(judged.reason);
  EXPECT_EQ(judged.reason->code, ReasonCode::resources);
  EXPECT_NE(judged.reason->detail.find("slim (sm_90a): shared memory 31745 > 31744"),
            std::string::npos)
      << judged.reason->detail;

  judged = judge_kernels(shapes(plan("slim", 0), plan("fat", 0)), rule, binary);
  ASSERT_TRUE(judged.reason);
  EXPECT_EQ(judged.reason->code, ReasonCode::resources);
  EXPECT_EQ(status_of(judged, "registers"), "FAIL");
  EXPECT_EQ(status_of(judged, "local memory"), "FAIL");
}

TEST(GateResources, LimitsThatHoldForEveryBuildNeedNoRung) {
  auto judged = judge_kernels(shapes(plan("slim", 0), plan("fat", 0)), RungRule(), binary);
  ASSERT_TRUE(judged.reason);
  EXPECT_EQ(judged.reason->code, ReasonCode::resources);
  EXPECT_NE(judged.reason->detail.find("local memory 16 > 0 (spills)"), std::string::npos);
  judged = judge_kernels(shapes(plan("fat", 0), plan("slim", 0)), RungRule(), binary);
  EXPECT_FALSE(judged.reason);
  EXPECT_EQ(status_of(judged, "resources"), "PASS");
}

TEST(GateResources, WhatTheBinaryDoesNotHoldIsNoPass) {
  for (const char* kernel : {"elsewhere", ""}) {
    const auto judged = judge_kernels(shapes(plan("slim", 0), plan(kernel, 0)), RungRule(), binary);
    ASSERT_TRUE(judged.reason);
    EXPECT_EQ(judged.reason->code, ReasonCode::tool_missing);
    EXPECT_EQ(judged.checklist[0][3], "SKIPPED");
  }
  EXPECT_EQ(judge_kernels({}, RungRule(), binary).reason->code, ReasonCode::tool_missing);
}

TEST(GateResources, TheSameMachineCodeAndPlanIsNoComparison) {
  const auto no_op = [](const Plan& a, const Plan& b) {
    return judge_kernels(shapes(a, b), RungRule(), binary).no_op;
  };
  EXPECT_FALSE(no_op(plan("slim", 8), plan("slim", 8)).empty());
  EXPECT_TRUE(no_op(plan("slim", 8), plan("slim", 16)).empty()) << "another plan, another speed";
  EXPECT_TRUE(no_op(plan("fat", 8), plan("slim", 8)).empty());
}

}  // namespace
}  // namespace greenfast::workbench::test
