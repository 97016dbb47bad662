// Masks by array in cuda.sm90.prefill's loop. Its card is that of kernel.cuh.
//
// Two warps beside the producer copy a mask's elements, a block's rows and keys into a stage of a ring, every
// other block each: by TMA where it takes the mask; where rows begin at multiples of 4 bytes, by cp.async;
// else by words that they put together. What lies past the mask's end is never read. Rows behind the
// sequence get zeros, however they come: they share a warp's guard with the sequence's own, whose bits may
// not depend on what lies there. A row that all queries share comes once, for all rows of the stage.
// Consumers read a stage as the accumulators of Q K^T lie.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/ptx_cp_async.cuh"
#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/ptx_mma.cuh"
#include "kernels/cuda/device/ptx_stmatrix.cuh"
#include "kernels/cuda/device/ptx_tma.cuh"
#include "kernels/cuda/sm90_prefill/consumer.cuh"
#include "kernels/cuda/sm90_prefill/mask_element.cuh"
#include "kernels/cuda/sm90_prefill/shared_memory.cuh"

namespace greenfast::cuda::prefill {

/// Bytes from a stage's start to 16 of a row's: neighbouring rows have theirs in other banks.
template <class ConfigOf>
__device__ __forceinline__ constexpr int mask_place(int row, int chunk) {
  constexpr int kRowBytes = ConfigOf::value.mask_row_bytes();
  static_assert(kRowBytes == 64 || kRowBytes == 128);
  return row * kRowBytes + ((chunk ^ (kRowBytes == 64 ? row >> 1 & 3 : row & 7)) << 4);
}

/// A tile's part of the mask, by a warp.
template <class T, class ConfigOf>
struct MaskCopy {
  static constexpr Config kConfig = ConfigOf::value;
  static constexpr int kBytes = kConfig.mask == MaskArray::bias ? 2 : 1;  // of an element
  static constexpr int kRows = kConfig.rows(), kRowBytes = kConfig.mask_row_bytes();

  const MaskFacts& mask;
  const MaskedTile& tile;
  const std::uint8_t* first;  // element of the tile's row 0 and key 0
  std::int64_t row_bytes;
  int last_row, bytes;  // of the tile: its last row, and those of a row's keys
  bool mapped;          // by TMA, whose boxes begin at multiples of 16 bytes
  bool words;           // every row begins at a multiple of 4 bytes

  __device__ __forceinline__ MaskCopy(const MaskFacts& facts, const MaskedTile& at)
      : mask(facts), tile(at), row_bytes(facts.row * kBytes) {
    const int first_row = tile.index * kRows;
    first = static_cast<const std::uint8_t*>(facts.data) +
            (tile.entry * facts.batch + tile.head * facts.head + first_row * facts.row +
             tile.first_key) *
                kBytes;
    last_row = min(kRows, tile.extent.seq_q - first_row) - 1;
    bytes = tile.extent.band.keys * kBytes;
    mapped = mask.mapped && tile.first_key * kBytes % 16 == 0 &&
             (last_row == kRows - 1 || tile.extent.seq_q == mask.rows);
    words = ((static_cast<std::uint32_t>(reinterpret_cast<std::uint64_t>(first)) |
              static_cast<std::uint32_t>(row_bytes)) &
             3) == 0;
  }

  /// A block into the stage at `to`, of which `full` is the barrier.
  __device__ __forceinline__ void copy(int block, std::uint32_t to, std::uint32_t full) const {
    const int at = block * kRowBytes;
    if (mapped) {
      copy_mapped(block, to, full);
    } else if (row_bytes == 0) {
      copy_row(at, to);
      ptx::mbarrier_arrive_if(full, true);
    } else if (words) {
      copy_words(at, to);
      ptx::cp_async_arrive(full);
    } else {
      copy_anywhere(at, to);
      ptx::mbarrier_arrive_if(full, true);
    }
  }

 private:
  __device__ __forceinline__ void copy_mapped(int block, std::uint32_t to,
                                              std::uint32_t full) const {
    const bool leader = ptx::lane_id() == 0;
    if (leader) {
      ptx::mbarrier_arrive_expect_tx(full, kConfig.mask_bytes());
      ptx::tma_load_4d(to, reinterpret_cast<const CUtensorMap*>(mask.map), full,
                       tile.first_key + block * kConfig.keys, tile.index * kRows,
                       min(tile.head, mask.last_head), min(tile.entry, mask.last_batch));
    }
    ptx::mbarrier_arrive_if(full, !leader);
  }

