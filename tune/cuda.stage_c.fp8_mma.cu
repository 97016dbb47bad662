// The space of cuda.stage_c.fp8_mma: registers. Its fragments fix everything
// else.
// tune: BLOCKS = *0 3 4 5
#include "tune/stage_c_bounds.hpp"

#include "kernels/cuda/ladder/30_sm89_stage_c_fp8_mma.cu"

#include "tune/kernel_plugin.hpp"

GREENFAST_KERNEL_PLUGIN("fp8_mma", greenfast::kernels::cuda_stage_c_fp8_mma,
                        greenfast::dispatch::kTakesStageC)
