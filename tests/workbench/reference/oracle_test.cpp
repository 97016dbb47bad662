// The fp64 oracle against attention written from its definition, element by element.
#include "workbench/reference/oracle.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "workbench/base/numeric.hpp"
#include "workbench/reference/emulator.hpp"
#include "workbench/reference/metrics.hpp"

namespace greenfast::workbench::test {
namespace {

// "query i sees key j iff i + shift - left <= j <= i + shift + right", as types.hpp says.
bool sees(const Problem& p, std::int64_t i, std::int64_t j) {
  const std::int64_t at =
      i + (p.mask.alignment == Alignment::bottom_right ? p.seq_kv - p.seq_q : 0);
  if (p.mask.left >= 0 && j < at - p.mask.left) return false;
  if (p.mask.right >= 0 && j > at + p.mask.right) return false;
  return true;
}

double element(const Problem& p, const std::vector<std::byte>& bits, const Layout& layout,
               const std::vector<float>& scale, std::int64_t heads, std::int64_t b, std::int64_t h,
               std::int64_t s, std::int64_t d) {
  const auto& t = layout.stride;
  const double raw = numeric::load(p.dtype, bits.data(), b * t[0] + h * t[1] + s * t[2] + d * t[3]);
  if (p.scales == ScaleKind::none) return raw;
  return raw *
         static_cast<double>(
             scale[p.scales == ScaleKind::tensor ? 0 : static_cast<std::size_t>(b * heads + h)]);
}

struct Row {
  std::vector<double> o;
  double lse;
};

Row brute_force(const Problem& p, const Inputs& in, std::int64_t b, std::int64_t h,
                std::int64_t i) {
  const std::int64_t kv = h / (p.heads_q / p.heads_kv);
  long double sum = 0, largest = -std::numeric_limits<long double>::infinity();
  std::vector<long double> score(static_cast<std::size_t>(p.seq_kv));
  for (std::int64_t j = 0; j < p.seq_kv; ++j) {
    if (!sees(p, i, j)) continue;
    long double s = 0;
    for (std::int64_t d = 0; d < p.head_dim; ++d)
      s += static_cast<long double>(element(p, in.q, p.q, in.q_scale, p.heads_q, b, h, i, d)) *
           element(p, in.k, p.k, in.k_scale, p.heads_kv, b, kv, j, d);
    s *= p.scale;
    if (p.softcap > 0) s = p.softcap * std::tanh(s / p.softcap);
    score[static_cast<std::size_t>(j)] = s;
    largest = std::max(largest, s);
  }
  std::vector<long double> o(static_cast<std::size_t>(p.head_dim));
  for (std::int64_t j = 0; j < p.seq_kv; ++j) {
    if (!sees(p, i, j)) continue;
    const long double w = std::exp(score[static_cast<std::size_t>(j)] - largest);
    sum += w;
    for (std::int64_t d = 0; d < p.head_dim; ++d)
      o[static_cast<std::size_t>(d)] +=
          w * element(p, in.v, p.v, in.v_scale, p.heads_kv, b, kv, j, d);
  }
  Row row{{}, static_cast<double>(largest + std::log(sum))};
  for (const long double x : o) row.o.push_back(sum > 0 ? static_cast<double>(x / sum) : 0.0);
  if (!(sum > 0)) row.lse = -std::numeric_limits<double>::infinity();
  return row;
}

Case random_case(std::mt19937_64& random) {
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  const std::int64_t kv = pick(1, 3);
  const auto dtype = static_cast<DType>(pick(0, 3));
  Case c;
  c.problem = make_problem(pick(1, 2), kv * pick(1, 3), kv, pick(1, 70), pick(1, 140),
                           8 * pick(1, 5), dtype);
  if (dtype == DType::e4m3) c.problem.scales = static_cast<ScaleKind>(pick(0, 2));
  set_layout(c.problem, static_cast<LayoutKind>(pick(0, 4)));
  switch (pick(0, 3)) {
    case 0:
      break;
    case 1:
      c.problem.mask = Mask::causal(static_cast<Alignment>(pick(0, 1)));
      break;
    case 2:
      c.problem.mask = Mask::window(pick(0, 40), pick(-1, 20), static_cast<Alignment>(pick(0, 1)));
      break;
    default:
      c.problem.mask = Mask::window(-1, pick(0, 9), static_cast<Alignment>(pick(0, 1)));
  }
  if (pick(0, 2) == 0) c.problem.softcap = 5.0f;
  if (pick(0, 3) == 0) c.problem.scale = 0.3f;
  c.distribution = static_cast<Distribution>(pick(0, 6));
  c.seed = random();
  return c;
}

TEST(Oracle, AgreesWithTheDefinition) {
  std::mt19937_64 random(7);
  for (int n = 0; n < 60; ++n) {
    const Case c = random_case(random);
    const Problem& p = c.problem;
    ASSERT_TRUE(check(p)) << to_string(p) << ": " << check(p).message();
    const Inputs in = generate(c);
    const Reference ref = compute_reference(c, in, choose_rows(c, 1e18));
    ASSERT_EQ(static_cast<std::int64_t>(ref.rows.size()), p.batch * p.heads_q * p.seq_q);
    for (std::size_t r = 0; r < ref.rows.size(); r += 1 + n % 5) {
      const std::int64_t row = ref.rows[r], head = row / p.seq_q;
      const Row expected = brute_force(p, in, head / p.heads_q, head % p.heads_q, row % p.seq_q);
      double norm = 1e-30;
      for (const double x : expected.o) norm = std::max(norm, std::fabs(x));
      for (std::int64_t d = 0; d < p.head_dim; ++d)
        ASSERT_NEAR(ref.o[r * static_cast<std::size_t>(p.head_dim) + static_cast<std::size_t>(d)],
                    expected.o[static_cast<std::size_t>(d)], 1e-11 * norm)
            << to_string(c) << " row " << row;
      if (std::isinf(expected.lse))
        ASSERT_EQ(ref.lse[r], expected.lse) << to_string(c) << " row " << row;
      else
        ASSERT_NEAR(ref.lse[r], expected.lse, 1e-11 * (1 + std::fabs(expected.lse)))
            << to_string(c) << " row " << row;
    }
  }
}

TEST(Oracle, SlotsNoQuerySeesMayHoldAnything) {
  Case c;
  c.problem = make_problem(1, 2, 2, 20, 90, 16, DType::f16);
  c.problem.mask = Mask::causal(Alignment::top_left);
  const Inputs poisoned = generate(c);
  c.poison_unseen = false;
  const Inputs clean = generate(c);
  EXPECT_NE(digest(poisoned), digest(clean));
  const auto a = compute_reference(c, poisoned, choose_rows(c, 1e18));
  const auto b = compute_reference(c, clean, choose_rows(c, 1e18));
  EXPECT_EQ(a.o, b.o);
  EXPECT_FALSE(a.nonfinite_visible);
}

TEST(Oracle, AVisibleNaNReachesExactlyTheRowsThatSeeIt) {
  Case c;
  c.problem = make_problem(1, 1, 1, 40, 40, 8, DType::f32);
  c.problem.mask = Mask::causal(Alignment::top_left);
  Inputs in = generate(c);
  numeric::store(DType::f32, in.v.data(), 17 * 8 + 3, std::numeric_limits<double>::quiet_NaN());
  const auto ref = compute_reference(c, in, choose_rows(c, 1e18));
  EXPECT_TRUE(ref.nonfinite_visible);
  for (std::size_t i = 0; i < 40; ++i)
    for (std::size_t d = 0; d < 8; ++d)
      EXPECT_EQ(std::isnan(ref.o[i * 8 + d]), i >= 17 && d == 3) << i << ' ' << d;
}

TEST(Oracle, ANaNInVMayReachItsTileAndNoRowBeyond) {
  Case c;
  c.problem = make_problem(2, 1, 1, 400, 400, 8, DType::f32);
  c.problem.mask = Mask::causal(Alignment::top_left);
  Inputs in = generate(c);
  numeric::store(DType::f32, in.v.data(), 390 * 8, std::numeric_limits<double>::quiet_NaN());
  auto ref = compute_reference(c, in, choose_rows(c, 1e18));
  ASSERT_EQ(ref.may_be_nan.size(), 800u);
  EXPECT_FALSE(ref.may_be_nan[100]);
  EXPECT_TRUE(ref.may_be_nan[300]);
  EXPECT_TRUE(ref.may_be_nan[399]);
  EXPECT_FALSE(ref.may_be_nan[400 + 399]) << "the other batch entry has a V of its own";
  // One in K makes the scores of rows that see it NaN, and no other row's.
  in = generate(c);
  numeric::store(DType::f32, in.k.data(), 390 * 8, std::numeric_limits<double>::quiet_NaN());
  ref = compute_reference(c, in, choose_rows(c, 1e18));
  EXPECT_TRUE(ref.nonfinite_visible);
  EXPECT_EQ(std::count(ref.may_be_nan.begin(), ref.may_be_nan.end(), 1), 0);
  EXPECT_TRUE(std::isnan(ref.lse[390]));
  EXPECT_FALSE(std::isnan(ref.lse[389]));
}

TEST(Oracle, RowsWhoseScoresAreAllMinusInfinityAreAsRowsWithoutKeys) {
  Case c;
  c.problem = make_problem(1, 2, 2, 3, 70, 8, DType::f16);
  c.distribution = Distribution::dead_rows;  // head 0 wholly, head 1 its first 35 keys
  const Inputs in = generate(c);
  const auto ref = compute_reference(c, in, choose_rows(c, 1e18));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(ref.lse[i], -HUGE_VAL);
    EXPECT_EQ(ref.o[i * 8 + 1], 0.0);
    EXPECT_TRUE(std::isfinite(ref.lse[3 + i]));
    EXPECT_NE(ref.o[(3 + i) * 8 + 1], 0.0);
  }
  const Rows honest = emulate(c, in, ref.rows);
  EXPECT_EQ(honest.lse[0], -HUGE_VAL);
  EXPECT_NEAR(honest.o[3 * 8 + 1], ref.o[3 * 8 + 1], 1e-3);
}

TEST(Oracle, EmptyRowsAreZeroWithLseOfMinusInfinity) {
  Case c;
  c.problem = make_problem(1, 1, 1, 5, 2, 8, DType::f16);
  c.problem.mask =
      Mask::causal(Alignment::bottom_right);  // queries 0..2 face keys before the first
  const auto ref = compute_reference(c, generate(c), choose_rows(c, 1e18));
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(std::isinf(ref.lse[i]), i < 3);
    if (i < 3) {
      EXPECT_EQ(ref.o[i * 8], 0.0);
    }
  }
  c.problem = make_problem(1, 1, 1, 3, 0, 8, DType::f16);
  const auto no_keys = compute_reference(c, generate(c), choose_rows(c, 1e18));
  EXPECT_EQ(no_keys.o, std::vector<double>(24, 0.0));
  EXPECT_TRUE(std::isinf(no_keys.lse[2]));
}

