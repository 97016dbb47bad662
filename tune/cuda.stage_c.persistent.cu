// The space of cuda.stage_c.persistent: the toggles, and registers.
// tune: CP_ASYNC = 0 *1
// tune: WMMA_PV = 0 *1
// tune: BLOCKS = *0 3 4 5
#include "tune/stage_c_bounds.hpp"

#include "kernels/cuda/ladder/28_sm80_stage_c_persistent.cu"

#include "tune/kernel_plugin.hpp"

namespace greenfast::kernels {
extern const core::Kernel cuda_stage_c_persistent_tuned = kPersistent<CP_ASYNC != 0, WMMA_PV != 0>;
}  // namespace greenfast::kernels

GREENFAST_KERNEL_PLUGIN("persistent", greenfast::kernels::cuda_stage_c_persistent_tuned,
                        greenfast::dispatch::kTakesStageC)
