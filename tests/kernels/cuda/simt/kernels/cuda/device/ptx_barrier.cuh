// Stand-in: named barriers.
#pragma once
#include "simt.hpp"

namespace greenfast::cuda::ptx {
template <int kThreads>
void named_barrier_sync(int barrier) {
  simt::sync_named(barrier, kThreads, true);
}
template <int kThreads>
bool named_barrier_all(int barrier, bool yes) {
  return simt::sync_named(barrier, kThreads, yes);
}
}  // namespace greenfast::cuda::ptx
