// The space of cuda.stage_c.scalar: queries of a tile, warps that share
// them, and registers.
// tune: SCALAR_BLOCK_M = *32 64
// tune: SCALAR_WARPS = 4 *8 16
// tune: BLOCKS = *0 2 3 4
// tune-if: SCALAR_BLOCK_M % SCALAR_WARPS == 0
#include "tune/stage_c_bounds.hpp"

#include "kernels/cuda/ladder/20_sm80_stage_c_scalar.cu"

#include "tune/kernel_plugin.hpp"

GREENFAST_KERNEL_PLUGIN("scalar", greenfast::kernels::cuda_stage_c_scalar,
                        greenfast::dispatch::kTakesStageC)
