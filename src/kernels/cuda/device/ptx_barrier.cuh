// Named barriers of a block, sm_80 and later (PTX ISA, bar): 16 in all, 0 is __syncthreads. A count
// includes every arriving and every waiting thread, in whole warps.
#pragma once

namespace greenfast::cuda::ptx {

/// Waits until kThreads threads have come.
template <int kThreads>
__device__ __forceinline__ void named_barrier_sync(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

/// Counts this thread in and goes on.
template <int kThreads>
__device__ __forceinline__ void named_barrier_arrive(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

/// Waits as named_barrier_sync does, and tells whether all of the threads say yes.
template <int kThreads>
__device__ __forceinline__ bool named_barrier_all(int barrier, bool yes) {
  int all;
  asm volatile(
      "{\n"
      ".reg .pred mine, together;\n"
      "setp.ne.s32 mine, %3, 0;\n"
      "bar.red.and.pred together, %1, %2, mine;\n"
      "selp.s32 %0, 1, 0, together;\n"
      "}"
      : "=r"(all)
      : "r"(barrier), "n"(kThreads), "r"(static_cast<int>(yes))
      : "memory");
  return all != 0;
}

}  // namespace greenfast::cuda::ptx
