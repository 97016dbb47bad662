// Which rows of a block a warp copies, and where a lane's pieces of 16 bytes lie, as functions that the kernel and its tests
// share.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/host_device.hpp"

namespace greenfast::cuda::prefill {

/// Rows of a block that a warp copies: kRuns times kRun of them, from one run to the next kApart rows.
template <int kRunRows, int kRunCount, int kRunsApart>
struct RowShare {
  static constexpr int kRun = kRunRows, kRuns = kRunCount, kApart = kRunsApart;
  static constexpr int kRows = kRun * kRuns, kSets = (kRows + 31) / 32;
  static_assert(32 % kRun == 0);

  /// Of the set-th 32 rows the lane-th, counted from the first run's first.
  GREENFAST_HOST_DEVICE static constexpr int row_of(int set, int lane) {
    return (32 * set / kRun + lane / kRun) * kApart + lane % kRun;
  }
};

/// How rows of a block lie in shared memory: [chunk][row][kRowBytes], of each the first kRowPieces pieces of 16 bytes. A warp
/// copies kAtOnce rows at once, a lane the same piece of all of them.
template <int kRowPieces, int kRowSize = 128, bool kIsSwizzled = true>
struct RowsInShared {
  static constexpr int kPieces = kRowPieces, kRowBytes = kRowSize, kOfChunk = kRowSize / 16;
  static constexpr bool kSwizzled = kIsSwizzled;
  static constexpr int kAtOnce = 32 / kPieces;
  static_assert(32 % kPieces == 0);

  GREENFAST_HOST_DEVICE static constexpr int piece_of(int lane) { return lane % kPieces; }
  GREENFAST_HOST_DEVICE static constexpr int row_of(int lane) { return lane / kPieces; }
  /// Where a row's piece lies: its chunk, and its place in the row.
  GREENFAST_HOST_DEVICE static constexpr int chunk_place(int keys, int piece) {
    return piece / kOfChunk * (keys * kRowBytes);
  }
  GREENFAST_HOST_DEVICE static constexpr int in_row(int row, int piece) {
    return (piece % kOfChunk ^ (kSwizzled ? row & 7 : 0)) << 4;
  }
  /// By which bits the place of a lane's piece differs from that of its piece `further` rows before, a multiple of kAtOnce,
  /// beside the rows between them.
  GREENFAST_HOST_DEVICE static constexpr int turn(int further) {
    return kSwizzled ? further % 8 * 16 : 0;
  }
};

/// Who copies what of blocks of so many keys, a multiple of 64. Of 16 bits a warp copies K, one V, and one the last quarter
/// of both; of bytes one all of K, and V is its decoders', half each.
template <int kKeys>
struct RowShares {
  using All = RowShare<16, kKeys / 16, 16>;
  using Most = RowShare<16, kKeys / 16 * 3 / 4, 16>;
  using Last = RowShare<16, kKeys / 16 / 4, 16>;
  using Half = RowShare<32, kKeys / 64, 32>;
};

}  // namespace greenfast::cuda::prefill
