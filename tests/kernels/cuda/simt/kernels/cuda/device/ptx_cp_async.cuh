// Stand-in: cp.async.
#pragma once
#include "simt.hpp"

namespace greenfast::cuda::ptx {
using simt::shared_address;
inline void cp_async_16(std::uint32_t shared, const void* global, bool keep) {
  simt::copy_16(shared, global, keep);
}
inline void cp_async_commit() { simt::commit(); }
template <int kPending>
void cp_async_wait() {
  simt::wait_copies(kPending);
}
}  // namespace greenfast::cuda::ptx
