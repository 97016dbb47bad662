// The floating-point mode that the kernels are written for: to nearest, subnormals kept, nothing
// trapped. A host may have set another, and threads inherit it from the one that made them.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace greenfast::kernels {

/// Sets the mode of the calling thread for as long as it lives, then the host's again.
class DefaultFloatMode {
 public:
#if defined(__x86_64__)
  DefaultFloatMode() noexcept : host_(_mm_getcsr()) {
    if (host_ != kDefault) _mm_setcsr(kDefault);
  }
  // Flags that the host has raised stay as they were.
  ~DefaultFloatMode() { _mm_setcsr(host_); }

 private:
  static constexpr std::uint32_t kDefault = 0x1f80;
  const std::uint32_t host_;
#elif defined(__aarch64__)
  DefaultFloatMode() noexcept {
    __asm__ volatile("mrs %0, fpcr" : "=r"(host_));
    if (host_ != 0) __asm__ volatile("msr fpcr, %0" ::"r"(std::uint64_t{0}));
  }
  ~DefaultFloatMode() {
    if (host_ != 0) __asm__ volatile("msr fpcr, %0" ::"r"(host_));
  }

 private:
  std::uint64_t host_ = 0;
#else
  DefaultFloatMode() noexcept = default;
  ~DefaultFloatMode() {}
#endif

 public:
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;
};

}  // namespace greenfast::kernels