TEST(Oracle, SampledRowsEqualThoseOfTheWholeResult) {
  Case c;
  c.problem = make_problem(1, 4, 2, 300, 257, 32, DType::bf16);
  c.problem.mask = Mask::window(50, 3, Alignment::bottom_right);
  const Inputs in = generate(c);
  const auto whole = compute_reference(c, in, choose_rows(c, 1e18));
  const auto part = compute_reference(c, in, choose_rows(c, 1e6));
  ASSERT_LT(part.rows.size(), whole.rows.size());
  for (std::size_t r = 0; r < part.rows.size(); ++r)
    for (std::size_t d = 0; d < 32; ++d)
      EXPECT_NEAR(part.o[r * 32 + d], whole.o[static_cast<std::size_t>(part.rows[r]) * 32 + d],
                  1e-12);
}

// The emulator is an honest kernel: its error is of the size that its precision explains.
TEST(Metrics, WhatTheTypeCannotHoldIsNoError) {
  Reference ref;
  ref.rows = {0, 1};
  ref.total_rows = 2;
  ref.o = {-1.5e-12, 2.9e-8, 3e-7, 0x1p-24};
  const std::vector<double> stored = {-0.0, 0.0, 5 * 0x1p-24, 0x1p-24};
  const Metrics right = measure(ref, 2, DType::f16, stored, {}, 0.0);
  EXPECT_EQ(right.max_err, 0.0);
  EXPECT_EQ(right.gain, 0.0);
  EXPECT_EQ(right.percent_bad, 0.0);
  // fp32 would have held them.
  EXPECT_EQ(measure(ref, 2, DType::f32, stored, {}, HUGE_VAL).max_row, 1.0);
  // Two steps beside it are wrong all the same.
  const std::vector<double> off = {2 * 0x1p-24, 0.0, 5 * 0x1p-24, 2 * 0x1p-24};
  EXPECT_DOUBLE_EQ(measure(ref, 2, DType::f16, off, {}, HUGE_VAL).max_err, 0x1p-24 + 1.5e-12);
}

