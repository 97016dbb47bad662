// The bf16 kernels of cuda.sm90.decode.
#include "kernels/cuda/sm90_decode/kernel.cuh"

namespace greenfast::cuda::decode {
template const std::array<const void*, kConfigs.size()>& entries<__nv_bfloat16>();
}  // namespace greenfast::cuda::decode
