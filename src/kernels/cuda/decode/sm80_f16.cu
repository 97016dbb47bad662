// The fp16 kernels of cuda.sm80.decode.
#include "kernels/cuda/decode/kernel.cuh"

namespace greenfast::cuda::decode {
template const std::array<const void*, kSm80.size()>& entries<__half, kSm80>();
}  // namespace greenfast::cuda::decode
