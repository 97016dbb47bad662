// The answer of a problem in which no query sees a key, written on the GPU.
#pragma once

#include "core/variant.hpp"

namespace greenfast::cuda {

/// Enqueues zeros for O and -inf for the LSE on context.stream.
Status fill_empty(const Problem& problem, const Tensors& tensors, const core::Context& context);

}  // namespace greenfast::cuda
