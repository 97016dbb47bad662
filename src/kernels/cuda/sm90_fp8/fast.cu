// cuda.sm90.fp8_fast: the builds of its head dims.
#include "kernels/cuda/sm90_fp8/fast.cuh"

namespace greenfast::cuda::fp8 {
template <int kDim>
Entries fast_entries() {
  return entries_of<CompiledFast, kDim>();
}
template Entries fast_entries<64>();
template Entries fast_entries<128>();
template Entries fast_entries<256>();
}  // namespace greenfast::cuda::fp8
