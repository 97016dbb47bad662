// cuda.sm90.fp8_curved: the builds of its head dims.
#include "kernels/cuda/sm90_fp8/fast.cuh"

namespace greenfast::cuda::fp8 {
template <int kDim>
Entries curved_entries() {
  return entries_of<CompiledCurved, kDim>();
}
template Entries curved_entries<64>();
template Entries curved_entries<128>();
template Entries curved_entries<256>();
}  // namespace greenfast::cuda::fp8
