// The space of cuda.sm80.mma at head dim 64: warps of a block, rows of a warp, keys of a tile, where Q
// waits, registers, whether warps share rows in pairs, and stages of K and V. Hand-set is what the
// kernel takes at mission; another head dim is another space, for --plugin-flags
// -DSM80_MMA_HEAD_DIM=128, whose hand-set tiles are in kConfigs of the kernel's config.hpp. What a
// head dim forbids beyond these conditions does not compile.
// tune: SM80_MMA_WARPS = *4 8
// tune: SM80_MMA_ATOMS = *1 2
// tune: SM80_MMA_KEYS = 32 48 *64 96 128
// tune: SM80_MMA_Q_IN_REGISTERS = 0 *1
// tune: SM80_MMA_BLOCKS = 1 2 *3
// tune: SM80_MMA_PAIRS = *0 1
// tune: SM80_MMA_STAGES = 1 *2
// tune-if: SM80_MMA_WARPS * SM80_MMA_BLOCKS <= 16
// tune-if: SM80_MMA_KEYS % (4 * SM80_MMA_WARPS) == 0
// tune-if: SM80_MMA_STAGES == 1 || SM80_MMA_KEYS <= 16 * SM80_MMA_WARPS
// tune-if: SM80_MMA_PAIRS == 0 || SM80_MMA_ATOMS == 2
// tune-if: SM80_MMA_PAIRS == 0 || SM80_MMA_STAGES == 1
// tune-if: SM80_MMA_STAGES == 1 || SM80_MMA_Q_IN_REGISTERS == 0 || 4 * SM80_MMA_ATOMS * SM80_MMA_WARPS <= SM80_MMA_KEYS
// tune-if: SM80_MMA_PAIRS == 0 || SM80_MMA_KEYS % 32 == 0
#ifndef SM80_MMA_HEAD_DIM
#define SM80_MMA_HEAD_DIM 64
#endif
#include "kernels/cuda/sm80_mma/host.cu"

#include "kernels/cuda/sm80_mma/bf16.cu"
#include "kernels/cuda/sm80_mma/f16.cu"
#include "kernels/cuda/sm80_mma/join.cu"

#include "tune/kernel_plugin.hpp"

GREENFAST_KERNEL_PLUGIN("mma", greenfast::kernels::cuda_sm80_mma, greenfast::dispatch::kTakesHalves)
