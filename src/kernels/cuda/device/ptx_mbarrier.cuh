// mbarrier and the other thread-ordering instructions of sm_90 (PTX ISA, "Parallel Synchronization
// and Communication Instructions"). Shared addresses are 32-bit: cuda::ptx takes generic pointers,
// which cost a conversion and do not stay in uniform registers.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/ptx_barrier.cuh"

namespace greenfast::cuda::ptx {

__device__ __forceinline__ void mbarrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

/// Makes mbarrier_init visible to the async proxy and to the cluster; a barrier must follow.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Arrives and announces that `bytes` more will be written by asynchronous copies.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// Arrives if `arrive`. Predicated here, because ptxas turns a branch around it into a basic block
/// and sinks it below the code that follows.
__device__ __forceinline__ void mbarrier_arrive_if(std::uint32_t barrier, bool arrive) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, [%0];}" ::"r"(
          barrier),
      "r"(static_cast<int>(arrive))
      : "memory");
}

/// Waits until the phase of this parity has completed. A fresh barrier counts as having completed
/// the phase of parity 1.
__device__ __forceinline__ void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// Whether all lanes of the warp see that the phase of this parity has completed; does not wait.
__device__ __forceinline__ bool mbarrier_test(std::uint32_t barrier, std::uint32_t parity) {
  int done;
  asm volatile(
      "{.reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.b32 %0, 1, 0, done;}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return __all_sync(0xffffffffu, done) != 0;
}

/// threadIdx.x, read where it stands: the compiler does not keep what is computed from it alive.
__device__ __forceinline__ int thread_index() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

/// Volatile: read where it stands, never hoisted.
__device__ __forceinline__ int lane_id() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

/// Moves the register limit of this warpgroup; all its warps must execute it.
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Programmatic dependent launch: waits until the grids this one depends on have finished and their
/// writes are visible. Returns at once in an ordinary launch.
__device__ __forceinline__ void grid_dependency_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
/// Lets dependent grids start; they still wait for this one's end before they read.
__device__ __forceinline__ void grid_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace greenfast::cuda::ptx
