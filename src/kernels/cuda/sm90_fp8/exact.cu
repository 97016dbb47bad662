// cuda.sm90.fp8: the builds of its head dims.
#include "kernels/cuda/sm90_fp8/kernel.cuh"
#include "kernels/cuda/sm90_fp8/transpose.cuh"

namespace greenfast::cuda::fp8 {
template <int kDim>
Entries entries() {
  return {reinterpret_cast<const void*>(&fp8_kernel<Compiled<kDim, false>>),
          reinterpret_cast<const void*>(&fp8_kernel<Compiled<kDim, true>>),
          reinterpret_cast<const void*>(&transpose_kernel<kDim>),
          reinterpret_cast<const void*>(&reorder_kernel<kDim>),
          reinterpret_cast<const void*>(&fp8_kernel<CompiledBlocks<kDim, false>>),
          reinterpret_cast<const void*>(&fp8_kernel<CompiledBlocks<kDim, true>>)};
}
template Entries entries<64>();
template Entries entries<128>();
}  // namespace greenfast::cuda::fp8
