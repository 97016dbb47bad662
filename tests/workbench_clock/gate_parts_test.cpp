// The gate's parts that need no kernel: policy, child processes, checkpoints.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "workbench/base/checkpoint.hpp"
#include "workbench/base/isolate.hpp"
#include "workbench/verdict/gate.hpp"
#include "workbench/verdict/gate_policy.hpp"
#include "workbench/verdict/gate_resources.hpp"

namespace greenfast::workbench::test {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

TEST(GatePolicy, TheBuiltInOneHoldsTheLaddersGates) {
  const auto policy = parse_gate_policy("gate.toml", builtin_gate_policy());
  ASSERT_TRUE(policy) << policy.status().message();
  EXPECT_EQ(policy->rule("cuda.stage_c.stage2").gate, 1.15);
  EXPECT_EQ(policy->rule("cuda.stage_c.stage1").registers, 128);
  EXPECT_EQ(policy->rule("cuda.stage_c.stage3a").shared_bytes, 49152);
  EXPECT_FALSE(policy->rule("cpu.flash").gate) << "the numerics policy's gate applies";
  EXPECT_EQ(policy->cpu_arena_bytes, 8 << 20);
  // Every candidate of a row is a row of the registry, or the row would never apply.
  for (const RungRule& rung : policy->rungs) EXPECT_EQ(rung.candidate.rfind("cuda.", 0), 0u);
}

TEST(GatePolicy, TheOriginalsDecisionTree) {
  const auto policy = parse_gate_policy("gate.toml", builtin_gate_policy());
  ASSERT_TRUE(policy);
  const DecisionTree& tree = policy->tree(policy->rule("cuda.stage_c.stage3a").tree);
  EXPECT_EQ(tree.reached(656.38 / 656.38), "");
  EXPECT_EQ(tree.reached(656.38 / 590), "merge");
  EXPECT_EQ(tree.reached(656.38 / 550), "excellent");
  EXPECT_EQ(tree.reached(656.38 / 500), "outstanding");
  ASSERT_FALSE(tree.below.empty());
  EXPECT_NE(tree.below[0].find("USE_XOR_SWIZZLE=1"), std::string::npos);
}

TEST(GatePolicy, RefusalsNameThePlace) {
  const std::string good(builtin_gate_policy());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return parse_gate_policy("my.toml", text).status().message();
  };
  EXPECT_NE(with("processes = 3", "proceses = 3").find("measure.proceses: unknown key"),
            std::string::npos);
  EXPECT_NE(with("processes = 3", "processes = 0")
                .find("measure.processes: expected an integer of at least 1"),
            std::string::npos);
  EXPECT_NE(with("halfwidth = 0.01", "halfwidth = \"small\"")
                .find("measure.halfwidth: expected a number"),
            std::string::npos);
  EXPECT_NE(with("gate = 1.15", "gate = -1").find("gate: expected a number above 0"),
            std::string::npos);
  EXPECT_NE(with("tree = \"stage3\"", "tree = \"stage9\"").find("no tree is called \"stage9\""),
            std::string::npos);
  EXPECT_NE(with("at_least = 1.31", "at_least = 1.01").find("levels must ascend"),
            std::string::npos);
  EXPECT_NE(with("[measure]", "[measure").find("my.toml: line"), std::string::npos);
}

// ---- resources on a GPU

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

TEST(Resources, LimitsOfTheRungDecide) {
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

TEST(Resources, LimitsThatHoldForEveryBuildNeedNoRung) {
  auto judged = judge_kernels(shapes(plan("slim", 0), plan("fat", 0)), RungRule(), binary);
  ASSERT_TRUE(judged.reason);
  EXPECT_EQ(judged.reason->code, ReasonCode::resources);
  EXPECT_NE(judged.reason->detail.find("local memory 16 > 0 (spills)"), std::string::npos);
  judged = judge_kernels(shapes(plan("fat", 0), plan("slim", 0)), RungRule(), binary);
  EXPECT_FALSE(judged.reason);
  EXPECT_EQ(status_of(judged, "resources"), "PASS");
}

TEST(Resources, WhatTheBinaryDoesNotHoldIsNoPass) {
  for (const char* kernel : {"elsewhere", ""}) {
    const auto judged = judge_kernels(shapes(plan("slim", 0), plan(kernel, 0)), RungRule(), binary);
    ASSERT_TRUE(judged.reason);
    EXPECT_EQ(judged.reason->code, ReasonCode::tool_missing);
    EXPECT_EQ(judged.checklist[0][3], "SKIPPED");
  }
  EXPECT_EQ(judge_kernels({}, RungRule(), binary).reason->code, ReasonCode::tool_missing);
}

TEST(Resources, TheSameMachineCodeAndPlanIsNoComparison) {
  const auto no_op = [](const Plan& a, const Plan& b) {
    return judge_kernels(shapes(a, b), RungRule(), binary).no_op;
  };
  EXPECT_FALSE(no_op(plan("slim", 8), plan("slim", 8)).empty());
  EXPECT_TRUE(no_op(plan("slim", 8), plan("slim", 16)).empty()) << "another plan, another speed";
  EXPECT_TRUE(no_op(plan("fat", 8), plan("slim", 8)).empty());
}

TEST(Child, FinishesCrashesAndHangs) {
  auto end = run_in_child([](Activity& a) { a.set("all well"); }, 10);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, ChildEnd::How::finished);
  EXPECT_EQ(end->activity, "all well");

  end = run_in_child(
      [](Activity& a) {
        a.set("about to die");
        signal(SIGABRT, SIG_DFL);
        kill(getpid(), SIGABRT);
      },
      10);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, ChildEnd::How::crashed);
  EXPECT_EQ(end->detail, "killed by SIGABRT");
  EXPECT_EQ(end->activity, "about to die");

  end = run_in_child([](Activity&) { _exit(7); }, 10);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, ChildEnd::How::crashed);
  EXPECT_EQ(end->detail, "ended with code 7");

  // The code of a failure of ours, but not thrown: a plugin's own end.
  end = run_in_child(
      [](Activity& a) {
        a.set("calling", Actor::candidate);
        _exit(1);
      },
      10);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, ChildEnd::How::crashed);
  EXPECT_EQ(end->actor, Actor::candidate);

  end = run_in_child([](Activity&) { throw std::runtime_error("no room"); }, 10);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, ChildEnd::How::failed);
  EXPECT_EQ(end->detail, "no room");

  int watched = 0;
  end = run_in_child(
      [](Activity& a) {
        a.set("waiting");
        for (;;) pause();
      },
      0.3, [&](const std::string& what) { watched += what == "waiting"; });
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, ChildEnd::How::timed_out);
  EXPECT_GE(watched, 1);
}

