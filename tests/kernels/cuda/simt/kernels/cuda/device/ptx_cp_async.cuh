// Stand-in: cp.async.
#pragma once
#include "simt.hpp"

namespace greenfast::cuda::ptx {
using simt::shared_address;
inline void cp_async_16(std::uint32_t shared, const void* global, bool keep) {
  simt::copy_16(shared, global, keep ? 16 : 0);
}
inline void cp_async_16_part(std::uint32_t shared, const void* global, int bytes) {
  simt::copy_16(shared, global, bytes);
}
inline void cp_async_16(std::uint32_t shared, const void* global) {
  simt::copy_16(shared, global, 16);
}
inline void cp_async_16_if(bool go, std::uint32_t shared, const void* global, bool keep) {
  if (go) simt::copy_16(shared, global, keep ? 16 : 0);
}
inline void store_shared_16(std::uint32_t shared, uint4 value) {
  std::memcpy(simt::at(shared), &value, 16);
}
inline uint4 load_shared_16(std::uint32_t shared) {
  uint4 value;
  std::memcpy(&value, simt::at(shared), 16);
  return value;
}
inline void store_global_16(void* global, uint4 value) { std::memcpy(global, &value, 16); }
inline void cp_async_commit() { simt::commit(); }
template <int kPending>
void cp_async_wait() {
  simt::wait_copies(kPending);
}
}  // namespace greenfast::cuda::ptx
