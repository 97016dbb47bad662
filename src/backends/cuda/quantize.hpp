// Values to e4m3 on the GPU.
#pragma once

#include "core/variant.hpp"

namespace greenfast::cuda {

/// Enqueues the quantisation on context.stream. The problem has passed core::check_quantize.
Status quantize(const QuantizeProblem& problem, const QuantizeTensors& tensors,
                const core::Context& context);

}  // namespace greenfast::cuda
