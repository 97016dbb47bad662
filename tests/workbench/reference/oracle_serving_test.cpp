// What serving asks for, from the definition in types.hpp, element by element and with addresses of
// its own: the oracle and the emulator against it, and that no slot that a row may see is NaN and
// every other one is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "workbench/base/numeric.hpp"
#include "workbench/cases/attributes.hpp"
#include "workbench/cases/choose_rows.hpp"
#include "workbench/reference/emulator.hpp"
#include "workbench/reference/metrics.hpp"
#include "workbench/reference/oracle.hpp"

namespace greenfast::workbench::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Every feature, alone and beside others.
constexpr std::string_view kShapes[] = {
    "4x4/2x37/70x16 packed causal",
    "5x4/2x9/70x16/24 packed-kv window=20:3 sinks",
    "4x2x45x32 packed-q used-q used-kv",
    "5x4/2x1/150x16 pages=16 used-kv causal",
    "3x4/2x19/133x24/8 pages=7 used-kv used-q causal sinks lse",
    "4x4/2x40/90x16 used-kv kv-start chunk=32 causal",
    "3x2x11/40x16 kv-start chunk=8",
    "3x4/2x33/77x16 kv-index used-kv alibi causal",
    "3x4/2x21/67x16 mask=bool",
    "3x4/2x18/70x16 mask=float:hqk packed-q causal",
    "3x4/2x18/70x16 mask=narrow:bk sinks",
    "4x4/2x50x16 packed-kv used-q alibi=per-batch-head",
    "3x2x5/97x32 chunk=24 kv-start pages=32 used-kv window=40:0 sinks",
    "2x2x5/30x16 pages=8",
    "3x4/1x6/0x16 sinks",
};

struct Slot {
  std::int64_t q = 0, o = 0, lse = 0;  // elements from the base
};

// Sequence b by the words of types.hpp.
struct Own {
  std::int64_t rows, keys, start;
};
Own own_of(const Problem& p, const Arrays& a, std::int64_t b) {
  const auto n = static_cast<std::size_t>(b);
  Own own{p.seq_q, p.seq_kv, 0};
  if (p.sequences.packed_q) own.rows = a.cu_q[n + 1] - a.cu_q[n];
  if (p.sequences.packed_kv) own.keys = a.cu_kv[n + 1] - a.cu_kv[n];
  if (p.sequences.used_q) own.rows = std::min<std::int64_t>(own.rows, a.used_q[n]);
  if (p.sequences.used_kv) own.keys = std::min<std::int64_t>(own.keys, a.used_kv[n]);
  if (p.sequences.kv_start) own.start = a.kv_start[n];
  return own;
}

// Element of K (V) of key j of sequence b under KV head h.
std::int64_t at_kv(const Problem& p, const Arrays& a, const Layout& layout, std::int64_t b,
                   std::int64_t h, std::int64_t j) {
  const auto n = static_cast<std::size_t>(b);
  const auto& s = layout.stride;
  if (p.pages.used()) {
    const auto entry = static_cast<std::size_t>(b * p.pages.row_stride + j / p.pages.size);
    return a.page_table[entry] * s[0] + h * s[1] + (j % p.pages.size) * s[2];
  }
  if (p.sequences.packed_kv) return h * s[1] + (a.cu_kv[n] + j) * s[2];
  return (p.sequences.kv_index ? a.kv_index[n] : b) * s[0] + h * s[1] + j * s[2];
}
std::int64_t at_q(const Problem& p, const Arrays& a, const Layout& layout, std::int64_t b,
                  std::int64_t h, std::int64_t i) {
  const auto& s = layout.stride;
  if (p.sequences.packed_q) return h * s[1] + (a.cu_q[static_cast<std::size_t>(b)] + i) * s[2];
  return b * s[0] + h * s[1] + i * s[2];
}

bool sees(const Problem& p, const Own& own, std::int64_t i, std::int64_t j) {
  if (j < own.start || j >= own.keys) return false;
  const std::int64_t at =
      i + (p.mask.alignment == Alignment::bottom_right ? own.keys - own.rows : 0);
  if (p.mask.left >= 0 && j < at - p.mask.left) return false;
  if (p.mask.right >= 0 && j > at + p.mask.right) return false;
  if (p.chunk > 0) {
    const auto chunk_of = [&](std::int64_t position) {
      return std::floor(static_cast<double>(position - own.start) / static_cast<double>(p.chunk));
    };
    if (chunk_of(at) != chunk_of(j)) return false;
  }
  return true;
}

