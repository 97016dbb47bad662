// cuda.sm80.decode: the variant, and its second kernels.
// Its card is that of merge.cuh
#include "kernels/cuda/decode/host.cuh"

namespace greenfast::cuda::decode {

__global__ void __launch_bounds__(kMergeThreads)
    sm80_merge_kernel(const __grid_constant__ Params p) {
  merge_parts<false>(p);
}
__global__ void __launch_bounds__(kMergeThreads)
    sm80_general_merge_kernel(const __grid_constant__ Params p) {
  merge_parts<true>(p);
}

}  // namespace greenfast::cuda::decode

namespace greenfast::kernels {
extern const core::Kernel cuda_sm80_decode;
constinit const core::Kernel cuda_sm80_decode =
    cuda::decode::kernel_of<cuda::decode::kSm80, cuda::decode::sm80_general_merge_kernel,
                            cuda::decode::sm80_merge_kernel>();
}  // namespace greenfast::kernels
