// Rungs of stage-C with one toggle set back, so that what a toggle brings can be measured inside
// the rung that has it, and not only where it was introduced. stage1 and stage2 are rollbacks of
// others already; three stages without cp.async would have nothing to hold.
#include "kernels/cuda/ladder/22_sm80_stage_c.cuh"

namespace greenfast::cuda::stage_c {
namespace {

using Stage2NoCpAsync = Rung<Config{.wmma_pv = true}>;
using Stage3aNoCpAsync = Rung<Config{.wmma_pv = true, .fused_softmax_pv = true}>;
using Stage3aNoWmmaPv = Rung<Config{.cp_async = true, .fused_softmax_pv = true}>;
using SwizzleNoCpAsync =
    Rung<Config{.wmma_pv = true, .fused_softmax_pv = true, .xor_swizzle = true}>;
using SwizzleNoWmmaPv =
    Rung<Config{.cp_async = true, .fused_softmax_pv = true, .xor_swizzle = true}>;
using SwizzleNoFusedPv = Rung<Config{.cp_async = true, .wmma_pv = true, .xor_swizzle = true}>;
using ThreeStageNoWmmaPv = Rung<Config{.cp_async = true, .stages = 3}>;

}  // namespace
}  // namespace greenfast::cuda::stage_c

namespace greenfast::kernels {
using namespace cuda::stage_c;
extern const core::Kernel cuda_stage_c_stage2_no_cp_async = kRung<Stage2NoCpAsync>;
extern const core::Kernel cuda_stage_c_stage3a_no_cp_async = kRung<Stage3aNoCpAsync>;
extern const core::Kernel cuda_stage_c_stage3a_no_wmma_pv = kRung<Stage3aNoWmmaPv>;
extern const core::Kernel cuda_stage_c_swizzle_no_cp_async = kRung<SwizzleNoCpAsync>;
extern const core::Kernel cuda_stage_c_swizzle_no_wmma_pv = kRung<SwizzleNoWmmaPv>;
extern const core::Kernel cuda_stage_c_swizzle_no_fused_pv = kRung<SwizzleNoFusedPv>;
extern const core::Kernel cuda_stage_c_three_stage_no_wmma_pv = kRung<ThreeStageNoWmmaPv>;
}  // namespace greenfast::kernels
