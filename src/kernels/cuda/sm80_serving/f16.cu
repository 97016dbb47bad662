// The fp16 kernels of cuda.sm80.serving.
#include "kernels/cuda/sm80_serving/kernel.cuh"

namespace greenfast::cuda::sm80_serving {
template const std::array<const void*, kConfigs.size()>& entries<__half>();
}  // namespace greenfast::cuda::sm80_serving
