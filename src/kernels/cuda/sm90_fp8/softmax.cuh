// The online softmax of cuda.sm90.fp8 on the scores that a warpgroup's threads hold
// (accumulator_place of layout.hpp): masks, weights with the true maximum or with a stale base, and
// the guard that says when the base will not do.
//
// A row has a base, in units of log2; its weights are 2^(scale * score - base). e4m3 ends at 448 =
// 2^8.8 and at 2^-9, half of which still rounds to a weight. So the largest weight is set to 2^7:
// it may grow by 1.8 octaves before the base must move (of N(0,1) scores one warp's rows in nine do
// so in the second block, few later), and keys of e^-11.7 of it still count.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_fp8/config.hpp"

namespace greenfast::cuda::fp8 {

inline constexpr float kTop = 7.0f;      // log2 of the largest weight under a fresh base
inline constexpr float kLimit = 448.0f;  // e4m3's largest number
inline constexpr float kEnough =
    256.0f;  // worth a new base where another row of the warp needs one
// Weights beyond this are computed again from the scores: ex2.approx.ftz of -127 is 0.
inline constexpr float kHuge = 0x1p100f;

/// The base under which `score` weighs 2^kTop. Rounded once, and the same for every block that uses
/// it; where one float is too coarse, `low` holds the rest.
__device__ __forceinline__ WideBase base_for(float score, float scale) {
  const float high = fmaf(score, scale, -kTop);
  const bool two = fabsf(high) > kLargestBase && fabsf(high) <= 3.4028235e38f;
  return {high, two ? fmaf(score, scale, -high) - kTop : 0.0f};
}

template <class ConfigOf>
struct OnlineSoftmax {
  static constexpr int kScores = ConfigOf::value.kKeys / 2;

  float scale = 0.0f;  // of products to log2, above 0
  WideBase* wide;      // of the CTA: two for each thread
  float top[2];        // of rows g and g + 8: the base
  float sum[2];

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

  /// Hides what the rows do not see.
  __device__ __forceinline__ static void mask(const Params& p, float (&s)[kScores], int block,
                                              int first_row) {
    const int lane = ptx::lane_id();
    const int row = first_row + (lane >> 2), first_key = block * 2 * kScores + 2 * (lane & 3);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int end = p.band.end(row + 8 * h) - first_key;
      const int begin = p.band.first(row + 8 * h) - first_key;
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) {
        const int key = i / 2 * 8 + i % 2;
        float& x = s[i / 2 * 4 + 2 * h + i % 2];
        if (key >= end || key < begin) x = -INFINITY;
      }
    }
  }

  /// One block with the true maximum; `shrink` is what O and the sums must be multiplied by.
  template <bool kFirst>
  __device__ __forceinline__ void exact(float (&s)[kScores], float (&shrink)[2]) {
    float most[4] = {s[0], s[1], s[2], s[3]};
#pragma unroll
    for (int i = 4; i < kScores; ++i) most[i & 3] = fmaxf(most[i & 3], s[i]);
    WideBase from[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      WideBase base = base_for(quad_max(fmaxf(most[2 * h], most[2 * h + 1])), scale);
      if constexpr (kFirst) {
        from[h] = finite(base);  // no key seen yet: weights 0, not NaN
      } else {
        const WideBase before = base_of_row(h);
        base = larger(before, base);
        from[h] = finite(base);
        shrink[h] = exp2_fast(distance(before, from[h]));
      }
      set_base(h, base);
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] = exp2_fast(exponent(s[i], scale, from[i >> 1 & 1]));
  }

  /// Weights with the bases that are there. Returns whether they fit e4m3 in all rows of the warp.
  /// Positive floats are ordered as integers, of which three compare at once, and the NaN of
  /// ex2.approx (0x7fffffff) above them.
  __device__ __forceinline__ bool fits(float (&s)[kScores]) const {
    const float base[2] = {top[0], top[1]};
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] = exp2_fast(fmaf(s[i], scale, -base[i >> 1 & 1]));
    int most[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kScores; i += 2)
      most[i / 2 & 3] =
          __vimax3_s32(most[i / 2 & 3], __float_as_int(s[i]), __float_as_int(s[i + 1]));
    const int largest = __vimax3_s32(most[0], most[1], max(most[2], most[3]));
    return !__any_sync(kFullWarp, !(__int_as_float(largest) <= kLimit));
  }

  /// Weights that do not fit: scales them down exactly where they are in fp32's range, or has
  /// `redo_scores` bring the scores back and takes their true maximum.
  template <class Redo>
  __device__ __forceinline__ void recover(float (&s)[kScores], const Redo& redo_scores,
                                          float (&shrink)[2]) {
    int most[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kScores; i += 2)
      most[i >> 1 & 1] =
          __vimax3_s32(most[i >> 1 & 1], __float_as_int(s[i]), __float_as_int(s[i + 1]));
    const float large[2] = {__int_as_float(most[0]), __int_as_float(most[1])};
    if (__any_sync(kFullWarp, !(large[0] + large[1] <= kHuge))) {
      redo_scores();
      exact<false>(s, shrink);
      return;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float row = quad_max(large[h]), before = top[h];
      const auto octave = static_cast<float>((__float_as_int(row) >> 23) - 127);
      top[h] += row > kEnough ? octave - kTop : 0.0f;
      shrink[h] = exp2_fast(before - top[h]);  // what the rounded sum really is
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] *= shrink[i >> 1 & 1];
  }
};

}  // namespace greenfast::cuda::fp8
