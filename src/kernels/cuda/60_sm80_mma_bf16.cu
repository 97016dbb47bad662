// The bf16 kernels of cuda.sm80.mma.
#include "kernels/cuda/60_sm80_mma.cuh"

namespace greenfast::cuda::sm80_mma {
template const std::array<const void*, kConfigs.size()>& entries<__nv_bfloat16>();
}  // namespace greenfast::cuda::sm80_mma
