// Named barriers of a block: 16 in all, 0 is __syncthreads. A count includes every arriving and
// every waiting thread, in whole warps.
#pragma once

namespace greenfast::cuda::ptx {

/// Waits until `threads` threads have come, this one among them.
template <int kThreads>
__device__ __forceinline__ void barrier_sync(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

/// Counts this thread in and goes on.
template <int kThreads>
__device__ __forceinline__ void barrier_arrive(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

}  // namespace greenfast::cuda::ptx
