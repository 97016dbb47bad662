// Stand-in: conversions and what moves bits; products are the device's.
#pragma once
#include <cuda_fp16.h>

#include "core/e4m3.hpp"
#include "simt.hpp"

namespace greenfast::cuda::ptx {
inline std::uint32_t pack_e4m3(std::uint32_t x01, std::uint32_t x23) {
  std::uint32_t four = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t two = i < 2 ? x01 : x23;
    const __half x{static_cast<std::uint16_t>(i % 2 == 0 ? two & 0xffff : two >> 16)};
    four |= std::uint32_t{core::to_e4m3(to_float(x))} << 8 * i;
  }
  return four;
}
inline std::uint32_t spread_signs(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  const std::uint64_t bytes = std::uint64_t{b} << 32 | a;
  std::uint32_t r = 0;
  for (int n = 0; n < 4; ++n) {
    const unsigned nibble = selector >> 4 * n & 15;
    const std::uint32_t byte = bytes >> 8 * (nibble & 7) & 255;
    r |= (nibble >= 8 ? (byte >> 7) * 255 : byte) << 8 * n;
  }
  return r;
}
inline std::uint32_t select_bits(std::uint32_t keep, std::uint32_t x, std::uint32_t y) {
  return (keep & x) | (~keep & y);
}
inline std::uint32_t masked_or(std::uint32_t x, std::uint32_t mask, std::uint32_t bits) {
  return (x & mask) | bits;
}

}  // namespace greenfast::cuda::ptx
