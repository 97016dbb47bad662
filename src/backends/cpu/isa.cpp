#include "backends/cpu/isa.hpp"

#include <array>
#include <cstdint>
#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#endif

namespace greenfast::cpu {
namespace {

constexpr std::array<std::string_view, 5> kNames{"portable", "avx2", "avx512", "avx512bf16",
                                                 "avx512amx"};

constexpr bool has(std::uint32_t bits, std::initializer_list<int> wanted) noexcept {
  for (const int bit : wanted) {
    if (((bits >> bit) & 1u) == 0) return false;
  }
  return true;
}

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

// Tiles of AMX are large, so Linux saves them only for processes that have asked (since 5.16).
constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM

bool gives_tiles() noexcept { return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0; }

Answers ask() noexcept {
  constexpr int kOsxsave = 27;
  const Registers leaf7 = cpuid(7, 0);
  Answers answers;
  answers.leaf1_ecx = cpuid(1, 0).ecx;
  answers.leaf7_ebx = leaf7.ebx;
  answers.leaf7_ecx = leaf7.ecx;
  answers.leaf7_edx = leaf7.edx;
  answers.leaf7_1_eax = cpuid(7, 1).eax;
  if (has(answers.leaf1_ecx, {kOsxsave})) answers.saved_state = saved_state();
  answers.gives_tiles = gives_tiles;
  return answers;
}

// Twelve sums: two units with a latency of 4 to 6, and some to spare. Named, because an array would
// be kept in memory.
#define GREENFAST_CHAINS(step)                                                                    \
  for (int i = 0; i < kSteps; ++i) {                                                              \
    s0 = step(s0), s1 = step(s1), s2 = step(s2), s3 = step(s3), s4 = step(s4), s5 = step(s5);     \
    s6 = step(s6), s7 = step(s7), s8 = step(s8), s9 = step(s9), s10 = step(s10), s11 = step(s11); \
    __asm__ volatile(""                                                                           \
                     : "+v"(s0), "+v"(s1), "+v"(s2), "+v"(s3), "+v"(s4), "+v"(s5), "+v"(s6),      \
                       "+v"(s7), "+v"(s8), "+v"(s9), "+v"(s10), "+v"(s11));                       \
  }
constexpr int kSteps = 100;

[[gnu::target("avx512f")]] void multiply_adds() noexcept {
  const __m512 b = _mm512_set1_ps(0.5f);
  __m512 s0 = b, s1 = b, s2 = b, s3 = b, s4 = b, s5 = b, s6 = b, s7 = b, s8 = b, s9 = b, s10 = b,
         s11 = b;
#define GREENFAST_STEP(s) _mm512_fmadd_ps(s, b, b)
  GREENFAST_CHAINS(GREENFAST_STEP)
#undef GREENFAST_STEP
}
[[gnu::target("avx512f,avx512bf16")]] void dot_products() noexcept {
  const __m512 b = _mm512_set1_ps(0.5f);
  __m512 s0 = b, s1 = b, s2 = b, s3 = b, s4 = b, s5 = b, s6 = b, s7 = b, s8 = b, s9 = b, s10 = b,
         s11 = b;
#define GREENFAST_STEP(s) _mm512_dpbf16_ps(s, (__m512bh)b, (__m512bh)b)
  GREENFAST_CHAINS(GREENFAST_STEP)
#undef GREENFAST_STEP
}
#undef GREENFAST_CHAINS

// A dot product does twice the work of a multiply-add. Zen 4 and 5 issue as many of either,
// Sapphire Rapids a quarter as many dot products (2026-11-22): far from the line between, whatever
// else the machine does; the shortest of several runs, turn about, keeps an interruption out. 20
// us.
bool dot_products_pay() noexcept {
  std::uint64_t shortest[2] = {~std::uint64_t{0}, ~std::uint64_t{0}};
  for (int run = 0; run < 10; ++run) {
    for (int dots = 0; dots < 2; ++dots) {
      const std::uint64_t start = __rdtsc();
      dots != 0 ? dot_products() : multiply_adds();
      const std::uint64_t ticks = __rdtsc() - start;
      shortest[dots] = std::min(shortest[dots], ticks);
    }
  }
  return shortest[1] * 2 < shortest[0] * 3;
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
std::string_view why_no_amx(const Answers& answers) noexcept {
  constexpr int kTile = 24, kBf16 = 22;  // leaf 7.0, EDX
  constexpr std::uint64_t kTileState = 0x60000;
  if (!has(answers.leaf7_edx, {kTile, kBf16})) return "the processor has none";
  if ((answers.saved_state & kTileState) != kTileState) return "the system does not save its tiles";
  if (!answers.gives_tiles()) return "the system refuses this process its tiles (arch_prctl)";
  return {};
}

Isa best_isa(const Answers& answers, std::string_view no_amx) noexcept {
  constexpr int kFma = 12, kOsxsave = 27, kAvx = 28, kF16c = 29;   // leaf 1, ECX
  constexpr int kAvx2 = 5, kF = 16, kDq = 17, kBw = 30, kVl = 31;  // leaf 7.0, EBX
  constexpr int kVbmi = 1;                                         // leaf 7.0, ECX
  constexpr int kBf16 = 5;                                         // leaf 7.1, EAX
  constexpr std::uint64_t kYmmState = 0x6, kZmmState = 0xe6;
  const auto saves = [&](std::uint64_t state) { return (answers.saved_state & state) == state; };

  if (!has(answers.leaf1_ecx, {kFma, kOsxsave, kAvx, kF16c})) return Isa::portable;
  if (!saves(kYmmState) || !has(answers.leaf7_ebx, {kAvx2})) return Isa::portable;
  if (!saves(kZmmState) || !has(answers.leaf7_ebx, {kF, kDq, kBw, kVl})) return Isa::avx2;
  if (!has(answers.leaf7_ecx, {kVbmi}) || !has(answers.leaf7_1_eax, {kBf16})) return Isa::avx512;
  return no_amx.empty() ? Isa::avx512amx : Isa::avx512bf16;
}

Isa detect_isa() noexcept {
#if defined(__x86_64__)
  return best_isa(ask(), why_no_amx());
#else
  return Isa::portable;
#endif
}

std::string_view why_no_amx() noexcept {
#if defined(__x86_64__)
  static const std::string_view why = why_no_amx(ask());
  return why;
#else
  return "the processor has none";
#endif
}

Isa preferred_isa() noexcept {
  static const Isa preferred = [] {
    const Isa best = detect_isa();
#if defined(__x86_64__)
    if (best == Isa::avx512bf16 && !dot_products_pay()) return Isa::avx512;
#endif
    return best;
  }();
  return preferred;
}

}  // namespace greenfast::cpu
