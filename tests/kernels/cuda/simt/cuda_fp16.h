// Stand-in: fp16.
#pragma once
#include <stdexcept>

#include "simt.hpp"

struct __half {
  std::uint16_t bits;
};
inline float to_float(__half x) {
  _Float16 y;
  std::memcpy(&y, &x, 2);
  return static_cast<float>(y);
}
inline __half __float2half_rn(float x) {
  const auto y = static_cast<_Float16>(x);
  __half out;
  std::memcpy(&out, &y, 2);
  return out;
}
