// Stand-in: clusters.
#pragma once
#include "simt.hpp"

namespace greenfast::cuda::ptx {
inline void cluster_arrive_relaxed() { simt::cluster_arrive(); }
inline void cluster_wait() { simt::cluster_wait(); }
inline std::uint32_t map_shared_rank(std::uint32_t shared, std::uint32_t rank) {
  return simt::in_block(shared, rank);
}
inline void store_async_16(std::uint32_t to, uint4 value, std::uint32_t barrier) {
  simt::send_16(to, value, barrier);
}
}  // namespace greenfast::cuda::ptx
