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
  return advise(from_reasons(std::move(reasons)), stage3(), {baseline, candidate}, primary,
                predictions());
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
  EXPECT_TRUE(says(a, "USE_XOR_SWIZZLE=1"));
  EXPECT_TRUE(says(a, "record the finding"));
}

TEST(Advise, ARegressionIsAdvisedToo) {
  const Advice a = advice({{ReasonCode::regression, "slower", ""}}, {0.945, 0.939, 0.949});
  EXPECT_TRUE(says(a, "keep the baseline"));
  EXPECT_TRUE(says(a, "profile to find the bottleneck"));
  EXPECT_TRUE(says(a, "0.945x"));
}

TEST(Advise, ASlowerGuardBesideAFasterPrimaryIsSaidToBeThat) {
  const Advice a = advice({{ReasonCode::regression, "slower", ""}}, {1.25, 1.2, 1.3});
  EXPECT_EQ(a.level, "excellent");
  EXPECT_TRUE(says(a, "choose the candidate by shape"));
  EXPECT_FALSE(says(a, "USE_XOR_SWIZZLE")) << "the primary shape is not short of anything";
}

TEST(Advise, WhatWasGatedIsNotProposedAgain) {
  const Interval slow{0.9, 0.89, 0.91};
  EXPECT_FALSE(says(advice({{ReasonCode::regression, "", ""}}, slow, "cuda.stage_c.swizzle"),
                    "USE_XOR_SWIZZLE"));
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
  const Advice a = advice({{ReasonCode::below_gate, "", ""}}, {1.05, 1.04, 1.06});
  EXPECT_TRUE(says(a,
                   "USE_XOR_SWIZZLE=1 (cuda.stage_c.swizzle), where a profile shows bank_conflicts "
                   "above 20% of shared_wavefronts"));
  const auto rows = predictions();
  EXPECT_EQ(symptom_in_line("consider cuda.stage_c.stage3b", rows), nullptr);
  ASSERT_NE(symptom_in_line("gate cuda.stage_c.swizzle: ...", rows), nullptr);
  EXPECT_EQ(symptom_in_line("gate cuda.stage_c.swizzle_more: ...", rows), nullptr);
}

TEST(Advise, APromotionIsToldTheNextLevelUntilTheLast) {
  EXPECT_TRUE(says(advice({}, {1.15, 1.12, 1.18}), "level \"excellent\" asks for 1.19x"));
  const Advice top = advice({}, {1.5, 1.4, 1.6});
  EXPECT_EQ(top.level, "outstanding");
  EXPECT_TRUE(top.next.empty());
}

TEST(Advise, WhatIsWrongIsNotAdvisedAboutSpeed) {
  EXPECT_TRUE(advice({{ReasonCode::numerics, "", ""}}, {1.2, 1.1, 1.3}).next.empty());
  EXPECT_TRUE(advice({{ReasonCode::no_op, "", ""}}, {1, 0.99, 1.01}).next.empty());
  const Advice untimed =
      advise(from_reasons({{ReasonCode::resources, "", ""}}), stage3(), {"y", "x"}, {}, {});
  EXPECT_TRUE(untimed.levels.empty());
  EXPECT_TRUE(untimed.next.empty());
}

}  // namespace
}  // namespace greenfast::workbench::test
