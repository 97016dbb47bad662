// What a verdict advises, for promotions, missed gates and regressions alike.
#include "workbench/verdict/advise.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace greenfast::workbench::test {
namespace {

DecisionTree stage3() {
  const auto policy = parse_gate_policy("gate.toml", builtin_gate_policy());
  EXPECT_TRUE(policy) << policy.status().message();
  return policy->tree("stage3");
}
std::vector<Prediction> predictions() {
  auto rows = parse_predictions("predictions.toml", builtin_predictions());
  EXPECT_TRUE(rows) << rows.status().message();
  return *rows;
}
Advice advice(std::vector<Reason> reasons, const Interval& primary,
              const std::string& candidate = "cuda.stage_c.stage3a",
              const std::string& baseline = "cuda.stage_c.stage2") {
  return advise(from_reasons(std::move(reasons)), stage3(), {baseline, candidate}, primary, 1.10,
                predictions());
}
/// As a gate of its own asks more than the tree: the repository's stage2.
Advice of_stage2(std::vector<Reason> reasons, const Interval& primary) {
  const auto policy = parse_gate_policy("gate.toml", builtin_gate_policy());
  EXPECT_TRUE(policy);
  const RungRule rule = policy->rule("cuda.stage_c.stage2");
  EXPECT_GT(rule.gate.value_or(0), policy->tree(rule.tree).levels[0].at_least);
  return advise(from_reasons(std::move(reasons)), policy->tree(rule.tree),
                {"cuda.stage_c.stage1", "cuda.stage_c.stage2"}, primary, *rule.gate, predictions());
}
bool says(const Advice& advice, const std::string& words) {
  return std::any_of(advice.next.begin(), advice.next.end(), [&](const std::string& line) {
    return line.find(words) != std::string::npos;
  });
}

TEST(Advise, AMissedGateIsToldTheTreesLevelAndWhatToTry) {
  const Advice a = advice({{ReasonCode::below_gate, "short", ""}}, {1.05, 1.04, 1.06});
  EXPECT_EQ(a.level, "");
  ASSERT_EQ(a.levels.size(), 3u);
  EXPECT_EQ(a.levels[0].name, "merge");
  EXPECT_FALSE(a.levels[0].reached);
  EXPECT_TRUE(says(a, "short of level \"merge\", 1.11x"));
  EXPECT_TRUE(says(a, "consider cuda.stage_c.stage3b"));
  EXPECT_TRUE(says(a, "record the finding"));
}

TEST(Advise, AMissedGateAboveTheTreesLevelIsToldBothAndReachesNone) {
  const Advice a = of_stage2({{ReasonCode::below_gate, "short", ""}}, {1.13, 1.12, 1.14});
  EXPECT_EQ(a.level, "") << "nothing was promoted";
  ASSERT_EQ(a.levels.size(), 1u);
  EXPECT_FALSE(a.levels[0].reached);
  EXPECT_TRUE(says(a, "level \"promote\", 1.10x, and this step's own gate asks for 1.15x"));
  EXPECT_TRUE(says(a, "profile both sides"));
}

TEST(Advise, ATailThatMissesTheGateWhileTheMedianDoesNotIsSaidToBeThat) {
  const Advice a = advice({{ReasonCode::below_gate, "p90", ""}}, {1.25, 1.2, 1.3});
  EXPECT_TRUE(says(a, "above its gate of 1.10x"));
  EXPECT_TRUE(says(a, "p90"));
}

TEST(Advise, WhatIsOpenIsSettledFirst) {
  const Advice guard = advice({{ReasonCode::inconclusive, "a guard", ""}}, {1.4, 1.35, 1.45});
  EXPECT_EQ(guard.level, "");
  EXPECT_TRUE(says(guard, "measure what the reasons name"));
  EXPECT_TRUE(says(guard, "above its gate of 1.10x"));
  EXPECT_FALSE(says(guard, "profile to find the bottleneck")) << "the primary shape lacks nothing";
  const Advice primary = advice({{ReasonCode::inconclusive, "", ""}}, {1.12, 1.05, 1.2});
  EXPECT_TRUE(says(primary, "measure what the reasons name"));
  EXPECT_TRUE(says(primary, "short of level \"merge\""));
  const Advice between = of_stage2({{ReasonCode::inconclusive, "", ""}}, {1.15, 1.12, 1.18});
  EXPECT_TRUE(says(between, "measure what the reasons name"));
  EXPECT_TRUE(says(between, "gate asks for 1.15x"));
  for (const Interval& any : {Interval{1.5, 1.2, 1.9}, {1.0, 0.5, 1.9}}) {
    const Advice noisy = advice({{ReasonCode::noisy, "", ""}}, any);
    EXPECT_TRUE(says(noisy, "quieter machine"));
    EXPECT_EQ(noisy.next.size(), 1u) << "an interval that decides nothing advises nothing";
  }
}

TEST(Advise, EveryVerdictThatIsNoPromotionIsAdvised) {
  for (const ReasonCode code :
       {ReasonCode::crash, ReasonCode::timeout, ReasonCode::integrity, ReasonCode::impossible,
        ReasonCode::numerics, ReasonCode::resources, ReasonCode::regression, ReasonCode::below_gate,
        ReasonCode::inconclusive, ReasonCode::noisy, ReasonCode::tool_missing, ReasonCode::no_op}) {
    for (const double lo : {0.5, 1.0, 1.12, 1.2, 2.0}) {
      const Advice a = of_stage2({{code, "", ""}}, {lo + 0.01, lo, lo + 0.02});
      EXPECT_FALSE(a.next.empty()) << name_of(code) << " at " << lo;
      EXPECT_EQ(a.level, "") << name_of(code);
      EXPECT_FALSE(says(a, "reached")) << name_of(code);
    }
    if (code == ReasonCode::regression || code == ReasonCode::below_gate) continue;
    const Advice untimed =
        advise(from_reasons({{code, "", ""}}), stage3(), {"y", "x"}, {}, 1.10, {});
    EXPECT_FALSE(untimed.next.empty()) << name_of(code);
    EXPECT_TRUE(untimed.levels.empty());
  }
}

TEST(Advise, ARegressionIsAdvisedToo) {
  const Advice a = advice({{ReasonCode::regression, "slower", ""}}, {0.945, 0.939, 0.949});
  EXPECT_TRUE(says(a, "keep the baseline"));
  EXPECT_TRUE(says(a, "profile to find the bottleneck"));
  EXPECT_TRUE(says(a, "0.945x"));
}

TEST(Advise, ASlowerGuardBesideAFasterPrimaryIsSaidToBeThat) {
  const Advice a = advice({{ReasonCode::regression, "slower", ""}}, {1.25, 1.2, 1.3});
  EXPECT_EQ(a.level, "") << "nothing was promoted";
  EXPECT_TRUE(says(a, "enough for level \"excellent\": choose the candidate by shape"));
  EXPECT_FALSE(says(a, "stage3b")) << "the primary shape is not short of anything";
}

TEST(Advise, WhatWasGatedIsNotProposedAgain) {
  const Interval slow{0.9, 0.89, 0.91};
  EXPECT_FALSE(
      says(advice({{ReasonCode::regression, "", ""}}, slow, "cuda.stage_c.stage3b"), "stage3b"));
  EXPECT_TRUE(says(advice({{ReasonCode::regression, "", ""}}, slow, "cuda.stage_c.stage3"),
                   "cuda.stage_c.stage3b"));
}

TEST(Advise, WhatItWasHeldAgainstIsNotProposed) {
  const Interval short_of{1.03, 1.01, 1.05};
  const Advice a = advice({{ReasonCode::below_gate, "", ""}}, short_of, "cuda.stage_c.fp8_mma",
                          "cuda.stage_c.stage3b");
  EXPECT_FALSE(says(a, "stage3b")) << "the baseline is what there is";
  EXPECT_TRUE(says(a, "record the finding"));
}

TEST(Advise, AnIdeaIsProposedWhereAProfileShowsWhatItIsFor) {
  std::vector<Prediction> rows = predictions();
  for (Prediction& row : rows)
    if (row.candidate == "cuda.stage_c.stage3b")
      row.symptom = Symptom{"shared_wavefronts", "instructions", 0.2};
  const Advice a = advise(from_reasons({{ReasonCode::below_gate, "", ""}}), stage3(),
                          {"cuda.stage_c.stage2", "cuda.stage_c.stage3a"},
                          Interval{1.05, 1.04, 1.06}, 1.10, rows);
  EXPECT_TRUE(says(a, "where a profile shows shared_wavefronts above 20% of instructions"));
  EXPECT_NE(symptom_in_line("consider cuda.stage_c.stage3b", rows), nullptr);
  EXPECT_EQ(symptom_in_line("gate cuda.stage_c.stage3bis: ...", rows), nullptr);
}

// The tree is the originals' and lists their swizzle, which moves no conflict that is counted.
TEST(Advise, AControlExperimentIsNeverProposed) {
  const DecisionTree tree = stage3();
  ASSERT_NE(tree.below[0].find("cuda.stage_c.swizzle"), std::string::npos);
  for (const ReasonCode code :
       {ReasonCode::below_gate, ReasonCode::regression, ReasonCode::inconclusive})
    for (const char* candidate : {"cuda.stage_c.stage3a", "cuda.stage_c.fp8_mma"})
      EXPECT_FALSE(says(advice({{code, "", ""}}, {1.02, 1.01, 1.03}, candidate), "SWIZZLE"));
  const auto rows = predictions();
  EXPECT_NE(control_in_line(tree.below[0], rows), "");
  EXPECT_EQ(control_in_line("gate cuda.stage_c.swizzle_more", rows), "");
}

TEST(Advise, APromotionIsToldTheNextLevelUntilTheLast) {
  EXPECT_TRUE(says(advice({}, {1.15, 1.12, 1.18}), "level \"excellent\" asks for 1.19x"));
  const Advice top = advice({}, {1.5, 1.4, 1.6});
  EXPECT_EQ(top.level, "outstanding");
  EXPECT_TRUE(top.next.empty());
}

TEST(Advise, WhatIsWrongIsNotAdvisedAboutSpeed) {
  for (const ReasonCode code : {ReasonCode::numerics, ReasonCode::no_op, ReasonCode::resources}) {
    const Advice a = advice({{code, "", ""}}, {1, 0.99, 1.01});
    ASSERT_EQ(a.next.size(), 1u) << name_of(code);
    EXPECT_FALSE(says(a, "level")) << name_of(code);
  }
  EXPECT_TRUE(says(advice({{ReasonCode::numerics, "", ""}}, {1.2, 1.1, 1.3}), "GREEN first"));
  EXPECT_TRUE(says(advice({{ReasonCode::resources, "", ""}}, {1.2, 1.1, 1.3}), "[[waiver]]"));
}

}  // namespace
}  // namespace greenfast::workbench::test
