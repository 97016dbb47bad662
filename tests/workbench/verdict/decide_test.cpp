// From intervals to verdicts, with intervals made to measure.
#include "workbench/verdict/decide.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "workbench/base/exit_code.hpp"

namespace greenfast::workbench::test {
namespace {

/// A log-ratio whose interval is about [lo, hi]: draws spread evenly, many blocks.
LogRatio ratio(double lo, double hi) {
  LogRatio r;
  r.blocks = 1000;
  r.point = 0.5 * (std::log(lo) + std::log(hi));
  const double half = 0.5 * (std::log(hi) - std::log(lo)) / 0.95;
  for (int i = 0; i < 10'000; ++i) r.draws.push_back(r.point + half * (2.0 * i / 9999 - 1));
  return r;
}

ShapeEvidence shape(const char* name, bool primary, LogRatio p50, LogRatio p90) {
  ShapeEvidence s;
  s.name = name;
  s.primary = primary;
  s.p50 = std::move(p50);
  s.p90 = std::move(p90);
  return s;
}
ShapeEvidence shape(const char* name, bool primary, double lo, double hi) {
  return shape(name, primary, ratio(lo, hi), ratio(lo, hi));
}

std::vector<std::string> codes(const Decision& decision) {
  std::vector<std::string> out;
  for (const Reason& reason : decision.reasons) out.emplace_back(name_of(reason.code));
  return out;
}

Decision judge(std::vector<ShapeEvidence> shapes) { return decide(shapes, {}); }

TEST(Decide, PromotesWhenEveryLowerBoundReachesItsThreshold) {
  const Decision d = judge({shape("mission", true, 1.12, 1.2), shape("small", false, 0.99, 1.0)});
  EXPECT_EQ(d.outcome, Outcome::promote);
  EXPECT_EQ(d.exit_code, kPassed);
  EXPECT_TRUE(d.reasons.empty());
}

TEST(Decide, TheSmallerOfP50AndP90Decides) {
  const Decision d = judge({shape("mission", true, ratio(1.2, 1.3), ratio(1.0, 1.05))});
  EXPECT_EQ(d.outcome, Outcome::defer);
  EXPECT_EQ(codes(d), std::vector<std::string>{"BELOW_GATE"});
  EXPECT_NE(d.reasons[0].detail.find("p90"), std::string::npos);
}

TEST(Decide, RegressionsReject) {
  Decision d = judge({shape("mission", true, 0.9, 0.97)});
  EXPECT_EQ(d.outcome, Outcome::reject);
  EXPECT_EQ(d.exit_code, kRegression);
  // A guard may lose up to 2%.
  d = judge({shape("mission", true, 1.2, 1.3), shape("long", false, 0.9, 0.97)});
  EXPECT_EQ(d.outcome, Outcome::reject);
  EXPECT_EQ(codes(d)[0], "REGRESSION");
  d = judge({shape("mission", true, 1.2, 1.3), shape("long", false, 0.981, 0.99)});
  EXPECT_EQ(d.outcome, Outcome::promote);
}

TEST(Decide, FewProcessesThatDifferRejectNothing) {
  // Their samples alone would say slower; the two of them say that another might say faster.
  LogRatio p90 = ratio(0.94, 0.98);
  EXPECT_EQ(judge({shape("mission", true, ratio(1.2, 1.3), p90)}).outcome, Outcome::reject);
  p90.processes = 2;
  p90.process_error = 0.012;
  const Decision d = judge({shape("mission", true, ratio(1.2, 1.3), p90)});
  EXPECT_EQ(codes(d), std::vector<std::string>{"INCONCLUSIVE"});
  EXPECT_NE(d.reasons[0].settle.find("more processes (--processes)"), std::string::npos)
      << d.reasons[0].settle;
}

TEST(Decide, AStraddlingIntervalSaysHowManySamplesMore) {
  LogRatio wide = ratio(1.05, 1.25);
  const Decision d = judge({shape("mission", true, wide, ratio(1.2, 1.3))});
  EXPECT_EQ(d.outcome, Outcome::defer);
  EXPECT_EQ(d.exit_code, kDefer);
  ASSERT_EQ(codes(d), std::vector<std::string>{"INCONCLUSIVE"});
  EXPECT_NE(d.reasons[0].settle.find("more samples"), std::string::npos) << d.reasons[0].settle;
  wide.resolution = 0.2;
  EXPECT_NE(judge({shape("mission", true, wide, ratio(1.2, 1.3))})
                .reasons[0]
                .settle.find("no number of samples"),
            std::string::npos);
}

TEST(Decide, ABiasedMethodMakesAPromotionNoisy) {
  ShapeEvidence s = shape("mission", true, 1.12, 1.2);
  s.same = ratio(1.03, 1.05);  // the baseline against itself should contain 1
  const Decision d = judge({s});
  EXPECT_EQ(d.outcome, Outcome::defer);
  EXPECT_EQ(codes(d)[0], "NOISY");
  s.same = ratio(0.97, 1.05);
  EXPECT_EQ(judge({s}).outcome, Outcome::promote)
      << "noise without bias is in the interval already";
  // A verdict that survives the bias stands.
  ShapeEvidence clear = shape("mission", true, 9.0, 10.0);
  clear.same = ratio(1.03, 1.05);
  EXPECT_EQ(judge({clear}).outcome, Outcome::promote);
  ShapeEvidence slow = shape("mission", true, 0.1, 0.2);
  slow.same = ratio(1.03, 1.05);
  EXPECT_EQ(judge({slow}).outcome, Outcome::reject);
}

// A PROMOTE once stood beside an A/A interval of 0.31 to 1.95.
TEST(Decide, AnAAIntervalWiderThanThePolicyAllowsDecidesNothing) {
  Thresholds thresholds;
  thresholds.noise = 0.05;
  for (const auto& [lo, hi] : {std::pair(1.5, 1.6), std::pair(0.5, 0.6)}) {
    ShapeEvidence wide = shape("mission", true, lo, hi);
    wide.same = ratio(0.31, 1.95);
    const Decision d = decide(std::vector{wide}, thresholds);
    EXPECT_EQ(d.outcome, Outcome::defer);
    ASSERT_EQ(codes(d), std::vector<std::string>{"NOISY"});
    EXPECT_NE(d.reasons[0].detail.find("away from 1, and the policy allows 5%"), std::string::npos)
        << d.reasons[0].detail;
    wide.same = ratio(0.96, 1.04);
    EXPECT_TRUE(codes(decide(std::vector{wide}, thresholds)) != codes(d)) << "inside the limit";
  }
  // What is impossible stays so on a noisy machine.
  ShapeEvidence fast = shape("mission", true, 90.0, 100.0);
  fast.impossible = "faster than light";
  fast.same = ratio(0.31, 1.95);
  EXPECT_EQ(codes(decide(std::vector{fast}, thresholds)), std::vector<std::string>{"IMPOSSIBLE"});
}

TEST(Decide, ImpossibleAndUnmeasuredShapes) {
  ShapeEvidence fast = shape("mission", true, 90.0, 100.0);
  fast.impossible = "faster than light";
  const Decision d = judge({fast});
  EXPECT_EQ(d.outcome, Outcome::reject);
  EXPECT_EQ(d.exit_code, kIntegrity);
  ShapeEvidence missing;
  missing.name = "long";
  missing.missing = "refused";
  const Decision e = judge({shape("mission", true, 1.2, 1.3), missing});
  EXPECT_EQ(e.outcome, Outcome::defer);
  EXPECT_NE(e.reasons[0].detail.find("refused"), std::string::npos);
}

TEST(Decide, TheGravestReasonGivesTheExitCode) {
  const Decision d = from_reasons({{ReasonCode::tool_missing, "", ""},
                                   {ReasonCode::regression, "", ""},
                                   {ReasonCode::numerics, "", ""}});
  EXPECT_EQ(d.outcome, Outcome::reject);
  EXPECT_EQ(d.exit_code, kNumerics);
  EXPECT_EQ(codes(d), (std::vector<std::string>{"REGRESSION", "NUMERICS"}));
  EXPECT_EQ(from_reasons({{ReasonCode::crash, "", ""}, {ReasonCode::integrity, "", ""}}).exit_code,
            kCrash);
  EXPECT_EQ(
      from_reasons({{ReasonCode::impossible, "", ""}, {ReasonCode::resources, "", ""}}).exit_code,
      kIntegrity);
  EXPECT_EQ(from_reasons({{ReasonCode::resources, "", ""}}).exit_code, kResources);
  EXPECT_EQ(from_reasons({{ReasonCode::no_op, "", ""}}).exit_code, kDefer);
  EXPECT_EQ(from_reasons({}).outcome, Outcome::promote);
}

}  // namespace
}  // namespace greenfast::workbench::test
