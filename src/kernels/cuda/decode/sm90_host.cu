// cuda.sm90.decode: the variant, and its second kernels.
// Its card is that of merge.cuh
#include "kernels/cuda/decode/host.cuh"
#include "kernels/cuda/device/ptx_mbarrier.cuh"

namespace greenfast::cuda::decode {

// Every thread waits: this grid must not end before the one whose work the next call reads over.
__global__ void __launch_bounds__(kMergeThreads) merge_kernel(const __grid_constant__ Params p) {
  ptx::grid_dependency_wait();
  merge_parts<false>(p);
}
__global__ void __launch_bounds__(kMergeThreads)
    general_merge_kernel(const __grid_constant__ Params p) {
  ptx::grid_dependency_wait();
  merge_parts<true>(p);
}

}  // namespace greenfast::cuda::decode

namespace greenfast::kernels {
extern const core::Kernel cuda_sm90_decode;
constinit const core::Kernel cuda_sm90_decode =
    cuda::decode::kernel_of<cuda::decode::kSm90, cuda::decode::general_merge_kernel,
                            cuda::decode::merge_kernel>();
}  // namespace greenfast::kernels