TEST(Child, IsStoppedWhenAskedAndHasAGroupOfItsOwn) {
  int asked = 0;
  ChildLimits limits;
  limits.stop = [&] { return ++asked > 1; };
  auto end = run_in_child(
      [](Activity&) {
        for (;;) pause();
      },
      limits);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, ChildEnd::How::stopped);

  const pid_t group = getpgrp();
  end = run_in_child(
      [group](Activity&) {
        if (getpgrp() == group) throw std::runtime_error("Ctrl-C would reach it");
      },
      10);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, ChildEnd::How::finished) << end->detail;
}

TEST(Child, AnActivityLongerThanItsPageIsCut) {
  const auto end = run_in_child([](Activity& a) { a.set(std::string(100'000, 'x')); }, 10);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->activity.size(), 4095u);
}

TEST(CheckpointFiles, StepsSurviveAndStrangersAreRefused) {
  const fs::path dir = "checkpoint";
  fs::remove_all(dir);
  fs::create_directories(dir);
  {
    auto job = Checkpoint::begin(dir, {{"schema", "test/1"}, {"n", 3}});
    ASSERT_TRUE(job) << job.status().message();
    EXPECT_FALSE(job->finished("one"));
    ASSERT_TRUE(job->save("one", {{"x", 1}}));
  }
  auto again = Checkpoint::resume(dir, "test/1");
  ASSERT_TRUE(again);
  EXPECT_EQ(again->head()["n"], 3);
  ASSERT_TRUE(again->finished("one"));
  EXPECT_EQ((*again->load("one"))["x"], 1);

  EXPECT_NE(Checkpoint::resume(dir, "test/2")
                .status()
                .message()
                .find("schema \"test/1\"; this version resumes \"test/2\""),
            std::string::npos);
  EXPECT_NE(
      Checkpoint::resume("nowhere", "test/1").status().message().find("nowhere: no such directory"),
      std::string::npos);
  EXPECT_NE(Checkpoint::resume(dir / "steps", "test/1").status().message().find("holds no job"),
            std::string::npos);
  // What a stranger puts there while the job is at work is no step of it.
  fs::copy(dir / "steps" / "one.json", dir / "steps" / "two.json");
  EXPECT_FALSE(again->finished("two"));
  EXPECT_NE(again->load("two").status().message().find("saved something else"), std::string::npos);
  std::ofstream(dir / "steps" / "one.json") << "{\"x\":";
  EXPECT_NE(again->load("one").status().message().find("truncated"), std::string::npos);
}

TEST(CheckpointFiles, ANewJobHasNoSteps) {
  const fs::path dir = "checkpoint";
  fs::remove_all(dir);
  fs::create_directories(dir);
  const json head = {{"schema", "test/1"}};
  {
    auto first = Checkpoint::begin(dir, head);
    ASSERT_TRUE(first);
    ASSERT_TRUE(first->save("one", {{"x", 1}}));
    EXPECT_EQ(first->head(), head) << "the secret stays in the file";
  }
  auto second = Checkpoint::begin(dir, head);
  ASSERT_TRUE(second);
  EXPECT_FALSE(second->finished("one"));
  EXPECT_FALSE(fs::exists(dir / "steps" / "one.json"));
}

TEST(GateOptions, RoundTripThroughJson) {
  GateOptions options;
  options.baseline = "cpu.naive";
  options.candidate = "cpu.flash";
  options.gate = 1.25;
  options.seeds = {4, 5};
  options.hot = true;
  options.peers = {"peer:torch-cpu"};
  const auto read = gate_options_from_json(json::parse(to_json(options).dump()));
  ASSERT_TRUE(read);
  EXPECT_EQ(to_json(*read), to_json(options));
  json broken = to_json(options);
  broken["seeds"] = "none";
  EXPECT_EQ(gate_options_from_json(broken).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace greenfast::workbench::test
