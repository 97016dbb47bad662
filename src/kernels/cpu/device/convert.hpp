// Number formats, one value at a time. Internal linkage throughout: files compiled for different
// instruction sets include this, and the linker must not merge their copies.
#pragma once

#include <cstdint>

namespace greenfast::kernels {

static inline float float_of(std::uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}
static inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

static constexpr float power_of_two(int n) {
  float x = 1.0f;
  for (; n > 0; --n) x *= 2.0f;
  for (; n < 0; ++n) x *= 0.5f;
  return x;
}

/// Element types as distinct C++ types.
struct F16 {
  std::uint16_t bits;
};
struct Bf16 {
  std::uint16_t bits;
};
struct E4m3 {
  std::uint8_t bits;
};

static inline float widen(float x) { return x; }

// Branch-free, so that loops over it vectorise. Moving the 15 bits to fp32's place leaves the
// exponent short by 112, which a multiplication puts right for subnormals too.
static inline float widen(F16 x) {
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  const std::uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0u;
  const float scaled = float_of(magnitude << 13) * 0x1p112f;
  return float_of(bits_of(scaled) | special | (static_cast<std::uint32_t>(x.bits & 0x8000u) << 16));
}

static inline float widen(Bf16 x) { return float_of(static_cast<std::uint32_t>(x.bits) << 16); }

// OCP 8-bit floating point, E4M3: no infinity, NaN is all ones, exponent bias 7.
static inline float widen(E4m3 x) {
  const std::uint32_t magnitude = x.bits & 0x7fu;
  const std::uint32_t special = magnitude == 0x7fu ? 0x7fc00000u : 0u;
  const float scaled = float_of(magnitude << 20) * 0x1p120f;
  return float_of(bits_of(scaled) | special | (static_cast<std::uint32_t>(x.bits & 0x80u) << 24));
}

// Rounding is to nearest, ties to even; NaN stays NaN.
static inline void narrow(float x, float& out) { out = x; }

static inline void narrow(float x, F16& out) {
  const std::uint32_t sign = (bits_of(x) >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits_of(x) & 0x7fffffffu;
  std::uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520, from where on infinity is nearest
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: a sum with 0.5 rounds to steps of 2^-24
    half = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
  } else {
    half = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  }
  out.bits = static_cast<std::uint16_t>(sign | half);
}

static inline void narrow(float x, Bf16& out) {
  const std::uint32_t bits = bits_of(x);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const std::uint32_t rounded = nan ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u);
  out.bits = static_cast<std::uint16_t>(rounded >> 16);
}

}  // namespace greenfast::kernels
