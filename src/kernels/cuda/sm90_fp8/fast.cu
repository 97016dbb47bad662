// cuda.sm90.fp8_fast: the builds of its head dims.
#include "kernels/cuda/sm90_fp8/fast.cuh"
#include "kernels/cuda/sm90_fp8/transpose.cuh"

namespace greenfast::cuda::fp8 {
template <int kDim>
Entries fast_entries() {
  return {reinterpret_cast<const void*>(&fp8_fast_kernel<CompiledFast<kDim, false>>),
          reinterpret_cast<const void*>(&fp8_fast_kernel<CompiledFast<kDim, true>>),
          reinterpret_cast<const void*>(&transpose_kernel<kDim>),
          reinterpret_cast<const void*>(&reorder_kernel<kDim>)};
}
template Entries fast_entries<64>();
template Entries fast_entries<128>();
template Entries fast_entries<256>();
}  // namespace greenfast::cuda::fp8
