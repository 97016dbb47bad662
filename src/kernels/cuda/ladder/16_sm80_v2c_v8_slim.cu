// cuda.v2c.v8_slim: launch and plan. The kernel, which tests run on a CPU as well, and what it is about
// stand in 16_sm80_v2c_v8_slim.cuh.
#include "kernels/cuda/ladder/16_sm80_v2c_v8_slim.cuh"
#include "kernels/cuda/ladder/rung.hpp"

namespace greenfast::cuda::v2c_v8_slim {
namespace {

template <int D>
struct Build {
  static constexpr auto kKernel = kernel<D>;
  static constexpr ladder::Run kRun{.rows = kBlockM,
                                    .keys = kBlockN,
                                    .threads = kThreads<D>,
                                    .shared_bytes = sizeof(SharedMemoryPlan<D>),
                                    .stages = kStages,
                                    .note = "mma.sync, 16 keys at a time, fewer than 72 registers"};
  static constexpr const char* kId = "cuda.v2c.v8_slim";
  using Memory = SharedMemoryPlan<D>;
};

using Rung = ladder::Rung<Build<64>, Build<128>>;

}  // namespace
}  // namespace greenfast::cuda::v2c_v8_slim

namespace greenfast::kernels {
extern const core::Kernel cuda_v2c_v8_slim = cuda::ladder::kRung<cuda::v2c_v8_slim::Rung>;
}  // namespace greenfast::kernels
