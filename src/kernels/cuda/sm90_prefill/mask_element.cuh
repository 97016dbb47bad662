// What an element of a mask by array does to a score, in cuda.sm90.prefill's loop. Its card is that of
// kernel.cuh.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_prefill/config.hpp"

namespace greenfast::cuda::prefill {

/// Two neighbouring elements of a mask that is added, as they lie in memory, in fp32.
template <class T>
__device__ __forceinline__ float2 bias_pair(std::uint32_t two);
template <>
__device__ __forceinline__ float2 bias_pair<__half>(std::uint32_t two) {
  return __half22float2(reinterpret_cast<const __half2&>(two));
}
template <>
__device__ __forceinline__ float2 bias_pair<__nv_bfloat16>(std::uint32_t two) {
  return {__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u)};
}

/// Whether a boolean mask in memory hides a key. Of what the row does not see it may have no element.
__device__ __forceinline__ bool is_hidden(const Params& p, const MaskedTile& tile, int row,
                                          int key) {
  if (row >= tile.extent.seq_q || key >= tile.extent.band.keys) return true;
  return static_cast<const std::uint8_t*>(
             p.mask.data)[tile.entry * p.mask.batch + tile.head * p.mask.head + row * p.mask.row +
                          tile.first_key + key] == 0;
}

}  // namespace greenfast::cuda::prefill
