// Instrumented twins of three rungs of stage-C: the same loop with a clock read at the end of every
// phase. Their card is that of 22_sm80_stage_c.cuh.
#include "kernels/cuda/ladder/22_sm80_stage_c.cuh"
#include "kernels/cuda/ladder/twin.cuh"

namespace greenfast::cuda::stage_c {
namespace {

constexpr const char* kTwinId = "cuda.stage_c, instrumented";

template <class W>
__global__ void __launch_bounds__(kThreads)
    instrumented(const __grid_constant__ ladder::Params p, unsigned long long* cycles) {
  ClockProbe probe(ladder::clocks_of_warp<ClockProbe, kThreads>(cycles));
  attend<W>(p, probe);
  probe.store();
}

template <Config C>
struct Twin : Rung<C> {
  using Base = Rung<C>;
  using W = With<C>;

  static std::int64_t workspace(const Problem& problem, const DeviceFacts&, core::Choice) {
    return ladder::clock_bytes<ClockProbe>(problem, kBlockM, kThreads);
  }
  static Plan plan(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
    return ladder::twin_plan(Base::plan(problem, facts, choice), workspace(problem, facts, choice),
                             name_of_kernel<instrumented<W>>());
  }
  static Status launch(const Problem& problem, const Tensors& tensors,
                       const core::Context& context) {
    return ladder::launch_twin<instrumented<W>>(problem, tensors, context, kBlockM, kThreads,
                                                Base::kShared, kTwinId);
  }
};

template <class T>
constexpr core::Kernel kTwin{
    .supports = T::supports, .plan = T::plan, .workspace = T::workspace, .launch = T::launch};

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
