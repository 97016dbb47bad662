// cuda.sm90.fp8_curved for head dims up to 128.
#include "kernels/cuda/sm90_fp8/fast.cuh"
#include "kernels/cuda/sm90_fp8/transpose.cuh"

namespace greenfast::cuda::fp8 {
template <>
Entries curved_entries<128>() {
  return {reinterpret_cast<const void*>(&fp8_fast_kernel<CompiledCurved<128, false>>),
          reinterpret_cast<const void*>(&fp8_fast_kernel<CompiledCurved<128, true>>),
          reinterpret_cast<const void*>(&transpose_kernel<128>),
          reinterpret_cast<const void*>(&reorder_kernel<128>)};
}
}  // namespace greenfast::cuda::fp8
