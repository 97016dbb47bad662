// cuda.sm90.fp8 for head dims up to 64.
#include "kernels/cuda/sm90_fp8/kernel.cuh"
#include "kernels/cuda/sm90_fp8/transpose.cuh"

namespace greenfast::cuda::fp8 {
template <>
Entries entries<64>() {
  return {reinterpret_cast<const void*>(&fp8_kernel<Compiled<64, false>>),
          reinterpret_cast<const void*>(&fp8_kernel<Compiled<64, true>>),
          reinterpret_cast<const void*>(&transpose_kernel<64>),
          reinterpret_cast<const void*>(&reorder_kernel<64>),
          reinterpret_cast<const void*>(&fp8_kernel<CompiledBlocks<64, false>>),
          reinterpret_cast<const void*>(&fp8_kernel<CompiledBlocks<64, true>>)};
}
}  // namespace greenfast::cuda::fp8
