// Blocks of K and V out of pages, by the producer warp of cuda.sm90.prefill's builds for serving.
//
// A block is copied in boxes that cross no page (packed.hpp, page_box), each by a lane of its own,
// which asks for its page's number one block ahead. The copies are issued one after another all the
// same: nvcc makes a loop over the lanes of them. The maps are the ragged ones of packed K and V: a
// page is a sequence that ends where the keys do, and a box of which no key is seen lies outside the
// map, so that its page is not asked for. Only V's rows before the first visible key of a box that
// begins with hidden ones cannot be cut off by a map: that box, one of a sequence, is copied by all
// lanes.
//
// Pages that are no multiple of 8 keys have builds that copy rows instead (RowReader).
#pragma once

#include <cstdint>

#include "kernels/cuda/device/ptx_cp_async.cuh"
#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/ptx_tma.cuh"
#include "kernels/cuda/sm90_prefill/config.hpp"
#include "kernels/cuda/sm90_prefill/shared_memory.cuh"

namespace greenfast::cuda::prefill {

template <class ConfigOf>
struct PageReader {
  static constexpr Config kConfig = ConfigOf::value;
  static constexpr int kKeys = kConfig.keys;

  /// Of a lane: its entry of the page table as it stands there, and the box's first row of that
  /// page, negative where no key of the box is seen. The entry is clamped where it is used: before,
  /// that would wait for it.
  struct Box {
    int page = 0, row = -1;
  };

  const Params& p;
  const ServingTile& tile;
  // In the block that K is at, in the one behind it, where V is, and in the next one.
  Box of_k, of_v, of_next;

  __device__ __forceinline__ PageReader(const Params& params, const ServingTile& at)
      : p(params), tile(at) {}

  __device__ __forceinline__ int box() const { return p.serving.box; }
  /// First row of this lane's box in a block.
  __device__ __forceinline__ int row_of(int block) const {
    return block * kKeys + ptx::lane_id() * box();
  }
  __device__ __forceinline__ Box box_of(int block) const {
    const int row = row_of(block);
    if (ptx::lane_id() * box() >= kKeys || !is_seen(tile, row, box())) return {};
    const SequenceArrays& a = p.packed.arrays;
    const PageBox at = box_at(tile, row, a.page_size, p.serving.by_page);
    return {a.page_table[tile.entry * a.page_row + at.entry], at.row};
  }
  __device__ __forceinline__ int clamped(int page) const {
    return min(max(page, 0), p.packed.arrays.pages - 1);
  }

  __device__ __forceinline__ void begin(int block) { of_next = box_of(block); }
  /// K is at this block from here on.
  __device__ __forceinline__ void step(int block) {
    of_v = of_k;
    of_k = of_next;
    of_next = box_of(block - 1);
  }
  /// V is where K is.
  __device__ __forceinline__ void catch_up() { of_v = of_k; }

  /// The boxes of a block whose first hidden keys may come along: they are masked, whatever they
  /// hold, and lie in pages that some row sees.
  template <int kRowBytes = 128>
  __device__ __forceinline__ void copy(const CUtensorMap& map, std::uint32_t to,
                                       std::uint32_t barrier, int block, Box from, int head,
                                       int chunks, int rows_of_page) const {
    const int lane = ptx::lane_id();
    if (lane * box() >= kKeys) return;
    RaggedPlace at = {kRaggedRows, 0};
    if (from.row >= 0) {
      at =
          ragged_place(clamped(from.page) * rows_of_page,
                       box_end(tile, row_of(block), from.row, p.packed.arrays.page_size), from.row);
    }
#pragma unroll 1
    for (int c = 0; c < chunks; ++c)
      ptx::tma_load_5d(to + c * kKeys * kRowBytes + lane * box() * kRowBytes, &map, barrier,
                       kConfig.chunk_columns() * c, at.row, head, at.end, kRaggedRows);
  }

