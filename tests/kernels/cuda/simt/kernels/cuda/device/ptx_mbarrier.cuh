// Stand-in: mbarrier, dependent launch.
#pragma once
#include "simt.hpp"

namespace greenfast::cuda::ptx {
inline int thread_index() { return static_cast<int>(threadIdx.x); }
inline int lane_id() { return static_cast<int>(simt::lane()); }
inline void mbarrier_init(std::uint32_t barrier, int arrivals) {
  simt::barrier_init(barrier, arrivals);
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive_expect_tx(std::uint32_t barrier, int bytes) {
  simt::barrier_arrive_expect(barrier, bytes);
}
inline void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  simt::barrier_wait(barrier, parity);
}
inline void grid_dependency_wait() {}
inline void grid_launch_dependents() {}
}  // namespace greenfast::cuda::ptx
