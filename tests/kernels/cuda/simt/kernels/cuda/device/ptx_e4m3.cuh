// Stand-in: named by what no test calls.
#pragma once
#include <stdexcept>

#include "simt.hpp"

namespace greenfast::cuda::ptx {
inline std::uint32_t pack_e4m3(std::uint32_t, std::uint32_t) {
  throw std::logic_error("pack_e4m3 has no stand-in");
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