TEST(Emulator, ErrorsAreThoseOfItsPrecision) {
  struct Expectation {
    DType dtype;
    double low, high;
  };
  for (const auto [dtype, low, high] :
       {Expectation{DType::f32, 1e-8, 2e-6}, Expectation{DType::f16, 1e-4, 1e-3},
        Expectation{DType::bf16, 1e-3, 8e-3}, Expectation{DType::e4m3, 5e-3, 5e-2}}) {
    Case c;
    c.problem = make_problem(1, 2, 1, 129, 517, 64, dtype);
    if (dtype == DType::e4m3) c.problem.scales = ScaleKind::per_head;
    const Inputs in = generate(c);
    const auto ref = compute_reference(c, in, choose_rows(c, 1e18));
    const Rows rows = emulate(c, in, ref.rows);
    const Metrics m = measure(ref, 64, c.problem.out_dtype, rows.o, rows.lse, 1.0);
    EXPECT_GT(m.rel_fro, low) << name_of(dtype);
    EXPECT_LT(m.rel_fro, high) << name_of(dtype);
    EXPECT_EQ(m.nan_mismatch, 0);
    EXPECT_LT(m.max_lse_err, 1e-4);
  }
}

// Linear weights are 0 to 6.15% too large before they are rounded, which is all that fast accuracy
// gives away on N(0, 1); where one key decides, nothing.
TEST(Emulator, FastAccuracyIsTheErrorOfLinearWeights) {
  const auto metrics = [](Distribution distribution, Accuracy accuracy) {
    Case c;
    c.problem = make_problem(1, 2, 1, 129, 517, 64, DType::e4m3);
    c.problem.scales = ScaleKind::per_head;
    c.problem.lse = true;
    c.problem.accuracy = accuracy;
    c.distribution = distribution;
    const Inputs in = generate(c);
    const auto ref = compute_reference(c, in, choose_rows(c, 1e18));
    const Rows rows = emulate(c, in, ref.rows);
    return measure(ref, 64, c.problem.out_dtype, rows.o, rows.lse, 1.0);
  };
  const Metrics exact = metrics(Distribution::normal, Accuracy::exact);
  const Metrics fast = metrics(Distribution::normal, Accuracy::fast);
  EXPECT_GT(fast.rel_fro, 1.1 * exact.rel_fro);
  EXPECT_LT(fast.rel_fro, 1.4 * exact.rel_fro);
  EXPECT_GT(fast.max_lse_err, 1e-4) << "the sum is of linear weights";
  EXPECT_LT(fast.max_lse_err, 0.02) << "their mean bias is taken out";
  EXPECT_LT(metrics(Distribution::permutation, Accuracy::fast).rel_fro, 2e-3);
}

