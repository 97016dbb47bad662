// cuda.stage_c.stage0, stage1, stage2, stage3a, swizzle, three_stage: the rungs of stage-C that
// share one loop, which stands in 22_sm80_stage_c.cuh. sm_80 and later.
//
// Idea    A rung is a Config of the loop: cp.async, P·V on tensor cores, P over the score tile,
//         swizzled raw tiles, a third stage. Neighbours differ by one toggle, so that a measured
//         difference is of that toggle alone.
// Takes   e4m3 with a scale a tensor or a head, D 64, fp16 output, full and causal, any length, any
//         strides.
// Limits  lengths and tile counts below 2^30.
// Budget  64 to 90 registers, 43 to 59 KB of shared memory: three to five CTAs an SM of sm_90.
// Bound   shared-memory traffic and the four barriers of a step.
#include "kernels/cuda/ladder/22_sm80_stage_c.cuh"

namespace greenfast::cuda::stage_c {
namespace {

using Stage0 = Rung<Config{}>;
using Stage1 = Rung<Config{.cp_async = true}>;
using Stage2 = Rung<Config{.cp_async = true, .wmma_pv = true}>;
using Stage3a = Rung<Config{.cp_async = true, .wmma_pv = true, .fused_softmax_pv = true}>;
using Swizzle =
    Rung<Config{.cp_async = true, .wmma_pv = true, .fused_softmax_pv = true, .xor_swizzle = true}>;
using ThreeStage = Rung<Config{.cp_async = true, .wmma_pv = true, .stages = 3}>;

}  // namespace
}  // namespace greenfast::cuda::stage_c

namespace greenfast::kernels {
using namespace cuda::stage_c;
extern const core::Kernel cuda_stage_c_stage0 = kRung<Stage0>;
extern const core::Kernel cuda_stage_c_stage1 = kRung<Stage1>;
extern const core::Kernel cuda_stage_c_stage2 = kRung<Stage2>;
extern const core::Kernel cuda_stage_c_stage3a = kRung<Stage3a>;
extern const core::Kernel cuda_stage_c_swizzle = kRung<Swizzle>;
extern const core::Kernel cuda_stage_c_three_stage = kRung<ThreeStage>;
}  // namespace greenfast::kernels
