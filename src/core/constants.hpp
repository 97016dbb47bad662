// Numbers that kernels share. No standard header: files for one instruction set include this.
#pragma once

namespace greenfast::core {

/// Kernels work with exponentials of base 2: this is log2(e).
inline constexpr float kLog2E = 1.4426950408889634f;

}  // namespace greenfast::core
