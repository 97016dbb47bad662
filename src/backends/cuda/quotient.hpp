// Division by a number that many values share, in three operations instead of the ten of a correctly
// rounded fp32 division. Host and device run the same function, so that a test without a GPU tries
// every 16-bit value.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define GREENFAST_QUOTIENT __host__ __device__ inline
#else
#define GREENFAST_QUOTIENT inline
#endif

namespace greenfast::cuda {

/// Quotients by one divisor that e4m3 rounds as those of fp32. A quotient times the reciprocal and
/// corrected once is the correctly rounded one (Markstein, "Computation of elementary functions on
/// the IBM RISC System/6000 processor", 1990) where the reciprocal is, where the divisor's fraction
/// is not all ones, and where no intermediate result leaves fp32's normal range.
struct SharedDivisor {
  float divisor, reciprocal;
  bool quick;

  GREENFAST_QUOTIENT static SharedDivisor of(float divisor) {
    const auto bits = std::bit_cast<std::uint32_t>(divisor);
    const std::uint32_t power = bits >> 23, fraction = bits & 0x7fffffu;
    // 2^-60 to 2^60, positive. A quotient that is no zero in e4m3 is then of a value of at least
    // 2^-70, whose remainder fp32 holds.
    return {divisor, 1.0f / divisor,
            power >= 127 - 60 && power < 127 + 60 && fraction != 0x7fffffu};
  }
};

/// Where divisor.quick. Beyond 2^40 e4m3 saturates whatever the correction, which would turn an
/// infinity to NaN; and it would turn -0 to 0.
GREENFAST_QUOTIENT float quick_quotient(float x, const SharedDivisor& divisor) {
  const float about = x * divisor.reciprocal;
  const float right = std::fma(std::fma(-about, divisor.divisor, x), divisor.reciprocal, about);
  return std::fabs(about) < 0x1p40f ? std::copysign(right, x) : about;
}

}  // namespace greenfast::cuda
