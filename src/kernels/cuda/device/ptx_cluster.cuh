// Thread-block clusters of sm_90: their barrier, and stores into another block's shared memory
// (PTX ISA, barrier.cluster, mapa, st.async).
#pragma once

#include <cstdint>

namespace greenfast::cuda::ptx {

/// First half of the cluster barrier, ordering nothing by itself. The releasing form waits for all
/// memory traffic of the block and took 0.8 us of a 4 us kernel (H200, 2026-11-20); mbarriers that
/// the others will use need fence_mbarrier_init before.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// Address of the same variable in the shared memory of the block with this rank in the cluster.
__device__ __forceinline__ std::uint32_t map_shared_rank(std::uint32_t shared, std::uint32_t rank) {
  std::uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(shared), "r"(rank));
  return mapped;
}

/// Writes 16 bytes into a block of the cluster; that block's barrier receives the 16 bytes.
__device__ __forceinline__ void store_async_16(std::uint32_t cluster_shared, uint4 value,
                                               std::uint32_t cluster_barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(cluster_shared),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(cluster_barrier)
      : "memory");
}

}  // namespace greenfast::cuda::ptx
