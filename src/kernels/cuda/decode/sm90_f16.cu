// The fp16 kernels of cuda.sm90.decode.
#include "kernels/cuda/decode/kernel.cuh"

namespace greenfast::cuda::decode {
template const std::array<const void*, kSm90.size()>& entries<__half, kSm90>();
}  // namespace greenfast::cuda::decode
