// fp32 to e4m3 (OCP FP8 formats, E4M3: bias 7, no infinities, largest 448), on the host and, where
// no instruction does it, on the device.
#pragma once

#include <bit>
#include <cstdint>

namespace greenfast::core {

/// Rounds to nearest even; magnitudes above 448, infinities included, become 448; NaN 0x7f.
constexpr std::uint8_t to_e4m3(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 24 & 0x80u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7f;
  if (magnitude >= 0x43e00000u) return static_cast<std::uint8_t>(sign | 0x7eu);  // 448
  if (magnitude >= 0x3c800000u) {                                                // 2^-6
    // Exponent and mantissa are one number, so that a carry out of three mantissa bits is right.
    const std::uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
    return static_cast<std::uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
  }
  // Below, codes are multiples of 2^-9, which is the last place of a float of 2^14.
  const float shifted = std::bit_cast<float>(magnitude) + 16384.0f;
  return static_cast<std::uint8_t>(
      sign | (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(16384.0f)));
}

/// The scale of values whose largest finite magnitude is `largest`.
constexpr float e4m3_scale(float largest) {
  constexpr float kLeast = 0x1p-126f;  // a subnormal scale would lose its own digits
  if (!(largest > 0.0f)) return 1.0f;
  const float scale = largest / 448.0f;
  return scale < kLeast ? kLeast : scale;
}

}  // namespace greenfast::core