TEST(Oracle, SaysHowFarScoresAreKnown) {
  Case c;
  c.problem = make_problem(1, 2, 1, 9, 40, 64, DType::f32);
  c.problem.lse = true;
  const auto known = [&](float scale) {
    c.problem.scale = scale;
    const Inputs in = generate(c);
    return compute_reference(c, in, choose_rows(c, 1e18));
  };
  for (const float usual : {0.125f, -0.125f, 1.0f}) {
    const Reference reference = known(usual);
    EXPECT_TRUE(reference.slack.empty() && reference.moved.empty()) << usual;
  }
  // 64 products of size 1 times 1e5, in fp32: some nats.
  const Reference large = known(1e5f);
  ASSERT_EQ(large.slack.size(), large.rows.size());
  ASSERT_EQ(large.moved.size(), large.o.size());
  for (const double slack : large.slack) {
    EXPECT_GT(slack, 0.5);
    EXPECT_LT(slack, 50);
  }
  // Scores at a cap of 1e6, which they all reach with a last place of 0.06: an element moves between
  // values of V, no further than these lie apart.
  c.problem.softcap = 1e6f;
  const Reference capped = known(1e9f);
  ASSERT_EQ(capped.moved.size(), capped.o.size());
  for (const double moved : capped.moved) {
    EXPECT_GT(moved, 0.01);
    EXPECT_LT(moved, 12.0);
  }
  c.problem.softcap = 0.0f;
  // A key that is alone stays alone.
  c.problem = make_problem(1, 1, 1, 3, 1, 64, DType::f32);
  const Reference alone = known(1e30f);
  for (const double slack : alone.slack) EXPECT_GT(slack, 1e20);
  for (const double moved : alone.moved) EXPECT_EQ(moved, 0.0);
}

Reference one_row(std::vector<double> values) {
  Reference reference;
  reference.rows = {0};
  reference.o = std::move(values);
  return reference;
}

// Two roundings at the bottom of the type's range are nobody's fault; more is.
TEST(Measure, ForgivesOneLeastStepOfTheOutputsType) {
  const double step = numeric::least_step(DType::f16), value = 190.85 * step;
  const auto error = [&](DType type, double off) {
    const std::vector<double> got{value + off};
    return measure(one_row({value}), 1, type, got, {}, HUGE_VAL).max_err;
  };
  EXPECT_EQ(error(DType::f16, step), 0.0);
  EXPECT_EQ(error(DType::f16, -0.7 * step), 0.0);
  EXPECT_NEAR(error(DType::f16, 1.5 * step), 0.5 * step, 1e-3 * step);
  EXPECT_NEAR(error(DType::f16, -3 * step), 2 * step, 1e-3 * step);
  // Types whose numbers go on below forgive nothing there.
  EXPECT_NEAR(error(DType::bf16, step), step, 1e-3 * step);
  EXPECT_NEAR(error(DType::f32, step), step, 1e-3 * step);
  // A kernel that takes subnormal numbers for 0 is far off.
  EXPECT_GT(error(DType::f16, -value), 180 * step);
}

}  // namespace
}  // namespace greenfast::workbench::test
