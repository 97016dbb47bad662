// Instrumented twins of three rungs of stage-C: the same loop with a clock read at the end of every
// phase. Their card is that of 22_sm80_stage_c.cuh.
#include "kernels/cuda/ladder/22_sm80_stage_c.cuh"
#include "kernels/cuda/ladder/twin.cuh"

namespace greenfast::cuda::stage_c {
namespace {

template <class W>
__global__ void __launch_bounds__(kThreads)
    instrumented(const __grid_constant__ ladder::Params p, unsigned long long* cycles) {
  ClockProbe probe(ladder::clocks_of_warp<ClockProbe, kThreads>(cycles));
  attend<W>(p, probe);
  probe.store();
}

template <Config C>
struct Clocked : Build<C> {
  static constexpr auto kKernel = instrumented<With<C>>;
  static constexpr const char* kId = "cuda.stage_c, instrumented";
  using Probe = ClockProbe;
};

template <Config C>
struct Twin : ladder::Twin<Clocked<C>> {};
using ladder::kTwin;

using Stage1 = Twin<Config{.cp_async = true}>;
using Stage2 = Twin<Config{.cp_async = true, .wmma_pv = true}>;
using Stage3a = Twin<Config{.cp_async = true, .wmma_pv = true, .fused_softmax_pv = true}>;

}  // namespace
}  // namespace greenfast::cuda::stage_c

namespace greenfast::kernels {
using namespace cuda::stage_c;
extern const core::Kernel cuda_stage_c_stage1_phases = kTwin<Stage1>;
extern const core::Kernel cuda_stage_c_stage2_phases = kTwin<Stage2>;
extern const core::Kernel cuda_stage_c_stage3a_phases = kTwin<Stage3a>;
}  // namespace greenfast::kernels
