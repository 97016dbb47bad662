// e4m3 on the device: exact decoding to fp16, whose range and precision hold every e4m3 value.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace greenfast::cuda {

/// Two e4m3 bytes, in the low half of x, to two halves; the first byte goes to the low half.
#if defined(GREENFAST_PTX_ONCE) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
__device__ std::uint32_t decode_e4m3x2(std::uint32_t x);  // a source that uses it is BY_ARCH
#else
__device__ __forceinline__ std::uint32_t decode_e4m3x2(std::uint32_t x) {
#if __CUDA_ARCH__ >= 890
  std::uint32_t r;
  asm("{ .reg .b16 pair; cvt.u16.u32 pair, %1; cvt.rn.f16x2.e4m3x2 %0, pair; }" : "=r"(r) : "r"(x));
  return r;
#else
  // Sign to bit 15, exponent and mantissa to bits 13..7: a half that is 2^8 too small, subnormals
  // included. The byte 0x7f is NaN and would read as 480, beyond the largest number, 448.
  const std::uint32_t apart = __byte_perm(x, 0, 0x4140);
  const std::uint32_t bits = (apart & 0x00800080u) << 8 | (apart & 0x007f007fu) << 7;
  const __half2 value = __hmul2(reinterpret_cast<const __half2&>(bits), __float2half2_rn(256.0f));
  const unsigned nan = __hgt2_mask(__habs2(value), __float2half2_rn(448.0f));
  return reinterpret_cast<const std::uint32_t&>(value) | (nan & 0x7fff7fffu);
#endif
}
#endif

/// Sixteen e4m3 bytes to sixteen halves.
__device__ __forceinline__ void decode_e4m3x16(uint4 raw, uint4 (&halves)[2]) {
  halves[0] = make_uint4(decode_e4m3x2(raw.x), decode_e4m3x2(raw.x >> 16), decode_e4m3x2(raw.y),
                         decode_e4m3x2(raw.y >> 16));
  halves[1] = make_uint4(decode_e4m3x2(raw.z), decode_e4m3x2(raw.z >> 16), decode_e4m3x2(raw.w),
                         decode_e4m3x2(raw.w >> 16));
}

}  // namespace greenfast::cuda
