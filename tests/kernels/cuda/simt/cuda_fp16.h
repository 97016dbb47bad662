// Stand-in: fp16.
#pragma once
#include <algorithm>
#include <bit>
#include <stdexcept>

#include "simt.hpp"

struct __half {
  std::uint16_t bits;
};
inline float to_float(__half x) {
  const unsigned sign = x.bits >> 15, exponent = x.bits >> 10 & 31, digits = x.bits & 1023;
  if (exponent == 0) return static_cast<float>(digits) * (sign != 0 ? -0x1p-24f : 0x1p-24f);
  const unsigned wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign << 31 | wide << 23 | digits << 13);
}
inline __half __float2half_rn(float x) {
  const unsigned sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return {0x7fff};
  const float size = std::fabs(x);
  if (size >= 65520.0f) return {static_cast<std::uint16_t>(sign | 0x7c00)};
  // Steps of 2^(exponent - 10); subnormals have those of exponent -14.
  const int exponent =
      std::max(static_cast<int>(std::bit_cast<std::uint32_t>(size) >> 23) - 127, -14);
  const auto per_step = std::bit_cast<double>(std::uint64_t(1023 + 10 - exponent) << 52);
  const auto steps =
      static_cast<unsigned>(size * per_step + 0x1p52 - 0x1p52);  // to the nearest, ties to even
  // A carry into the exponent is what follows the last digit.
  const unsigned bits = size < 0x1p-14f ? steps : (exponent + 14) * 1024u + steps;
  return {static_cast<std::uint16_t>(sign | bits)};
}
inline __half __float2half(float x) { return __float2half_rn(x); }

// ---- pairs ----

struct alignas(4) __half2 {
  __half x, y;
};
template <class Op>
__half2 half_by_half(__half2 a, __half2 b, const Op& op) {
  return {op(a.x, b.x), op(a.y, b.y)};
}
inline __half2 __float2half2_rn(float x) { return {__float2half_rn(x), __float2half_rn(x)}; }
inline float __low2float(__half2 x) { return to_float(x.x); }
inline float __high2float(__half2 x) { return to_float(x.y); }
inline __half2 __hadd2(__half2 a, __half2 b) {
  return half_by_half(
      a, b, [](__half x, __half y) { return __float2half_rn(to_float(x) + to_float(y)); });
}
inline __half2 __hmul2(__half2 a, __half2 b) {
  return half_by_half(
      a, b, [](__half x, __half y) { return __float2half_rn(to_float(x) * to_float(y)); });
}
/// Rounded once: a double holds the product and the sum of halves exactly but for what lies 2^-42 below.
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  const auto one = [](__half x, __half y, __half z) {
    const double sum = double{to_float(x)} * double{to_float(y)} + double{to_float(z)};
    const float nearest = static_cast<float>(sum);  // and a tie of halves is none of floats
    return __float2half_rn(
        double{nearest} == sum || std::isnan(sum)
            ? nearest
            : std::nextafter(nearest, sum > double{nearest} ? INFINITY : -INFINITY));
  };
  return {one(a.x, b.x, c.x), one(a.y, b.y, c.y)};
}
inline __half2 __habs2(__half2 a) {
  return {{static_cast<std::uint16_t>(a.x.bits & 0x7fff)},
          {static_cast<std::uint16_t>(a.y.bits & 0x7fff)}};
}
/// The larger; NaN if one of them is.
inline __half2 __hmax2_nan(__half2 a, __half2 b) {
  return half_by_half(a, b, [](__half x, __half y) {
    const float u = to_float(x), v = to_float(y);
    return std::isnan(u) || std::isnan(v) ? __half{0x7fff} : u < v ? y : x;
  });
}
/// The less; of a NaN and a number the number.
inline __half2 __hmin2(__half2 a, __half2 b) {
  return half_by_half(a, b, [](__half x, __half y) {
    const float u = to_float(x), v = to_float(y);
    return std::isnan(u) || v < u ? y : x;
  });
}
inline bool __hble2(__half2 a, __half2 b) {
  return to_float(a.x) <= to_float(b.x) && to_float(a.y) <= to_float(b.y);
}
inline bool __hbge2(__half2 a, __half2 b) { return __hble2(b, a); }
inline unsigned __hgt2_mask(__half2 a, __half2 b) {
  return (to_float(a.x) > to_float(b.x) ? 0xffffu : 0u) |
         (to_float(a.y) > to_float(b.y) ? 0xffff0000u : 0u);
}
inline float __half2float(__half x) { return to_float(x); }
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
