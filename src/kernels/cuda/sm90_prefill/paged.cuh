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
// Pages that are no multiple of 8 keys have builds that copy rows instead (RowPages, RowCopier).
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/ptx_cp_async.cuh"
#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/ptx_tma.cuh"
#include "kernels/cuda/sm90_prefill/config.hpp"
#include "kernels/cuda/sm90_prefill/row_copies.hpp"
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

// Blocks of K and V out of pages of any size: every row by cp.async, 16 bytes a lane, as many rows at once as a warp has
// lanes for. A lane asks for the pages of its rows one block ahead and hands out where they lie by shuffles. Rows that nobody
// sees are zeros, and their pages are not asked for. A stage is full when the copies of all lanes have arrived; the fence
// between them and wgmma is the consumers', since it would wait for all that the producer has under way.
//
// A warp alone issues an instruction every four or five clocks, so a block takes as long as it has instructions (ncu, H200,
// 2026-11-29: 450 of them, 1,976 clocks, of which 923 were not copies'). What a block does not change is computed before it.

/// Pages of a warp's rows.
template <class ConfigOf, class Share>
struct RowPages {
  static constexpr int kKeys = ConfigOf::value.keys, kSets = Share::kSets;

  const Params& p;
  const ServingTile& tile;
  const int own_row;  // of a block, this lane's of the first 32
  const std::int32_t* table;
  // Of the block that was asked for: the page as it stands there, and the row in it.
  int page[kSets], row[kSets];

  __device__ __forceinline__ RowPages(const Params& params, const ServingTile& at, int first_row)
      : p(params), tile(at), own_row(first_row + Share::row_of(0, ptx::lane_id())) {}

  __device__ __forceinline__ void begin(int block) {
    table = p.packed.arrays.page_table + tile.entry * p.packed.arrays.page_row;
    ask(block);
  }
  /// Instead of a row that nobody sees, for the nearest that somebody does.
  __device__ __forceinline__ void ask(int block) {
#pragma unroll
    for (int i = 0; i < kSets; ++i) {
      const int wanted = block * kKeys + own_row + Share::row_of(i, 0);
      const PageBox at = box_at(tile, min(max(wanted, tile.cut), tile.extent.band.keys - 1),
                                p.packed.arrays.page_size, p.serving.by_page);
      page[i] = table[at.entry];
      row[i] = at.row;
    }
  }
  /// Where the rows that were asked for lie.
  struct Pieces {
    std::uint32_t of[kSets];
  };
  __device__ __forceinline__ Pieces pieces(PieceSteps steps) const {
    Pieces pieces;
#pragma unroll
    for (int i = 0; i < kSets; ++i)
      pieces.of[i] = piece_of_row(steps, min(max(page[i], 0), p.packed.arrays.pages - 1), row[i]);
    return pieces;
  }
};

/// A lane's part in copies of rows that lie so in shared memory.
template <class ConfigOf, class Share, class Rows>
struct RowCopier {
  static constexpr Config kConfig = ConfigOf::value;
  static constexpr int kKeys = kConfig.keys, kRowBytes = Rows::kRowBytes;
  static constexpr int kPieces = Rows::kPieces, kAtOnce = Rows::kAtOnce;
  using Pieces = typename RowPages<ConfigOf, Share>::Pieces;

  const int first_row;  // of the first run
  const int size;       // bytes of this lane's pieces: 16, fewer at a row's end, 0 beyond
  const int in_source;  // from the row's first byte
  const std::uint32_t in_stage;
  const std::uint8_t* from;  // this lane's piece of the head's first row

  __device__ __forceinline__ RowCopier(int first, int columns)
      : first_row(first),
        size(size_of(columns)),
        in_source(size > 0 ? 16 * piece() : 0),
        in_stage(Rows::chunk_place(kKeys, piece()) + (first + row_of_lane()) * kRowBytes +
                 Rows::in_row(row_of_lane(), piece())) {}

  __device__ __forceinline__ static int piece() { return Rows::piece_of(ptx::lane_id()); }
  __device__ __forceinline__ static int row_of_lane() { return Rows::row_of(ptx::lane_id()); }
  __device__ __forceinline__ static int size_of(int columns) {
    // 16 bits come in rows of whole pieces.
    if constexpr (!kConfig.bytes) return 8 * piece() < columns ? 16 : 0;
    return min(max(columns - 16 * piece(), 0), 16);
  }
  __device__ __forceinline__ void set_head(const void* head) {
    from = static_cast<const std::uint8_t*>(head) + in_source;
    asm volatile("" : "+l"(from));  // one sum, not a sum for each row
  }

  /// A block's rows into a stage. Its arrival is the caller's.
  __device__ __forceinline__ void copy(const ServingTile& tile, int block, const Pieces& pieces,
                                       std::uint32_t stage) const {
    constexpr int kRun = Share::kRun;
    // A copy keeps its registers for some 90 clocks: copies that reuse them one after the other took 5,900 for a block
    // (H200, 2026-11-28). So addresses of several are at hand before the first is issued. Two warpgroups leave 40 registers.
    constexpr int kMost = kConfig.warpgroups < 3 ? 4 : 8;
    constexpr int kBatch = std::min({kMost, kPieces, kRun / kAtOnce});
    static_assert(kRun % (kBatch * kAtOnce) == 0);
    const std::uint32_t to = stage + in_stage;
    // Rows that are there: all of most blocks.
    const int begin = tile.cut - block * kKeys, end = tile.extent.band.keys - block * kKeys;
    const bool whole = begin <= 0 && end >= kKeys;
#pragma unroll
    for (int run = 0; run < Share::kRuns; ++run) {
      const std::uint32_t own = pieces.of[run * kRun / 32];
      const int of_run = run * kRun % 32 + row_of_lane();  // the lane that knows
      const auto source = [&](int further) {
        return from + std::uint64_t{__shfl_sync(kFullWarp, own, of_run + further)} * 16;
      };
      if (whole) {
        // Rolled, or ptxas takes the same registers again.
#pragma unroll 1
        for (int batch = 0; batch < kRun; batch += kBatch * kAtOnce) {
          const std::uint8_t* row_at[kBatch];
#pragma unroll
          for (int r = 0; r < kBatch; ++r) row_at[r] = source(batch + r * kAtOnce);
          __syncwarp();  // in front of which ptxas leaves them
          const std::uint32_t row_to = to + (run * Share::kApart + batch) * kRowBytes;
#pragma unroll
          for (int r = 0; r < kBatch; ++r)
            copy_piece((row_to ^ Rows::turn(batch + r * kAtOnce)) + r * kAtOnce * kRowBytes,
                       row_at[r], true);
        }
      } else {
#pragma unroll 1
        for (int r = 0; r < kRun; r += kAtOnce) {
          const std::uint8_t* const at = source(r);
          const int row = first_row + run * Share::kApart + r + row_of_lane();
          copy_piece((to ^ Rows::turn(r)) + (run * Share::kApart + r) * kRowBytes, at,
                     row >= begin && row < end);
        }
      }
    }
  }
  __device__ __forceinline__ void copy_piece(std::uint32_t to, const std::uint8_t* at,
                                             bool keep) const {
    if constexpr (kConfig.bytes)
      ptx::cp_async_16_part(to, at, keep ? size : 0);
    else
      ptx::cp_async_16(to, at, keep && size > 0);
  }
};

}  // namespace greenfast::cuda::prefill
