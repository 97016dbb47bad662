// The online softmax of cuda.sm90.fp8_fast, and of cuda.sm90.fp8_curved, without an exponential: an
// e4m3 byte 8 (k + 7) + m is 2^k (1 + m / 8), a piecewise linear power of two, so that 8 log2(weight)
// rounded to a whole number is the weight's code. It is too large by 0 to 6.15% before that rounding,
// by 4.04% in the mean, and all weights of a row alike but for that.
//
// Scores are pairs of halves. One packed FMA, score * (8 scale) + (1024 + offset), rounds two of
// them to codes, because halves from 1024 on are whole numbers; the code is the low byte. A maximum
// with 1024 takes what is below code 0, at last. Before that a guard sees codes above 126 (127 is
// NaN), NaN, and rows without a code of 32 or more: a block in the tail of its row, of which little
// would be left. Moving the base then is an addition of whole octaves, up only where the tail may
// count; O and the sums are fp32 and follow.
//
// A row has a base, in octaves: a score's code is 118 + 8 (score * scale - base). Where that is
// from -113 to 142 octaves (78 and 98 nats; curved: 172 octaves, 119 nats) halves hold
// 1024 + 118 - 8 base, and the row is easy. Else their scores are too coarse: the row is hard, and
// every block of its warp is multiplied again through fp32 (`again`).
//
// Curved weights (Weights::curved) are the same eight times as fine: their units are eighths of codes,
// which `curve` bends to 2^x and rounds to codes once the guard has seen them.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/device/e4m3.cuh"
#include "kernels/cuda/device/ptx_e4m3.cuh"
#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/ptx_mma.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_fp8/config.hpp"
#include "kernels/cuda/sm90_fp8/layout.hpp"

namespace greenfast::cuda::fp8 {

/// log of the mean of (1 + f) / 2^f over a code's fractions: what a sum of linear weights is above
/// that of the weights.
inline constexpr float kMeanBiasLog2 = 0.0571f;
inline constexpr int kLargestCode = 126;
// The largest weight's code is one of 94, 102, 110, 118: with m = 6 its own bias is the mean one.
// 118 where the row has one key, for its tail; 94 where many share it, to leave room for growth.
inline constexpr int kTopAlone = 118, kTopShared = 94;
// A block whose codes end here keeps 2 nats. Those of N(0,1) scores do not end so low.
inline constexpr int kLowest = 32, kTopOfTail = 102;
// A base moves down by so many codes at most: a block's sum is not yet in its row's when the next one
// decides, so that a tail may seem to count beside nothing, and O and the sums must stay within fp32.
inline constexpr float kFarthestDown = 96.0f;
// Of a row's sum: less than this, in all that may follow, does not count.
inline constexpr float kCounts = 1.0f / 16.0f;
// A flat block's largest weight stands for so many keys: its 128, and more, because a flat tail may
// be long and its V alike. At least for four.
inline constexpr float kFlatLog2 = 14.0f, kLeastKeys = 4.0f;
inline constexpr float kOffsetOfBase0 = 1024.0f + kTopAlone;
inline constexpr float kLargestOffset = 2046.0f, kLeastOffset = 2.0f;  // of easy rows
// The curved weights'. Their largest is a power of two, which rounding leaves as it is.
inline constexpr int kCurvedTopAlone = 120, kCurvedTopShared = 96, kCurvedTopOfTail = 104;
inline constexpr float kCurvedOffset = 9216.0f;          // of easy rows, at most, of either sign
inline constexpr float kCurvedBias = 1.5f;               // eighths of codes (curved)
inline constexpr std::uint32_t kCodeZero = 0x64006400u;  // two halves of 1024
// `offset` of rows that have none: NaN, so that the guard trips.
inline constexpr std::uint32_t kNoKeyYet = 0x7fff7fffu, kHard = 0x7e007e00u;

/// Two halves in a register.
__device__ __forceinline__ __half2 halves(std::uint32_t x) {
  return reinterpret_cast<const __half2&>(x);
}
__device__ __forceinline__ std::uint32_t bits_of(__half2 x) {
  return reinterpret_cast<const std::uint32_t&>(x);
}
__device__ __forceinline__ std::uint32_t twice(float x) { return bits_of(__float2half2_rn(x)); }
__device__ __forceinline__ float low_of(std::uint32_t x) { return __low2float(halves(x)); }
__device__ __forceinline__ float high_of(std::uint32_t x) { return __high2float(halves(x)); }
/// Larger of each half; keeps NaN.
__device__ __forceinline__ std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
  return bits_of(__hmax2_nan(halves(a), halves(b)));
}
/// Of two registers, of rows g and g + 8, the larger half of each: one row in a half.
__device__ __forceinline__ std::uint32_t fold_rows(std::uint32_t g, std::uint32_t g8) {
  return larger(__byte_perm(g, g8, 0x5410), __byte_perm(g, g8, 0x7632));
}
/// Largest, and least, of a quad's lanes in each half.
__device__ __forceinline__ std::uint32_t quad_larger(std::uint32_t x) {
  x = larger(x, __shfl_xor_sync(kFullWarp, x, 1));
  return larger(x, __shfl_xor_sync(kFullWarp, x, 2));
}
__device__ __forceinline__ std::uint32_t quad_least(std::uint32_t x) {
  x = bits_of(__hmin2(halves(x), halves(__shfl_xor_sync(kFullWarp, x, 1))));
  return bits_of(__hmin2(halves(x), halves(__shfl_xor_sync(kFullWarp, x, 2))));
}
__device__ __forceinline__ float half_of(std::uint32_t x, int h) {
  return h == 0 ? low_of(x) : high_of(x);
}

