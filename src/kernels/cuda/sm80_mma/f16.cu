// The fp16 kernels of cuda.sm80.mma.
#include "kernels/cuda/sm80_mma/kernel.cuh"

namespace greenfast::cuda::sm80_mma {
template const std::array<const void*, kConfigs.size()>& entries<__half>();
}  // namespace greenfast::cuda::sm80_mma
