// The range guard of cuda.sm90.prefill. A block's weights are computed with the base of the blocks
// before it; the guard looks whether they stay in range, and where they do not, scales them down
// exactly or has the block done again with its true maximum. Also what follows from a new base: the
// output so far is rescaled.
#pragma once

#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_prefill/consumer.cuh"
#include "kernels/cuda/sm90_prefill/softmax.cuh"

namespace greenfast::cuda::prefill {

/// Softmax with the maximum of earlier blocks. Returns whether O must be multiplied by `shrink`.
template <class T, class ConfigOf>
__device__ __forceinline__ bool Consumer<T, ConfigOf>::softmax_guarded(float (&shrink)[2]) const {
  float large[2];  // sums, or with the ones column the largest
  rows.exponentiate(s, large);
  if constexpr (kConfig.ones) rows.largest_weights(s, large);
  if constexpr (kConfig.has_mask()) {
    // A row's first key may lie anywhere: it needs the true maximum.
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (mask.shows[h] && rows.top[h] == -INFINITY) large[h] = INFINITY;
  }
  const bool trouble = __any_sync(kFullWarp, !(large[0] + large[1] <= Softmax::kLimit));  // or NaN
  if (trouble) {
    recover(large, shrink);
  } else if constexpr (!kConfig.ones) {
    rows.sum[0] += large[0];
    rows.sum[1] += large[1];
  }
  return trouble;
}

/// The guard on weights that are converted already, two to a word.
template <class T, class ConfigOf>
__device__ __forceinline__ void Consumer<T, ConfigOf>::guard_converted() const {
  const auto pair = [&](int i, int h) {
    return reinterpret_cast<const __half2&>(weights[i / 2][2 * (i % 2) + h]);
  };
  __half2 most[2] = {pair(0, 0), pair(0, 1)};
#pragma unroll
  for (int i = 1; i < kConfig.keys / 8; ++i) {
    most[0] = __hmax2_nan(most[0], pair(i, 0));
    most[1] = __hmax2_nan(most[1], pair(i, 1));
  }
  const bool inside = __hble2(__hmax2_nan(most[0], most[1]), __float2half2_rn(Softmax::kLimit));
  if (!__any_sync(kFullWarp, !inside)) return;
  float shrink[2];
  const float2 row[2] = {__half22float2(most[0]), __half22float2(most[1])};
  if (__any_sync(kFullWarp, !(row[0].x + row[0].y + row[1].x + row[1].y <= 4 * 65504.0f))) {
    // Beyond fp16; the weights before conversion say how far.
    float large[2];
    rows.largest_weights(s, large);
    recover(large, shrink);
    convert();
  } else {
    rows.raise_bases(fmaxf(row[0].x, row[0].y), fmaxf(row[1].x, row[1].y), shrink);
    const __half2 factor[2] = {__float2half2_rn(shrink[0]), __float2half2_rn(shrink[1])};
#pragma unroll
    for (int i = 0; i < kConfig.keys / 4; ++i) {
      auto& two = reinterpret_cast<__half2&>(weights[i / 4][i % 4]);
      two = __hmul2(two, factor[i & 1]);
    }
  }
  rescale_output(shrink);
}

/// Weights beyond the range of the guard, `large` of them at most or their sum: scales them down
/// exactly, or takes the block's true maximum. A base follows a row's largest weight, never a sum:
/// 32 keys that share the top would raise it five octaves too far, and fp16 would lose the tail of
/// the row as far.
template <class T, class ConfigOf>
__device__ __forceinline__ void Consumer<T, ConfigOf>::recover(const float (&large)[2],
                                                               float (&shrink)[2]) const {
  if (__any_sync(kFullWarp, !(large[0] + large[1] <= Softmax::kHuge))) {
    redo_scores();
    rows.transform(s);
    if constexpr (kConfig.has_mask()) add_mask();
    rows.template exact<false>(s, shrink);
    return;
  }
  float most[2] = {large[0], large[1]};
  if constexpr (!kConfig.ones) {
    // Without NaN, and by fmaxf: largest_weights would spill 30 registers here.
    most[0] = s[0], most[1] = s[2];
#pragma unroll
    for (int i = 0; i < kConfig.keys / 2; ++i) most[(i >> 1) & 1] = fmaxf(most[(i >> 1) & 1], s[i]);
  }
  rows.raise_bases(most[0], most[1], shrink);
#pragma unroll
  for (int h = 0; h < 2; ++h)
    if constexpr (!kConfig.ones) rows.sum[h] = rows.sum[h] * shrink[h] + large[h] * shrink[h];
#pragma unroll
  for (int i = 0; i < kConfig.keys / 2; ++i) s[i] *= shrink[(i >> 1) & 1];
}

/// O, and what was flushed of it, times `shrink` of the row.
template <class T, class ConfigOf>
__device__ __forceinline__ void Consumer<T, ConfigOf>::rescale_output(
    const float (&shrink)[2]) const {
  constexpr int kCount = kConfig.columns() / 2;
#pragma unroll
  for (int i = 0; i < kCount; ++i) o[i] *= shrink[(i >> 1) & 1];
  if constexpr (kFlush) {
    if (flushed()) {
      Flushed<ConfigOf>& before = memory();
#pragma unroll
      for (int i = 0; i < kCount; ++i) before.o[i] *= shrink[(i >> 1) & 1];
#pragma unroll
      for (int h = 0; h < 2; ++h) before.sum[h] *= shrink[h];
    }
  }
}

/// Adds up output and sums in memory. The output then begins anew, because the next product does
/// not accumulate.
template <class T, class ConfigOf>
__device__ __forceinline__ void Consumer<T, ConfigOf>::flush() const {
  Flushed<ConfigOf>& before = memory();
#pragma unroll
  for (int i = 0; i < kConfig.columns() / 2; ++i)
    before.o[i] = flushed() ? before.o[i] + o[i] : o[i];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    before.sum[h] = flushed() ? before.sum[h] + rows.sum[h] : rows.sum[h];
    rows.sum[h] = 0.0f;
  }
}

template <class T, class ConfigOf>
__device__ __forceinline__ void Consumer<T, ConfigOf>::add_flushed() const {
  const Flushed<ConfigOf>& before = memory();
#pragma unroll
  for (int i = 0; i < kConfig.columns() / 2; ++i) o[i] += before.o[i];
#pragma unroll
  for (int h = 0; h < 2; ++h) rows.sum[h] += before.sum[h];
}

}  // namespace greenfast::cuda::prefill