/// A word of shared memory.
__device__ __forceinline__ void store_word(std::uint32_t shared, std::uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared), "r"(x) : "memory");
}
__device__ __forceinline__ std::uint32_t load_word(std::uint32_t shared) {
  std::uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(shared) : "memory");
  return x;
}

/// What a row needs beside registers, in shared memory: for hard rows, fp32 and the epilogue.
struct LinearRow {
  WideBase base;  // of a hard row
  float scale;    // of products to log2
};

template <class ConfigOf>
struct LinearSoftmax {
  static constexpr Config kConfig = ConfigOf::value;
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr bool kCurved = kConfig.weights == Weights::curved;
  // What is a whole number in halves: a code, or an eighth of one.
  static constexpr int kUnits = kCurved ? 8 : 1;
  static constexpr int kAlone = kCurved ? kCurvedTopAlone : kTopAlone;
  static constexpr int kShared = kCurved ? kCurvedTopShared : kTopShared;
  static constexpr int kTail = kCurved ? kCurvedTopOfTail : kTopOfTail;
  static constexpr float kOctave = 0.125f / kUnits;
  // What the largest weight's units lie below a whole code's, to become one.
  static constexpr float kBelow = kCurved ? kCurvedBias : 0.0f;
  static constexpr float kOffset0 = kCurved ? 1024.0f + kUnits * kAlone - kBelow : kOffsetOfBase0;
  static constexpr float kMostOffset = kCurved ? kCurvedOffset : kLargestOffset;
  static constexpr float kLowOffset = kCurved ? -kCurvedOffset : kLeastOffset;
  static constexpr int kWords = kConfig.kKeys / 4;  // of scores: [2 * atom + h], two keys each
  static constexpr int kSlices = kHeadDim / 32;     // of Q
  static constexpr int kRowBytes = kConfig.row_bytes();

  LinearRow* shared;        // of the CTA: two for each thread
  std::uint32_t scale8[2];  // of rows g and g + 8: 8 kUnits scale, twice; kHard
  std::uint32_t offset[2];  // kOffset0 - 8 kUnits base, twice; kNoKeyYet; kHard
  float sum[2];             // of the blocks whose output was added up

