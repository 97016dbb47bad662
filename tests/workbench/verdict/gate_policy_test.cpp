// The gate's policy and its options, as files and back.
#include "workbench/verdict/gate_policy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "workbench/verdict/gate.hpp"

namespace greenfast::workbench::test {
namespace {

using nlohmann::json;

TEST(GatePolicy, TheBuiltInOneHoldsTheLaddersGates) {
  const auto policy = parse_gate_policy("gate.toml", builtin_gate_policy());
  ASSERT_TRUE(policy) << policy.status().message();
  EXPECT_EQ(policy->rule("cuda.stage_c.stage2").gate, 1.15);
  EXPECT_EQ(policy->rule("cuda.stage_c.stage3a").tree, "stage3");
  EXPECT_FALSE(policy->rule("cpu.flash").gate) << "the numerics policy's gate applies";
  EXPECT_EQ(policy->cpu_arena_bytes, 8 << 20);
  EXPECT_EQ(policy->noise_floor, 0.05) << "a verdict needs an A/A that is closer to 1";
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

// A row for a candidate that nobody is called would never apply.
TEST(GatePolicy, ARungOfNoCandidateIsRefusedWithItsLine) {
  const auto with = [](const std::string& candidate) {
    const std::string text(builtin_gate_policy());
    return parse_gate_policy("my.toml", text + "\n[[rung]]\ncandidate = \"" + candidate + "\"\n")
        .status()
        .message();
  };
  const std::string builtin(builtin_gate_policy());
  const auto line = std::count(builtin.begin(), builtin.end(), '\n') + 3;
  for (const char* wrong : {"cuda.stage_c.stag2", "", "cpu.*", "ladder", "mutant.no_such"})
    EXPECT_EQ(with(wrong).find("my.toml: line " + std::to_string(line) + ": rung["), 0u)
        << wrong << ": " << with(wrong);
  EXPECT_NE(with("cuda.stage_c.stag2").find("cuda.stage_c.stage2"), std::string::npos)
      << with("cuda.stage_c.stag2");
  for (const char* good : {"cpu.flash", "cuda.v2c.v3", "mutant.drops_key_tile", "plugin:mine"})
    EXPECT_EQ(with(good), "") << good;
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