  /// Whether a block of V has a box of which only the last keys are seen, and the lane whose it is.
  __device__ __forceinline__ bool has_cut(int block) const {
    return block == 0 && cut_lane() * box() != tile.cut;
  }
  __device__ __forceinline__ int cut_lane() const { return tile.cut / p.serving.by_box; }
  /// That box, by all lanes: rows that nobody sees as zeros.
  __device__ __forceinline__ void copy_cut(const void* v, std::int64_t page_stride,
                                           std::int64_t row_stride, std::uint32_t to) const {
    const int lane = cut_lane(), first = lane * box();
    const int page = __shfl_sync(kFullWarp, of_v.page, lane);
    const int in_page = __shfl_sync(kFullWarp, of_v.row, lane);
    constexpr int kPieces = kConfig.value_chunks() * 8;  // of 16 bytes, in a row
    static_assert(32 % kPieces == 0, "a lane copies the same piece of every row");
    const int piece = ptx::lane_id() % kPieces;
    const bool there = 8 * piece < p.serving.value_dim;
    const auto* const from = static_cast<const std::uint16_t*>(v) + clamped(page) * page_stride +
                             in_page * row_stride + (there ? 8 * piece : 0);
    to += piece / 8 * (kKeys * 128) + first * 128;  // a multiple of 8 rows, as the swizzle wants
#pragma unroll 1
    for (int r = ptx::lane_id() / kPieces; r < box(); r += 32 / kPieces) {
      const int row = first + r;
      const bool keep = there && row >= tile.cut && row < tile.extent.band.keys;
      ptx::cp_async_16(to + r * 128 + ((piece % 8 ^ (r & 7)) << 4),
                       from + (keep ? r * row_stride : 0), keep);
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    ptx::fence_proxy_async_shared();
    __syncwarp();
  }
};

/// Strides in elements, of pages and of rows, in pieces of 16 bytes.
template <class ConfigOf>
__device__ __forceinline__ PieceSteps piece_steps(std::int64_t page, std::int64_t row) {
  constexpr int kOfPiece = ConfigOf::value.bytes ? 16 : 8;
  return {static_cast<std::uint32_t>(page / kOfPiece), static_cast<std::uint32_t>(row / kOfPiece)};
}

/// How rows of a block lie in shared memory: [chunk][row][kRowBytes], of each the first kRowPieces pieces of 16 bytes.
template <int kRowPieces, int kRowSize = 128, bool kIsSwizzled = true>
struct RowsInShared {
  static constexpr int kPieces = kRowPieces, kRowBytes = kRowSize, kOfChunk = kRowSize / 16;
  static constexpr bool kSwizzled = kIsSwizzled;
};

/// Blocks of K and V out of pages of any size: every row by cp.async, 16 bytes a lane, as many rows at once as a
/// warp has lanes for. A lane asks for the pages of its rows one block ahead and hands them out by shuffles. Rows that
/// nobody sees are zeros, and their pages are not asked for. A stage is full when the copies of all lanes have arrived;
/// the fence between them and wgmma is the consumers', since it would wait for all that the producer has under way.
/// kWarps of them share a block.
template <class ConfigOf, int kWarps = kRowWarps>
struct RowReader {
  static constexpr Config kConfig = ConfigOf::value;
  static constexpr int kKeys = kConfig.keys, kEach = kKeys / (32 * kWarps);
  static_assert(kKeys % (32 * kWarps) == 0);

  /// Of a lane: entries of the page table, as they stand there.
  struct Pages {
    int of[kEach] = {};
  };

  const Params& p;
  const ServingTile& tile;
  const int part;  // of the warps that copy
  Pages of_k, of_v, of_next;

  __device__ __forceinline__ RowReader(const Params& params, const ServingTile& at, int warp)
      : p(params), tile(at), part(warp) {}

  /// The first of 32 rows of a block.
  __device__ __forceinline__ int first_of(int i) const { return 32 * (kWarps * i + part); }

  __device__ __forceinline__ Pages pages_of(int block) const {
    const SequenceArrays& a = p.packed.arrays;
    Pages pages;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = block * kKeys + first_of(i) + ptx::lane_id();
      if (is_seen(tile, row, 1))
        pages.of[i] = a.page_table[tile.entry * a.page_row +
                                   box_at(tile, row, a.page_size, p.serving.by_page).entry];
    }
    return pages;
  }
  __device__ __forceinline__ void begin(int block) { of_next = pages_of(block); }
  /// K is at this block from here on.
  __device__ __forceinline__ void step(int block) {
    of_v = of_k;
    of_k = of_next;
    of_next = pages_of(block - 1);
  }
  /// V is where K is.
  __device__ __forceinline__ void catch_up() { of_v = of_k; }

