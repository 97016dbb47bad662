// Which bytes of V a lane decodes, as functions that the kernel and its tests share.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/host_device.hpp"

namespace greenfast::cuda::prefill {

/// Of a warp that makes fp16 of kRows rows of e4m3 at once, kRowBytes of each (64 columns, or 128 of a
/// chunk): the 16 bytes of a lane. In fp16 a row's 16-byte chunk c lies at c xor row % 8, and 16 bytes
/// become two of them. Of eight lanes, which shared memory serves at once, four write a row's even chunks
/// or odd ones, and four the next row's, which lie between them; and where raw rows are 128 bytes those
/// four read their other half, or they would meet in the same banks.
template <int kRowBytes>
struct DecodedPiece {
  static_assert(kRowBytes == 64 || kRowBytes == 128);
  static constexpr int kRows = 32 * 16 / kRowBytes;

  int row, column;  // column: of 16 bytes

  GREENFAST_HOST_DEVICE static constexpr DecodedPiece of(int lane) {
    if constexpr (kRowBytes == 64) return {lane >> 2, lane & 3};
    const int odd = lane >> 2 & 1;
    return {odd + (lane >> 4 << 1), ((lane >> 3 & 1) ^ odd) * 4 + (lane & 3)};
  }
};

/// Where the 16-byte chunk `chunk` of row `row` of V in fp16 lies, in bytes: [64 columns][row][128
/// bytes], swizzled.
GREENFAST_HOST_DEVICE constexpr int decoded_place(int keys, int row, int chunk) {
  return chunk / 8 * (keys * 128) + row * 128 + (chunk % 8 ^ row % 8) * 16;
}

}  // namespace greenfast::cuda::prefill
