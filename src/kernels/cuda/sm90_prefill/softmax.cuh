// The online softmax of cuda.sm90.prefill, on the scores that a warpgroup's threads hold: masks,
// the weights of a block with the true maximum or with a stale base, and what the guard looks at.
//
// Scores of thread 4 * g + t of a warp: s[4 * i + 2 * h + e] is row g + 8 * h, key 8 * i + 2 * t +
// e of the block. A row has a base, the exponent that is subtracted; its weights are 2^(scale *
// score - base).
#pragma once

#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_prefill/config.hpp"
#include "kernels/cuda/sm90_prefill/repair.cuh"

namespace greenfast::cuda::prefill {

/// What products of e4m3 are multiplied by before a softcap: the tile's. Elsewhere nothing.
struct ScoreFactor {
  const ScaledTile& tile;
};
/// Of a group's rows: their heads' factors.
struct RowFactors {
  const GroupedTile& tile;
};
struct NoScoreFactor {
  template <class TileType>
  __device__ explicit NoScoreFactor(const TileType&) {}
};
template <class ConfigOf>
using ScoreFactorOf =
    std::conditional_t<ConfigOf::value.bytes && kIsGrouped<ConfigOf>, RowFactors,
                       std::conditional_t<ConfigOf::value.bytes && ConfigOf::value.general(),
                                          ScoreFactor, NoScoreFactor>>;

template <class ConfigOf>
struct OnlineSoftmax {
  static constexpr Config kConfig = ConfigOf::value;
  static constexpr int kHeadDim = kConfig.head_dim, kKeys = kConfig.keys;
  static constexpr bool kOnes = kConfig.ones;
  static constexpr bool kMasked = kConfig.features != Features::plain;
  static constexpr bool kWindow = kConfig.features >= Features::window;
  static constexpr bool kGeneral = kConfig.features == Features::general;
  // Scores to which a mask adds, and their bases, are in natural units: what hides a key may be -1e9 or the
  // lowest number there is, of which a product with log2(e) is not exact, but a difference is.
  static constexpr bool kNatural = kConfig.mask == MaskArray::bias;
  // A word of bits becomes predicates in five instructions, where comparisons are one for each
  // score; at D 128 causal that was 1 to 2% slower, at D 64 up to 3% faster (H200, 2026-11-22).
  static constexpr bool kMaskByBits = kHeadDim == 64 || !kMasked;

  // Of the guard. The weights begin at 2^0, as low as fp16's subnormals allow when thousands of
  // keys share the tail of a row, and may grow to this before a base is raised; fp16 ends at 65504.
  // The second is for a thread's sum of them.
  static constexpr float kLimit = kOnes ? 0x1p15f : 0x1p13f;
  // Worth a new base where another row needs one.
  static constexpr float kEnough = kOnes ? 16.0f : 64.0f;
  // Steps beyond this are done again: ex2.approx.ftz of -127 is 0.
  static constexpr float kHuge = 0x1p100f;

  const Params& p;
  const ExtentOf<ConfigOf>& extent;
  const std::conditional_t<kConfig.bytes, const float&, float> scale;  // of e4m3 the tile's
  float (&top)[2];            // of rows g and g + 8: base of the exponents
  float (&sum)[2];            // this thread's part of the sum
  const std::uint32_t noted;  // where bases that one float cannot hold are noted (repair.cuh)
  const ScoreFactorOf<ConfigOf> before;

  /// What is subtracted from exponents. Under a mask by array a row may have seen no key yet: its
  /// weights are 0 then, not NaN, and who sees its first key takes a base.
  __device__ __forceinline__ static float base_of(float top) {
    return kConfig.has_mask() && top == -INFINITY ? 0.0f : top;
  }