  /// Calls work(place, row, byte of the row) for this lane's pieces of kPiece bytes.
  template <int kPiece, int kUnroll, class Work>
  __device__ __forceinline__ static void for_pieces(const Work& work) {
    constexpr int kPieces = kRowBytes / kPiece, kRowsAtOnce = 32 / kPieces;
    static_assert(32 % kPieces == 0 && kRows % kRowsAtOnce == 0);
    const int lane = ptx::lane_id(), byte = lane % kPieces * kPiece;
#pragma unroll kUnroll
    for (int row = lane / kPieces; row < kRows; row += kRowsAtOnce)
      work(mask_place<ConfigOf>(row, byte / 16) + byte % 16, row, byte);
  }
  /// Of rows behind the tile's last the address of that one, of which nothing is taken.
  __device__ __forceinline__ const std::uint8_t* row_at(int row) const {
    return first + min(row, last_row) * row_bytes;
  }

  __device__ __forceinline__ void copy_words(int at, std::uint32_t to) const {
    for_pieces<4, 4>([&](int place, int row, int byte) {
      const int there = row <= last_row ? min(max(bytes - at - byte, 0), 4) : 0;
      ptx::cp_async_4_part(to + place, row_at(row) + (there > 0 ? at + byte : 0), there);
    });
  }
  __device__ __forceinline__ void copy_row(int at, std::uint32_t to) const {
    const int byte = ptx::lane_id() % (kRowBytes / 16) * 16;
    const uint4 piece = piece_at(first + at + byte, bytes - at - byte);
    for_pieces<16, 4>([&](int place, int, int) { ptx::store_shared_16(to + place, piece); });
  }
  /// Rows that begin anywhere; what lies behind a row's keys is any.
  __device__ __forceinline__ void copy_anywhere(int at, std::uint32_t to) const {
    // Whether eight bytes before the block's and behind them lie inside of the mask.
    const std::uint8_t* const end = row_at(kRows) + at + kRowBytes + 8;
    if (first + at - 8 < mask.data || end > mask.end) {
      for_pieces<16, 1>([&](int place, int row, int byte) {
        const int there = row <= last_row ? bytes - at - byte : 0;
        ptx::store_shared_16(to + place, piece_at(row_at(row) + at + byte, there));
      });
      return;
    }
    // The loads of two pieces before the first use; three would spill.
    constexpr int kPieces = kRowBytes / 16, kRowsAtOnce = 32 / kPieces, kBatch = 2;
    static_assert(kRows % (kRowsAtOnce * kBatch) == 0);
    const int lane = ptx::lane_id(), chunk = lane % kPieces;
    const std::uint8_t* const from = first + at + chunk * 16;
#pragma unroll 1
    for (int row = lane / kPieces; row < kRows; row += kBatch * kRowsAtOnce) {
      Piece pieces[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        pieces[i].load(from + min(row + i * kRowsAtOnce, last_row) * row_bytes);
      __syncwarp();  // ptxas moves no store across it
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        ptx::store_shared_16(to + mask_place<ConfigOf>(row + i * kRowsAtOnce, chunk),
                             row + i * kRowsAtOnce <= last_row ? pieces[i].value() : uint4{});
    }
  }

  /// 16 bytes from anywhere on, of which eight before and behind may be read.
  struct Piece {
    uint2 a, b, c;
    std::uint32_t shift;
    __device__ __forceinline__ void load(const std::uint8_t* from) {
      shift = static_cast<std::uint32_t>(reinterpret_cast<std::uint64_t>(from)) % 8;
      const auto* const pairs = reinterpret_cast<const uint2*>(from - shift);
      a = __ldg(pairs);
      b = __ldg(pairs + 1);
      c = __ldg(pairs + 2);
    }
    __device__ __forceinline__ uint4 value() const {
      const bool second = shift >= 4;
      const std::uint32_t part[5] = {second ? a.y : a.x, second ? b.x : a.y, second ? b.y : b.x,
                                     second ? c.x : b.y, second ? c.y : c.x};
      return aligned(part, shift % 4);
    }
  };
  /// 16 bytes from anywhere on; what lies behind the first `there` is any.
  __device__ __forceinline__ uint4 piece_at(const std::uint8_t* from, int there) const {
    const auto shift = static_cast<std::uint32_t>(reinterpret_cast<std::uint64_t>(from)) % 4;
    std::uint32_t part[5];
#pragma unroll
    for (int i = 0; i < 5; ++i)
      part[i] =
          there > 0 && 4 * i - static_cast<int>(shift) < there ? word(from - shift + 4 * i) : 0;
    return aligned(part, shift);
  }
  __device__ __forceinline__ static uint4 aligned(const std::uint32_t (&part)[5],
                                                  std::uint32_t shift) {
    return {
        __funnelshift_r(part[0], part[1], 8 * shift), __funnelshift_r(part[1], part[2], 8 * shift),
        __funnelshift_r(part[2], part[3], 8 * shift), __funnelshift_r(part[3], part[4], 8 * shift)};
  }
  /// Four bytes, those outside of the mask as zeros.
  __device__ __forceinline__ std::uint32_t word(const std::uint8_t* at) const {
    const auto* const begin = static_cast<const std::uint8_t*>(mask.data);
    const auto* const end = static_cast<const std::uint8_t*>(mask.end);
    if (at >= begin && at + 4 <= end) return *reinterpret_cast<const std::uint32_t*>(at);
    std::uint32_t bytes_of_it = 0;
#pragma unroll 1
    for (int i = 0; i < 4; ++i)
      if (at + i >= begin && at + i < end) bytes_of_it |= std::uint32_t{at[i]} << 8 * i;
    return bytes_of_it;
  }
};

/// The masks of the CTA's tiles, by one of two warps: it copies every other block.
template <class T, class ConfigOf>
__device__ __forceinline__ void send_masks(const Params& p, const SharedMemory<ConfigOf>& shared,
                                           const TileRing<ConfigOf>& ring, int turn) {
  ptx::grid_dependency_wait();
  Stage<ConfigOf::value.mask_stages> stage(shared.mask_full, 1);
  MaskedTile tile;
#pragma unroll 1
  for (int step = 0;; ++step) {
    ring.read(step, tile);
    ring.release(step);
    if (tile.index < 0) break;
    const int first_row = tile.index * ConfigOf::value.rows();
    const BlockRange blocks = visible_blocks<ConfigOf>(
        tile.extent, first_row, min(first_row + ConfigOf::value.rows(), tile.extent.seq_q) - 1);
    const MaskCopy<T, ConfigOf> mask(p.mask, tile);
#pragma unroll 1
    for (int block = blocks.end - 1; block >= blocks.begin; --block) {
      if (turn == 0) {
        ptx::mbarrier_wait(stage.empty(), stage.parity);
        const std::uint32_t number = (stage.full - shared.mask_full) / 8;
        mask.copy(block, shared.mask + number * ConfigOf::value.mask_bytes(), stage.full);
      }
      turn ^= 1;
      stage.advance(shared.mask_full);
    }
  }
  // Copies under way are this warp's: it stays until they have come.
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
}

/// Hides scores, or adds to them, by the mask's stage at hand.
template <class T, class ConfigOf>
__device__ __forceinline__ void Consumer<T, ConfigOf>::add_mask() const {
  const int lane = ptx::lane_id();
  const std::uint32_t stage =
      shared.mask + (mask.full - shared.mask_full) / 8 * kConfig.mask_bytes();
  const int warp_row = 64 * seat.group + 16 * seat.warp;
  if constexpr (kConfig.mask == MaskArray::boolean) {
    const int row = warp_row + (lane >> 2);
    const std::uint32_t at = stage + mask_place<ConfigOf>(row, 0) + 2 * (lane & 3);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      std::uint32_t any = 0;
#pragma unroll
      for (int i = 0; i < kConfig.keys / 8; ++i) {
        // Eight rows further chunks lie in the same order.
        const std::uint32_t two = ptx::shared_load_u16(
            (at ^ (i / 2 << 4)) + 8 * h * kConfig.mask_row_bytes() + i % 2 * 8);
        any |= two;
        if ((two & 0xff) == 0) s[4 * i + 2 * h] = -INFINITY;
        if ((two & 0xff00) == 0) s[4 * i + 2 * h + 1] = -INFINITY;
      }
      mask.shows[h] = any != 0;
    }
  } else {
    // Four 8 x 8 matrices at a time: rows g and g + 8 of 8 keys, then of the next 8.
    const std::uint32_t at = stage + mask_place<ConfigOf>(warp_row + (lane & 15), lane >> 4);
    const float by = rows.p.mask.scale;
    constexpr std::uint32_t kHidden = std::is_same_v<T, __half> ? 0xfc00fc00u : 0xff80ff80u;
    std::uint32_t all[2] = {~0u, ~0u};
#pragma unroll
    for (int i = 0; i < kConfig.keys / 16; ++i) {
      std::uint32_t four[4];
      ptx::ldmatrix_x4(four, at ^ (i << 5));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 bias = bias_pair<T>(four[j]);
        float* const two = s + 8 * i + 2 * j;
        two[0] = fmaf(two[0], by, bias.x);
        two[1] = fmaf(two[1], by, bias.y);
        all[j % 2] &= four[j];
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) mask.shows[h] = (all[h] & kHidden) != kHidden;
  }
}

}  // namespace greenfast::cuda::prefill
