// The space of cuda.stage_c.stage3b: keys of a tile, and registers. 128 keys
// take more than the 48 KB of static shared memory.
// tune: STAGE3B_BLOCK_N = 32 *64
// tune: BLOCKS = *0 3 4 5
#include "tune/stage_c_bounds.hpp"

#include "kernels/cuda/ladder/24_sm80_stage_c_3b.cu"

#include "tune/kernel_plugin.hpp"

GREENFAST_KERNEL_PLUGIN("stage3b", greenfast::kernels::cuda_stage_c_stage3b,
                        greenfast::dispatch::kTakesStageC)
