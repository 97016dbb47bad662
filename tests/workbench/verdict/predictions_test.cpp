// One table of predictions: a row for each step, none for what is no step.
#include "workbench/verdict/predictions.hpp"

#include <gtest/gtest.h>

namespace greenfast::workbench::test {
namespace {

std::vector<Prediction> builtin() {
  auto read = parse_predictions("policies/predictions.toml", builtin_predictions());
  EXPECT_TRUE(read.ok()) << read.status().message();
  return read.ok() ? *read : std::vector<Prediction>();
}

TEST(Predictions, EveryStepOfTheLadderHasOneAndNothingElseHas) {
  EXPECT_EQ(gaps_in(builtin()), std::vector<std::string>{});
}

TEST(Predictions, AStepWithoutOneIsNamed) {
  std::vector<Prediction> rows = builtin();
  ASSERT_GT(rows.size(), 2u);
  const std::string lost = rows[1].candidate;
  rows.erase(rows.begin() + 1);
  rows[0].written.clear();
  const auto gaps = gaps_in(rows);
  ASSERT_EQ(gaps.size(), 2u);
  EXPECT_NE(gaps[0].find("needs speedup, expected, because and written"), std::string::npos);
  EXPECT_EQ(gaps[1].find(lost + " after"), 0u) << gaps[1];
}

TEST(Predictions, ARowThatIsNoStepIsNamedWithItsLine) {
  std::vector<Prediction> rows = builtin();
  const auto other = parse_predictions(
      "t", "\n[[change]]\ncandidate = \"cuda.v2c.v8\"\nbaseline = \"cuda.v2c.v3\"\n");
  ASSERT_TRUE(other.ok()) << other.status().message();
  rows.push_back(other->front());
  EXPECT_EQ(gaps_in(rows),
            std::vector<std::string>{
                "t: line 2: cuda.v2c.v8 after cuda.v2c.v3 is no step of the ladder"});
}

TEST(Predictions, AnUnknownStepIsRefusedWithTheLine) {
  const auto refused = [](const std::string& row, const std::string& words) {
    const auto read = parse_predictions(
        "plan.toml",
        "\n[[change]]\ncandidate = \"cuda.v2c.v8\"\nbaseline = \"cuda.v2c.v7\"\n" + row);
    ASSERT_FALSE(read.ok()) << row;
    EXPECT_EQ(read.status().message().find("plan.toml: line "), 0u) << read.status().message();
    EXPECT_NE(read.status().message().find(words), std::string::npos) << read.status().message();
  };
  refused("\n[[change]]\ncandidate = \"cuda.v9\"\nbaseline = \"cuda.v2c.v7\"\n",
          "line 6: change: cuda.v9: no variant is called so");
  refused("[[change]]\ncandidate = \"cuda.v2c.v8\"\nbaseline = \"cuda.v2c.v7\"\n",
          "has a row already");
  refused("speedup = 1.2\n", "line 2: change: speedup: expected least and most");
  refused("speedup = [1.2, 1.1]\n", "least and most");
  refused("expected = 2\n", "expected: expected a text");
  refused("time = \"faster\"\n", "expected up, down or equal");
  refused("symptom = \"bank_conflicts\"\n", "symptom: expected two metrics");
  refused("symptom = { metric = \"a\", of = \"b\", above = 2 }\n", "a part of 1");
  refused("control = \"\"\n", "control: expected a text");
  refused("control = \"why\"\nsymptom = { metric = \"a\", of = \"b\", above = 0.5 }\n",
          "symptom or control, not both");
  refused("[steps]\n", "possible are [[change]]");
}

TEST(Predictions, ARowOfAnExperimentalKernelIsLeftOutWhereTheBuildLacksIt) {
  const std::string step = "[[change]]\ncandidate = \"cuda.v2c.v8\"\nbaseline = \"cuda.v2c.v7\"\n";
  const auto read = parse_predictions(
      "t", step +
               "experimental = true\n[[change]]\ncandidate = \"cuda.v9\"\nbaseline = "
               "\"cuda.v2c.v8\"\nexperimental = true\n");
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read->size(), 1u);
  EXPECT_EQ(read->front().candidate, "cuda.v2c.v8");
  const auto refused = parse_predictions("t", step + "experimental = \"yes\"\n");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("t: line 1: change: experimental: expected true"),
            std::string::npos);
}

TEST(Predictions, MetricsAreAskedForWhereTheyAreKnown) {
  const std::string row =
      "[[change]]\ncandidate = \"cuda.v2c.v8\"\nbaseline = \"cuda.v2c.v7\"\ntensors = \"up\"\n";
  EXPECT_TRUE(parse_predictions("t", row).ok());
  const auto read = parse_predictions("t", row, [](std::string_view id) { return id == "time"; });
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.status().message().find("tensors: no such metric"), std::string::npos);
}

TEST(Predictions, AMeasurementIsSetBesideThem) {
  const std::pair predicted(1.05, 1.10);
  EXPECT_EQ(outcome_of(predicted, {1.02, 1.01, 1.04}), PredictionOutcome::less);
  EXPECT_EQ(outcome_of(predicted, {1.04, 1.03, 1.05}), PredictionOutcome::as_predicted)
      << "the intervals meet";
  EXPECT_EQ(outcome_of(predicted, {1.12, 1.11, 1.13}), PredictionOutcome::more);
}

}  // namespace
}  // namespace greenfast::workbench::test
