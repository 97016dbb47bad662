// What an instrumented twin has beside its rung's loop: clocks for each warp in the workspace. Twins
// answer where the time of a rung goes, and are never timed themselves.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/cuda/device/phase_probe.cuh"
#include "kernels/cuda/ladder/ladder.hpp"

namespace greenfast::cuda::ladder {

/// This warp's clocks, of a one-dimensional grid of kThreads threads a CTA.
template <class Probe, int kThreads>
__device__ __forceinline__ unsigned long long* clocks_of_warp(unsigned long long* cycles) {
  return cycles + (blockIdx.x * (kThreads / 32) + threadIdx.x / 32) * Probe::kPhases;
}

/// rows: queries of a CTA.
template <class Probe>
std::int64_t clock_bytes(const Problem& problem, int rows, int threads) {
  return ctas(problem, rows) * (threads / 32) * Probe::kPhases *
         static_cast<std::int64_t>(sizeof(unsigned long long));
}

/// The rung's plan as its twin's.
inline Plan twin_plan(Plan plan, std::int64_t workspace, std::string kernel) {
  plan.workspace_bytes = workspace;
  plan.kernel = std::move(kernel);
  plan.note += "; with clocks in it";
  return plan;
}

/// shared: dynamic, in bytes.
template <auto kKernel>
Status launch_twin(const Problem& problem, const Tensors& tensors, const core::Context& context,
                   int rows, int threads, int shared, std::string_view id) {
  if (Status status = allow_shared<kKernel>(shared, context, id); !status) return status;
  kKernel<<<static_cast<unsigned>(ctas(problem, rows)), threads, shared,
            static_cast<cudaStream_t>(context.stream)>>>(
      make_params(problem, tensors, rows), static_cast<unsigned long long*>(context.workspace));
  return launched(id);
}

}  // namespace greenfast::cuda::ladder