  /// The softcap of scores times `by`, plus `more` of their rows, as minus their bases, in the same FMA. Where a cap is there
  /// to be far away, which is where models put it, a warp sees no score beyond 0.45 of it, and needs neither the exponential
  /// nor the division. Bits are the same either way.
  template <int kCount>
  __device__ __forceinline__ void cap(float (&scores)[kCount], float by,
                                      const float (&more)[2]) const {
    // So that a float is near where the highest bit of its exponent is clear: of many at once, where it is of their union.
    const float in_units = by * (kLn2 / kNearOfCap);
    std::uint32_t any = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      scores[i] *= in_units;
      any |= __float_as_uint(scores[i]);
    }
    const auto near = [&](int i, float x) {
      const float square = x * x;
      float factor = p.cap.near[3];
#pragma unroll
      for (int k = 2; k >= 0; --k) factor = fmaf(factor, square, p.cap.near[k]);
      return fmaf(factor, x, more[i >> 1 & 1]);
    };
    if (__any_sync(kFullWarp, (any & 0x40000000) != 0)) {
      // cap - 2 cap / (e^2x + 1)
      const float minus_two = -2.0f * p.softcap_out;
      const float ends[2] = {p.softcap_out + more[0], p.softcap_out + more[1]};
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float x = scores[i];
        const float part = reciprocal_fast(1.0f + exp2_fast(x * (kNearOfCap / kLn2)));
        const float far = fmaf(part, minus_two, ends[i >> 1 & 1]), close = near(i, x);
        scores[i] = fabsf(x) < 2.0f ? close : far;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) scores[i] = near(i, scores[i]);
    }
  }
  /// What a score is multiplied by before it is capped.
  __device__ __forceinline__ float into_cap() const {
    if constexpr (kConfig.bytes)
      return before.tile.scale * p.softcap_in;
    else
      return p.softcap_in;
  }

  /// The same where there may be no softcap.
  template <int kCount>
  __device__ __forceinline__ void cap_or_scale(float (&scores)[kCount],
                                               const float (&more)[2]) const {
    if (kConfig.packed || p.softcap_out > 0.0f) {
      cap(scores, into_cap(), more);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) scores[i] = fmaf(scores[i], p.scale_log2, more[i >> 1 & 1]);
    }
  }

  /// Scores as the softmax wants them, in units of log2 after one multiplication by `scale`.
  template <int kCount>
  __device__ __forceinline__ void transform(float (&scores)[kCount]) const {
    if constexpr (kConfig.bytes && kIsGrouped<ConfigOf>) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) scores[i] *= before.tile.row_factor[i >> 1 & 1];
    } else if constexpr (kGeneral) {
      cap_or_scale(scores, {0.0f, 0.0f});
    }
  }

  /// Of e4m3: no less than what the tensor cores cut off a score, in units of log2. Of each of 32 terms of a step they leave
  /// 13 bits below the largest, which is no more than the whole row's products, 448 x 448 each. Where this may hide a base of
  /// millions from who looks for them, the row's own products say (repair.cuh).
  __device__ __forceinline__ float cut_of_scores() const {
    constexpr float kCut = 448.0f * 448.0f * kHeadDim * 0x1p-8f;
    float of_sum = scale;  // of a group's rows no less than theirs
    if constexpr (kGeneral) of_sum = before.tile.scale;
    return fminf(kCut * of_sum, 0x1p100f);  // no infinity, which is no base
  }

  /// Hides what the rows do not see.
  template <int kCount>
  __device__ __forceinline__ void mask(float (&scores)[kCount], int block, int first_row,
                                       int warp) const {
    const int lane = ptx::lane_id();  // anew, as in redo_scores
    const int row = first_row + 16 * warp + (lane >> 2);
    const int first_key = block * kKeys + 2 * (lane & 3);
    // columns_below in fewer instructions, which small could have when it is next recorded.
    const auto before = [](int key) {
      const int keys = min(max(key, 0), kKeys);
      return low_bits(2 * (keys >> 3) + min(keys & 7, 2));
    };
    const auto hide_from = [&]<int kFrom>() {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int end = extent.band.end(row + 8 * h) - first_key;
        const int begin = kWindow ? extent.band.first(row + 8 * h) - first_key : 0;
        const std::uint32_t visible = kMaskByBits ? before(end) & ~before(begin) : 0;
#pragma unroll
        for (int bit = kFrom / 2; bit < kCount / 2; ++bit) {
          const int i = 4 * (bit / 2) + 2 * h + bit % 2, key = 8 * (bit / 2) + bit % 2;
          const bool hidden =
              kMaskByBits ? (visible >> bit & 1) == 0 : key >= end || (kWindow && key < begin);
          if (hidden) scores[i] = -INFINITY;
        }
      }
    };
    // Of the second of two diagonal warpgroups, every row sees the first half.
    if (!kWindow && kCount == 64 && extent.band.end(first_row) - block * kKeys >= 64) {
      hide_from.template operator()<kCount / 2>();
    } else {
      hide_from.template operator()<0>();
    }
  }

  /// scores = 2^scores, and, without the ones column, their sums.
  template <int kCount>
  __device__ __forceinline__ void weigh(float (&scores)[kCount], float (&block_sum)[2]) const {
    [[maybe_unused]] float part[4];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      scores[i] = exp2_fast(scores[i]);
      if constexpr (!kOnes) part[i & 3] = i < 4 ? scores[i] : part[i & 3] + scores[i];
    }
    if constexpr (!kOnes) {
      block_sum[0] = part[0] + part[1];
      block_sum[1] = part[2] + part[3];
    }
  }
  /// The same of scale * scores - base, with the bases that are there; of scores as products left them, where
  /// Features::general has its say.
  template <int kCount>
  __device__ __forceinline__ void exponentiate(float (&scores)[kCount],
                                               float (&block_sum)[2]) const {
    const float base0 = base_of(top[0]), base1 = base_of(top[1]);
    if constexpr (kGeneral) {
      cap_or_scale(scores, {-base0, -base1});
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if constexpr (kNatural)
          scores[i] = (scores[i] - (i & 2 ? base1 : base0)) * scale;
        else
          scores[i] = fmaf(scores[i], scale, i & 2 ? -base1 : -base0);
      }
    }
    weigh(scores, block_sum);
  }

  /// One block of online softmax with the true maximum; `shrink` is what O must be multiplied by.
  /// Bases that one float cannot hold are noted and no more: a branch for them costs 3 to 8% under
  /// a causal mask at S 512 and 1024, the subtraction of a second float 1 to 7 (H200, 2026-11-22).
  template <bool kFirst, int kCount>
  __device__ __forceinline__ void exact(float (&scores)[kCount], float (&shrink)[2]) {
    float most[4] = {scores[0], scores[1], scores[2], scores[3]}, block_sum[2], from[2];
#pragma unroll
    for (int i = 4; i < kCount; ++i) most[i & 3] = fmaxf(most[i & 3], scores[i]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float before = top[h];
      top[h] = quad_max(fmaxf(most[2 * h], most[2 * h + 1]));
      if constexpr (!kNatural) top[h] *= scale;
      if constexpr (!kFirst) top[h] = fmaxf(before, top[h]);
      from[h] = top[h] == -INFINITY ? 0.0f : top[h];  // no key seen yet: weights 0, not NaN
      if constexpr (!kFirst)
        shrink[h] = exp2_fast(kNatural ? (before - from[h]) * scale : before - from[h]);
    }
    if constexpr (!kNatural) note_large_bases(noted, from[0], from[1]);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if constexpr (kNatural)
        scores[i] = (scores[i] - from[i >> 1 & 1]) * scale;
      else
        scores[i] = fmaf(scores[i], scale, -from[i >> 1 & 1]);
    }
    weigh(scores, block_sum);
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if constexpr (!kOnes) sum[h] = kFirst ? block_sum[h] : sum[h] * shrink[h] + block_sum[h];
  }

  /// A base from a quarter of the first block's keys; the guard knows where that is not enough.
  template <int kCount>
  __device__ __forceinline__ void guess_bases(const float (&scores)[kCount]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = scores[2 * h];
#pragma unroll
      for (int i = 1; i < kKeys / 16; ++i)
        most = fmaxf(most, scores[4 * (i / 2) + 2 * h + (i & 1)]);
      top[h] = quad_max(most) * scale;
    }
  }

  /// The largest weights of this thread's part of both rows. Positive floats are ordered as
  /// integers, of which three compare at once, and the NaN of ex2.approx (0x7fffffff) above them.
  template <int kCount>
  __device__ __forceinline__ void largest_weights(const float (&weights)[kCount],
                                                  float (&most)[2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int largest = 0;
#pragma unroll
      for (int i = 2 * h; i < kKeys / 2; i += 4)
        largest = __vimax3_s32(largest, __float_as_int(weights[i]), __float_as_int(weights[i + 1]));
      most[h] = __int_as_float(largest);
    }
  }

  /// New bases for rows whose largest weights are large; `shrink` is what O must
  /// be multiplied by. A power of two keeps weights that are rounded already as they are. Where
  /// they are summed before rounding, the largest becomes 1: a key that decides the row alone then
  /// has the same weight above and below the fraction, and O is V.
  __device__ __forceinline__ void raise_bases(float large0, float large1, float (&shrink)[2]) {
    const float large[2] = {quad_max(large0), quad_max(large1)};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float size =
          kOnes ? static_cast<float>((__float_as_int(large[h]) >> 23) - 127) : __log2f(large[h]);
      const float before = top[h];
      top[h] += large[h] > kEnough ? (kNatural ? size * kLn2 : size) : 0.0f;
      const float step = base_of(before) - base_of(top[h]);  // what the rounded sum really is
      shrink[h] = exp2_fast(kNatural ? step * scale : step);
    }
  }
};

}  // namespace greenfast::cuda::prefill
