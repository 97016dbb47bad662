// The online softmax of cuda.sm90.fp8 on the scores that a warpgroup's threads hold
// (accumulator_place of layout.hpp): masks, weights with the true maximum or with a stale base, and
// the guard that says when the base will not do.
//
// A row has a base, in units of log2; its weights are 2^(scale * score - base). e4m3 ends at 448 =
// 2^8.8 and at 2^-9, half of which still rounds to a weight. Where the largest weight is set says
// how far it may grow before the base must move, and what of the row's tail is left. A key that
// decides the row alone becomes 192: keys of e^-12 of it still count. Where many keys share the row
// the largest may be lower by the root of their number, because the tail is measured by the sum: 48
// after a block of N(0,1) scores, so that later blocks hardly ever outgrow it. Rounding leaves
// these numbers as they are, so that O is V where one key decides.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_fp8/config.hpp"
#include "kernels/cuda/sm90_fp8/layout.hpp"

namespace greenfast::cuda::fp8 {

inline constexpr float kTop = 7.5849625f;   // log2(192): the largest weight of a row of one key
inline constexpr float kMostBelow = 2.0f;   // octaves, of a row that many keys share
inline constexpr float kLimit = 448.0f;     // e4m3's largest number
inline constexpr float kLimitLog = 8.807f;  // just below its logarithm
// Worth a new base where another row of the warp needs one.
inline constexpr float kEnough = 256.0f;
// Up to here one float holds a base finely enough that 192 stays 192.
inline constexpr float kFineBase = 0x1p15f;
// Weights beyond this are computed again from the scores: ex2.approx.ftz of -127 is 0.
inline constexpr float kHuge = 0x1p100f;

/// log2 of the largest weight of a row whose weights sum up to `sum` times the largest: of 192, 96
/// or 48, which rounding leaves as they are, also where keys tie.
__device__ __forceinline__ float top_of(float sum) {
  return kTop - fminf(rintf(0.5f * __log2f(fmaxf(sum, 1.0f))), kMostBelow);
}

/// The base under which `score` weighs 2^top. Rounded once, and the same for every block that uses
/// it; where one float is too coarse, `low` holds the rest.
__device__ __forceinline__ WideBase base_for(float score, float scale, float top) {
  const float high = fmaf(score, scale, -top);
  const bool two = fabsf(high) > kFineBase && fabsf(high) <= 3.4028235e38f;
  return {high, two ? fmaf(score, scale, -high) - top : 0.0f};
}

template <class ConfigOf>
struct OnlineSoftmax {
  static constexpr int kScores = ConfigOf::value.kKeys / 2;

  float scale = 0.0f;  // of products to log2, above 0
  WideBase* wide;      // of the CTA: two for each thread
  float top[2];        // of rows g and g + 8: the base
  float sum[2];        // of this thread's weights, before they are rounded

  /// The base of a row whose `top` is NaN. Its address is computed where it is used, or it would
  /// live in registers.
  __device__ __forceinline__ WideBase& wide_base_of_row(int h) const {
    return wide[2 * (ptx::thread_index() - 128) + h];
  }
  __device__ __forceinline__ WideBase base_of_row(int h) const {
    return isnan(top[h]) ? wide_base_of_row(h) : WideBase{top[h], 0.0f};
  }
  __device__ __forceinline__ void set_base(int h, WideBase base) {
    top[h] = base.high;
    if (base.low != 0.0f) {
      wide_base_of_row(h) = base;
      top[h] = NAN;  // so that the guard trips, and every block comes to `exact`
    }
  }

  /// Of the block, in all lanes of a row.
  __device__ __forceinline__ static void largest_scores(const float (&s)[kScores],
                                                        float (&most)[2]) {
    float part[4] = {s[0], s[1], s[2], s[3]};
#pragma unroll
    for (int i = 4; i < kScores; ++i) part[i & 3] = fmaxf(part[i & 3], s[i]);
#pragma unroll
    for (int h = 0; h < 2; ++h) most[h] = quad_max(fmaxf(part[2 * h], part[2 * h + 1]));
  }

