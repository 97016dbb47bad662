// The bf16 kernels of cuda.sm90.small.
#include "kernels/cuda/sm90_small/kernel.cuh"

namespace greenfast::cuda::small {
template const std::array<const void*, kKernels>& entries<__nv_bfloat16>();
}  // namespace greenfast::cuda::small
