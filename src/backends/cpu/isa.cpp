#include "backends/cpu/isa.hpp"

#include <array>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace greenfast::cpu {
namespace {

constexpr std::array<std::string_view, 4> kNames{"portable", "avx2", "avx512", "avx512bf16"};

#if defined(__x86_64__)

struct Registers {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf) noexcept {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

// Register files that the operating system saves: bits of XCR0.
std::uint64_t saved_state() noexcept {
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

constexpr bool has(std::uint32_t bits, std::initializer_list<int> wanted) noexcept {
  for (const int bit : wanted) {
    if (((bits >> bit) & 1u) == 0) return false;
  }
  return true;
}

#endif

}  // namespace

std::string_view name_of(Isa isa) noexcept { return kNames[static_cast<std::size_t>(isa)]; }

std::optional<Isa> parse_isa(std::string_view text) noexcept {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == text) return static_cast<Isa>(i);
  }
  return std::nullopt;
}

// Bit numbers: Intel SDM volume 2A, CPUID.
Isa detect_isa() noexcept {
#if defined(__x86_64__)
  constexpr int kFma = 12, kOsxsave = 27, kAvx = 28, kF16c = 29;   // leaf 1, ECX
  constexpr int kAvx2 = 5, kF = 16, kDq = 17, kBw = 30, kVl = 31;  // leaf 7.0, EBX
  constexpr int kVbmi = 1;                                         // leaf 7.0, ECX
  constexpr int kBf16 = 5;                                         // leaf 7.1, EAX
  constexpr std::uint64_t kYmmState = 0x6, kZmmState = 0xe6;

  if (!has(cpuid(1, 0).ecx, {kFma, kOsxsave, kAvx, kF16c})) return Isa::portable;
  const std::uint64_t saved = saved_state();
  const Registers leaf7 = cpuid(7, 0);
  if ((saved & kYmmState) != kYmmState || !has(leaf7.ebx, {kAvx2})) return Isa::portable;
  if ((saved & kZmmState) != kZmmState || !has(leaf7.ebx, {kF, kDq, kBw, kVl})) return Isa::avx2;
  if (!has(leaf7.ecx, {kVbmi}) || !has(cpuid(7, 1).eax, {kBf16})) return Isa::avx512;
  return Isa::avx512bf16;
#else
  return Isa::portable;
#endif
}

}  // namespace greenfast::cpu
