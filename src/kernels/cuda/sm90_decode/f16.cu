// The fp16 kernels of cuda.sm90.decode.
#include "kernels/cuda/sm90_decode/kernel.cuh"

namespace greenfast::cuda::decode {
template const std::array<const void*, kConfigs.size()>& entries<__half>();
}  // namespace greenfast::cuda::decode