  /// Hides what the rows do not see.
  __device__ __forceinline__ static void mask(const Params& p, float (&s)[kScores], int block,
                                              int first_row) {
    const int lane = ptx::lane_id();
    const int row = first_row + (lane >> 2), first_key = block * 2 * kScores;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int end = p.band.end(row + 8 * h) - first_key;
      const int begin = p.band.first(row + 8 * h) - first_key;
      const int to[2] = {columns_to(p.in_fours, 0, lane, end),
                         columns_to(p.in_fours, 1, lane, end)};
      const int from[2] = {columns_to(p.in_fours, 0, lane, begin),
                           columns_to(p.in_fours, 1, lane, begin)};
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) {
        const int column = i / 2 * 8 + i % 2, half = column / kScores;
        float& x = s[i / 2 * 4 + 2 * h + i % 2];
        if (column >= to[half] || column < from[half]) x = -INFINITY;
      }
    }
  }

  /// What this thread has of the block's sums.
  __device__ __forceinline__ static void sums_of(const float (&s)[kScores], float (&block)[2]) {
    float part[4] = {s[0], s[1], s[2], s[3]};
#pragma unroll
    for (int i = 4; i < kScores; ++i) part[i & 3] += s[i];
    block[0] = part[0] + part[1];
    block[1] = part[2] + part[3];
  }

  /// The tile's first block, with its true maximum.
  __device__ __forceinline__ void begin(float (&s)[kScores]) {
    float most[2];
    largest_scores(s, most);
    WideBase full[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) full[h] = finite(wide_base(most[h], scale));
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] = exp2_fast(exponent(s[i], scale, full[i >> 1 & 1]));
    sums_of(s, sum);
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float top_now = top_of(quad_sum(sum[h]));
      const WideBase base = base_for(most[h], scale, top_now);  // -inf where no key was seen yet
      factor[h] = exp2_fast(distance(full[h], finite(base)));   // 2^top_now, as the base rounds it
      sum[h] *= factor[h];
      set_base(h, base);
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] *= factor[i >> 1 & 1];
  }

  /// Another block, with its true maximum; `shrink` is what O and the sums must be multiplied by.
  __device__ __forceinline__ void exact(float (&s)[kScores], float (&shrink)[2]) {
    float most[2];
    largest_scores(s, most);
    WideBase from[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const WideBase before = base_of_row(h), full = wide_base(most[h], scale);
      // By all lanes: the rows of a warp may differ in what follows.
      const float others = quad_sum(sum[h]) * exp2_fast(distance(before, full));
      WideBase base = before;
      if (full.high != -INFINITY && !(distance(full, before) <= kLimitLog))
        base = base_for(most[h], scale, top_of(1.0f + others));
      from[h] = finite(base);  // no key seen yet: weights 0, not NaN
      shrink[h] = exp2_fast(distance(before, from[h]));
      set_base(h, base);
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] = exp2_fast(exponent(s[i], scale, from[i >> 1 & 1]));
    float block[2];
    sums_of(s, block);
#pragma unroll
    for (int h = 0; h < 2; ++h) sum[h] = sum[h] * shrink[h] + block[h];
  }

  /// Weights with the bases that are there. Returns whether they fit e4m3 in all rows of the warp.
  /// Positive floats are ordered as integers, of which three compare at once, and the NaN of
  /// ex2.approx (0x7fffffff) above them.
  __device__ __forceinline__ bool fits(float (&s)[kScores], float (&block)[2]) const {
    const float base[2] = {top[0], top[1]};
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] = exp2_fast(fmaf(s[i], scale, -base[i >> 1 & 1]));
    sums_of(s, block);
    // Between the exponentials; ptxas would move the additions behind the branch that follows. At
    // D 128 it must, for want of registers.
    if constexpr (ConfigOf::value.head_dim == 64) asm volatile("" : "+f"(block[0]), "+f"(block[1]));
    int most[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kScores; i += 2)
      most[i / 2 & 3] =
          __vimax3_s32(most[i / 2 & 3], __float_as_int(s[i]), __float_as_int(s[i + 1]));
    const int largest = __vimax3_s32(most[0], most[1], max(most[2], most[3]));
    return !__any_sync(kFullWarp, !(__int_as_float(largest) <= kLimit));
  }

  /// Weights that do not fit: scales them down where they are in fp32's range, or has the block
  /// done again, which gives `shrink` too.
  template <class Redo>
  __device__ __forceinline__ void recover(float (&s)[kScores], const float (&block)[2],
                                          const Redo& redo, float (&shrink)[2]) {
    int most[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kScores; i += 2)
      most[i >> 1 & 1] =
          __vimax3_s32(most[i >> 1 & 1], __float_as_int(s[i]), __float_as_int(s[i + 1]));
    const float large[2] = {__int_as_float(most[0]), __int_as_float(most[1])};
    if (__any_sync(kFullWarp, !(large[0] + large[1] <= kHuge))) {
      redo();
      return;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float row = quad_max(large[h]), before = top[h];
      const float others = quad_sum(sum[h]) * reciprocal_fast(row);
      if (row > kEnough) top[h] += __log2f(row) - top_of(1.0f + others);
      shrink[h] = exp2_fast(before - top[h]);  // what the rounded base makes of it
      sum[h] = (sum[h] + block[h]) * shrink[h];
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] *= shrink[i >> 1 & 1];
  }

  /// A block with stale bases. Returns whether they moved, by `shrink`.
  template <class Redo>
  __device__ __forceinline__ bool guarded(float (&s)[kScores], const Redo& redo,
                                          float (&shrink)[2]) {
    float block[2];
    const bool moved = !fits(s, block);
    if (moved) {
      recover(s, block, redo, shrink);
    } else {
      sum[0] += block[0];
      sum[1] += block[1];
    }
    return moved;
  }
};

}  // namespace greenfast::cuda::fp8
