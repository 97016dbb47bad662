// Stand-in: bf16.
#pragma once
#include "simt.hpp"

struct __nv_bfloat16 {
  std::uint16_t bits;
};
inline float to_float(__nv_bfloat16 x) {
  const std::uint32_t word = std::uint32_t{x.bits} << 16;
  float y;
  std::memcpy(&y, &word, 4);
  return y;
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  const std::uint32_t word = __float_as_uint(x);
  if (std::isnan(x)) return {0x7fff};
  return {static_cast<std::uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16)};
}
inline float __bfloat162float(__nv_bfloat16 x) { return to_float(x); }
