// The kernels of cuda.sm80.mma as they stand, run on the CPU by simt.hpp, against attention in fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "simt.hpp"

#define __shared__
#include "kernels/cuda/sm80_mma/join.cuh"
#include "kernels/cuda/sm80_mma/kernel.cuh"
#undef __shared__

namespace greenfast::cuda::sm80_mma {

alignas(1024) unsigned char shared_memory[227 * 1024];

namespace {

struct Case {
  std::string name;
  int seq_q = 1, seq_kv = 1, head_dim = 64;
  std::int64_t left = -1, right = -1;  // a window, of bottom-right alignment; -1: no bound
  float softcap = 0, times = 1;        // Q's and K's elements are N(0, times^2)
  int group = 1, pad = 0;              // elements between rows
  float rise = 0;                      // added to the last key's product with every row
  bool same_output = false;            // in the inputs' type, otherwise in fp32
  bool wide_store = true;
  int tile = 0;          // its head dim, where that is not the next
  int part_keys = 0;     // of a part; 0: no parts
  bool nan_row = false;  // the last row of Q is NaN, and so must its output be
  bool batches = false;  // two of a head each, for one of two heads
  bool lse = true;
};

struct Worst {
  double o = 0, lse = 0;
};

/// The largest errors of the kernel of this configuration; infinite where it gives no number.
template <class T, std::size_t kIndex>
Worst errors_of(const Case& c, simt::Copies copies) {
  constexpr Config kC = kConfigs[kIndex];
  constexpr int kHeads = 2;
  std::mt19937 random(static_cast<unsigned>(c.seq_q * 31 + c.seq_kv));
  std::normal_distribution<float> normal;
  const int pitch = c.head_dim + c.pad, heads_kv = kHeads / c.group;
  const auto draw = [&](int heads, int seq, float times) {
    std::vector<T> out(static_cast<std::size_t>(heads) * seq * pitch, from_float<T>(NAN));
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (static_cast<int>(i % pitch) >= c.head_dim) continue;  // between rows
      T& x = out[i];
      if constexpr (std::is_same_v<T, __half>)
        x = __float2half_rn(times * normal(random));
      else
        x = __float2bfloat16_rn(times * normal(random));
    }
    return out;
  };
  auto q = draw(kHeads, c.seq_q, c.times), k = draw(heads_kv, c.seq_kv, c.times);
  auto v = draw(heads_kv, c.seq_kv, 1);
  if (c.rise != 0) {
    for (int h = 0; h < kHeads; ++h)
      for (int i = 0; i < c.seq_q; ++i)
        q[(static_cast<std::size_t>(h) * c.seq_q + i) * pitch] = from_float<T>(1.0f);
    for (int h = 0; h < heads_kv; ++h)
      k[(static_cast<std::size_t>(h) * c.seq_kv + c.seq_kv - 1) * pitch] = from_float<T>(c.rise);
  }
  if (c.nan_row)
    for (int h = 0; h < kHeads; ++h)
      q[(static_cast<std::size_t>(h + 1) * c.seq_q - 1) * pitch] = from_float<T>(NAN);
  std::vector<float> o(static_cast<std::size_t>(kHeads) * c.seq_q * c.head_dim, 7.0f);
  std::vector<T> short_o(c.same_output ? o.size() : 0, from_float<T>(NAN));
  std::vector<float> lse(static_cast<std::size_t>(kHeads) * c.seq_q, NAN);

