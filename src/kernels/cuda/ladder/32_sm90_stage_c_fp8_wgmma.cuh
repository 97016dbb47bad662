// Who holds which element in cuda.stage_c.fp8_wgmma, as functions that the kernel and its tests
// share. Tiles have rows of 64 bytes under wgmma's 64-byte swizzle.
#pragma once

#include "kernels/cuda/device/host_device.hpp"

namespace greenfast::cuda::stage_c_fp8_wgmma {

inline constexpr int kRow = 64;  // bytes of a row of every tile: D of Q, K and V, keys of V^T

/// Where a byte of a tile lies: 16-byte units change places by row, as raw_offset<true> has them.
GREENFAST_HOST_DEVICE constexpr int swizzled(int row, int byte) {
  return row * kRow + ((byte / 16 ^ row / 2 % 4) * 16 + byte % 16);
}

/// The key that stands in a slot of V^T. Two accumulators of 8 keys, packed, give a lane the keys 2m,
/// 2m+1, 8+2m and 9+2m of 16 (m: its place in the quad), which the A operand takes as 4m to 4m+3.
GREENFAST_HOST_DEVICE constexpr int key_of_slot(int slot) {
  return slot / 16 * 16 + 2 * (slot % 16 / 4) + 8 * (slot / 2 % 2) + slot % 2;
}

/// The accumulator of Q·Kᵀ that becomes byte `byte` of word `word` of P in 32-key step `step`.
GREENFAST_HOST_DEVICE constexpr int packed_accumulator(int step, int word, int byte) {
  return 8 * (2 * step + word / 2) + 4 * (byte / 2) + 2 * (word % 2) + byte % 2;
}

/// Unit `unit` of V's transposition: four slots from 4 * quad on, four columns from 4 * group on. The
/// units of a warp read 16 of the 32 banks twice, and write so too.
struct Unit {
  int quad, group;
};
GREENFAST_HOST_DEVICE constexpr Unit unit_of(int unit) {
  return {unit % 4 + unit / 16 % 2 * 4 + unit / 128 * 8, unit / 4 % 4 + unit / 32 % 4 * 4};
}

}  // namespace greenfast::cuda::stage_c_fp8_wgmma
