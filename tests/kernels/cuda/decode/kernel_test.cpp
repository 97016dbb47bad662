// cuda.sm90.decode and cuda.sm80.decode as they stand, run on the CPU by simt.hpp, against docs/serving.md in fp64. It
// shows that indices, masks, splits and merges are right; arithmetic and timing are the device's.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "serving_case.hpp"

// A block's memory of a size that the launch gives.
#define __shared__
#include "kernels/cuda/decode/kernel.cuh"
#undef __shared__
#define __shared__ static  // of the one block that runs
#include "kernels/cuda/decode/merge.cuh"
#undef __shared__
#include "kernels/cuda/decode/shape.hpp"

namespace greenfast::cuda::decode {

inline float to_float(E4m3 x) { return test::of_e4m3(x.bits); }

alignas(1024) unsigned char shared_memory[227 * 1024];

namespace {

using namespace test;

struct Case : test::Case {
  Family family = kSm90;
};

Case draw(std::uint64_t seed, Family family = kSm90) {
  Case c{test::draw(seed)};
  c.family = family;
  // What an A100, and what sm_86 and sm_89 give a block.
  if (!family.sm90()) c.facts.shared_per_block = (seed / 2 % 2 == 0 ? 163 : 99) * 1024;
  return c;
}

/// What a device of so many multiprocessors, otherwise like an H200, says of itself.
DeviceFacts hopper_of(int multiprocessors) {
  DeviceFacts facts;
  facts.kind = DeviceKind::cuda;
  facts.multiprocessors = multiprocessors;
  facts.shared_per_block = 227 * 1024;
  return facts;
}

/// The elements of a drawn mask in the type that the problem says.
std::vector<unsigned char> mask_bytes(const Case& c) {
  const ArrayMask& mask = c.problem.array_mask;
  if (mask.kind == MaskKind::boolean) return c.seen;
  std::vector<unsigned char> bytes;
  for (const float x : c.mask) {
    const std::uint32_t word = mask.dtype == DType::f32   ? __float_as_uint(x)
                               : mask.dtype == DType::f16 ? __float2half_rn(x).bits
                                                          : __float2bfloat16_rn(x).bits;
    for (std::size_t i = 0; i < size_of(mask.dtype); ++i)
      bytes.push_back(static_cast<unsigned char>(word >> 8 * i));
  }
  return bytes;
}

template <class T>
Answer run_kernel(const Case& c, const Data<T>& data, simt::Copies copies) {
  const Problem& p = c.problem;
  const Shape shape = shape_of(p, c.facts, c.choice, c.family);
  const Config& config = kConfigs[shape.config];
  Answer answer = room_for(p);
  // The first tensors of a vector lie at 16 bytes, as malloc has it.
  Tensors t = arrays_of(c);
  t.q = data.q.data();
  t.k = data.k.data();
  t.v = data.v.data();
  t.o = answer.o.data();
  t.lse = answer.lse.data();
  const std::vector<unsigned char> mask = mask_bytes(c);
  t.mask = mask.data();
  Params params = make_params(p, t, shape);
  const Workspace space = workspace_of(p, shape);
  std::vector<float4> workspace(space.bytes / 16 + 1, {kNaN, kNaN, kNaN, kNaN});
  place_workspace(params, space, workspace.data());
  simt::forget_allowed();
  simt::allow(data.q.data(), data.q.size() * sizeof(T));
  simt::allow(data.k.data(), data.k.size() * sizeof(T));
  simt::allow(data.v.data(), data.v.size() * sizeof(T));
  simt::Launch launch;
  launch.grid = {static_cast<unsigned>(shape.grid[0]), static_cast<unsigned>(shape.grid[1]),
                 static_cast<unsigned>(shape.grid[2])};
  launch.threads = static_cast<unsigned>(config.threads());
  launch.cluster = static_cast<unsigned>(shape.cluster);
  launch.copies = copies;
  launch.shared = shared_memory;
  launch.shared_bytes = static_cast<std::size_t>(config.shared_bytes());
  using Kernel = void (*)(Params);
  const void* entry = nullptr;
  if constexpr (std::is_same_v<T, E4m3>)
    entry = entries<T, kSm90E4m3>()[shape.config - kSm90E4m3.begin];
  else
    entry = c.family.sm90() ? entries<T, kSm90>()[shape.config]
                            : entries<T, kSm80>()[shape.config - kSm80.begin];
  const auto kernel = reinterpret_cast<Kernel>(const_cast<void*>(entry));
  simt::run(launch, [&] { kernel(params); });
  if (space.bytes > 0) {
    const std::array<int, 3> grid = merge_grid(p, shape);
    launch.grid = {static_cast<unsigned>(grid[0]), static_cast<unsigned>(grid[1]),
                   static_cast<unsigned>(grid[2])};
    launch.threads = kMergeThreads;
    launch.cluster = 1;
    launch.shared_bytes = 0;
    simt::run(launch,
              [&] { config.general() ? merge_parts<true>(params) : merge_parts<false>(params); });
  }
  return answer;
}

template <class T>
Answer answer_of(const Case& c, simt::Copies copies, bool compare = true) {
  const Data<T> data = make_data<T>(c);
  Answer answer = run_kernel<T>(c, data, copies);
  if (compare) expect_right<T>(c, data, answer);
  return answer;
}

/// The same problem for the family of e4m3, whose head dimensions and rows are multiples of 16.
void make_e4m3(Case& c) {
  Problem& p = c.problem;
  c.family = kSm90E4m3;
  p.head_dim = round_up(p.head_dim, std::int64_t{16});
  p.head_dim_v = round_up(p.head_dim_v, std::int64_t{16});
  test::make_e4m3(c, 16);
}

constexpr std::array kCopies{simt::Copies::late, simt::Copies::early, simt::Copies::between};

/// The same problem without what Build::lean leaves out.
void make_lean(Case& c) {
  Problem& p = c.problem;
  Random r(c.seed + 9);
  p.seq_q = 1;
  p.sequences = {};
  p.pages = {};
  p.mask = r.chance(50) ? Mask::none() : Mask::causal(Alignment::bottom_right);
  p.chunk = 0;
  p.sinks = false;
  p.softcap = 0.0f;
  p.scale = 0.3f;
  p.q = spread(r, core::shape_of_q(p, p.head_dim), 8);
  p.k = spread(r, core::shape_of_kv(p, p.head_dim), 8);
  p.v = spread(r, core::shape_of_kv(p, value_dim(p)), 8);
  p.o = spread(r, core::shape_of_q(p, value_dim(p)), 1);
}

/// Draws `count` problems; every way through the family's kernels is taken where that many are drawn.
void expect_right_of_many(Family family, int count) {
  int clustered = 0, counted = 0, shared = 0, merged = 0, alone = 0, searched = 0, added = 0;
  std::array<int, kConfigs.size()> used{};
  for (int seed = 1; seed <= count; ++seed) {
    Case c = draw(static_cast<std::uint64_t>(seed), family.sm90() ? kSm90 : kSm80);
    if (rows_of(c.problem) > kMostRows) continue;
    if (kConfigs[family.begin].bytes == 1) make_e4m3(c);
    if (seed % 4 == 1 && c.problem.dtype != DType::e4m3) make_lean(c);
    if (seed % 3 == 0) {
      add_biases(c);
      c.problem.alibi = Alibi::none;
      if (c.problem.dtype == DType::e4m3) c.problem.array_mask.dtype = DType::f32;
    }
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Shape shape = shape_of(c.problem, c.facts, c.choice, c.family);
    ASSERT_TRUE(shape.config >= family.begin && shape.config < family.end);
    ++used[shape.config];
    clustered += shape.clustered;
    counted += shape.counted && shape.holders == 0;
    shared += shape.holders > 0;
    searched += searched_rows(c.problem, shape) > 0;
    added += c.problem.array_mask.kind == MaskKind::additive;
    merged += !shape.clustered && !shape.counted && shape.most_parts > 1;
    alone += shape.most_parts == 1;
    const auto copies = kCopies[seed % 3];
    if (c.problem.dtype == DType::e4m3)
      answer_of<E4m3>(c, copies);
    else if (c.problem.dtype == DType::f16)
      answer_of<__half>(c, copies);
    else
      answer_of<__nv_bfloat16>(c, copies);
    if (testing::Test::HasFailure()) return;
  }
  if (count < 200) return;
  EXPECT_EQ(clustered > 0, family.sm90());
  EXPECT_GT(counted, 0);
  EXPECT_GT(shared, 0);
  EXPECT_GT(searched, 0);
  EXPECT_GT(added, 0);
  EXPECT_GT(merged, 0);
  EXPECT_GT(alone, 0);
  for (std::size_t i = family.begin; i < family.end; ++i) {
    // Eight warps are for more keys than this draws; ClustersOfEverySizeMergeAlike has them.
    if (kConfigs[i].warps != 8) {
      EXPECT_GT(used[i], 0) << i << ": " << kConfigs[i].head_dim << " x " << kConfigs[i].rows;
    }
  }
}

TEST(DecodeKernel, AgreesWithTheMeaningOfEveryFeature) {
  expect_right_of_many(kSm90, 4 * GREENFAST_TEST_PERCENT);
}

TEST(DecodeKernel, OfSm80AgreesWithTheMeaningOfEveryFeature) {
  expect_right_of_many(kSm80, 2 * GREENFAST_TEST_PERCENT);
}

TEST(DecodeKernel, OfE4m3AgreesWithTheMeaningOfEveryFeature) {
  expect_right_of_many(kSm90E4m3, 2 * GREENFAST_TEST_PERCENT);
}

/// Sequences of all lengths in even shares: some heads have many parts, some holders many heads.
TEST(DecodeKernel, SharesAreMergedWhereverTheyCut) {
  int most = 0;
  for (int seed = 1; seed <= GREENFAST_TEST_PERCENT / 6; ++seed) {
    Random r(static_cast<std::uint64_t>(seed));
    Case c;
    c.seed = static_cast<std::uint64_t>(seed);
    Problem& p = c.problem;
    // Of 32 rows the results lie where Q did.
    const bool many = seed % 2 == 0;
    p = make_problem(r.in(2, 12), many ? 32 : 4, 2, many ? 2 : r.in(1, 3), many ? 4500 : 6000,
                     r.of<std::int64_t>({64, 128, 256}), DType::f16);
    p.out_dtype = DType::f32;
    p.lse = true;
    p.sequences.used_kv = p.sequences.used_q = true;
    p.sinks = r.chance(30);
    // Rows may see nothing, their keys end before they begin.
    if (r.chance(40)) p.mask = Mask::window(-1, r.in(0, 200), Alignment::top_left);
    p.sequences.kv_start = r.chance(50);
    for (int h = 0; h < p.heads_q; ++h) c.sinks.push_back(r.of({-1.0f, 3.0f}));
    for (std::int64_t b = 0; b < p.batch; ++b) {
      c.used_kv.push_back(static_cast<std::int32_t>(r.chance(20)   ? r.in(2000, p.seq_kv)
                                                    : r.chance(30) ? 0
                                                                   : r.in(1, 300)));
      c.used_q.push_back(static_cast<std::int32_t>(r.in(0, p.seq_q)));
      c.kv_start.push_back(static_cast<std::int32_t>(r.in(0, 400)));
    }
    c.facts = hopper_of(static_cast<int>(seed % 8 == 0 ? 1 : r.in(1, 40)));
    if (seed % 3 == 0) c.family = kSm80;
    const Shape shape = shape_of(p, c.facts, c.choice, c.family);
    ASSERT_GT(shape.holders, 0);
    most = std::max(most, shape.holders);
    answer_of<__half>(c, kCopies[seed / 2 % 3]);
    ASSERT_FALSE(HasFatalFailure() || HasNonfatalFailure()) << "seed " << seed;
  }
  EXPECT_GT(most, 40);
}

/// Left padding behind the last key that a row may see: the keys of a share end before they begin, and what was copied of
/// Q must not arrive when results lie there.
TEST(DecodeKernel, SharesOfRowsThatSeeNothingWaitForTheirCopies) {
  for (const Family family : {kSm80, kSm90}) {
    for (const std::int64_t dim : {64, 128}) {
      Case c;
      c.family = family;
      c.seed = static_cast<std::uint64_t>(dim);
      Problem& p = c.problem;
      p = make_problem(6, 32, 2, 2, 6000, dim, DType::f16);
      p.out_dtype = DType::f32;
      p.lse = true;
      p.sequences.used_kv = p.sequences.kv_start = true;
      p.mask = Mask::window(-1, 100, Alignment::top_left);
      c.used_kv.assign(6, 300);
      c.kv_start = {166, 10, 166, 230, 63, 299};
      c.facts = hopper_of(2);
      ASSERT_GT(shape_of(p, c.facts, c.choice, c.family).holders, 0);
      answer_of<__half>(c, simt::Copies::between);
      ASSERT_FALSE(HasFatalFailure() || HasNonfatalFailure()) << dim;
    }
  }
}

/// A cache of a fixed size with a mask of what is filled: nothing outside may be read.
TEST(DecodeKernel, KeysOutsideOfWhatAMaskShowsAreNotRead) {
  for (int seed = 1; seed <= GREENFAST_TEST_PERCENT / 2; ++seed) {
    Random r(static_cast<std::uint64_t>(seed));
    Case c;
    c.seed = static_cast<std::uint64_t>(seed);
    Problem& p = c.problem;
    p = make_problem(r.in(1, 3), 4, 2, r.in(1, 2), r.of<std::int64_t>({70, 700, 5000}), 64,
                     DType::f16);
    p.out_dtype = DType::f32;
    p.lse = true;
    const std::int64_t step = p.seq_kv + r.in(0, 9);
    const bool of_rows = r.chance(50);
    p.array_mask = {.kind = MaskKind::boolean,
                    .stride = {step * (of_rows ? p.seq_q : 1), 0, of_rows ? step : 0, 1}};
    const std::int64_t rows = p.batch * (of_rows ? p.seq_q : 1);
    c.seen.assign(static_cast<std::size_t>(rows * step), 0);
    Data<__half> data = make_data<__half>(c);
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const std::int64_t begin = r.in(0, p.seq_kv), end = r.in(0, p.seq_kv);
      for (std::int64_t row = 0; row < (of_rows ? p.seq_q : 1); ++row)
        for (std::int64_t j = begin; j < end; ++j)
          c.seen[static_cast<std::size_t>(b * p.array_mask.stride[0] + row * step + j)] = 3;
      for (std::int64_t h = 0; h < 2; ++h)
        for (std::int64_t j = 0; j < p.seq_kv; ++j) {
          if (j >= begin && j < end) continue;
          const auto at = static_cast<std::size_t>(b * p.v.stride[0] + h * p.v.stride[1] + j * 64);
          std::fill_n(data.k.begin() + at, 64, narrowed<__half>(kNaN));
          std::fill_n(data.v.begin() + at, 64, narrowed<__half>(kNaN));
        }
    }
    for (const unsigned char x : c.seen) c.mask.push_back(x != 0 ? 0.0f : -INFINITY);
    c.facts = hopper_of(r.of({1, 5, 132}));
    if (seed % 3 == 0) c.family = kSm80;
    const Answer answer = run_kernel<__half>(c, data, simt::Copies::late);
    // Of -inf times NaN nothing is right: the definition leaves out what is hidden.
    Data<__half> known = data;
    for (auto* all : {&known.k, &known.v})
      for (__half& x : *all)
        if (std::isnan(to_float(x))) x = narrowed<__half>(0.0f);
    expect_right<__half>(c, known, answer);
    ASSERT_FALSE(HasFatalFailure() || HasNonfatalFailure()) << "seed " << seed;
  }
}

/// Clusters of 2, 4 and 8 blocks, of four and eight warps, give what the definition says.
TEST(DecodeKernel, ClustersOfEverySizeMergeAlike) {
  std::map<std::pair<int, int>, int> used;
  for (int seed = 1; seed <= 3 * GREENFAST_TEST_PERCENT; ++seed) {
    Case c = draw(static_cast<std::uint64_t>(5000 + seed));
    c.facts.multiprocessors = std::array{20, 33, 66}[seed % 3];
    if (rows_of(c.problem) > kMostRows) continue;
    const Shape shape = shape_of(c.problem, c.facts, c.choice, c.family);
    if (!shape.clustered) continue;
    SCOPED_TRACE("seed " + std::to_string(seed));
    ++used[{shape.cluster, kConfigs[shape.config].warps}];
    answer_of<__half>(c, seed % 2 == 0 ? simt::Copies::late : simt::Copies::early);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
  for (const auto& [blocks, warps] : {std::pair{8, 8}, {8, 4}, {4, 8}, {4, 4}, {2, 4}}) {
    EXPECT_GT((used[{blocks, warps}]), 0) << blocks << " blocks of " << warps << " warps";
  }
}

#if GREENFAST_EXPERIMENTAL
TEST(DecodeKernel, ForcedWaysAreReadWholeOrNamed) {
  const Forced forced = Forced::of("warps=8 blocks=4 most=4096");
  EXPECT_EQ(forced.blocks, 4);
  EXPECT_EQ(forced.warps, 8);
  EXPECT_EQ(forced.least, -1);
  EXPECT_EQ(forced.most, 4096);
  EXPECT_EQ(forced.wrong, "");
  EXPECT_EQ(Forced::of("").wrong, "");
  for (const char* text : {"blocks", "blocks=", "blocks=x", "blocks=4x", "block=4", "=", "blocks=3",
                           "warps=5 least=64"})
    EXPECT_NE(Forced::of(text).wrong, "") << text;
}

TEST(DecodeKernel, ForcedWaysAreTaken) {
  Case c;
  c.problem = make_problem(8, 32, 8, 1, 2048, 128, DType::bf16);
  c.facts = *model_facts("h200");
  const auto way = [&](const char* text) {
    setenv("GREENFAST_DECODE", text, 1);
    const Shape shape = shape_of(c.problem, c.facts, c.choice, c.family);
    unsetenv("GREENFAST_DECODE");
    return std::array{shape.clustered ? shape.cluster : 0, kConfigs[shape.config].warps};
  };
  EXPECT_EQ(way(""), (std::array{2, 4}));
  EXPECT_EQ(way("blocks=0"), (std::array{0, 4}));
  EXPECT_EQ(way("blocks=4 warps=4"), (std::array{4, 4}));  // though 64 do not fit at once
  EXPECT_EQ(way("blocks=2"), (std::array{2, 8}));
  EXPECT_EQ(way("warps=4"), (std::array{2, 4}));
}
#endif

/// Few rows with many parts: blocks of the second kernel share a row's columns.
TEST(DecodeKernel, ManyPartsOfFewRowsMergeBySharesOfTheColumns) {
  for (const auto& [dim, family] :
       {std::pair{64, kSm90}, {128, kSm90}, {256, kSm90}, {128, kSm80}}) {
    Case c;
    c.family = family;
    c.seed = static_cast<std::uint64_t>(dim);
    c.problem = make_problem(1, 2, 1, 1, 19000, dim, DType::f16);
    c.problem.out_dtype = DType::f32;
    c.problem.lse = true;
    c.facts = hopper_of(132);
    const Shape shape = shape_of(c.problem, c.facts, c.choice, c.family);
    EXPECT_GT(shape.most_parts, 64);
    EXPECT_GT(merge_splits(c.problem, shape), 1);
    answer_of<__half>(c, simt::Copies::late);
    ASSERT_FALSE(HasFatalFailure());
  }
}

/// A row alone, among others, in a cluster, counted or merged by the second kernel.
TEST(DecodeKernel, BatchInvariantBitsDoNotDependOnNeighboursOrPlaces) {
  int ways = 0;
  for (int seed = 1; seed <= GREENFAST_TEST_PERCENT / 5; ++seed) {
    Random r(static_cast<std::uint64_t>(seed));
    Case c;
    c.seed = static_cast<std::uint64_t>(seed);
    Problem& p = c.problem;
    p = make_problem(9, 4, 2, r.in(1, 2), r.of<std::int64_t>({200, 700, 1500}),
                     r.of<std::int64_t>({64, 128}), DType::f16);
    p.out_dtype = DType::f32;
    p.lse = true;
    p.sequences.used_kv = true;
    if (r.chance(50)) p.mask = Mask::causal(Alignment::bottom_right);
    for (int b = 0; b < 9; ++b) c.used_kv.push_back(static_cast<std::int32_t>(r.in(0, p.seq_kv)));
    c.facts = hopper_of(3);
    c.choice.batch_invariant = true;
    if (seed % 3 == 0) c.family = kSm80;
    // A mask that hides keys at both ends, for which others' parts would begin elsewhere.
    if (seed % 4 == 1) {
      p.array_mask = {.kind = MaskKind::boolean, .stride = {0, 0, 0, 1}};
      for (int j = 0; j < 5000; ++j) {
        c.seen.push_back(j >= 37 && j < 1300);
        c.mask.push_back(c.seen.back() != 0 ? 0.0f : -INFINITY);
      }
    }
    const Data<__half> data = make_data<__half>(c);
    const Answer all = run_kernel<__half>(c, data, simt::Copies::late);
    expect_right<__half>(c, data, all);
    ASSERT_FALSE(HasFatalFailure());
    const auto b = static_cast<std::size_t>(r.in(0, 8));
    Case one = c;
    one.problem.batch = 1;
    one.used_kv = {c.used_kv[b]};
    one.problem.sequences.kv_index = true;
    one.problem.sequences.kv_rows = 9;
    one.kv_index = {static_cast<std::int32_t>(b)};
    one.facts.multiprocessors = 132;
    // A maximum that no cluster takes, although no key behind the used ones exists.
    if (seed % 2 == 0) one.problem.seq_kv = 5000;
    Data<__half> of_one = data;
    const std::size_t rows = static_cast<std::size_t>(4 * p.seq_q * p.head_dim);
    of_one.q.assign(data.q.begin() + b * rows, data.q.begin() + (b + 1) * rows);
    const Answer alone = run_kernel<__half>(one, of_one, simt::Copies::early);
    const Shape here = shape_of(c.problem, c.facts, c.choice, c.family);
    const Shape there = shape_of(one.problem, one.facts, one.choice, one.family);
    ways += here.clustered != there.clustered || here.counted != there.counted;
    for (std::size_t i = 0; i < alone.o.size(); ++i)
      ASSERT_EQ(alone.o[i], all.o[b * rows + i]) << "seed " << seed << " element " << i;
    for (std::size_t i = 0; i < alone.lse.size(); ++i)
      ASSERT_EQ(alone.lse[i], all.lse[b * alone.lse.size() + i]) << "seed " << seed;
  }
  EXPECT_GT(ways, 0);
}

/// Nobody checks the device's arrays: whatever they hold, nothing outside the tensors is touched.
TEST(DecodeKernel, ArraysOfNonsenseStayInsideTheTensors) {
  for (int seed = 1; seed <= GREENFAST_TEST_PERCENT / 2; ++seed) {
    Case c = draw(static_cast<std::uint64_t>(1000 + seed), seed % 3 == 0 ? kSm80 : kSm90);
    if (rows_of(c.problem) > kMostRows) continue;
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Data<__half> data = make_data<__half>(c);
    Random r(static_cast<std::uint64_t>(seed));
    for (auto* array :
         {&c.cu_q, &c.cu_kv, &c.used_q, &c.used_kv, &c.kv_start, &c.kv_index, &c.table})
      for (std::int32_t& entry : *array)
        entry = static_cast<std::int32_t>(
            r.of<std::int64_t>({entry, entry + 1, -1, 0, 5000, -2147483647 - 1, 2147483647}));
    EXPECT_NO_THROW(run_kernel<__half>(c, data, simt::Copies::late));
  }
}

/// Scores beyond 2^29, where an fma would round the base by 32, and differences of one.
TEST(DecodeKernel, KeepsItsDigitsAtAnySizeOfScores) {
  Case c;
  c.problem = make_problem(1, 1, 1, 1, 100, 64, DType::f16);
  c.problem.out_dtype = DType::f32;
  c.problem.lse = true;
  c.facts = hopper_of(132);
  for (const float scale : {1e-8f, 1.0f, 1e7f, 1e9f, 3e38f}) {
    c.problem.scale = scale;
    Data<__half> data;
    data.q.assign(64, narrowed<__half>(0.0f));
    data.q[0] = narrowed<__half>(1.0f);
    data.k.assign(6400, narrowed<__half>(0.0f));
    data.v.assign(6400, narrowed<__half>(1.0f));
    for (int j = 0; j < 100; ++j) data.k[j * 64] = narrowed<__half>(j == 37 ? 1.0f : 0.5f);
    for (int d = 0; d < 64; ++d) data.v[37 * 64 + d] = narrowed<__half>(3.0f);
    const Answer answer = run_kernel<__half>(c, data, simt::Copies::late);
    const double other = 99 * std::exp(-0.5 * scale);
    EXPECT_NEAR(answer.o[0], (3 + other) / (1 + other), 2e-3) << scale;
    EXPECT_NEAR(answer.lse[0] / (scale + std::log1p(other)), 1.0, 1e-6) << scale;
  }
}

}  // namespace
}  // namespace greenfast::cuda::decode
