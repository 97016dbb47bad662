// What an element of a mask by array does to a score, in cuda.sm90.prefill's loop. Its card is that of
// kernel.cuh.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_prefill/config.hpp"

namespace greenfast::cuda::prefill {

/// What scores are multiplied by in exponents. What a mask adds to has its scale already.
template <class ConfigOf>
__device__ __forceinline__ float exponent_scale(const Params& p) {
  constexpr Config kConfig = ConfigOf::value;
  if constexpr (kConfig.general()) return 1.0f;
  if constexpr (kConfig.mask == MaskArray::bias) return 1.0f / kLn2;
  return p.scale_log2;
}

/// Two neighbouring elements of a mask that is added, as they lie in memory, in fp32. Those of bf16 below
/// -2^22, which hide a key from all rows that see another, count as the power of two above them: that is
/// finite in units of log2, and a base that one float holds (kLargestBase), so that rows which have seen
/// nothing else need not be done again. -inf stays what it is.
template <class T>
__device__ __forceinline__ float2 bias_pair(std::uint32_t two);
template <>
__device__ __forceinline__ float2 bias_pair<__half>(std::uint32_t two) {
  return __half22float2(reinterpret_cast<const __half2&>(two));
}
template <>
__device__ __forceinline__ float2 bias_pair<__nv_bfloat16>(std::uint32_t two) {
  const std::uint32_t low =
      __hlt2_mask(reinterpret_cast<const __nv_bfloat162&>(two), __float2bfloat162_rn(-0x1p22f));
  two &= ~(low & 0x007f007fu);
  return {__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u)};
}

/// Whether a score is a low element of bias_pair alone: its product with log2(e), a base, is exact.
__device__ __forceinline__ bool is_exact_base(float score) {
  return score < 0.0f && (__float_as_uint(score) & 0x007fffff) == 0;
}
/// A base that one float may not hold, or 0 where it is such a product.
__device__ __forceinline__ float without_exact(float base) {
  const std::uint32_t of_log2e = __float_as_uint(1.0f / kLn2) & 0x007fffff;
  return base < 0.0f && (__float_as_uint(base) & 0x007fffff) == of_log2e ? 0.0f : base;
}

/// A score behind the mask's element for it, in memory. Of a key that the row does not see, the score as
/// it is: its element may not exist.
template <class T, class ConfigOf>
__device__ __forceinline__ float masked_score(const Params& p, const MaskedTile& tile, float score,
                                              int row, int key) {
  constexpr bool kBias = ConfigOf::value.mask == MaskArray::bias;
  using Element = std::conditional_t<kBias, std::uint16_t, std::uint8_t>;
  if (row >= tile.extent.seq_q || key >= tile.extent.band.keys) return score;
  const std::uint32_t element =
      static_cast<const Element*>(p.mask.data)[tile.entry * p.mask.batch + tile.head * p.mask.head +
                                               row * p.mask.row + tile.first_key + key];
  if constexpr (kBias) return fmaf(score, p.mask.scale, bias_pair<T>(element).x);
  return element != 0 ? score : -INFINITY;
}

}  // namespace greenfast::cuda::prefill
