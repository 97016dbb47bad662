// The space of cuda.v2c.v8: queries and keys of a tile, keys whose scores are in registers at once,
// K and V tiles in flight. 255 registers a thread end at chunks of 64; what spills is rejected.
// tune: V8_BLOCK_M = 32 *64 128
// tune: V8_BLOCK_N = 32 *64 128
// tune: V8_CHUNK = 16 *32 64
// tune: V8_STAGES = *2 3
// tune-if: V8_BLOCK_N % V8_CHUNK == 0
#include "kernels/cuda/ladder/14_sm80_v2c_v8.cu"

#include "tune/kernel_plugin.hpp"

GREENFAST_KERNEL_PLUGIN("v8", greenfast::kernels::cuda_v2c_v8, greenfast::dispatch::kTakesV2c)
