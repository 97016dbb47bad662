// Stand-in: copies with a policy, movmatrix.
#pragma once
#include "simt.hpp"

namespace greenfast::cuda::ptx {
inline std::uint64_t evict_first_policy() { return 0; }
inline std::uint64_t evict_normal_policy() { return 0; }
inline void cp_async_16(std::uint32_t shared, const void* global, bool keep, std::uint64_t) {
  simt::copy_16(shared, global, keep ? 16 : 0);
}
inline std::uint32_t transpose_8x8(std::uint32_t x) {
  simt::Given mine;
  mine.word[0] = x;
  const simt::Given* all = simt::exchange(mine);
  const unsigned g = simt::lane() / 4, t = simt::lane() % 4;
  // Element (row, column) lies in lane 4 * row + column / 2.
  const auto element = [&](unsigned row, unsigned column) {
    return all[4 * row + column / 2].word[0] >> 16 * (column % 2) & 0xffff;
  };
  return element(2 * t, g) | element(2 * t + 1, g) << 16;
}
}  // namespace greenfast::cuda::ptx
