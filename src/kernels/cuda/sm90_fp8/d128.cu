// cuda.sm90.fp8 for head dims up to 128.
#include "kernels/cuda/sm90_fp8/kernel.cuh"
#include "kernels/cuda/sm90_fp8/transpose.cuh"

namespace greenfast::cuda::fp8 {
template <>
Entries entries<128>() {
  return {reinterpret_cast<const void*>(&fp8_kernel<Compiled<128, false>>),
          reinterpret_cast<const void*>(&fp8_kernel<Compiled<128, true>>),
          reinterpret_cast<const void*>(&transpose_kernel<128>),
          reinterpret_cast<const void*>(&reorder_kernel<128>),
          reinterpret_cast<const void*>(&fp8_kernel<CompiledBlocks<128, false>>),
          reinterpret_cast<const void*>(&fp8_kernel<CompiledBlocks<128, true>>)};
}
}  // namespace greenfast::cuda::fp8
