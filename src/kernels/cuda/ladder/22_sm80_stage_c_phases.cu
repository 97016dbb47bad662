// Instrumented twins of three rungs of stage-C: the same loop with a clock read at the end of every
// phase. They answer where the time of a rung goes, and are never timed themselves.
#include "kernels/cuda/ladder/22_sm80_stage_c.cuh"

namespace greenfast::cuda::stage_c {
namespace {

constexpr const char* kTwinId = "cuda.stage_c, instrumented";

template <class W>
__global__ void __launch_bounds__(kThreads)
    instrumented(const __grid_constant__ ladder::Params p, unsigned long long* cycles) {
  ClockProbe probe(cycles + (blockIdx.x * kWarps + threadIdx.x / 32) * kPhases);
  attend<W>(p, probe);
  probe.store();
}

template <Config C>
struct Twin : Rung<C> {
  using Base = Rung<C>;
  using W = With<C>;

  static std::int64_t workspace(const Problem& problem, const DeviceFacts&, core::Choice) {
    return ladder::ctas(problem, kBlockM) * kWarps * kPhases *
           static_cast<std::int64_t>(sizeof(unsigned long long));
  }
  static Plan plan(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
    Plan plan = Base::plan(problem, facts, choice);
    plan.workspace_bytes = workspace(problem, facts, choice);
    plan.kernel = name_of_kernel<instrumented<W>>();
    plan.note += "; with clocks in it";
    return plan;
  }
  static Status launch(const Problem& problem, const Tensors& tensors,
                       const core::Context& context) {
    if (Status status = ladder::allow_shared<instrumented<W>>(Base::kShared, context, kTwinId);
        !status)
      return status;
    instrumented<W><<<static_cast<unsigned>(ladder::ctas(problem, kBlockM)), kThreads,
                      Base::kShared, static_cast<cudaStream_t>(context.stream)>>>(
        ladder::make_params(problem, tensors, kBlockM),
        static_cast<unsigned long long*>(context.workspace));
    return ladder::launched(kTwinId);
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
