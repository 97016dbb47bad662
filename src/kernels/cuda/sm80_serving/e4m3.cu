// The e4m3 kernels of cuda.sm80.serving.
#include "kernels/cuda/sm80_serving/kernel.cuh"

namespace greenfast::cuda::sm80_serving {
template const std::array<const void*, kConfigs.size()>& entries<E4m3>();
}  // namespace greenfast::cuda::sm80_serving