// Added behind the softcap; -inf hides.
double bias(const Problem& p, const Arrays& a, const Own& own, std::int64_t b, std::int64_t h,
            std::int64_t i, std::int64_t j) {
  double sum = 0;
  if (p.alibi != Alibi::none) {
    const std::int64_t shift =
        p.mask.alignment == Alignment::bottom_right ? own.keys - own.rows : 0;
    const auto n = static_cast<std::size_t>(p.alibi == Alibi::per_head ? h : b * p.heads_q + h);
    sum -= static_cast<double>(a.slopes[n]) * std::abs(static_cast<double>(i + shift - j));
  }
  const auto& s = p.array_mask.stride;
  const std::int64_t at = b * s[0] + h * s[1] + i * s[2] + j * s[3];
  if (p.array_mask.kind == MaskKind::boolean &&
      a.mask[static_cast<std::size_t>(at)] == std::byte{0})
    return -kInfinity;
  if (p.array_mask.kind == MaskKind::additive)
    sum += numeric::load(p.array_mask.dtype, a.mask.data(), at);
  return sum;
}

double scale_of(const Problem& p, const std::vector<float>& scales, std::int64_t index) {
  if (p.scales == ScaleKind::none) return 1;
  return static_cast<double>(
      scales[p.scales == ScaleKind::tensor ? 0 : static_cast<std::size_t>(index)]);
}

struct Answer {
  std::vector<double> o;
  double lse = -kInfinity;
};
Answer define(const Problem& p, const Inputs& in, std::int64_t b, std::int64_t h, std::int64_t i) {
  const Arrays& a = in.arrays;
  const Own own = own_of(p, a, b);
  const std::int64_t kv = h / (p.heads_q / p.heads_kv), dim_v = value_dim(p);
  const double scale = static_cast<double>(p.scale) * scale_of(p, in.q_scale, b * p.heads_q + h) *
                       scale_of(p, in.k_scale, b * p.heads_kv + kv);
  long double sum = 0;
  std::vector<long double> o(static_cast<std::size_t>(dim_v));
  bool any = false;
  for (std::int64_t j = 0; j < own.keys; ++j) {
    if (!sees(p, own, i, j)) continue;
    const double added = bias(p, a, own, b, h, i, j);
    if (added == -kInfinity) continue;
    any = true;
    long double score = 0;
    for (std::int64_t d = 0; d < p.head_dim; ++d)
      score += static_cast<long double>(
                   numeric::load(p.dtype, in.q.data(), at_q(p, a, p.q, b, h, i) + d)) *
               static_cast<long double>(
                   numeric::load(p.dtype, in.k.data(), at_kv(p, a, p.k, b, kv, j) + d));
    score *= static_cast<long double>(scale);
    if (p.softcap > 0) score = p.softcap * std::tanh(score / p.softcap);
    const long double weight = std::exp(score + static_cast<long double>(added));
    sum += weight;
    for (std::int64_t d = 0; d < dim_v; ++d)
      o[static_cast<std::size_t>(d)] +=
          weight * static_cast<long double>(
                       numeric::load(p.dtype, in.v.data(), at_kv(p, a, p.v, b, kv, j) + d) *
                       scale_of(p, in.v_scale, b * p.heads_kv + kv));
  }
  if (p.sinks)
    sum += std::exp(static_cast<long double>(in.arrays.sinks[static_cast<std::size_t>(h)]));
  Answer answer;
  for (const long double x : o) answer.o.push_back(any ? static_cast<double>(x / sum) : 0.0);
  if (sum > 0) answer.lse = static_cast<double>(std::log(sum));
  return answer;
}

std::vector<Case> cases_in(DType dtype, LayoutKind layout, std::uint64_t seed) {
  std::vector<Case> cases;
  for (const std::string_view shape : kShapes) {
    ProblemDefaults defaults;
    defaults.dtype = dtype;
    defaults.layout = layout;
    defaults.lse = true;
    if (seed == 1) defaults.softcap = 3;
    if (dtype == DType::e4m3 && shape.find("narrow") != std::string_view::npos) continue;
    const auto problems = parse_shapes(shape, defaults);
    EXPECT_TRUE(problems.ok()) << problems.status().message();
    if (!problems.ok()) continue;
    Case c;
    c.name = shape;
    c.problem = problems->front().problem;
    c.distribution = Distribution::permutation;
    c.seed = seed;
    cases.push_back(c);
  }
  return cases;
}

