// cuda.v2c.v8_slim: launch and plan. The kernel, which tests run on a CPU as well, and what it is about
// stand in 16_sm80_v2c_v8_slim.cuh.
#include "kernels/cuda/ladder/16_sm80_v2c_v8_slim.cuh"

namespace greenfast::cuda::v2c_v8_slim {
namespace {

constexpr const char* kId = "cuda.v2c.v8_slim";

template <int D>
Status launch_with(const Problem& problem, const Tensors& tensors, const core::Context& context) {
  constexpr int kShared = sizeof(SharedMemoryPlan<D>);
  if (Status status = ladder::allow_shared<kernel<D>>(kShared, context, kId); !status)
    return status;
  kernel<D><<<static_cast<unsigned>(ladder::ctas(problem, kBlockM)), kThreads<D>, kShared,
              static_cast<cudaStream_t>(context.stream)>>>(
      ladder::make_params(problem, tensors, kBlockM));
  return ladder::launched(kId);
}

Status launch(const Problem& problem, const Tensors& tensors, const core::Context& context) {
  return problem.head_dim == 64 ? launch_with<64>(problem, tensors, context)
                                : launch_with<128>(problem, tensors, context);
}

bool supports(const Problem& problem, const DeviceFacts&, core::Choice, std::string* why) {
  return ladder::accepts(problem, {.d128 = true}, kBlockM, why);
}

Plan plan(const Problem& problem, const DeviceFacts&, core::Choice) {
  const bool wide = problem.head_dim == 128;
  Plan plan;
  plan.grid = {static_cast<int>(ladder::ctas(problem, kBlockM)), 1, 1};
  plan.block = {wide ? kThreads<128> : kThreads<64>, 1, 1};
  plan.shared_bytes = wide ? sizeof(SharedMemoryPlan<128>) : sizeof(SharedMemoryPlan<64>);
  plan.shared = wide ? SharedMemoryPlan<128>::buffers() : SharedMemoryPlan<64>::buffers();
  plan.tile_q = kBlockM;
  plan.tile_kv = kBlockN;
  plan.stages = kStages;
  plan.kernel = wide ? name_of_kernel<kernel<128>>() : name_of_kernel<kernel<64>>();
  plan.note = "mma.sync, 16 keys at a time, fewer than 72 registers";
  return plan;
}

}  // namespace
}  // namespace greenfast::cuda::v2c_v8_slim

namespace greenfast::kernels {
extern const core::Kernel cuda_v2c_v8_slim{.supports = cuda::v2c_v8_slim::supports,
                                           .plan = cuda::v2c_v8_slim::plan,
                                           .launch = cuda::v2c_v8_slim::launch};
}  // namespace greenfast::kernels