  __device__ __forceinline__ LinearRow& row_of(int h) const {
    return shared[2 * (ptx::thread_index() - 128) + h];
  }
  __device__ __forceinline__ WideBase base_of_row(int h) const {
    if (offset[h] == kNoKeyYet) return {-INFINITY, 0.0f};
    if (offset[h] == kHard) return row_of(h).base;
    return {kOctave * (kOffset0 - low_of(offset[h])), 0.0f};
  }
  /// The nearest offset that a half holds, in units.
  __device__ __forceinline__ static float whole(float from) {
    return kCurved ? low_of(twice(rintf(from))) : rintf(from);
  }
  __device__ __forceinline__ void set_base(int h, WideBase base) {
    const float from = kOffset0 - 8.0f * kUnits * base.high;
    const bool easy =
        base.low == 0.0f && from == whole(from) && from >= kLowOffset && from <= kMostOffset;
    offset[h] = base.high == -INFINITY ? kNoKeyYet : easy ? twice(from) : kHard;
    if (offset[h] == kHard) row_of(h).base = base;
  }

  /// Takes the warp's 16 rows of Q, which it scales by powers of two (and returns whether it changed
  /// them) so that no product of theirs, nor a part of it, leaves fp16 (a sum of abs(q) up to 146 times 448), nor becomes too small.
  /// Elements below 2^-6 after that lose what e4m3's subnormal numbers lose: 2^-13 of the row's
  /// sum. `scale` is of products to log2, of any sign.
  __device__ __forceinline__ bool begin(std::uint32_t (&q)[kSlices][4], float scale) {
    __half2 part[2] = {__float2half2_rn(0.0f), __float2half2_rn(0.0f)};
#pragma unroll
    for (int k = 0; k < kSlices; ++k) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const std::uint32_t x = q[k][w] & 0x7f7f7f7fu;
        part[w & 1] =
            __hadd2(part[w & 1], __hadd2(halves(decode_e4m3x2(x)), halves(decode_e4m3x2(x >> 16))));
      }
    }
    // 128 elements of 448 are within fp16, which is two lanes' at head dim 256.
    __half2 both = __hadd2(halves(__byte_perm(bits_of(part[0]), bits_of(part[1]), 0x5410)),
                           halves(__byte_perm(bits_of(part[0]), bits_of(part[1]), 0x7632)));
#pragma unroll
    for (int lane = 1; lane <= (kHeadDim > 128 ? 1 : 2); lane *= 2)
      both = __hadd2(both, halves(__shfl_xor_sync(kFullWarp, bits_of(both), lane)));
    float sums[2] = {__low2float(both), __high2float(both)};
    if constexpr (kHeadDim > 128) {
#pragma unroll
      for (float& x : sums) x += __shfl_xor_sync(kFullWarp, x, 2);
    }
    std::uint32_t factor[2];
    bool any = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // To 64 and above; 0 and NaN as they are, and all where no half could hold the scale: the
      // factor might take it out of fp32.
      const bool fits =
          !(sums[h] > 144.0f || (sums[h] > 0.0f && sums[h] < 0.25f)) || !(fabsf(scale) <= 0x1p30f);
      const int exponent = 133 - static_cast<int>(__float_as_uint(sums[h]) >> 23);
      const float up = fits ? 1.0f : __uint_as_float((127 + exponent) << 23);
      const float down = fits ? 1.0f : __uint_as_float((127 - exponent) << 23);
      any |= !fits;
      factor[h] = twice(up);
      // -inf, which masks are, times 0 would be NaN; at the smallest scale all codes are alike.
      const float own = fmaxf(fabsf(scale) * down, 1e-36f);
      row_of(h).scale = own;
      scale8[h] = own <= 8188.0f / kUnits ? twice(fmaxf(8.0f * kUnits * own, 6e-8f)) : kHard;
      offset[h] = kNoKeyYet;
      sum[h] = 0.0f;
    }
    const bool scaled = __any_sync(kFullWarp, any);
    if (scaled) {
#pragma unroll
      for (int k = 0; k < kSlices; ++k) {
#pragma unroll
        for (int w = 0; w < 4; ++w)
          q[k][w] = ptx::pack_e4m3(
              bits_of(__hmul2(halves(decode_e4m3x2(q[k][w])), halves(factor[w & 1]))),
              bits_of(__hmul2(halves(decode_e4m3x2(q[k][w] >> 16)), halves(factor[w & 1]))));
      }
    }
    if (scale < 0.0f) {  // the largest product must be the largest score
#pragma unroll
      for (int k = 0; k < kSlices; ++k) {
#pragma unroll
        for (int w = 0; w < 4; ++w) q[k][w] ^= 0x80808080u;
      }
    }
    return scaled || scale < 0.0f;
  }

  /// Which of this lane's columns of a block hold keys that row `row` sees, as columns_below counts
  /// them. Rows past Sq see what the last one sees, or rows without a key would hold up their warp.
  __device__ __forceinline__ static std::uint32_t visible(const Params& p, int block, int row) {
    row = min(row, p.seq_q - 1);
    const int first_key = block * kConfig.kKeys;
    const std::uint32_t before_end = keys_below(p, p.band.end(row) - first_key);
    const int begin = p.band.first(row) - first_key;
    return begin > 0 ? before_end & ~keys_below(p, begin) : before_end;
  }
  /// Of columns whose keys of the block are below `limit`.
  __device__ __forceinline__ static std::uint32_t keys_below(const Params& p, int limit) {
    const int lane = ptx::lane_id();
    return (columns_below(columns_to(p.in_fours, 0, lane, limit)) & 0xffffu) |
           (columns_below(columns_to(p.in_fours, 1, lane, limit)) & 0xffff0000u);
  }
  /// Hides what the rows do not see.
  __device__ __forceinline__ static void mask(const Params& p, std::uint32_t (&s)[kWords],
                                              int block, int first_row) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::uint32_t seen = visible(p, block, first_row + (ptx::lane_id() >> 2) + 8 * h);
      // A word's two bits are brought to the signs of byte i / 4, of two registers, which one
      // permutation spreads over a half each.
