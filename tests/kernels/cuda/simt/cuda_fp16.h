// Stand-in: fp16.
#pragma once
#include <stdexcept>

#include "simt.hpp"

struct __half {
  std::uint16_t bits;
};
inline float to_float(__half x) {
  const int exponent = x.bits >> 10 & 31, digits = x.bits & 1023;
  float size = std::ldexp(static_cast<float>(exponent == 0 ? digits : digits + 1024),
                          (exponent == 0 ? 1 : exponent) - 25);
  if (exponent == 31) size = digits == 0 ? INFINITY : NAN;
  return x.bits >> 15 != 0 ? -size : size;
}
inline __half __float2half_rn(float x) {
  const unsigned sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return {0x7fff};
  const double size = std::fabs(double{x});
  if (size >= 65520.0) return {static_cast<std::uint16_t>(sign | 0x7c00)};
  // Steps of 2^(exponent - 10); subnormals have those of exponent -14.
  const int exponent = size < 0x1p-14 ? -14 : std::ilogb(size);
  const auto steps = static_cast<unsigned>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  // A carry into the exponent is what follows the last digit.
  const unsigned bits = size < 0x1p-14 ? steps : (exponent + 14) * 1024u + steps;
  return {static_cast<std::uint16_t>(sign | bits)};
}
inline __half __float2half(float x) { return __float2half_rn(x); }
