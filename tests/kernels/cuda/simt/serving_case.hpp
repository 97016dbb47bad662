// Problems of serving for kernels that run on the CPU (simt.hpp): what is drawn, its inputs with NaN
// wherever no row may look, and what docs/serving.md says of it in fp64.
#pragma once

#include "simt.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <greenfast/attention.hpp>

#include "core/arithmetic.hpp"
#include "core/check.hpp"
#include "core/e4m3.hpp"
#include "core/variant.hpp"

namespace greenfast::cuda::test {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <class T>
T narrowed(float x) {
  if constexpr (std::is_same_v<T, __half>)
    return __float2half_rn(x);
  else if constexpr (sizeof(T) == 1)
    return {core::to_e4m3(x)};
  else
    return __float2bfloat16_rn(x);
}

struct Case {
  Problem problem;
  DeviceFacts facts;
  core::Choice choice;
  std::vector<std::int32_t> cu_q, cu_kv, used_q, used_kv, kv_start, kv_index, table;
  std::vector<float> sinks, slopes;
  std::vector<float> mask;  // what is added, -inf where a boolean mask hides; in the order of
                            // its strides
  std::vector<unsigned char> seen;               // the same of a boolean mask
  std::vector<float> q_scale, k_scale, v_scale;  // of e4m3, as the problem says
  std::uint64_t seed = 0;
};

struct Lengths {
  std::int32_t seq_q = 0, seq_kv = 0, kv_start = 0;
};
/// One sequence of a case: where its rows and keys lie, and how many there are.
struct Placed {
  std::int32_t q_batch = 0, q_row = 0, kv_batch = 0, kv_row = 0;
  Lengths lengths;
};

struct Answer {
  std::vector<float> o, lse;  // NaN where nothing was written
};

template <class T>
struct Data {
  std::vector<T> q, k, v;
};

inline std::int64_t elements(const Layout& layout, const std::array<std::int64_t, 4>& shape) {
  std::int64_t last = 1;
  for (int i = 0; i < 4; ++i) {
    if (shape[i] == 0) return 0;
    last += (shape[i] - 1) * layout.stride[i];
  }
  return last;
}

inline Placed sequence_of(const Case& c, std::int32_t b) {
  const Problem& p = c.problem;
  Placed s;
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

inline bool sees(const Problem& p, const Lengths& s, std::int64_t row, std::int64_t key) {
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

inline std::int64_t key_at(const Case& c, const Layout& layout, const Placed& s, std::int32_t b,
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

/// What is added to a score behind softcap: ALiBi's slope and the array mask's element; -inf hides.
inline double bias_of(const Case& c, const Lengths& s, std::int64_t b, std::int64_t h,
                      std::int64_t i, std::int64_t j) {
  const Problem& p = c.problem;
  const std::int64_t position =
      i + (p.mask.alignment == Alignment::bottom_right ? s.seq_kv - s.seq_q : 0);
  double bias = 0.0;
  if (p.alibi != Alibi::none) {
    const std::int64_t row = p.alibi == Alibi::per_batch_head ? b : 0;
    bias -= double{c.slopes[row * p.heads_q + h]} * static_cast<double>(std::abs(position - j));
  }
  const auto& stride = p.array_mask.stride;
  if (p.array_mask.kind != MaskKind::none)
    bias += c.mask[b * stride[0] + h * stride[1] + i * stride[2] + j * stride[3]];
  return bias;
}

/// What an e4m3 tensor's elements stand for, over their value.
inline double scale_of(const Case& c, const std::vector<float>& scales, std::int64_t b,
                       std::int64_t head, std::int64_t heads) {
  return c.problem.scales == ScaleKind::none     ? 1.0
         : c.problem.scales == ScaleKind::tensor ? scales[0]
                                                 : scales[b * heads + head];
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
    const Placed s = sequence_of(c, b);
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
void expect_right(const Case& c, const Data<T>& data, const Answer& answer) {
  const Problem& p = c.problem;
  const std::int64_t dim = p.head_dim, dim_v = value_dim(p);
  // e4m3 is multiplied as fp16.
  const double unit = std::is_same_v<T, __nv_bfloat16> ? 0x1p-8 : 0x1p-11;
  const std::int64_t lse_rows = p.sequences.packed_q ? p.sequences.total_q : p.seq_q;
  std::size_t written = 0, written_lse = 0;
  for (std::int32_t b = 0; b < p.batch; ++b) {
    const Placed s = sequence_of(c, b);
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
          score *= p.scale * scale_of(c, c.q_scale, b, h, p.heads_q) *
                   scale_of(c, c.k_scale, b, h_kv, p.heads_kv);
          if (p.softcap > 0) score = p.softcap * std::tanh(score / p.softcap);
          score += bias_of(c, s.lengths, b, h, i, j);
          scores.push_back(score);
          at.push_back(key_at(c, p.v, s, b, h_kv, j));
          most = std::max(most, score);
        }
        if (p.sinks) most = std::max(most, double{c.sinks[h]});
        double sum = p.sinks && most != -INFINITY ? std::exp(c.sinks[h] - most) : 0.0;
        std::vector<double> o(dim_v), size(dim_v);
        for (std::size_t n = 0; n < scores.size(); ++n) {
          const double weight = most == -INFINITY ? 0.0 : std::exp(scores[n] - most);
          sum += weight;
          for (std::int64_t d = 0; d < dim_v; ++d) {
            const double v = to_float(data.v[at[n] + d]);
            o[d] += weight * v;
            size[d] += weight * std::fabs(v);
          }
        }
        for (std::int64_t d = 0; d < dim_v; ++d) {
          const double of_v = scale_of(c, c.v_scale, b, h_kv, p.heads_kv);
          o[d] *= of_v;
          size[d] *= std::fabs(of_v);
        }
        const double lse = sum > 0.0 ? most + std::log(sum) : -INFINITY;
        const float got_lse = answer.lse[(s.q_batch * p.heads_q + h) * lse_rows + s.q_row + i];
        // Kernels take -2^127 for all that is lower and finite.
        const bool lowest = lse < -0x1p127 && got_lse < -0x1p126f && std::isfinite(got_lse);
        ASSERT_TRUE(got_lse == static_cast<float>(lse) || (lowest && std::isfinite(lse)) ||
                    std::fabs(got_lse - lse) <= 1e-5 * (1 + std::fabs(lse)))
            << to_string(p) << " sequence " << b << " head " << h << " row " << i << ": LSE "
            << got_lse << ", " << lse << " is right";
        ++written_lse;
        const float* got =
            &answer
                 .o[s.q_batch * p.o.stride[0] + h * p.o.stride[1] + (s.q_row + i) * p.o.stride[2]];
        for (std::int64_t d = 0; d < dim_v; ++d, ++written) {
          const double right = sum == 0.0 ? 0.0 : o[d] / sum;
          const double rounding = p.out_dtype == DType::f32 ? 0.0 : unit * std::fabs(right);
          const double limit = sum == 0.0 ? 0.0 : 1.5 * unit * size[d] / sum + rounding + 1e-5;
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

inline Layout spread(Random& r, const std::array<std::int64_t, 4>& shape, int step) {
  Layout layout = r.chance(50) ? dense_layout(Order::bhsd, shape[0], shape[1], shape[2], shape[3])
                               : dense_layout(Order::bshd, shape[0], shape[1], shape[2], shape[3]);
  const std::int64_t wider = r.of<std::int64_t>({1, 1, 2});  // a gap behind every row
  for (int i = 0; i < 3; ++i) layout.stride[i] = layout.stride[i] * wider / step * step;
  layout.alignment = 16;
  return layout;
}

/// The value of an e4m3 byte.
inline float of_e4m3(std::uint8_t bits) {
  const int exponent = bits >> 3 & 15, digits = bits & 7;
  const float size = (bits & 0x7f) == 0x7f ? NAN
                     : exponent == 0       ? std::ldexp(static_cast<float>(digits), -9)
                                     : std::ldexp(static_cast<float>(8 + digits), exponent - 10);
  return bits >> 7 != 0 ? -size : size;
}

/// The same problem in e4m3, with scales of either sign; rows begin at multiples of `step` bytes.
inline void make_e4m3(Case& c, int step) {
  Random r(c.seed + 5);
  Problem& p = c.problem;
  p.dtype = DType::e4m3;
  p.q = spread(r, core::shape_of_q(p, p.head_dim), step);
  p.k = spread(r, core::shape_of_kv(p, p.head_dim), step);
  p.v = spread(r, core::shape_of_kv(p, value_dim(p)), step);
  p.o = spread(r, core::shape_of_q(p, value_dim(p)), 1);
  p.scales = r.of({ScaleKind::none, ScaleKind::tensor, ScaleKind::per_head});
  const auto draw_scales = [&](std::vector<float>& scales, std::int64_t heads) {
    for (std::int64_t i = 0; i < p.batch * heads; ++i)
      scales.push_back(r.of({1.0f, 0.25f, 1.5f, -0.75f, 0.0f}));
  };
  draw_scales(c.q_scale, p.heads_q);
  draw_scales(c.k_scale, p.heads_kv);
  draw_scales(c.v_scale, p.heads_kv);
}

inline Case draw(std::uint64_t seed) {
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
  c.choice.batch_invariant = r.chance(30);
  c.choice.max_splits = static_cast<int>(r.of<std::int64_t>({0, 0, 0, 1, 2, 5}));
  return c;
}

/// The call's arrays; Q, K, V, O, the LSE and an array mask are the caller's.
inline Tensors arrays_of(const Case& c) {
  Tensors t;
  t.cu_q = c.cu_q.data();
  t.cu_kv = c.cu_kv.data();
  t.used_q = c.used_q.data();
  t.used_kv = c.used_kv.data();
  t.kv_start = c.kv_start.data();
  t.kv_index = c.kv_index.data();
  t.page_table = c.table.data();
  t.sinks = c.sinks.data();
  t.slopes = c.slopes.data();
  t.q_scale = c.q_scale.data();
  t.k_scale = c.k_scale.data();
  t.v_scale = c.v_scale.data();
  return t;
}

/// O and LSE to be written, full of NaN.
inline Answer room_for(const Problem& p) {
  Answer answer;
  answer.o.assign(elements(p.o, core::shape_of_q(p, value_dim(p))), kNaN);
  const std::int64_t lse_rows = p.sequences.packed_q ? p.sequences.total_q : p.batch * p.seq_q;
  answer.lse.assign(lse_rows * p.heads_q, kNaN);
  return answer;
}

/// The same problem with slopes, an array mask of any shape, both or neither.
inline void add_biases(Case& c) {
  Random r(c.seed + 77);
  Problem& p = c.problem;
  p.alibi = r.of({Alibi::none, Alibi::none, Alibi::per_head, Alibi::per_batch_head});
  for (std::int64_t i = 0; i < p.batch * p.heads_q; ++i)
    c.slopes.push_back(r.of({0.5f, 0.0f, -0.125f}));
  ArrayMask& mask = p.array_mask;
  mask.kind = r.of({MaskKind::none, MaskKind::boolean, MaskKind::boolean, MaskKind::additive});
  if (mask.kind == MaskKind::none) return;
  mask.dtype = r.chance(50) ? DType::f32 : p.dtype;
  const std::array<std::int64_t, 4> shape{p.batch, p.heads_q, p.seq_q, p.seq_kv};
  const std::int64_t step = r.of<std::int64_t>({1, 2, 16});  // what rows begin at a multiple of
  std::int64_t size = 1;
  for (int i = 3; i >= 0; --i) {
    if (r.chance(25)) continue;  // broadcast
    mask.stride[i] = size;
    size *= shape[i];
    size = (size + step - 1) / step * step;
  }
  // What hides a key may be the lowest number of bf16, of which a row may have nothing else. (That of fp16
  // leaves a few bits of the score beside it, in fp32.)
  constexpr float lowest = -0x1.fep127f;
  const bool finite = mask.kind == MaskKind::additive && mask.dtype != DType::f16 && r.chance(30);
  const int percent = finite && r.chance(50) ? 2 : 70;
  for (std::int64_t i = 0; i < size; ++i) {
    const bool seen = r.chance(percent);
    c.seen.push_back(seen ? r.of<unsigned char>({1, 1, 128, 255}) : 0);
    c.mask.push_back(!seen                            ? finite ? lowest : -INFINITY
                     : mask.kind == MaskKind::boolean ? 0.0f
                                                      : r.of({0.0f, 1.0f, -2.5f, 6.0f}));
  }
}

}  // namespace greenfast::cuda::test
