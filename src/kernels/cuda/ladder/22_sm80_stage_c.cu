// The rungs of stage-C that share one loop; what each of them is about stands in the header.
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
