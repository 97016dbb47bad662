// Who holds which element, as functions that kernels and tests share: accumulators, e4m3 operands,
// the order of the keys in V^T, and the swizzles of shared memory.
//
// Why keys are permuted. An accumulator of Q.K^T has two neighbouring columns in a lane, an A operand
// of P.V four. Packing atoms i and i + 8 of 8 columns gives a lane columns c, c + 1, c + 64 and
// c + 65 as the operand's k 4 t to 4 t + 3. No shuffle is needed where what stands there in V^T is
// what stands in those columns. Either the pass that makes V^T lays its keys down so (key_of_slot),
// columns being keys; or V^T comes with its keys in order, and K's rows are copied so that the
// columns fit it (key_of_row).
#pragma once

#include "kernels/cuda/device/host_device.hpp"

namespace greenfast::cuda::fp8 {

struct Place {
  int row, column;
  friend constexpr bool operator==(const Place&, const Place&) = default;
};

/// Of a warp's 16 rows: accumulator `index` of `lane`.
GREENFAST_HOST_DEVICE constexpr Place accumulator_place(int lane, int index) {
  return {lane / 4 + 8 * (index / 2 % 2), index / 4 * 8 + 2 * (lane % 4) + index % 2};
}
/// Byte `byte` of word `word` of the A operand of an m64k32 product; the column is k.
GREENFAST_HOST_DEVICE constexpr Place operand_place(int lane, int word, int byte) {
  return {lane / 4 + 8 * (word % 2), 16 * (word / 2) + 4 * (lane % 4) + byte};
}
/// The accumulator that becomes that byte of product `product` of P.V.
GREENFAST_HOST_DEVICE constexpr int packed_accumulator(int product, int word, int byte) {
  const int atom = 2 * product + word / 2 + 8 * (byte / 2);
  return 4 * atom + 2 * (word % 2) + byte % 2;
}
/// The key of a block that stands in a slot of V^T, where the pass wrote it.
GREENFAST_HOST_DEVICE constexpr int key_of_slot(int slot) {
  return 64 * (slot / 2 % 2) + 2 * (slot / 4) + slot % 2;
}
/// The key of a block that stands in a row of K's tile, and so in a column of the scores, where V^T
/// came with its keys in order: two of every four in either half.
GREENFAST_HOST_DEVICE constexpr int key_of_row(int row) {
  return 4 * (row % 64 / 2) + 2 * (row / 64) + row % 2;
}
/// A lane's columns are 2 (lane % 4) + 8 n + e, for e of 0 and 1. Of those in half `half` the ones
/// whose keys are below `limit` are those with 8 n + e below this. `in_fours`: keys stand by key_of_row.
GREENFAST_HOST_DEVICE constexpr int columns_to(bool in_fours, int half, int lane, int limit) {
  if (!in_fours) return limit - 2 * (lane % 4);
  // The half's keys are 16 n' + 4 t + 2 half + e.
  const int left = limit - 4 * (lane % 4) - 2 * half;
  return 64 * half + (left >> 4) * 8 + ((left & 15) < 2 ? (left & 15) : 2);
}

/// Where a lane points ldmatrix for 16 rows and 32 bytes of k of an A operand (Q), and for 16 rows
/// of a B operand (K): the words then are those of operand_place, and of B k 16 * (word % 2) of row
/// 8 * (word / 2) on.
GREENFAST_HOST_DEVICE constexpr Place ldmatrix_a(int lane) { return {lane % 16, lane / 16 * 16}; }
GREENFAST_HOST_DEVICE constexpr Place ldmatrix_b(int lane) {
  return {lane % 8 + lane / 16 * 8, lane / 8 % 2 * 16};
}

/// Where a byte of a tile lies: rows of 128 bytes under TMA's and wgmma's 128-byte swizzle, rows of
/// 64 under the 64-byte one.
template <int kRowBytes>
GREENFAST_HOST_DEVICE constexpr int swizzled(int row, int byte) {
  static_assert(kRowBytes == 128 || kRowBytes == 64);
  const int offset = row * kRowBytes + byte;
  return offset ^ ((offset / 128 % (kRowBytes / 16)) << 4);
}

/// Rows longer than a swizzle are cut into pieces of kRowBytes, and a tile of `rows` rows has the second
/// pieces behind all the first ones. Where slice `slice` of k, 32 bytes, begins in the first row,
template <int kRowBytes>
GREENFAST_HOST_DEVICE constexpr int slice_begin(int rows, int slice) {
  return slice / (kRowBytes / 32) * rows * kRowBytes + slice % (kRowBytes / 32) * 32;
}
/// and where a byte of that slice lies.
template <int kRowBytes>
GREENFAST_HOST_DEVICE constexpr int swizzled(int rows, int slice, const Place& at) {
  return swizzled<kRowBytes>(at.row + slice / (kRowBytes / 32) * rows,
                             slice % (kRowBytes / 32) * 32 + at.column);
}

/// The transposing pass: one thread takes the four keys of a quad of slots, of 16 columns, and
/// lays the words of four slots of one column into shared memory. Neighbouring threads differ in
/// the columns first.
template <int kHeadDim>
struct TransposeTile {
  static constexpr int kKeys = 128;
  static constexpr int kThreads = 2 * kHeadDim;
  static constexpr int kColumnGroups = kHeadDim / 16;
  static constexpr int kWords = kKeys / 4;                 // of a column
  static constexpr int kUnits = kHeadDim * (kKeys / 16);   // of 16 bytes, when stored
  static constexpr int kQuadsOfWarp = 32 / kColumnGroups;  // a warp's 32 words hit 32 banks

  GREENFAST_HOST_DEVICE static constexpr int column_group(int thread) {
    return thread % kColumnGroups;
  }
  GREENFAST_HOST_DEVICE static constexpr int quad(int thread) { return thread / kColumnGroups; }
  /// Word of shared memory that holds slots 4 * quad to + 3 of a column.
  GREENFAST_HOST_DEVICE static constexpr int word(int column, int quad) {
    return column * kWords + (quad ^ column / 16 * kQuadsOfWarp);
  }
};

}  // namespace greenfast::cuda::fp8
