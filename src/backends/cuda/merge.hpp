// merge on the GPU.
#pragma once

#include "core/serving.hpp"

namespace greenfast::cuda {

/// Enqueues the merge on context.stream. The problem has passed core::check_merge.
Status merge(const MergeProblem& problem, const MergeTensors& tensors,
             const core::Context& context);

}  // namespace greenfast::cuda
