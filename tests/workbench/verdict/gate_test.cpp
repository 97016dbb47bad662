// The gate end to end on the CPU, with shapes so small that a case takes a moment. Nothing here
// depends on which side is faster.
#include "workbench/verdict/gate.hpp"
#include "workbench/base/json.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "workbench/base/checkpoint.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/evidence/recheck.hpp"
#include "workbench/verdict/gate_walk.hpp"

namespace greenfast::workbench::test {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

class GateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory = fs::path("gate") / ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(directory);
    fs::create_directories(directory);
    observer.finished = [this](const std::string& line) { lines.push_back(line); };
  }
  static GateOptions small(const char* baseline, const char* candidate) {
    GateOptions options;
    options.baseline = baseline;
    options.candidate = candidate;
    options.primary = "1x2x33x16";
    options.guards = "none";
    options.dtype = "fp32";
    options.seeds = {0};
    options.processes = 2;
    options.budget_seconds = 0.1;
    return options;
  }
  Result<GateResult> run(const GateOptions& options) {
    auto result = run_gate(options, directory, {"gate", "..."}, observer);
    // Whatever becomes of it, its own record bears out what it says.
    if (result)
      for (const Disagreement& found : recheck(json_of(*result)))
        ADD_FAILURE() << found.subject << ": " << found.detail;
    return result;
  }
  static ReasonCode code(const GateResult& result) { return result.decision().reasons.at(0).code; }

  fs::path directory;
  GateObserver observer;
  std::vector<std::string> lines;
};

TEST_F(GateTest, AMutantIsRejectedWithTheMetricThatCaughtIt) {
  const auto result = run(small("cpu.naive", "mutant.drops_last_key"));
  ASSERT_TRUE(result) << result.status().message();
  EXPECT_EQ(result->decision().exit_code, 20);
  EXPECT_EQ(result->decision().outcome, Outcome::reject);
  EXPECT_EQ(code(*result), ReasonCode::numerics);
  EXPECT_FALSE(result->record.fast) << "a failed gate ends the walk";
  EXPECT_NE(gate_text(json_of(*result), false).find("REJECT(NUMERICS)"), std::string::npos);
}

TEST_F(GateTest, ABreachOfIntegrityHasItsOwnCode) {
  const auto result = run(small("cpu.naive", "mutant.modifies_input"));
  ASSERT_TRUE(result) << result.status().message();
  EXPECT_EQ(result->decision().exit_code, 21);
  EXPECT_EQ(code(*result), ReasonCode::integrity);
}

TEST_F(GateTest, TheSameVariantTwiceIsNoComparison) {
  const auto result = run(small("cpu.naive", "cpu.naive"));
  ASSERT_TRUE(result) << result.status().message();
  EXPECT_EQ(result->decision().exit_code, 10);
  EXPECT_EQ(result->decision().outcome, Outcome::defer);
  EXPECT_EQ(code(*result), ReasonCode::no_op);
  // It was measured all the same, in both processes, with an A/A beside it.
  const GateTimes& fast = result->record.fast->at(0);
  EXPECT_EQ(fast.processes, 2);
  EXPECT_TRUE(fast.same);
  EXPECT_EQ(result->headline.size(), 3u);
  // What was walked is the list that --status shows of such a job.
  const Walk walk{.shapes = {{"1x2x33x16"}}, .processes = 2};
  std::vector<WalkStep> walked;
  for (const GateStep& step : result->record.steps) walked.push_back(step.step);
  EXPECT_EQ(walked, steps_of(walk));
  for (const WalkStep& step : walked)
    EXPECT_TRUE(fs::exists(directory / "steps" / (name_of(step) + ".json"))) << name_of(step);
  EXPECT_TRUE(fs::exists(directory / "gate.json"));
  EXPECT_TRUE(fs::exists(directory / "report.md"));
  EXPECT_EQ(*read_json(directory / "gate.json"), json_of(*result));
}

TEST_F(GateTest, AWrongBaselineDecidesNothing) {
  const auto result = run(small("mutant.gain", "cpu.naive"));
  ASSERT_TRUE(result) << result.status().message();
  EXPECT_EQ(result->decision().exit_code, 10);
  EXPECT_EQ(code(*result), ReasonCode::inconclusive);
  EXPECT_NE(result->decision().reasons.at(0).detail.find("the baseline mutant.gain is RED"),
            std::string::npos);
}

TEST_F(GateTest, AnInterruptedWalkGoesOnAfterTheLastFinishedStep) {
  const auto first = run(small("cpu.naive", "cpu.flash"));
  ASSERT_TRUE(first) << first.status().message();
  // As after a kill in the second process of FAST.
  fs::remove(directory / "steps" / "fast.0.1.json");
  fs::remove(directory / "gate.json");
  lines.clear();
  const auto second = resume_gate(directory, observer);
  ASSERT_TRUE(second) << second.status().message();
  int taken = 0;
  for (const std::string& line : lines)
    taken += line.find("taken from the checkpoint") != std::string::npos;
  EXPECT_EQ(taken, 4) << "plans, GREEN, what else it takes, and the first process";
  EXPECT_EQ(lines.size(), 5u);
  EXPECT_TRUE(fs::exists(directory / "gate.json"));
}

