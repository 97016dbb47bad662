// What an instrumented twin has beside its rung's loop: clocks for each warp in the workspace. Twins
// answer where the time of a rung goes, and are never timed themselves.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/phase_probe.cuh"
#include "kernels/cuda/ladder/rung.hpp"

namespace greenfast::cuda::ladder {

/// This warp's clocks, of a one-dimensional grid of kThreads threads a CTA.
template <class Probe, int kThreads>
__device__ __forceinline__ unsigned long long* clocks_of_warp(unsigned long long* cycles) {
  return cycles + (blockIdx.x * (kThreads / 32) + threadIdx.x / 32) * Probe::kPhases;
}

/// A rung's twin on the host. Of its builds kKernel is the instrumented one, and Probe what it counts by.
template <class Of64, class Of128 = Of64>
struct Twin : Rung<Of64, Of128> {
  using Base = Rung<Of64, Of128>;

  static std::int64_t workspace(const Problem& problem, const DeviceFacts&, core::Choice) {
    return problem.head_dim == 128 ? clock_bytes<Of128>(problem) : clock_bytes<Of64>(problem);
  }
  static Plan plan(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
    Plan plan = Base::plan(problem, facts, choice);
    plan.workspace_bytes = workspace(problem, facts, choice);
    plan.note += "; with clocks in it";
    return plan;
  }
  static Status launch(const Problem& problem, const Tensors& tensors,
                       const core::Context& context) {
    return problem.head_dim == 128 ? launch_on<Of128>(problem, tensors, context)
                                   : launch_on<Of64>(problem, tensors, context);
  }

 private:
  template <class Build>
  static std::int64_t clock_bytes(const Problem& problem) {
    return ctas(problem, Build::kRun) * (Build::kRun.threads / 32) * Build::Probe::kPhases *
           static_cast<std::int64_t>(sizeof(unsigned long long));
  }
  template <class Build>
  static Status launch_on(const Problem& problem, const Tensors& tensors,
                          const core::Context& context) {
    return launch_blocks<Build>(problem, tensors, context, ctas(problem, Build::kRun),
                                static_cast<unsigned long long*>(context.workspace));
  }
};

template <class T>
constexpr core::Kernel kTwin{
    .supports = T::supports, .plan = T::plan, .workspace = T::workspace, .launch = T::launch};

}  // namespace greenfast::cuda::ladder
