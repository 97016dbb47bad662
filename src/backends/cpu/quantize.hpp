// Values to e4m3 on the CPU.
#pragma once

#include <span>

#include "core/backend.hpp"

namespace greenfast::cpu {

/// Quantises on the pool's threads, a task for each (batch, head). The calls are as
/// core::Backend::quantize has them.
Status quantize(std::span<const core::QuantizeCall> calls, const core::Context& context);

}  // namespace greenfast::cpu
