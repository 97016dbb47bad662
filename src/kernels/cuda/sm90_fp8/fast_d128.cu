// cuda.sm90.fp8_fast for head dims up to 128.
#include "kernels/cuda/sm90_fp8/fast.cuh"
#include "kernels/cuda/sm90_fp8/transpose.cuh"

namespace greenfast::cuda::fp8 {
template <>
Entries fast_entries<128>() {
  return {reinterpret_cast<const void*>(&fp8_fast_kernel<CompiledFast<128, false>>),
          reinterpret_cast<const void*>(&fp8_fast_kernel<CompiledFast<128, true>>),
          reinterpret_cast<const void*>(&transpose_kernel<128>),
          reinterpret_cast<const void*>(&reorder_kernel<128>)};
}
}  // namespace greenfast::cuda::fp8
