// Values of any type as fp32, and the floating-point mode in which the calls around attention compute.
#pragma once

#include <bit>
#include <cfenv>
#include <cstdint>

#include <greenfast/types.hpp>

namespace greenfast::cpu {

inline float of_half(std::uint16_t bits) {
  const std::uint32_t magnitude = bits & 0x7fffu;
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | magnitude << 13);
  // In a float's place the exponent is 112 too small; the product is exact, subnormals included.
  return std::bit_cast<float>(
      sign | std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f));
}

inline float load(DType dtype, const void* data, std::int64_t index) {
  if (dtype == DType::f32) return static_cast<const float*>(data)[index];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[index];
  return dtype == DType::f16 ? of_half(bits)
                             : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// To nearest, subnormals kept, for as long as it lives; then the mode of the host again, which threads
/// inherit from the one that made them.
class DefaultFloatMode {
 public:
  DefaultFloatMode() noexcept {
    (void)std::fegetenv(&host_);
    (void)std::fesetenv(FE_DFL_ENV);
  }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;
  ~DefaultFloatMode() { (void)std::fesetenv(&host_); }

 private:
  std::fenv_t host_{};
};

}  // namespace greenfast::cpu
