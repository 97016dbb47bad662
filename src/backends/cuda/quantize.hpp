// Values to e4m3 on the GPU.
#pragma once

#include <span>

#include "core/backend.hpp"

namespace greenfast::cuda {

/// Enqueues the quantisation on context.stream. The calls are as core::Backend::quantize has them.
Status quantize(std::span<const core::QuantizeCall> calls, const core::Context& context);

}  // namespace greenfast::cuda
