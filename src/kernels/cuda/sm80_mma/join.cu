// The second kernel of cuda.sm80.mma.
#include "kernels/cuda/sm80_mma/join.cuh"

namespace greenfast::cuda::sm80_mma {
const void* join_entry() { return reinterpret_cast<const void*>(&join_kernel); }
}  // namespace greenfast::cuda::sm80_mma
