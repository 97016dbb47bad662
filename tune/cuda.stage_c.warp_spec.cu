// The space of cuda.stage_c.warp_spec: decoded tiles between producers and
// consumers, the toggles, and registers.
// tune: WARP_SPEC_STAGES = *2 3
// tune: CP_ASYNC = 0 *1
// tune: WMMA_PV = 0 *1
// tune: BLOCKS = *0 1 2 3
#include "tune/stage_c_bounds.hpp"

#include "kernels/cuda/ladder/26_sm80_stage_c_warp_spec.cu"

#include "tune/kernel_plugin.hpp"

namespace greenfast::kernels {
extern const core::Kernel cuda_stage_c_warp_spec_tuned = kWarpSpec<CP_ASYNC != 0, WMMA_PV != 0>;
}  // namespace greenfast::kernels

GREENFAST_KERNEL_PLUGIN("warp_spec", greenfast::kernels::cuda_stage_c_warp_spec_tuned,
                        greenfast::dispatch::kTakesStageC)