  Problem problem = make_problem(1, kHeads, heads_kv, c.seq_q, c.seq_kv, c.head_dim, DType::f16);
  problem.mask = {.left = c.left, .right = c.right, .alignment = Alignment::bottom_right};
  Params p;
  const auto operand = [&](const std::vector<T>& data, int seq) {
    const std::int64_t head = std::int64_t{seq} * pitch;
    return c.batches ? StridedTensor{data.data(), head, 0, pitch}
                     : StridedTensor{data.data(), 0, head, pitch};
  };
  p.q = operand(q, c.seq_q);
  p.k = operand(k, c.seq_kv);
  p.v = operand(v, c.seq_kv);
  p.o = c.same_output ? static_cast<void*>(short_o.data()) : o.data();
  (c.batches ? p.o_batch : p.o_head) = std::int64_t{c.seq_q} * c.head_dim;
  p.o_row = c.head_dim;
  p.lse = c.lse ? lse.data() : nullptr;
  p.band = make_band(problem);
  // What no row sees reaches nothing.
  const int seen_begin = p.band.first(0), seen_end = p.band.end(c.seq_q - 1);
  for (int h = 0; h < heads_kv; ++h)
    for (int j = 0; j < c.seq_kv; ++j)
      if (j < seen_begin || j >= seen_end)
        for (auto* data : {&k, &v})
          for (int d = 0; d < c.head_dim; ++d)
            (*data)[(static_cast<std::size_t>(h) * c.seq_kv + j) * pitch + d] = from_float<T>(NAN);
  p.seq_q = c.seq_q;
  p.head_dim = c.head_dim;
  p.heads_q = c.batches ? 1 : kHeads;
  p.group = static_cast<std::uint32_t>(c.group);
  p.tiles = static_cast<std::uint32_t>((c.seq_q + kC.rows() - 1) / kC.rows());
  p.heads_total = kHeads;
  constexpr float kLog2E = 1.44269504f;
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  p.scale_log2 = scale * kLog2E;
  p.transform = c.softcap > 0;
  // Twice the argument of tanh in units of log 2, and the cap in them.
  p.transform_scale = p.transform ? 2 * kLog2E * scale / c.softcap : 0;
  p.transform_cap = c.softcap * kLog2E;
  p.aligned = c.pad % 8 == 0;
  p.wide_store = c.wide_store;
  constexpr auto kInput = std::is_same_v<T, __half> ? ElementType::f16 : ElementType::bf16;
  p.output = c.same_output ? kInput : ElementType::f32;

  JoinParams join;
  std::vector<float> scratch;
  if (c.part_keys > 0) {
    const int blocks = (c.part_keys + kC.keys - 1) / kC.keys;
    const int parts = (c.seq_kv + blocks * kC.keys - 1) / (blocks * kC.keys);
    scratch.assign(
        static_cast<std::size_t>(parts * part_bytes(kHeads * c.seq_q, c.head_dim)) / sizeof(float),
        NAN);
    join = into_parts(p, parts, blocks, scratch.data());
  }

  simt::forget_allowed();
  for (const std::vector<T>* data : {&std::as_const(q), &std::as_const(k), &std::as_const(v)})
    simt::allow(data->data(), data->size() * sizeof(T));
  simt::Launch launch;
  launch.grid = {p.heads_total * p.tiles, 1, static_cast<unsigned>(join.parts)};
  launch.threads = static_cast<unsigned>(kC.threads());
  launch.copies = copies;
  launch.warp_by_warp = copies == simt::Copies::early;
  launch.shared = shared_memory;
  launch.shared_bytes = static_cast<std::size_t>(kC.shared_bytes());
  simt::run(launch, [&] { attention_kernel<T, kIndex>(p); });
  if (c.part_keys > 0)
    simt::run(
        {.grid = {static_cast<unsigned>(ceil_div(join.rows * c.head_dim, 4 * kJoinThreads)), 1, 1},
         .threads = kJoinThreads},
        [&] { join_kernel(join); });
  for (std::size_t i = 0; i < short_o.size(); ++i) o[i] = to_float(short_o[i]);