#pragma unroll
      for (int i = 0; i < kWords / 2; ++i) {
        const int up = 7 - 2 * (i % 4), byte = i / 4;
        const std::uint32_t keep =
            ptx::spread_signs(seen << up, seen << (up - 1), byte * 0x1111 + 0xcc88);
        s[2 * i + h] = ptx::select_bits(keep, s[2 * i + h], 0xfc00fc00u);
      }
    }
  }

  /// Scores to units above 1024, which may lie below it still.
  __device__ __forceinline__ static void to_codes(std::uint32_t (&s)[kWords],
                                                  const std::uint32_t (&scale)[2],
                                                  const std::uint32_t (&from)[2]) {
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      s[i] = bits_of(__hfma2(halves(s[i]), halves(scale[i & 1]), halves(from[i & 1])));
  }
  __device__ __forceinline__ static void clamp(std::uint32_t (&s)[kWords]) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) s[i] = larger(s[i], kCodeZero);
  }
  /// Eighths of linear codes, from 1024 on, to curved codes: 2^f - 1 lies below f by 0.344 f (1 - f),
  /// within 0.4%, for the fraction f of an octave, which is in the lowest six bits. The square that is
  /// added is 0.344 (1/2 - f)^2, so all codes are kCurvedBias too large: halves around 1024 have no room
  /// for the rest of a constant.
  __device__ __forceinline__ static std::uint32_t curved(std::uint32_t x) {
    constexpr float kRoot = 0.0733f;  // of 64 0.344 / 64^2
    const __half2 f = halves(ptx::masked_or(x, 0x003f003fu, kCodeZero));
    const __half2 middle =
        __hfma2(f, __float2half2_rn(kRoot), __float2half2_rn(-kRoot * (1024.0f + 32.0f)));
    return bits_of(__hfma2(__hfma2(middle, middle, halves(x)), __float2half2_rn(0.125f),
                           __float2half2_rn(895.5f)));
  }
  /// A block's eighths, which are at least 1024, to codes.
  __device__ __forceinline__ static void curve(std::uint32_t (&s)[kWords]) {
    if constexpr (kCurved) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) s[i] = curved(s[i]);
    }
  }

  /// Whether a block whose largest code is so low may count, with all of the `left` blocks. Its
  /// lanes' maxima lie `apart` codes or less: the flatter, the more keys weigh as much.
  __device__ __forceinline__ bool counts(int h, float code, float apart, float left) const {
    const float keys = fmaxf(exp2_fast(kFlatLog2 - 0.5f * apart), kLeastKeys);
    return kCounts * sum[h] * exp2_fast(7.0f - 0.125f * code) < keys * left;
  }

  /// Codes of a block whose rows' true maxima decide, and how far the bases moved: O and the sums
  /// must be multiplied by `shrink`. `left` blocks are to come, with this one. False, and nothing
  /// done: fp16 does not hold it.
  __device__ __forceinline__ bool exact(std::uint32_t (&s)[kWords], float left,
                                        float (&shrink)[2]) {
    std::uint32_t part[2] = {s[0], s[1]};
#pragma unroll
    for (int i = 2; i < kWords; ++i) part[i & 1] = larger(part[i & 1], s[i]);
    const std::uint32_t own = fold_rows(part[0], part[1]);
    const std::uint32_t most = quad_larger(own), least = quad_least(own);
    bool fine = true;
    std::uint32_t now[2], from[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float largest = half_of(most, h);
      const float scale = low_of(scale8[h]), before = low_of(offset[h]);
      // Far apart where few keys decide.
      const float apart = (largest - half_of(least, h)) * scale * (1.0f / kUnits);
      const float code = fmaf(largest, scale, before - 1024.0f) * (1.0f / kUnits);
      const bool first = isnan(before), none = largest == -INFINITY;
      const bool tail = code < kLowest && counts(h, code, apart, left);
      const bool keep = none || (code <= kLargestCode && !tail);
      const int top = first ? kShared + 8 * static_cast<int>(fminf(apart * 0.0625f, 3.0f)) : kTail;
      float fresh = 1024.0f + static_cast<float>(kUnits * top) - rintf(largest * scale);
      if (tail) fresh = fminf(fresh, before + kUnits * kFarthestDown);
      if constexpr (kCurved) fresh = whole(fresh - kBelow);
      fine = fine && !isnan(scale) && offset[h] != kHard &&
             (keep || (fresh >= kLowOffset && fresh <= kMostOffset));
      now[h] = keep ? offset[h] : twice(fresh);
      from[h] = none && first ? kCodeZero : now[h];
      shrink[h] = keep || first ? 1.0f : exp2_fast(kOctave * (fresh - before));
    }
    if (!__all_sync(kFullWarp, fine)) return false;
    offset[0] = now[0];
    offset[1] = now[1];
    to_codes(s, scale8, from);
    clamp(s);
    curve(s);
    return true;
  }

  /// Another block, under the bases that are there. False: fp16 does not hold it. `moved` says
  /// whether bases moved, by `shrink`.
  __device__ __forceinline__ bool guarded(std::uint32_t (&s)[kWords], float left, bool& moved,
                                          float (&shrink)[2]) {
    to_codes(s, scale8, offset);
    // As integers positive halves are in order, three compare at once, and NaN is above them.
    std::uint32_t most[4] = {s[0], s[1], s[2], s[3]};
#pragma unroll
    for (int i = 4; i < kWords - 4; i += 8) {
#pragma unroll
      for (int n = 0; n < 4; ++n) most[n] = __vimax3_s16x2(most[n], s[i + n], s[i + 4 + n]);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) most[n] = __vmaxs2(most[n], s[kWords - 4 + n]);
    const std::uint32_t row = __vmaxs2(most[0], most[2]), row8 = __vmaxs2(most[1], most[3]);
    const std::uint32_t own =
        __vmaxs2(__byte_perm(row, row8, 0x5410), __byte_perm(row, row8, 0x7632));
    constexpr std::uint32_t kMost = kCodeZero + kUnits * kLargestCode * 0x10001u;
    constexpr std::uint32_t kLeast = kCodeZero + kUnits * kLowest * 0x10001u;
    moved = __any_sync(
        kFullWarp, !(__hble2(halves(own), halves(kMost)) && __hbge2(halves(own), halves(kLeast))));
    bool held = true;
    if (moved) held = recover(s, own, left, moved, shrink);
    clamp(s);
    curve(s);
    return held;
  }

  /// Codes that are too large or too low: moves the bases, where these are codes at all.
  __device__ __forceinline__ bool recover(std::uint32_t (&s)[kWords], std::uint32_t own, float left,
                                          bool& moved, float (&shrink)[2]) {
    const std::uint32_t most = quad_larger(own), least = quad_least(own);
    bool fine = true, any = false;
    std::uint32_t now[2], by[2];
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float code = (half_of(most, h) - 1024.0f) * (1.0f / kUnits);
      const float before = low_of(offset[h]);
      // Linear codes move by whole octaves; curved ones bring the largest to a top.
      float move = 0.0f;
      if (code > kAlone) {
        // Others as heavy as this key leave it room to be outgrown again.
        const float others = sum[h] * exp2_fast(7.0f - 0.125f * code);
        const float top = others > 1.0f ? kShared : kAlone - 8;
        move = kCurved ? whole(before + kUnits * (top - code) - kBelow) - before
                       : -8.0f * ceilf(0.125f * (code - top));
      } else if (code < kLowest &&
                 counts(h, code, (kUnits * code + 1024.0f - half_of(least, h)) * (1.0f / kUnits),
                        left)) {
        const float up = fminf(kTail - code, kFarthestDown);
        move = kCurved ? whole(before + kUnits * up) - before : 8.0f * floorf(0.125f * up);
        if (before + move > kMostOffset) move = 0.0f;
      }
      any = any || move != 0.0f;
      const float after = before + move;
      // 2048: no whole number for every code. Eighths of codes may be as coarse as four, to 8192.
      fine = fine && code < (kCurved ? 896.0f : 1024.0f) && after >= kLowOffset;
      now[h] = twice(after);
      factor[h] = exp2_fast(kOctave * move);
      by[h] = twice(move);
    }
    if (!__all_sync(kFullWarp, fine)) return false;
    moved = __any_sync(kFullWarp, any);
    if (!moved) return true;
    offset[0] = now[0];
    offset[1] = now[1];
    shrink[0] = factor[0];
    shrink[1] = factor[1];
