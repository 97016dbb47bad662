// Smoothing K on the GPU: what is subtracted from it, and what the log-sum-exp then lacks.
#pragma once

#include "core/backend.hpp"

namespace greenfast::cuda {

/// As core::Backend has them; both are enqueued on context.stream.
Status column_means(const core::QuantizeCall& call, float* means, const core::Context& context);
Status shift_lse(const Problem& problem, const Tensors& codes, const float* means,
                 const core::Context& context);

}  // namespace greenfast::cuda
