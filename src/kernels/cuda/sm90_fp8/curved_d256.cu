// cuda.sm90.fp8_curved for head dims up to 256.
#include "kernels/cuda/sm90_fp8/fast.cuh"
#include "kernels/cuda/sm90_fp8/transpose.cuh"

namespace greenfast::cuda::fp8 {
template <>
Entries curved_entries<256>() {
  return {reinterpret_cast<const void*>(&fp8_fast_kernel<CompiledCurved<256, false>>),
          reinterpret_cast<const void*>(&fp8_fast_kernel<CompiledCurved<256, true>>),
          reinterpret_cast<const void*>(&transpose_kernel<256>),
          reinterpret_cast<const void*>(&reorder_kernel<256>)};
}
}  // namespace greenfast::cuda::fp8