TEST(Serving, OracleAndEmulatorAreTheDefinition) {
  for (const auto& [dtype, layout] :
       {std::pair(DType::f32, LayoutKind::bhsd), std::pair(DType::f16, LayoutKind::bshd),
        std::pair(DType::bf16, LayoutKind::padded), std::pair(DType::e4m3, LayoutKind::packed)})
    for (const std::uint64_t seed : {0, 1})
      for (const Case& c : cases_in(dtype, layout, seed)) {
        const Problem& p = c.problem;
        const Inputs in = generate(c);
        const auto rows = choose_rows(c, 1e12);
        const Reference reference = compute_reference(c, in, rows);
        const Rows emulated = emulate(c, in, rows);
        const double loose = dtype == DType::f32    ? 2e-5
                             : dtype == DType::f16  ? 4e-3
                             : dtype == DType::bf16 ? 3e-2
                                                    : 1.5e-1;
        const auto dim = static_cast<std::size_t>(value_dim(p));
        std::size_t r = 0;
        for (std::int64_t b = 0; b < p.batch; ++b)
          for (std::int64_t h = 0; h < p.heads_q; ++h)
            for (std::int64_t i = 0; i < own_of(p, in.arrays, b).rows; ++i, ++r) {
              ASSERT_LT(r, rows.size()) << to_string(c);
              ASSERT_EQ(rows[r], (b * p.heads_q + h) * p.seq_q + i) << to_string(c);
              const Answer answer = define(p, in, b, h, i);
              if (std::isinf(answer.lse))
                EXPECT_EQ(reference.lse[r], answer.lse);
              else
                ASSERT_NEAR(reference.lse[r], answer.lse,
                            1e-9 * std::max(1.0, std::fabs(answer.lse)))
                    << to_string(c) << " row " << b << ' ' << h << ' ' << i;
              for (std::size_t d = 0; d < dim; ++d) {
                ASSERT_NEAR(reference.o[r * dim + d], answer.o[d], 1e-9)
                    << to_string(c) << " row " << b << ' ' << h << ' ' << i;
                ASSERT_NEAR(emulated.o[r * dim + d], answer.o[d], 4 * loose) << to_string(c);
              }
            }
        EXPECT_EQ(r, rows.size()) << to_string(c);
        EXPECT_EQ(reference.total_rows, static_cast<std::int64_t>(rows.size()));
        EXPECT_FALSE(reference.nonfinite_visible) << to_string(c);
        EXPECT_LT(measure(reference, value_dim(p), p.out_dtype, emulated.o, emulated.lse, HUGE_VAL)
                      .rel_fro,
                  loose)
            << to_string(c);
      }
}

// Bytes from an element on belong to the rows that were listed; every other element is NaN.
void expect_nan_outside(const Case& c, const std::vector<std::byte>& bytes,
                        const std::set<std::int64_t>& rows, std::int64_t dim, const char* name) {
  const auto elements = static_cast<std::int64_t>(bytes.size() / size_of(c.problem.dtype));
  std::vector<char> inside(static_cast<std::size_t>(elements));
  for (const std::int64_t row : rows)
    for (std::int64_t d = 0; d < dim; ++d) inside[static_cast<std::size_t>(row + d)] = 1;
  for (std::int64_t n = 0; n < elements; ++n)
    ASSERT_EQ(std::isnan(numeric::load(c.problem.dtype, bytes.data(), n)),
              inside[static_cast<std::size_t>(n)] == 0)
        << to_string(c) << ": element " << n << " of " << name;
}

TEST(Serving, SlotsThatNoRowMaySeeHoldNaNAndNoOther) {
  for (const LayoutKind layout : {LayoutKind::bhsd, LayoutKind::padded})
    for (const std::uint64_t seed : {0, 1, 2})
      for (const Case& c : cases_in(DType::f16, layout, seed)) {
        const Problem& p = c.problem;
        const Inputs in = generate(c);
        std::set<std::int64_t> q, k, v;
        for (std::int64_t b = 0; b < p.batch; ++b) {
          const Own own = own_of(p, in.arrays, b);
          for (std::int64_t h = 0; h < p.heads_q; ++h)
            for (std::int64_t i = 0; i < own.rows; ++i) q.insert(at_q(p, in.arrays, p.q, b, h, i));
          for (std::int64_t j = 0; j < own.keys; ++j) {
            bool seen = false;
            for (std::int64_t i = 0; i < own.rows; ++i) seen = seen || sees(p, own, i, j);
            for (std::int64_t h = 0; seen && h < p.heads_kv; ++h) {
              k.insert(at_kv(p, in.arrays, p.k, b, h, j));
              v.insert(at_kv(p, in.arrays, p.v, b, h, j));
            }
          }
        }
        expect_nan_outside(c, in.q, q, p.head_dim, "Q");
        expect_nan_outside(c, in.k, k, p.head_dim, "K");
        expect_nan_outside(c, in.v, v, value_dim(p), "V");
      }
}

