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

/// Where divisor.quick and the quotient is below 2^40. The remainder is taken the other way round than
/// one would, so that a quotient of -0 keeps its sign.
GREENFAST_QUOTIENT float small_quotient(float x, const SharedDivisor& divisor) {
  const float about = x * divisor.reciprocal;
  return std::fma(-std::fma(about, divisor.divisor, -x), divisor.reciprocal, about);
}
/// Where divisor.quick. Beyond 2^40 e4m3 saturates whatever the correction, which would turn an
/// infinity to NaN.
GREENFAST_QUOTIENT float quick_quotient(float x, const SharedDivisor& divisor) {
  const float about = x * divisor.reciprocal;
  return std::fabs(about) < 0x1p40f ? small_quotient(x, divisor) : about;
}

}  // namespace greenfast::cuda
