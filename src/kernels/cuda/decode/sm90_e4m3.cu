// The e4m3 kernels of cuda.sm90.decode.
#include "kernels/cuda/decode/kernel.cuh"

namespace greenfast::cuda::decode {
template const std::array<const void*, kSm90E4m3.size()>& entries<E4m3, kSm90E4m3>();
}  // namespace greenfast::cuda::decode