TEST(Serving, ArraysAreLegalAndOfEverySeedWithinTheStorage) {
  for (const std::uint64_t seed : {0, 1, 2, 3, 4, 5, 6, 7}) {
    for (const Case& c : cases_in(DType::f16, LayoutKind::bhsd, seed)) {
      const Problem& p = c.problem;
      const Arrays a = generate(c).arrays;
      ASSERT_TRUE(check(p).ok()) << check(p).message();
      std::set<std::int32_t> pages;
      std::int64_t needed = 0;
      for (std::int64_t b = 0; b < p.batch; ++b) {
        const Own own = own_of(p, a, b);
        EXPECT_LE(own.rows, p.seq_q);
        EXPECT_LE(own.keys, p.seq_kv);
        EXPECT_GE(std::min(own.rows, own.keys), 0);
        EXPECT_LE(own.start, own.keys);
        if (!p.pages.used()) continue;
        for (std::int64_t n = own.start / p.pages.size; n * p.pages.size < own.keys; ++n, ++needed)
          pages.insert(a.page_table[static_cast<std::size_t>(b * p.pages.row_stride + n)]);
      }
      if (p.sequences.packed_q) {
        EXPECT_TRUE(std::is_sorted(a.cu_q.begin(), a.cu_q.end()));
        EXPECT_LE(a.cu_q.back(), p.sequences.total_q);
      }
      if (p.sequences.packed_kv) {
        EXPECT_TRUE(std::is_sorted(a.cu_kv.begin(), a.cu_kv.end()));
        EXPECT_LE(a.cu_kv.back(), p.sequences.total_kv);
      }
      for (const std::int32_t row : a.kv_index) {
        EXPECT_GE(row, 0);
        EXPECT_LT(row, p.sequences.kv_rows);
      }
      // No two sequences share a page, one page is nobody's, and they do not lie in order.
      EXPECT_EQ(static_cast<std::int64_t>(pages.size()), needed) << to_string(c);
      if (!p.pages.used()) continue;
      EXPECT_LT(needed, p.pages.count);
      if (pages.empty()) continue;
      EXPECT_GE(*pages.begin(), 0);
      EXPECT_LT(*pages.rbegin(), p.pages.count);
    }
  }
}

TEST(Serving, AttributesSayWhatTheyAreAndWhatIsPossible) {
  const auto refusal = [](std::string_view shapes) {
    const auto problems = parse_shapes(shapes, {});
    return problems.ok() ? std::string() : problems.status().message();
  };
  EXPECT_EQ(refusal("1x2x16x64 sinks causal"), "");
  EXPECT_NE(refusal("1x2x16x64 sink").find("possible are causal, window"), std::string::npos);
  EXPECT_NE(refusal("1x2x16x64 sinks=3").find("takes no value"), std::string::npos);
  EXPECT_NE(refusal("1x2x16x64 pages").find("needs a value"), std::string::npos);
  EXPECT_NE(refusal("1x2x16x64 pages=0").find("pages is 0: it may be a whole number from 1"),
            std::string::npos);
  EXPECT_NE(refusal("1x2x16x64 mask=bool:kq").find("mask="), std::string::npos);
  EXPECT_NE(refusal("1x2x16x64 packed pages=16").find("cannot have both"), std::string::npos);
  for (const SuiteRow& suite : suite_table()) EXPECT_EQ(refusal(suite.name), "") << suite.name;
  for (const ShapeRow& shape : shape_table()) EXPECT_EQ(refusal(shape.name), "") << shape.name;
  const auto deepseek = parse_shapes("deepseek used-kv", {});
  ASSERT_TRUE(deepseek.ok());
  EXPECT_EQ(deepseek->front().problem.head_dim, 192);
  EXPECT_EQ(value_dim(deepseek->front().problem), 128);
  EXPECT_TRUE(deepseek->front().problem.sequences.used_kv);
}

TEST(Serving, LogUniformLengthsFillEveryOctaveAlike) {
  const auto problems = parse_shapes("512x1x1/32768x8 used-kv lengths=log-uniform:128", {});
  ASSERT_TRUE(problems.ok()) << problems.status().message();
  Case c;
  c.problem = problems->front().problem;
  c.problem.heads_q = c.problem.heads_kv = 1;
  c.lengths = problems->front().lengths;
  c.poison_unseen = false;
  std::vector<int> octaves(8);
  for (const std::int32_t length : generate(c).arrays.used_kv) {
    ASSERT_GE(length, 128);
    ASSERT_LE(length, 32768);
    ++octaves[std::min<std::size_t>(
        7, static_cast<std::size_t>(std::log2(static_cast<double>(length) / 128.0)))];
  }
  for (const int count : octaves) EXPECT_NEAR(count, 64, 32);
}

}  // namespace
}  // namespace greenfast::workbench::test