  Worst worst;
  const auto see = [](double& most, double error) {
    most = std::isnan(error) ? INFINITY : std::max(most, error);
  };
  for (int h = 0; h < kHeads; ++h) {
    for (int i = 0; i < c.seq_q; ++i) {
      const auto row = [&](const std::vector<T>& of, int head, int seq, int at) {
        return of.data() + (static_cast<std::size_t>(head) * seq + at) * pitch;
      };
      const int begin = p.band.first(i), end = p.band.end(i);
      std::vector<double> scores;
      for (int j = begin; j < end; ++j) {
        double score = 0;
        for (int d = 0; d < c.head_dim; ++d)
          score += double{to_float(row(q, h, c.seq_q, i)[d])} *
                   to_float(row(k, h / c.group, c.seq_kv, j)[d]);
        score /= std::sqrt(static_cast<double>(c.head_dim));
        scores.push_back(c.softcap > 0 ? c.softcap * std::tanh(score / c.softcap) : score);
      }
      const double most = scores.empty() ? 0 : *std::max_element(scores.begin(), scores.end());
      std::vector<double> out(static_cast<std::size_t>(c.head_dim));
      double sum = 0;
      for (int j = begin; j < end; ++j) {
        const double weight = std::exp(scores[static_cast<std::size_t>(j - begin)] - most);
        sum += weight;
        for (int d = 0; d < c.head_dim; ++d)
          out[static_cast<std::size_t>(d)] +=
              weight * to_float(row(v, h / c.group, c.seq_kv, j)[d]);
      }
      const std::size_t at = static_cast<std::size_t>(h) * c.seq_q + i;
      if (c.nan_row && i == c.seq_q - 1) {
        for (int d = 0; d < c.head_dim; ++d)
          if (!std::isnan(o[at * c.head_dim + d])) worst.o = INFINITY;
        if (!std::isnan(lse[at])) worst.lse = INFINITY;
        continue;
      }
      for (int d = 0; d < c.head_dim; ++d)
        see(worst.o, std::fabs((sum > 0 ? out[static_cast<std::size_t>(d)] / sum : 0) -
                               o[at * c.head_dim + d]));
      if (!c.lse)
        see(worst.lse, std::isnan(lse[at]) ? 0.0 : INFINITY);
      else if (sum > 0)
        see(worst.lse, std::fabs(most + std::log(sum) - lse[at]) / std::max(1.0, std::fabs(most)));
      else
        see(worst.lse, lse[at] == -INFINITY ? 0.0 : INFINITY);
    }
  }
  return worst;
}

class MmaKernel : public testing::TestWithParam<Case> {};

/// Every configuration whose tile is the next for this head dim.
template <class T, std::size_t... kI>
void expect_attention(const Case& c, simt::Copies copies, double limit,
                      std::index_sequence<kI...>) {
  int tile = c.tile;
  for (const Config& config : kConfigs)
    if (tile == 0 && config.head_dim >= c.head_dim) tile = config.head_dim;
  const auto one = [&]<std::size_t kIndex>(std::integral_constant<std::size_t, kIndex>) {
    if (kConfigs[kIndex].head_dim != tile) return;
    const Worst worst = errors_of<T, kIndex>(c, copies);
    EXPECT_LT(worst.o, limit) << "configuration " << kIndex;
    EXPECT_LT(worst.lse, 1e-5) << "configuration " << kIndex;
  };
  (one(std::integral_constant<std::size_t, kI>{}), ...);
}

constexpr auto kAll = std::make_index_sequence<kConfigs.size()>();

TEST_P(MmaKernel, IsAttention) {
  expect_attention<__half>(GetParam(), simt::Copies::late, 2e-3, kAll);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, MmaKernel,
    testing::Values(
        Case{.name = "one_key_of_256", .head_dim = 256},
        Case{.name = "plain_256", .seq_q = 20, .seq_kv = 140, .head_dim = 256},
        Case{.name = "causal_256", .seq_q = 130, .seq_kv = 90, .head_dim = 256, .right = 0},
        Case{.name = "no_keys_256", .seq_q = 70, .seq_kv = 33, .head_dim = 256, .right = 0},
        Case{.name = "window_256",
             .seq_q = 20,
             .seq_kv = 140,
             .head_dim = 256,
             .left = 50,
             .right = 3},
        Case{.name = "large_256", .seq_q = 20, .seq_kv = 150, .head_dim = 256, .times = 3e3f},
        Case{.name = "rises_256", .seq_q = 33, .seq_kv = 193, .head_dim = 256, .rise = 800},
        Case{
            .name = "padded_232", .seq_q = 33, .seq_kv = 90, .head_dim = 232, .group = 2, .pad = 8},
        Case{.name = "unaligned_200", .seq_q = 17, .seq_kv = 70, .head_dim = 200, .pad = 3},
        // Of a row the last copy of some threads lies beyond the head dim.
        Case{.name = "narrow_136",
             .seq_q = 33,
             .seq_kv = 140,
             .head_dim = 136,
             .pad = 8,
             .same_output = true},
        Case{.name = "causal_160",
             .seq_q = 70,
             .seq_kv = 200,
             .head_dim = 160,
             .right = 0,
             .same_output = true},
        Case{.name = "narrow_80", .seq_q = 33, .seq_kv = 140, .head_dim = 80, .same_output = true},
        Case{.name = "softcap_192", .seq_q = 40, .seq_kv = 130, .head_dim = 192, .softcap = 2},
        Case{.name = "causal_192",
             .seq_q = 66,
             .seq_kv = 100,
             .head_dim = 192,
             .right = 0,
             .group = 2},
        Case{.name = "rises_160", .seq_q = 33, .seq_kv = 193, .head_dim = 160, .rise = 800},
        // As where an SM has no room for two blocks of the tile of 160.
        Case{.name = "wider_136",
             .seq_q = 33,
             .seq_kv = 140,
             .head_dim = 136,
             .same_output = true,
             .tile = 192},
        Case{.name = "narrow_168", .seq_q = 20, .seq_kv = 70, .head_dim = 168},
        Case{.name = "window_104",
             .seq_q = 20,
             .seq_kv = 140,
             .head_dim = 104,
             .left = 50,
             .right = 3,
             .same_output = true,
             .wide_store = false},
        Case{.name = "narrow_40",
             .seq_q = 20,
             .seq_kv = 140,
             .head_dim = 40,
             .left = 50,
             .right = 3},
        Case{.name = "causal_128", .seq_q = 60, .seq_kv = 150, .head_dim = 128, .right = 0},
        Case{.name = "rises_128", .seq_q = 33, .seq_kv = 193, .head_dim = 128, .rise = 800},
        Case{.name = "plain_64", .seq_q = 70, .seq_kv = 130, .head_dim = 64, .group = 2},
        // In parts, of which rows see some, or none.
        Case{.name = "parts_64", .seq_q = 70, .seq_kv = 300, .head_dim = 64, .part_keys = 128},
        Case{.name = "causal_parts_128",
             .seq_q = 130,
             .seq_kv = 190,
             .head_dim = 128,
             .right = 0,
             .same_output = true,
             .part_keys = 64},
        Case{.name = "no_keys_in_parts_96",
             .seq_q = 120,
             .seq_kv = 70,
             .head_dim = 96,
             .right = 0,
             .part_keys = 32},
        Case{.name = "large_parts_64",
             .seq_q = 20,
             .seq_kv = 300,
             .head_dim = 64,
             .times = 1e3f,
             .part_keys = 128},
        Case{.name = "rises_in_parts_40",
             .seq_q = 33,
             .seq_kv = 193,
             .head_dim = 40,
             .rise = 800,
             .same_output = true,
             .wide_store = false,
             .part_keys = 64},
        Case{.name = "nan_64", .seq_q = 20, .seq_kv = 300, .head_dim = 64, .nan_row = true},
        Case{.name = "nan_in_parts_64",
             .seq_q = 20,
             .seq_kv = 300,
             .head_dim = 64,
             .part_keys = 128,
             .nan_row = true},
        Case{.name = "batches_64",
             .seq_q = 70,
             .seq_kv = 300,
             .head_dim = 64,
             .same_output = true,
             .batches = true},
        Case{.name = "batches_in_parts_64",
             .seq_q = 70,
             .seq_kv = 300,
             .head_dim = 64,
             .same_output = true,
             .part_keys = 128,
             .batches = true,
             .lse = false},
        Case{.name = "window_parts_200",
             .seq_q = 40,
             .seq_kv = 300,
             .head_dim = 200,
             .left = 90,
             .right = 3,
             .part_keys = 64}),
    [](const auto& named) { return named.param.name; });

template <std::size_t kDim>
struct JoinedRow {
  std::array<float, kDim> o{};
  float lse = 0.0f;
};
/// A row of two parts, whose means stand one behind the other.
template <std::size_t kDim>
JoinedRow<kDim> join_two(const std::array<PartSum, 2>& sums,
                         const std::array<float, 2 * kDim>& means) {
  JoinedRow<kDim> made;
  const JoinParams join{.o_parts = means.data(),
                        .sums = sums.data(),
                        .parts = 2,
                        .rows = 1,
                        .seq_q = 1,
                        .head_dim = static_cast<std::int32_t>(kDim),
                        .heads_q = 1,
                        .o = made.o.data(),
                        .o_row = static_cast<std::int64_t>(kDim),
                        .lse = &made.lse,
                        .output = ElementType::f32};
  simt::forget_allowed();
  simt::run({.grid = {1, 1, 1}, .threads = kJoinThreads}, [&] { join_kernel(join); });
  return made;
}

// Of sums so large that what tells parts apart is lost beside them.
TEST(MmaKernels, PartsOfLargeSumsAreWeighedByTheirDifference) {
  for (const bool turned : {false, true}) {
    std::array<float, 16> parts{};
    std::array<PartSum, 2> sums{PartSum{2.15267942e9f, -65.375f}, PartSum{2.15267942e9f, 119.29f}};
    for (int i = 0; i < 8; ++i) {
      parts[static_cast<std::size_t>(i)] = 1.0f;
      parts[static_cast<std::size_t>(8 + i)] = 2.0f;
    }
    if (turned) {
      std::swap(sums[0], sums[1]);
      std::rotate(parts.begin(), parts.begin() + 8, parts.end());
    }
    const auto [o, lse] = join_two<8>(sums, parts);
    for (const float x : o) EXPECT_EQ(x, 2.0f);
    EXPECT_FLOAT_EQ(lse, 2.15267942e9f * 0.693147181f);
  }
}

// A NaN in V at a key whose weight is too small for a float is one of the row's all the same, and an
// infinity makes one, as they do without parts; of a part without keys nothing is taken.
TEST(MmaKernels, PartsThatHardlyCountMakeANanOfTheirs) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float low : {-500.0f, -kInfinity}) {
    const bool none = low == -kInfinity;
    const std::array<PartSum, 2> sums{PartSum{0.0f, 3.0f}, PartSum{none ? low : 0.0f, low}};
    const std::array<float, 8> parts{1.0f, 2.0f, 3.0f, 4.0f, kNan, 5.0f, 5.0f, -kInfinity};
    const auto [o, lse] = join_two<4>(sums, parts);
    EXPECT_EQ(std::isnan(o[0]), !none);
    EXPECT_EQ(o[1], 2.0f);
    EXPECT_EQ(o[2], 3.0f);
    EXPECT_EQ(std::isnan(o[3]), !none);
    EXPECT_FLOAT_EQ(lse, 3.0f * 0.693147181f);
  }
}

// And where a warp is as far ahead of the others as it can be.
TEST(MmaKernels, AreAttentionWhereCopiesArriveAtOnce) {
  for (const int head_dim : {64, 96, 128, 160, 192, 256}) {
    Case c;
    c.seq_q = 20;
    c.seq_kv = 150;
    c.head_dim = head_dim;
    c.left = 90;
    expect_attention<__half>(c, simt::Copies::early, 2e-3, kAll);
  }
}

TEST(MmaKernels, AreAttentionInBf16) {
  for (const int head_dim : {128, 256}) {
    Case c;
    c.seq_q = 20;
    c.seq_kv = 130;
    c.head_dim = head_dim;
    c.right = 0;
    c.same_output = head_dim == 128;
    expect_attention<__nv_bfloat16>(c, simt::Copies::late, 1e-2, kAll);
  }
}

}  // namespace
}  // namespace greenfast::cuda::sm80_mma