#pragma unroll
    for (int i = 0; i < kWords; ++i) s[i] = bits_of(__hadd2(halves(s[i]), halves(by[i & 1])));
    return true;
  }

  /// 16 keys of a block in fp32 by one warp alone: x[4 * atom + 2 * h + e]. `k_rows` are theirs;
  /// q_slice(k) are the four words of k slice k.
  template <class QSlice>
  __device__ __forceinline__ static void multiply_16(float (&x)[8], const QSlice& q_slice,
                                                     std::uint32_t k_rows) {
    const Place at = ldmatrix_b(ptx::lane_id());
#pragma unroll
    for (float& sum_of : x) sum_of = 0.0f;
#pragma unroll
    for (int k = 0; k < kSlices; ++k) {
      std::uint32_t a[2][4], b[4];
      auto&& q = q_slice(k);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        asm volatile("" : "+r"(q[i]));  // else ptxas keeps what is decoded for the next 16 keys
        a[i / 2][i % 2] = decode_e4m3x2(q[i]);
        a[i / 2][i % 2 + 2] = decode_e4m3x2(q[i] >> 16);
      }
      ptx::ldmatrix_x4(b, k_rows + swizzled<kRowBytes>(kConfig.kKeys, k, at));
#pragma unroll
      for (int i = 0; i < 4; ++i)
        ptx::mma_m16n8k16<__half>(reinterpret_cast<float(&)[4]>(x[i / 2 * 4]), a[i % 2],
                                  decode_e4m3x2(b[i]), decode_e4m3x2(b[i] >> 16));
    }
  }

  /// The codes of a block from fp32 scores, with the rows' true maxima: for scores that halves do
  /// not hold, NaN, and rows without a base. Registers are scarce here: it multiplies twice and keeps
  /// no scores, and codes wait in shared memory, 16 words a lane from `room` on.
  template <class QSlice>
  __device__ __forceinline__ void again(std::uint32_t (&s)[kWords], const QSlice& q_slice,
                                        std::uint32_t k_tile, std::uint32_t room, const Params& p,
                                        int block, int first_row, bool hides, float (&shrink)[2]) {
    static_assert(kWords / 2 * 128 <= kConfig.strip_bytes());
    std::uint32_t seen[2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
      seen[h] = hides ? visible(p, block, first_row + (ptx::lane_id() >> 2) + 8 * h) : 0xffffffffu;
    float x[8], most[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
    for (int n = 0; n < kConfig.kKeys / 16; ++n) {
      multiply_16(x, q_slice, k_tile + 16 * n * kRowBytes);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int h = i / 2 % 2;
        if (seen[h] >> (4 * n + i / 4 * 2 + i % 2) & 1) most[h] = fmaxf(most[h], x[i]);
      }
    }
    WideBase from[2];
    float scale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      most[h] = quad_max(most[h]);
      scale[h] = row_of(h).scale;
      const WideBase before = base_of_row(h), full = wide_base(most[h], scale[h]);
      WideBase base = before;
      if (full.high != -INFINITY && !(distance(full, before) <= 0.125f * (kLargestCode - kAlone))) {
        // A whole code where halves may hold it.
        base = full;
        if (fabsf(full.high) <= 128.0f)
          base.high = kCurved
                          ? kOctave * (kOffset0 - whole(kOffset0 - full.high * (1.0f / kOctave)))
                          : 0.125f * rintf(8.0f * full.high);
      }
      from[h] = finite(base);
      shrink[h] = exp2_fast(distance(before, from[h]));
      set_base(h, base);
    }
#pragma unroll 1
    for (int n = 0; n < kConfig.kKeys / 16; ++n) {
      multiply_16(x, q_slice, k_tile + 16 * n * kRowBytes);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        std::uint32_t two[2];
#pragma unroll
        for (int atom = 0; atom < 2; ++atom) {
          float t[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const bool sees = seen[h] >> (4 * n + 2 * atom + e) & 1;
            t[e] = sees ? fmaf(8.0f * kUnits, exponent(x[4 * atom + 2 * h + e], scale[h], from[h]),
                               kOffset0)
                        : -INFINITY;
          }
          two[atom] = larger(pack2<__half>(t[0], t[1]), kCodeZero);
          if constexpr (kCurved) two[atom] = curved(two[atom]);
        }
        store_word(room + 128 * (2 * n + h), __byte_perm(two[0], two[1], 0x6420));
      }
    }
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const std::uint32_t four = load_word(room + 128 * (i / 2 + h));
        s[i + h] = __byte_perm(four, kCodeZero, 0x5150);
        s[i + 2 + h] = __byte_perm(four, kCodeZero, 0x5352);
      }
    }
  }

  /// Four codes at a time, as the A operand of P V (layout.hpp).
  __device__ __forceinline__ static void pack(const std::uint32_t (&s)[kWords],
                                              std::uint32_t (&weights)[kConfig.kKeys / 32][4]) {
#pragma unroll
    for (int k = 0; k < kConfig.kKeys / 32; ++k) {
#pragma unroll
      for (int w = 0; w < 4; ++w)
        weights[k][w] = __byte_perm(s[packed_accumulator(k, w, 0) / 2],
                                    s[packed_accumulator(k, w, 2) / 2], 0x6420);
    }
  }

  /// The natural log-sum-exp of a row. Where halves rounded the scale, its base did too. The curved
  /// kernel has none: scores in halves are too coarse for an exact one (0.14 off at 98 nats).
  __device__ __forceinline__ float log_sum_exp(int h) const {
    static_assert(!kCurved);
    const WideBase base = base_of_row(h);
    const bool hard = offset[h] == kHard;
    // Below halves' normal numbers all products together are less than a few codes.
    const float rounded = low_of(scale8[h]);
    const float lost =
        hard || rounded < 0x1p-14f ? 0.0f : base.high * (8.0f * row_of(h).scale / rounded - 1.0f);
    // A code c stands for 2^(c / 8 - 7), and the base for code 118.
    constexpr float kOfBase = 7.0f - 0.125f * kTopAlone - kMeanBiasLog2;
    return kLn2 * (base.high + (base.low + lost + kOfBase + __log2f(sum[h])));
  }
};

}  // namespace greenfast::cuda::fp8
