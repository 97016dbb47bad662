// The space of the rungs that share stage-C's loop: its Config. All have the same, and each its own
// place in it as the hand-set one.
#pragma once

#include "tune/stage_c_bounds.hpp"

#include "kernels/cuda/ladder/22_sm80_stage_c.cuh"

#include "tune/kernel_plugin.hpp"

namespace greenfast::kernels {
extern const core::Kernel cuda_stage_c_loop =
    cuda::stage_c::kRung<cuda::stage_c::Rung<cuda::stage_c::Config{.cp_async = CP_ASYNC != 0,
                                                                   .wmma_pv = WMMA_PV != 0,
                                                                   .fused_softmax_pv = FUSED != 0,
                                                                   .xor_swizzle = SWIZZLE != 0,
                                                                   .stages = STAGES}>>;
}  // namespace greenfast::kernels

GREENFAST_KERNEL_PLUGIN("loop", greenfast::kernels::cuda_stage_c_loop,
                        greenfast::dispatch::kTakesStageC)
