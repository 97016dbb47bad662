// Smoothing K on the CPU: what is subtracted from it, and what the log-sum-exp then lacks.
#pragma once

#include "core/backend.hpp"

namespace greenfast::cpu {

/// As core::Backend has them, on the pool's threads, a task for each (batch, head).
Status column_means(const core::QuantizeCall& call, float* means, const core::Context& context);
Status shift_lse(const Problem& problem, const Tensors& codes, const float* means,
                 const core::Context& context);

}  // namespace greenfast::cpu
