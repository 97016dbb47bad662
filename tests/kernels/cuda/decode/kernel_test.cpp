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

#include "simt.hpp"

// A block's memory of a size that the launch gives.
#define __shared__
#include "kernels/cuda/decode/kernel.cuh"
#undef __shared__
#define __shared__ static  // of the one block that runs
#include "kernels/cuda/decode/merge.cuh"
#undef __shared__
#include "kernels/cuda/decode/shape.hpp"

namespace greenfast::cuda::decode {

alignas(1024) unsigned char shared_memory[227 * 1024];

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <class T>
T narrowed(float x) {
  if constexpr (std::is_same_v<T, __half>)
    return __float2half_rn(x);
  else
    return __float2bfloat16_rn(x);
}

struct Case {
  Problem problem;
  DeviceFacts facts;
  core::Choice choice;
  Family family = kSm90;
  std::vector<std::int32_t> cu_q, cu_kv, used_q, used_kv, kv_start, kv_index, table;
  std::vector<float> sinks;
  std::uint64_t seed = 0;
};

struct Answer {
  std::vector<float> o, lse;  // NaN where nothing was written
};

template <class T>
struct Data {
  std::vector<T> q, k, v;
};

std::int64_t elements(const Layout& layout, const std::array<std::int64_t, 4>& shape) {
  std::int64_t last = 1;
  for (int i = 0; i < 4; ++i) {
    if (shape[i] == 0) return 0;
    last += (shape[i] - 1) * layout.stride[i];
  }
  return last;
}

Sequence sequence_of(const Case& c, std::int32_t b) {
  const Problem& p = c.problem;
  Sequence s;
  s.q_batch = s.kv_batch = b;
  s.lengths = {static_cast<std::int32_t>(p.seq_q), static_cast<std::int32_t>(p.seq_kv), 0};
  if (p.sequences.packed_q) {
    s.q_batch = 0;
    s.q_row = c.cu_q[b];
    s.lengths.seq_q = c.cu_q[b + 1] - c.cu_q[b];
  }
  if (p.sequences.used_q) s.lengths.seq_q = c.used_q[b];
  if (p.sequences.packed_kv) {
    s.kv_batch = 0;
    s.kv_row = c.cu_kv[b];
    s.lengths.seq_kv = c.cu_kv[b + 1] - c.cu_kv[b];
  }
  if (p.sequences.used_kv) s.lengths.seq_kv = c.used_kv[b];
  if (p.sequences.kv_index) s.kv_batch = c.kv_index[b];
  if (p.sequences.kv_start) s.lengths.kv_start = c.kv_start[b];
  return s;
}

bool sees(const Problem& p, const Lengths& s, std::int64_t row, std::int64_t key) {
  const std::int64_t position =
      row + (p.mask.alignment == Alignment::bottom_right ? s.seq_kv - s.seq_q : 0);
  const auto floored = [&](std::int64_t x) {
    return static_cast<std::int64_t>(
        std::floor(static_cast<double>(x - s.kv_start) / static_cast<double>(p.chunk)));
  };
  return key >= s.kv_start && key < s.seq_kv &&
         (p.mask.left < 0 || key >= position - p.mask.left) &&
         (p.mask.right < 0 || key <= position + p.mask.right) &&
         (p.chunk == 0 || floored(position) == floored(key));
}

std::int64_t key_at(const Case& c, const Layout& layout, const Sequence& s, std::int32_t b,
                    std::int64_t head, std::int64_t key) {
  const Problem& p = c.problem;
  if (p.pages.used()) {
    const std::int64_t page = c.table[b * p.pages.row_stride + key / p.pages.size];
    return page * layout.stride[0] + head * layout.stride[1] +
           key % p.pages.size * layout.stride[2];
  }
  return s.kv_batch * layout.stride[0] + head * layout.stride[1] +
         (s.kv_row + key) * layout.stride[2];
}

/// NaN wherever no row may look.
template <class T>
Data<T> make_data(const Case& c) {
  const Problem& p = c.problem;
  std::mt19937_64 random(c.seed);
  std::normal_distribution<float> normal;
  Data<T> data;
  const std::int64_t dim_v = value_dim(p);
  data.q.assign(elements(p.q, core::shape_of_q(p, p.head_dim)), narrowed<T>(kNaN));
  data.k.assign(elements(p.k, core::shape_of_kv(p, p.head_dim)), narrowed<T>(kNaN));
  data.v.assign(elements(p.v, core::shape_of_kv(p, dim_v)), narrowed<T>(kNaN));
  for (std::int32_t b = 0; b < p.batch; ++b) {
    const Sequence s = sequence_of(c, b);
    for (std::int64_t i = 0; i < s.lengths.seq_q; ++i)
      for (std::int64_t h = 0; h < p.heads_q; ++h)
        for (std::int64_t d = 0; d < p.head_dim; ++d)
          data.q[s.q_batch * p.q.stride[0] + h * p.q.stride[1] + (s.q_row + i) * p.q.stride[2] +
                 d] = narrowed<T>(normal(random));
    for (std::int64_t j = 0; j < s.lengths.seq_kv; ++j) {
      bool seen = false;
      for (std::int64_t i = 0; i < s.lengths.seq_q; ++i) seen |= sees(p, s.lengths, i, j);
      if (!seen) continue;
      for (std::int64_t h = 0; h < p.heads_kv; ++h) {
        T* const k = &data.k[key_at(c, p.k, s, b, h, j)];
        T* const v = &data.v[key_at(c, p.v, s, b, h, j)];
        for (std::int64_t d = 0; d < p.head_dim; ++d) k[d] = narrowed<T>(normal(random));
        for (std::int64_t d = 0; d < dim_v; ++d) v[d] = narrowed<T>(normal(random));
      }
    }
  }
  return data;
}

template <class T>
Answer run_kernel(const Case& c, const Data<T>& data, simt::Copies copies) {
  const Problem& p = c.problem;
  const Shape shape = shape_of(p, c.facts, c.choice, c.family);
  const Config& config = kConfigs[shape.config];
  Answer answer;
  answer.o.assign(elements(p.o, core::shape_of_q(p, value_dim(p))), kNaN);
  const std::int64_t lse_rows = p.sequences.packed_q ? p.sequences.total_q : p.batch * p.seq_q;
  answer.lse.assign(lse_rows * p.heads_q, kNaN);
  // The first tensors of a vector lie at 16 bytes, as malloc has it.
  Tensors t;
  t.q = data.q.data();
  t.k = data.k.data();
  t.v = data.v.data();
  t.o = answer.o.data();
  t.lse = answer.lse.data();
  t.cu_q = c.cu_q.data();
  t.cu_kv = c.cu_kv.data();
  t.used_q = c.used_q.data();
  t.used_kv = c.used_kv.data();
  t.kv_start = c.kv_start.data();
  t.kv_index = c.kv_index.data();
  t.page_table = c.table.data();
  t.sinks = c.sinks.data();
  Params params = make_params(p, t, shape);
  const Workspace space = workspace_of(p, shape);
  std::vector<float> workspace(space.bytes / 4 + 4, kNaN);
  params.partial = workspace.data();
  params.stats = reinterpret_cast<Stats*>(workspace.data() + space.stats_offset / 4);
  simt::forget_allowed();
  simt::allow(data.q.data(), data.q.size() * 2);
  simt::allow(data.k.data(), data.k.size() * 2);
  simt::allow(data.v.data(), data.v.size() * 2);
  simt::Launch launch;
  launch.grid = {static_cast<unsigned>(shape.grid[0]), static_cast<unsigned>(shape.grid[1]),
                 static_cast<unsigned>(shape.grid[2])};
  launch.threads = static_cast<unsigned>(config.threads());
  launch.cluster = static_cast<unsigned>(shape.cluster);
  launch.copies = copies;
  launch.shared = shared_memory;
  launch.shared_bytes = static_cast<std::size_t>(config.shared_bytes());
  using Kernel = void (*)(Params);
  const auto kernel = reinterpret_cast<Kernel>(const_cast<void*>(
      c.family.begin == kSm90.begin ? entries<T, kSm90>()[shape.config]
                                    : entries<T, kSm80>()[shape.config - kSm80.begin]));
  simt::run(launch, [&] { kernel(params); });
  if (space.bytes > 0) {
    launch.grid = {static_cast<unsigned>(params.rows * params.heads_kv),
                   static_cast<unsigned>(params.batch),
                   static_cast<unsigned>(merge_splits(p, shape))};
    launch.threads = kMergeThreads;
    launch.cluster = 1;
    launch.shared_bytes = 0;
    simt::run(launch, [&] { merge_parts(params); });
  }
  return answer;
}

template <class T>
void expect_right(const Case& c, const Data<T>& data, const Answer& answer) {
  const Problem& p = c.problem;
  const std::int64_t dim = p.head_dim, dim_v = value_dim(p);
  const double unit = std::is_same_v<T, __half> ? 0x1p-11 : 0x1p-8;
  const std::int64_t lse_rows = p.sequences.packed_q ? p.sequences.total_q : p.seq_q;
  std::size_t written = 0, written_lse = 0;
  for (std::int32_t b = 0; b < p.batch; ++b) {
    const Sequence s = sequence_of(c, b);
    for (std::int64_t h = 0; h < p.heads_q; ++h) {
      const std::int64_t h_kv = h / (p.heads_q / p.heads_kv);
      for (std::int64_t i = 0; i < s.lengths.seq_q; ++i) {
        const T* q =
            &data.q[s.q_batch * p.q.stride[0] + h * p.q.stride[1] + (s.q_row + i) * p.q.stride[2]];
        std::vector<double> scores;
        std::vector<std::int64_t> at;
        double most = -INFINITY;
        for (std::int64_t j = 0; j < s.lengths.seq_kv; ++j) {
          if (!sees(p, s.lengths, i, j)) continue;
          const T* k = &data.k[key_at(c, p.k, s, b, h_kv, j)];
          double score = 0.0;
          for (std::int64_t d = 0; d < dim; ++d) score += double{to_float(q[d])} * to_float(k[d]);
          score *= p.scale;
          if (p.softcap > 0) score = p.softcap * std::tanh(score / p.softcap);
          scores.push_back(score);
          at.push_back(key_at(c, p.v, s, b, h_kv, j));
          most = std::max(most, score);
        }
        if (p.sinks) most = std::max(most, double{c.sinks[h]});
        double sum = p.sinks ? std::exp(c.sinks[h] - most) : 0.0;
        std::vector<double> o(dim_v), size(dim_v);
        for (std::size_t n = 0; n < scores.size(); ++n) {
          const double weight = std::exp(scores[n] - most);
          sum += weight;
          for (std::int64_t d = 0; d < dim_v; ++d) {
            const double v = to_float(data.v[at[n] + d]);
            o[d] += weight * v;
            size[d] += weight * std::fabs(v);
          }
        }
        const double lse = sum > 0.0 ? most + std::log(sum) : -INFINITY;
        const float got_lse = answer.lse[(s.q_batch * p.heads_q + h) * lse_rows + s.q_row + i];
        ASSERT_TRUE(got_lse == static_cast<float>(lse) ||
                    std::fabs(got_lse - lse) <= 1e-5 * (1 + std::fabs(lse)))
            << to_string(p) << " sequence " << b << " head " << h << " row " << i << ": LSE "
            << got_lse << ", " << lse << " is right";
        ++written_lse;
        const float* got =
            &answer
                 .o[s.q_batch * p.o.stride[0] + h * p.o.stride[1] + (s.q_row + i) * p.o.stride[2]];
        for (std::int64_t d = 0; d < dim_v; ++d, ++written) {
          const double right = scores.empty() ? 0.0 : o[d] / sum;
          const double limit = scores.empty() ? 0.0 : 1.5 * unit * size[d] / sum + 1e-5;
          ASSERT_TRUE(std::fabs(got[d] - right) <= limit)
              << to_string(p) << " sequence " << b << " head " << h << " row " << i << " column "
              << d << ": " << got[d] << ", " << right << " is right";
        }
      }
    }
  }
  // Rows of nobody keep what they held.
  std::size_t holds = 0, holds_lse = 0;
  for (const float x : answer.o) holds += !std::isnan(x);
  for (const float x : answer.lse) holds_lse += !std::isnan(x);
  EXPECT_EQ(holds, written) << to_string(p);
  EXPECT_EQ(holds_lse, written_lse) << to_string(p);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::int64_t in(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  bool chance(int percent) { return in(1, 100) <= percent; }
  template <class A>
  A of(std::initializer_list<A> all) {
    return all.begin()[in(0, static_cast<std::int64_t>(all.size()) - 1)];
  }

 private:
  std::mt19937_64 engine_;
};

Layout spread(Random& r, const std::array<std::int64_t, 4>& shape, int step) {
  Layout layout = r.chance(50) ? dense_layout(Order::bhsd, shape[0], shape[1], shape[2], shape[3])
                               : dense_layout(Order::bshd, shape[0], shape[1], shape[2], shape[3]);
  const std::int64_t wider = r.of<std::int64_t>({1, 1, 2});  // a gap behind every row
  for (int i = 0; i < 3; ++i) layout.stride[i] = layout.stride[i] * wider / step * step;
  layout.alignment = 16;
  return layout;
}

Case draw(std::uint64_t seed, Family family = kSm90) {
  Random r(seed);
  Case c;
  c.seed = seed;
  Problem& p = c.problem;
  p.batch = r.of<std::int64_t>({1, 1, 2, 3, 5, 9});
  p.heads_kv = r.in(1, 2);
  p.heads_q = p.heads_kv * r.of<std::int64_t>({1, 2, 3, 4, 8, 12, 16});
  p.seq_q = r.of<std::int64_t>({1, 1, 1, 2, 3, 4});
  p.seq_kv = r.of<std::int64_t>({0, 1, 17, 64, 65, 130, 255, 300, 520, 1100});
  p.head_dim = r.of<std::int64_t>({64, 64, 128, 128, 128, 8, 96, 256, 192});
  p.head_dim_v = r.chance(15) ? r.of<std::int64_t>({64, 128, 24}) : 0;
  p.dtype = r.of({DType::f16, DType::bf16});
  p.out_dtype = DType::f32;
  p.scale = r.of({0.1f, 0.3f, -0.2f, 1.0f});
  p.softcap = r.chance(20) ? r.of({1.0f, 30.0f}) : 0.0f;
  p.lse = true;
  if (r.chance(60)) {
    p.mask.alignment = r.of({Alignment::bottom_right, Alignment::top_left});
    p.mask.right = r.of<std::int64_t>({0, 0, -1, 3, 100});
    p.mask.left = r.of<std::int64_t>({-1, -1, 0, 5, 127});
  }
  p.chunk = r.chance(15) ? r.of<std::int64_t>({3, 64, 100, 5000}) : 0;
  p.sinks = r.chance(30);
  Sequences& s = p.sequences;
  s.packed_q = r.chance(30);
  s.used_q = r.chance(20);
  s.used_kv = r.chance(50);
  s.kv_start = r.chance(20);
  const std::int64_t where = r.in(0, 3);
  s.packed_kv = where == 1;
  s.kv_index = where == 2 && r.chance(50);
  for (std::int64_t b = 0; b < p.batch; ++b) {
    c.used_q.push_back(static_cast<std::int32_t>(r.in(0, p.seq_q)));
    c.used_kv.push_back(static_cast<std::int32_t>(r.in(0, p.seq_kv)));
    c.kv_start.push_back(static_cast<std::int32_t>(r.in(0, p.seq_kv) / (r.chance(50) ? 8 : 1)));
  }
  if (s.kv_index) {
    s.kv_rows = p.batch + 2;
    for (std::int64_t b = 0; b < p.batch; ++b)
      c.kv_index.push_back(static_cast<std::int32_t>((b * 3 + 1) % s.kv_rows));
  }
  c.cu_q.push_back(static_cast<std::int32_t>(r.in(0, 2)));
  c.cu_kv.push_back(static_cast<std::int32_t>(r.in(0, 2)));
  for (std::int64_t b = 0; b < p.batch; ++b) {
    c.cu_q.push_back(c.cu_q[b] + static_cast<std::int32_t>(r.in(0, p.seq_q)));
    c.cu_kv.push_back(c.cu_kv[b] + static_cast<std::int32_t>(r.in(0, p.seq_kv)));
    if (s.packed_q) c.used_q[b] = std::min(c.used_q[b], c.cu_q[b + 1] - c.cu_q[b]);
    if (s.packed_kv) c.used_kv[b] = std::min(c.used_kv[b], c.cu_kv[b + 1] - c.cu_kv[b]);
  }
  s.total_q = s.packed_q ? c.cu_q.back() + r.in(0, 2) : 0;
  if (s.packed_q && s.total_q == 0) s.total_q = 1;
  s.total_kv = s.packed_kv ? c.cu_kv.back() + r.in(0, 2) : 0;
  for (std::int64_t h = 0; h < p.heads_q; ++h)
    c.sinks.push_back(r.of({-INFINITY, -3.0f, 0.0f, 2.5f, 9.0f}));
  if (where == 3) {
    p.pages.size = r.of<std::int64_t>({1, 4, 7, 16, 48, 64, 128, 2000});
    const std::int64_t of_row = core::ceil_div(p.seq_kv, p.pages.size);
    p.pages.row_stride = of_row + r.in(0, 2);
    p.pages.count = p.batch * of_row + 1;
    // What no key needs: an id that exists nowhere.
    c.table.assign(p.batch * p.pages.row_stride + 1, r.of({0x7fffffff, -7}));
    std::vector<std::int32_t> pool;
    for (std::int32_t n = 0; n < p.pages.count; ++n) pool.push_back(n);
    std::mt19937_64 engine(seed);
    std::shuffle(pool.begin(), pool.end(), engine);
    for (std::int32_t b = 0; b < p.batch; ++b) {
      const Lengths l = sequence_of(c, b).lengths;
      for (std::int64_t i = 0; i < l.seq_q; ++i)
        for (std::int64_t j = 0; j < l.seq_kv; ++j)
          if (std::int32_t& entry = c.table[b * p.pages.row_stride + j / p.pages.size];
              sees(p, l, i, j) && (entry < 0 || entry == 0x7fffffff)) {
            entry = pool.back();
            pool.pop_back();
          }
    }
  }
  p.q = spread(r, core::shape_of_q(p, p.head_dim), 8);
  p.k = spread(r, core::shape_of_kv(p, p.head_dim), 8);
  p.v = spread(r, core::shape_of_kv(p, value_dim(p)), 8);
  p.o = spread(r, core::shape_of_q(p, value_dim(p)), 1);
  c.facts.kind = DeviceKind::cuda;
  c.facts.multiprocessors = static_cast<int>(r.of<std::int64_t>({1, 2, 5, 16}));
  c.facts.shared_per_block = 227 * 1024;
  if (family.begin == kSm80.begin) c.facts.shared_per_block = r.of<std::int64_t>({99, 163}) * 1024;
  c.family = family;
  c.choice.batch_invariant = r.chance(30);
  c.choice.max_splits = static_cast<int>(r.of<std::int64_t>({0, 0, 0, 1, 2, 5}));
  return c;
}

template <class T>
Answer answer_of(const Case& c, simt::Copies copies, bool compare = true) {
  const Data<T> data = make_data<T>(c);
  Answer answer = run_kernel<T>(c, data, copies);
  if (compare) expect_right<T>(c, data, answer);
  return answer;
}

/// Draws `count` problems; every way through the family's kernels is taken where that many are drawn.
void expect_right_of_many(Family family, int count) {
  int clustered = 0, counted = 0, merged = 0, alone = 0;
  std::array<int, kConfigs.size()> used{};
  for (int seed = 1; seed <= count; ++seed) {
    const Case c = draw(static_cast<std::uint64_t>(seed), family);
    if (rows_of(c.problem) > kMostRows) continue;
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Shape shape = shape_of(c.problem, c.facts, c.choice, c.family);
    ASSERT_TRUE(shape.config >= family.begin && shape.config < family.end);
    ++used[shape.config];
    clustered += shape.clustered;
    counted += shape.counted;
    merged += !shape.clustered && !shape.counted && shape.most_parts > 1;
    alone += shape.most_parts == 1;
    const auto copies = seed % 2 == 0 ? simt::Copies::late : simt::Copies::early;
    if (c.problem.dtype == DType::f16)
      answer_of<__half>(c, copies);
    else
      answer_of<__nv_bfloat16>(c, copies);
    if (testing::Test::HasFailure()) return;
  }
  if (count < 400) return;
  EXPECT_EQ(clustered > 0, family.begin == kSm90.begin);
  EXPECT_GT(counted, 0);
  EXPECT_GT(merged, 0);
  EXPECT_GT(alone, 0);
  for (std::size_t i = family.begin; i < family.end; ++i) {
    // Eight warps are for more keys than this draws; ClustersOfEverySizeMergeAlike has them.
    if (kConfigs[i].warps != 8) {
      EXPECT_GT(used[i], 0) << i;
    }
  }
}

TEST(DecodeKernel, AgreesWithTheMeaningOfEveryFeature) {
  expect_right_of_many(kSm90, 4 * GREENFAST_TEST_PERCENT);
}

TEST(DecodeKernel, OfSm80AgreesWithTheMeaningOfEveryFeature) {
  expect_right_of_many(kSm80, 4 * GREENFAST_TEST_PERCENT);
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
    c.facts.kind = DeviceKind::cuda;
    c.facts.multiprocessors = 132;
    c.facts.shared_per_block = 227 * 1024;
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
    c.facts.kind = DeviceKind::cuda;
    c.facts.multiprocessors = 3;
    c.facts.shared_per_block = 227 * 1024;
    c.choice.batch_invariant = true;
    if (seed % 3 == 0) c.family = kSm80;
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
  c.facts.kind = DeviceKind::cuda;
  c.facts.multiprocessors = 132;
  c.facts.shared_per_block = 227 * 1024;
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
