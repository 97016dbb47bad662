// Instruction sets that the CPU kernels know, from least to best.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace greenfast::cpu {

enum class Isa {
  portable = 0,  // what the compiler targets by default
  avx2,          // AVX2, FMA, F16C
  avx512,        // avx2 and AVX-512 F, BW, DQ, VL
  avx512bf16,    // avx512 and AVX512-BF16, AVX512-VBMI
  avx512amx,     // avx512bf16 and AMX-TILE, AMX-BF16, which the system must also permit
};

/// "portable", "avx2", "avx512", "avx512bf16", "avx512amx".
std::string_view name_of(Isa isa) noexcept;
std::optional<Isa> parse_isa(std::string_view text) noexcept;
/// What an x86-64 processor and its system say of themselves.
struct Answers {
  // Registers of CPUID's leaves.
  std::uint32_t leaf1_ecx = 0, leaf7_ebx = 0, leaf7_ecx = 0, leaf7_edx = 0, leaf7_1_eax = 0;
  std::uint64_t saved_state = 0;             // XCR0: what the system saves on a context switch
  bool (*gives_tiles)() noexcept = nullptr;  // asked only where everything else is there
};
/// Empty where AMX may be used, else the reason.
std::string_view why_no_amx(const Answers& answers) noexcept;
/// The best set; no_amx is what why_no_amx says.
Isa best_isa(const Answers& answers, std::string_view no_amx) noexcept;

/// The best set that this processor has and this operating system saves on a context switch. For
/// AMX it asks the system to save tiles, which holds for the process from then on.
Isa detect_isa() noexcept;
/// Empty where AMX may be used, else the reason.
std::string_view why_no_amx() noexcept;
/// The set to use unless one is forced: detect_isa(), or avx512 where bf16 dot products are no
/// faster than fp32 multiply-adds, as measured once.
Isa preferred_isa() noexcept;

}  // namespace greenfast::cpu
