// Values to e4m3 on the CPU.
#pragma once

#include "core/variant.hpp"

namespace greenfast::cpu {

/// Quantises on the pool's threads, a task for each (batch, head). The problem has passed
/// core::check_quantize.
Status quantize(const QuantizeProblem& problem, const QuantizeTensors& tensors,
                const core::Context& context);

}  // namespace greenfast::cpu