  /// A block into a stage; `from` is the head's. Its arrival is the caller's.
  template <class Rows>
  __device__ __forceinline__ void copy(const void* from, PieceSteps steps, int columns, int block,
                                       const Pages& pages, std::uint32_t to) const {
    constexpr int kPieces = Rows::kPieces, kAtOnce = 32 / kPieces, kRowBytes = Rows::kRowBytes;
    static_assert(32 % kPieces == 0, "a lane copies the same piece of every row");
    // A copy keeps its registers for some 90 clocks: copies that reuse them one after the other took 5,900 for a block
    // (H200, 2026-11-28). So addresses of several are at hand before the first is issued, and nothing in between is
    // computed. Two warpgroups leave 40 registers.
    constexpr int kMost = kConfig.warpgroups < 3 ? 4 : 8;
    constexpr int kBatch = kMost < kPieces ? kMost : kPieces, kRows = kBatch * kAtOnce;
    constexpr int kPlaces = !Rows::kSwizzled ? 1 : kRows < 8 ? kBatch : 8 / kAtOnce;
    static_assert(kRows <= 32 && (kRows % 8 == 0 || kRows == 4));
    const SequenceArrays& a = p.packed.arrays;
    const int lane = ptx::lane_id(), piece = lane % kPieces, first = lane / kPieces;
    // 16 bits come in rows of whole pieces.
    const bool in_row = (kConfig.bytes ? 16 : 8) * piece < columns;
    const int there = kConfig.bytes ? min(max(columns - 16 * piece, 0), 16) : 16;
    const auto copy_piece = [&](std::uint32_t place, const std::uint8_t* at, bool keep) {
      if constexpr (kConfig.bytes)
        ptx::cp_async_16_part(place, at, keep ? there : 0);
      else
        ptx::cp_async_16(place, at, keep);
    };
    const auto* bytes = static_cast<const std::uint8_t*>(from) + (in_row ? 16 * piece : 0);
    asm volatile("" : "+l"(bytes));  // one sum, not a sum for each row
    const auto turned = [&](int row) {
      return (piece % Rows::kOfChunk ^ (Rows::kSwizzled ? row : 0)) << 4;
    };
    // By row modulo 8, as the swizzle has it.
    std::uint32_t place[kPlaces];
#pragma unroll
    for (int r = 0; r < kPlaces; ++r) {
      place[r] = to + piece / Rows::kOfChunk * (kKeys * kRowBytes) +
                 (first_of(0) + first) * kRowBytes + turned(r * kAtOnce + first);
      asm volatile("" : "+r"(place[r]));
    }
    // Rows that are there: all of most blocks.
    const int begin = tile.cut - block * kKeys, end = tile.extent.band.keys - block * kKeys;
    const bool whole = begin <= 0 && end >= kKeys;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int mine = block * kKeys + first_of(i) + lane;
      const int page = min(max(pages.of[i], 0), a.pages - 1);
      const std::uint32_t at =
          piece_of_row(steps, page, box_at(tile, mine, a.page_size, p.serving.by_page).row);
      if (whole) {
#pragma unroll 1
        for (int batch = first; batch < 32; batch += kRows) {
          const std::uint8_t* row_at[kBatch];
#pragma unroll
          for (int r = 0; r < kBatch; ++r)
            row_at[r] = bytes + std::uint64_t{__shfl_sync(kFullWarp, at, batch + r * kAtOnce)} * 16;
          __syncwarp();  // in front of which ptxas leaves them
#pragma unroll
          for (int r = 0; r < kBatch; ++r)
            copy_piece(place[r % kPlaces] + r * kAtOnce * kRowBytes, row_at[r], in_row);
#pragma unroll
          for (std::uint32_t& x : place)
            x = (x + kRows * kRowBytes) ^ (Rows::kSwizzled && kRows % 8 != 0 ? 4 << 4 : 0);
        }
        if constexpr (kEach > 1) {
#pragma unroll
          for (std::uint32_t& x : place) x += 32 * (kWarps - 1) * kRowBytes;
        }
      } else {
#pragma unroll 1
        for (int r = 0; r < 32; r += kAtOnce) {
          const int row = first_of(i) + r + first;
          const std::uint32_t pieces = __shfl_sync(kFullWarp, at, r + first);
          const std::uint32_t place_of_row =
              to + piece / Rows::kOfChunk * (kKeys * kRowBytes) + row * kRowBytes + turned(row & 7);
          copy_piece(place_of_row, bytes + std::uint64_t{pieces} * 16,
                     in_row && row >= begin && row < end);
        }
      }
    }
  }
};

}  // namespace greenfast::cuda::prefill
