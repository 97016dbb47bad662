// Instruction sets that the CPU kernels know, from least to best.
#pragma once

#include <optional>
#include <string_view>

namespace greenfast::cpu {

enum class Isa {
  portable = 0,  // what the compiler targets by default
  avx2,          // AVX2, FMA, F16C
  avx512,        // avx2 and AVX-512 F, BW, DQ, VL
  avx512bf16,    // avx512 and AVX512-BF16, AVX512-VBMI
};

/// "portable", "avx2", "avx512", "avx512bf16".
std::string_view name_of(Isa isa) noexcept;
std::optional<Isa> parse_isa(std::string_view text) noexcept;
/// The best set that this processor has and this operating system saves on a context switch.
Isa detect_isa() noexcept;

}  // namespace greenfast::cpu
