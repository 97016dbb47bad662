// One side beside the best of several: who is the best, and what that comes to over shapes.
#include "workbench/verdict/compare_best.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/workbench/fast/simulated_timer.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/green/policy.hpp"

namespace greenfast::workbench::test {
namespace {

using nlohmann::json;

/// A shape at which ours takes 100 us and the others so many times that, on a quiet machine.
Samples shape(const std::string& problem, const std::vector<double>& times, std::uint64_t seed,
              double jitter = 0.001) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal{0.0, jitter};
  Samples out;
  out.name = out.problem = problem;
  out.device_name = "one machine";
  out.timer = "simulated";
  out.tick_seconds = 1e-9;
  for (std::size_t i = 0; i <= times.size(); ++i) {
    Side side;
    side.id = i == 0 ? "ours" : "peer:" + std::string(1, static_cast<char>('a' + i - 1));
    side.correctness = {Verdict::green, {}};
    out.sides.push_back(std::move(side));
  }
  for (int b = 0; b < 15; ++b) {
    Block block;
    for (std::size_t i = 0; i < out.sides.size(); ++i)
      block.samples.push_back(
          {static_cast<int>(i), 1e-4 * (i == 0 ? 1.0 : times[i - 1]) * std::exp(normal(random))});
    out.blocks.push_back(std::move(block));
  }
  return out;
}

const std::vector<std::string> kPeers = {"peer:a", "peer:b"};

TEST(CompareBest, TheFastestThatIsRightSetsThePaceAtEachShape) {
  Recording r;
  r.shapes = {shape("1x2x64x64 fp16", {2.0, 1.5}, 1), shape("1x2x128x64 fp16", {1.2, 3.0}, 2),
              shape("1x2x256x64 bf16", {0.5, 0.8}, 3)};
  r.shapes[1].sides[1].correctness = {Verdict::red, "max_row"};
  r.shapes[2].sides[0].variant = "cuda.other";
  r.shapes[0].sides[0].variant = r.shapes[1].sides[0].variant = "cuda.one";
  const auto c = compare_best(r, kPeers, "ours");
  ASSERT_TRUE(c) << c.status().message();
  ASSERT_EQ(c->shapes.size(), 3u);
  EXPECT_EQ(c->shapes[0].best, "peer:b");
  EXPECT_EQ(c->shapes[1].best, "peer:b") << "what is wrong sets no pace";
  EXPECT_EQ(c->shapes[2].best, "peer:a");
  EXPECT_NEAR(c->shapes[1].p50.value, 3.0, 0.01);
  EXPECT_EQ(c->exit_code, 0) << "a wrong peer is no failure of ours";
  // The interval is that of ours beside the best alone.
  const Comparison alone = *compare_sides(r, "peer:b", "ours");
  EXPECT_EQ(c->shapes[0].p50.lo, alone.shapes[0].p50.lo);

  ASSERT_TRUE(c->all);
  EXPECT_EQ(c->all->shapes, 3);
  EXPECT_EQ(c->all->faster, 2);
  EXPECT_EQ(c->all->slower, 1);
  EXPECT_NEAR(c->all->least, 0.5, 0.01);
  EXPECT_NEAR(c->all->most, 3.0, 0.01);
  EXPECT_NEAR(c->all->p50.value, std::cbrt(1.5 * 3.0 * 0.5), 0.01);
  EXPECT_LT(c->all->p50.lo, c->all->p50.value);
  EXPECT_GT(c->all->p50.hi, c->all->p50.value);
  EXPECT_LT(c->all->p50.hi / c->all->p50.lo, 1.01);
  ASSERT_EQ(c->by_type.size(), 2u);
  EXPECT_EQ(c->by_type[0].dtype, DType::f16);
  EXPECT_NEAR(c->by_type[0].standing.p50.value, std::sqrt(1.5 * 3.0), 0.01);
  EXPECT_EQ(c->by_type[1].standing.faster, 0);
  ASSERT_EQ(c->by_variant.size(), 2u);
  EXPECT_EQ(c->by_variant[0].variant, "cuda.one");
  EXPECT_EQ(c->by_variant[0].standing.shapes, 2);
}

TEST(CompareBest, CallsAfterAPauseJoinNoMeanOfOthers) {
  Recording r;
  r.shapes = {shape("1x2x64x64 fp32", {2.0, 2.5}, 1), shape("1x2x64x64 fp32", {8.0, 9.0}, 2)};
  r.shapes[1].name += " after 50 ms";
  r.shapes[1].metric = CallMetric::after_pause;
  const auto c = compare_best(r, kPeers, "ours");
  ASSERT_TRUE(c);
  ASSERT_EQ(c->by_type.size(), 2u);
  EXPECT_NEAR(c->by_type[0].standing.p50.value, 2.0, 0.01);
  EXPECT_NEAR(c->by_type[1].standing.p50.value, 8.0, 0.05);
  EXPECT_EQ(standings_json(*c)["types"][1]["metric"], "after_pause");
}

TEST(CompareBest, WhereNobodyIsRightThereIsNoBestAndNoMean) {
  Recording r;
  r.shapes = {shape("1x2x64x64 fp16", {2.0, 1.5}, 1)};
  for (const int peer : {1, 2}) r.shapes[0].sides[static_cast<std::size_t>(peer)].correctness = {};
  auto c = compare_best(r, kPeers, "ours");
  ASSERT_TRUE(c);
  EXPECT_EQ(c->shapes[0].best, "") << "what was held to nothing sets no pace";
  EXPECT_FALSE(c->all);
  EXPECT_TRUE(to_json(*c)["shapes"][0]["best"].is_null());
  EXPECT_TRUE(to_json(*c)["standings"]["all"].is_null());
  EXPECT_NE(compare_text(*c, false).find("none"), std::string::npos);
  // Ours wrong: nobody is slower than that, and it is a failure.
  r.shapes = {shape("1x2x64x64 fp16", {2.0, 1.5}, 1)};
  r.shapes[0].sides[0].correctness = {Verdict::red, "max_row"};
  c = compare_best(r, kPeers, "ours");
  ASSERT_TRUE(c);
  EXPECT_EQ(c->shapes[0].best, "");
  EXPECT_EQ(c->exit_code, 20);
  EXPECT_FALSE(compare_best(r, {"peer:c"}, "ours"));
  EXPECT_FALSE(compare_best(r, {}, "ours"));
}

TEST(CompareBest, ARefusedPeerIsNamedAndTheRestGoesOn) {
  Recording r;
  r.shapes = {shape("1x2x64x64 fp16", {2.0, 1.5}, 1)};
  Samples& s = r.shapes[0];
  s.sides[2].refused = "takes D 128 alone";
  for (Block& block : s.blocks) block.samples.pop_back();
  const auto c = compare_best(r, kPeers, "ours");
  ASSERT_TRUE(c) << c.status().message();
  EXPECT_EQ(c->shapes[0].best, "peer:a");
  EXPECT_NE(compare_markdown(*c).find("SKIPPED 1x2x64x64 fp16: peer:b: takes D 128 alone"),
            std::string::npos);
  EXPECT_EQ(to_json(*c)["schema"], kCompareBestSchema);
  EXPECT_EQ(to_json(*c)["beside"][1]["skipped"][0]["reason"], "no_samples");
}

TEST(CompareBest, ChoosingTheBestOfEqualsFlattersNobodyOfOurs) {
  // Three rivals that take the same time, as noisy as they are alike: the one that looks fastest is
  // ahead by its noise, and our ratio is too small rather than too large.
  int above = 0, contains = 0;
  constexpr int kTrials = 200;
  for (int trial = 0; trial < kTrials; ++trial) {
    Recording r;
    r.shapes = {
        shape("1x2x64x64 fp16", {1.2, 1.2, 1.2}, 500 + static_cast<std::uint64_t>(trial), 0.01)};
    const auto c = compare_best(r, {"peer:a", "peer:b", "peer:c"}, "ours");
    ASSERT_TRUE(c);
    above += c->shapes[0].p50.lo > 1.2;
    contains += c->shapes[0].p50.lo <= 1.2 && 1.2 <= c->shapes[0].p50.hi;
  }
  EXPECT_LE(above, 0.025 * kTrials);
  EXPECT_GE(contains, 0.85 * kTrials);
}

TEST(Errors, ARecordersErrorsAreHeldToThePolicysCaps) {
  Recording r;
  r.shapes = {shape("1x2x64x64 fp16", {1.2, 1.3}, 1)};
  std::vector<Side>& sides = r.shapes[0].sides;
  for (Side& side : sides) side.correctness = {};
  sides[0].errors = {{"rel_fro", 3e-4}};
  sides[1].errors = {{"rel_fro", 5e-3}};
  sides[2].errors = {{"rel_fro", 3e-4}, {"max_row", 0.5}, {"taste", 9.0}};
  const Policy strict = *load_policy("strict");
  judge_errors(r, strict);
  EXPECT_EQ(sides[0].correctness.verdict, Verdict::green);
  EXPECT_EQ(describe(sides[1].correctness), "RED: rel_fro 0.005 is above 0.004");
  EXPECT_EQ(describe(sides[2].correctness), "RED: max_row 0.5 is above 0.01");
  EXPECT_EQ(compare_sides(r, "peer:a", "ours")->exit_code, 20);
  // By the type, where a harness says more of a problem than can be read here.
  r.shapes[0].problem = "1x2x64x64 bf16 in a way of its own";
  sides[1].correctness = {};
  judge_errors(r, strict);
  EXPECT_EQ(sides[1].correctness.verdict, Verdict::green);
  r.shapes[0].problem = "something else";
  sides[1].correctness = {};
  judge_errors(r, strict);
  EXPECT_FALSE(sides[1].correctness.verdict) << "no type, no limit";
}

TEST(Errors, ARecordersOwnRedStaysAndItsGreenIsNotBelieved) {
  Recording r;
  r.shapes = {shape("1x2x64x64 fp16", {1.2, 1.3}, 1)};
  std::vector<Side>& sides = r.shapes[0].sides;
  sides[0].errors = {{"rel_fro", 0.5}};
  sides[1].correctness = {Verdict::red, "a row was off"};
  sides[1].errors = {{"rel_fro", 1e-5}};
  judge_errors(r, *load_policy("strict"));
  EXPECT_TRUE(sides[0].correctness.red()) << "said GREEN, with half of it wrong";
  EXPECT_EQ(describe(sides[1].correctness), "RED: a row was off");
  EXPECT_EQ(sides[2].correctness.verdict, Verdict::green) << "no error was written down";
}

}  // namespace
}  // namespace greenfast::workbench::test