TEST_F(GateTest, WhatAnotherBuildBeganIsNotResumed) {
  ASSERT_TRUE(run(small("cpu.naive", "mutant.gain")));
  auto job = *read_json(directory / "job.json");
  job["build"]["git_sha"] = "of another day";
  std::ofstream(directory / "job.json") << job;
  const auto resumed = resume_gate(directory, observer);
  ASSERT_FALSE(resumed);
  EXPECT_EQ(resumed.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(resumed.status().message().find("begun by another build"), std::string::npos);
}

TEST_F(GateTest, WhatAnotherDeviceBeganIsNotResumed) {
  ASSERT_TRUE(run(small("cpu.naive", "cpu.naive")));
  {
    auto job = Checkpoint::resume(directory, kGateSchema);
    json step = *job->load("fast.0.0");
    step["samples"]["shapes"][0]["device"]["name"] = "another machine";
    ASSERT_TRUE(job->save("fast.0.0", step));
    const auto beside = resume_gate(directory, observer);
    ASSERT_FALSE(beside);
    EXPECT_NE(beside.status().message().find("another process is at work"), std::string::npos);
  }
  const auto resumed = resume_gate(directory, observer);
  ASSERT_FALSE(resumed);
  EXPECT_EQ(resumed.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(resumed.status().message().find("another machine"), std::string::npos)
      << resumed.status().message();
}

TEST_F(GateTest, StepsThatAreNotWhatWasSavedAreRefusedByName) {
  ASSERT_TRUE(run(small("cpu.naive", "cpu.flash")));
  const fs::path file = directory / "steps" / "fast.0.0.json";
  const json step = *read_json(file);
  const auto refused = [&](const std::string& why, const fs::path& where) {
    const auto resumed = resume_gate(directory, observer);
    ASSERT_FALSE(resumed) << why;
    EXPECT_EQ(resumed.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(resumed.status().message().find(where.string()), std::string::npos)
        << resumed.status().message();
    EXPECT_NE(resumed.status().message().find(why), std::string::npos)
        << resumed.status().message();
  };
  json faster = step;
  faster["samples"]["shapes"][0]["blocks"][0]["seconds"][0] = 1e-9;
  std::ofstream(file) << faster;
  refused("saved something else", file);
  std::ofstream(file) << "[]";
  refused("is no step of a job", file);
  std::ofstream(file) << "{\"sam";
  refused("perhaps truncated; delete this file", file);
  std::ofstream(file) << step;
  // Sides changed under the steps: nothing of them holds.
  json job = *read_json(directory / "job.json");
  std::swap(job["options"]["baseline"], job["options"]["candidate"]);
  std::ofstream(directory / "job.json") << job;
  refused("saved something else", directory / "steps" / "build.json");
}

TEST_F(GateTest, OtherInstructionsDoNotGoOn) {
  ASSERT_TRUE(run(small("cpu.naive", "cpu.flash")));
  json job = *read_json(directory / "job.json");
  ASSERT_GE(job["build"]["cpu"]["threads"].get<int>(), 1);
  job["build"]["cpu"]["isa"] = "of another day";
  std::ofstream(directory / "job.json") << job;
  const auto resumed = resume_gate(directory, observer);
  ASSERT_FALSE(resumed);
  EXPECT_NE(resumed.status().message().find("GREENFAST_ISA"), std::string::npos)
      << resumed.status().message();
}

TEST_F(GateTest, AStoppedWalkSaysWhereItIsAndGoesOn) {
  int asked = 0;
  observer.stop = [&] { return ++asked > 2; };
  EXPECT_THROW((void)run(small("cpu.naive", "cpu.flash")), GateStopped);
  EXPECT_FALSE(fs::exists(directory / "gate.json"));
  observer.stop = nullptr;
  const auto resumed = resume_gate(directory, observer);
  ASSERT_TRUE(resumed) << resumed.status().message();
  EXPECT_TRUE(fs::exists(directory / "gate.json"));
}

TEST_F(GateTest, APeerThatCannotBeMeasuredIsSkippedAndDecidesNothing) {
  setenv("GREENFAST_PYTHON", "/nowhere/python3", 1);
  GateOptions options = small("cpu.naive", "cpu.naive");
  options.peers = {"peer:torch-cpu"};
  const auto result = run(options);
  unsetenv("GREENFAST_PYTHON");
  ASSERT_TRUE(result) << result.status().message();
  EXPECT_EQ(code(*result), ReasonCode::no_op);
  EXPECT_NE(result->record.peers->skipped.find("/nowhere/python3"), std::string::npos);
  const std::string& last = result->headline.at(2);
  EXPECT_NE(last.find("peers SKIPPED"), std::string::npos) << last;
  EXPECT_NE(gate_markdown(json_of(*result)).find("## Beside peers"), std::string::npos);

  options.peers = {"peer:torch-cudnn"};
  EXPECT_EQ(check_gate(options).code(), StatusCode::invalid_argument);
  options.peers = {"cpu.flash"};
  EXPECT_NE(check_gate(options).message().find("--peers cpu.flash"), std::string::npos);
}

TEST_F(GateTest, TheReportTellsTheDistanceToTheBestPeer) {
  const auto result = run(small("cpu.naive", "cpu.naive"));
  ASSERT_TRUE(result);
  EXPECT_NE(result->headline.at(2).find("no peer measured"), std::string::npos);
  json record = json_of(*result);
  const auto side = [](const char* id, double p50, double speedup) {
    return json{{"id", id},
                {"verdict", "GREEN"},
                {"errors", {{"rel_fro", 2e-7}}},
                {"p50", p50},
                {"p90", p50},
                {"speedup", {{"value", speedup}, {"lo", speedup}, {"hi", speedup}}}};
  };
  record["peers"] = {{"shape", "mission"},
                     {"sides", {side("peer:slow", 3e-3, 3), side("peer:torch-cpu", 2e-3, 2)}},
                     {"notes", {"one process"}},
                     {"best", "peer:torch-cpu"}};
  EXPECT_NE(
      gate_headline(record)[2].find("2.000x [2.000, 2.000] against the best peer, peer:torch-cpu"),
      std::string::npos)
      << gate_headline(record)[2];
  EXPECT_NE(gate_markdown(record).find("| peer:slow | 3.000 ms |"), std::string::npos);
}

TEST_F(GateTest, AStepOfAnotherMakeIsRefused) {
  ASSERT_TRUE(run(small("cpu.naive", "mutant.gain")));
  ASSERT_TRUE(Checkpoint::resume(directory, kGateSchema)->save("green.0", {{"candidate", 3}}));
  const auto resumed = resume_gate(directory, observer);
  ASSERT_FALSE(resumed);
  EXPECT_NE(resumed.status().message().find("not what this version writes"), std::string::npos);
}

TEST_F(GateTest, StepsWithEmptyListsAreRefused) {
  ASSERT_TRUE(run(small("cpu.naive", "cpu.flash")));
  const auto refuses = [&](const std::string& step, const std::function<void(json&)>& change) {
    {
      auto job = Checkpoint::resume(directory, kGateSchema);
      ASSERT_TRUE(job) << job.status().message();
      const json kept = *job->load(step);
      json forged = kept;
      change(forged);
      ASSERT_TRUE(job->save(step, forged));
    }
    const auto resumed = resume_gate(directory, observer);
    ASSERT_FALSE(resumed) << step;
    EXPECT_NE(resumed.status().message().find("not what this version writes"), std::string::npos)
        << resumed.status().message();
  };
  refuses("fast.0.1", [](json& fast) { fast["samples"]["shapes"] = json::array(); });
  refuses("fast.0.0", [](json& fast) { fast["checks"] = json::array(); });
  refuses("fast.0.0", [](json& fast) { fast["samples"]["shapes"][0]["blocks"] = json::array(); });
  refuses("green.0", [](json& green) { green["candidate"] = json::object(); });
  refuses("build", [](json& build) { build["shapes"] = json::array(); });
}

TEST_F(GateTest, ARefusedPrimaryShapeEndsWithTheReason) {
  GateOptions options = small("cpu.naive", "cpu.flash");
  options.primary = "1x2x33x12";  // head dim 12 is no multiple of 8
  auto result = run(options);
  ASSERT_FALSE(result);
  EXPECT_TRUE(result.status().code() == StatusCode::unsupported ||
              result.status().code() == StatusCode::invalid_argument);
  for (const auto& [field, value, words] :
       {std::tuple(&GateOptions::primary, "nowhere", "nowhere"),
        std::tuple(&GateOptions::primary, "small,long", "one decides"),
        std::tuple(&GateOptions::candidate, "cpu.*", "one with one"),
        std::tuple(&GateOptions::dtype, "fp64", "--dtype fp64"),
        std::tuple(&GateOptions::causal, "upwards", "--causal upwards"),
        std::tuple(&GateOptions::policy, "lenient", "lenient")}) {
    options = small("cpu.naive", "cpu.flash");
    options.*field = value;
    result = run(options);
    ASSERT_FALSE(result) << value;
    EXPECT_EQ(result.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(result.status().message().find(words), std::string::npos)
        << result.status().message();
  }
}

}  // namespace
}  // namespace greenfast::workbench::test
