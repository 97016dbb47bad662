// Masks by array in cuda.sm90.prefill's loop. Its card is that of kernel.cuh.
//
// Two warps beside the producer copy a mask's elements, a block's rows and keys into a stage of a ring, every
// other block each: by TMA where it takes the mask; else by cp.async, the 16 bytes of memory that an element lies
// in, and one block later each row is shifted in its stage to where it belongs. What lies past the mask's end is
// never read. Rows behind the sequence get zeros, however they come: they share a warp's guard with the sequence's
// own, whose bits may not depend on what lies there. A row that all queries share comes once, for all rows of the
// stage. Consumers read a stage as the accumulators of Q K^T lie.
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

/// The 16 bytes behind a row's in a stage: rows that begin anywhere reach into them until they are shifted.
template <class ConfigOf>
__device__ __forceinline__ constexpr int mask_tail(int row) {
  return ConfigOf::value.mask_tile_bytes() + 16 * row;
}

/// Who has which of a stage's 16-byte pieces where rows begin anywhere. In each of two passes a lane has one piece
/// of a row and of those kApart rows further, which begin at the same byte of 16.
template <class ConfigOf>
struct MaskPieces {
  static constexpr Config kConfig = ConfigOf::value;
  static constexpr int kRows = kConfig.rows(), kRowBytes = kConfig.mask_row_bytes();
  static constexpr int kOfRow = kRowBytes / 16, kRowsAtOnce = 32 / kOfRow;
  static constexpr int kApart = kConfig.mask == MaskArray::bias ? 8 : 16;  // of 2 bytes or 1
  static constexpr int kPasses = 2, kSteps = kRows / kApart;
  static_assert(kPasses * kRowsAtOnce == kApart && kRows % kApart == 0);
  // From a piece to that kApart rows further, which lies as that one in its row; of tails.
  static constexpr int kStep = kApart * kRowBytes, kTailStep = kApart * 16;
  static_assert(mask_place<ConfigOf>(kApart, 1) - mask_place<ConfigOf>(0, 1) == kStep);

  int row, chunk;  // the first of the lane's rows in a pass

  __device__ __forceinline__ explicit MaskPieces(int pass)
      : row(ptx::lane_id() / kOfRow + pass * kRowsAtOnce), chunk(ptx::lane_id() % kOfRow) {}
};

/// A block on its way by cp.async, whose rows are then to be shifted.
template <class ConfigOf>
struct Unshifted {
  static constexpr Config kConfig = ConfigOf::value;

  int stage = -1;  // that it comes to, or -1: there is none
  // Modulo 16 bytes: where the tile's row 0 begins, and 16 times the way from a row to the next; and 256 times the
  // tile's last row, behind which nothing is shifted. One word, for the registers.
  std::uint32_t begins = 0;

  __device__ __forceinline__ static Unshifted at(int stage, std::uint32_t first, std::uint32_t row,
                                                 int last_row) {
    return {stage, first % 16 + row % 16 * 16 + 256 * static_cast<std::uint32_t>(last_row)};
  }
  __device__ __forceinline__ bool any() const { return stage >= 0; }

  /// With all of it there but the kPending newest copies of this thread.
  template <int kPending>
  __device__ __forceinline__ void finish(const SharedMemory<ConfigOf>& shared, bool mapped) {
    using Pieces = MaskPieces<ConfigOf>;
    ptx::cp_async_wait<kPending>();
    __syncwarp();
    const std::uint32_t to = shared.mask + stage * kConfig.mask_bytes();
#pragma unroll 1
    for (int pass = 0; pass < Pieces::kPasses; ++pass) {
      const Pieces own(pass);
      const std::uint32_t shift = (begins + own.row * (begins >> 4)) % 16;
      if (!__any_sync(kFullWarp, shift != 0)) continue;
      // Three times 8 bytes hold the 16, and the way from each to that of the lane's next row.
      std::uint32_t from[3], step[3];
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        const int half = 2 * own.chunk + shift / 8 + i;
        const bool tail = half >= 2 * Pieces::kOfRow;
        from[i] = to + half % 2 * 8 +
                  (tail ? mask_tail<ConfigOf>(own.row) : mask_place<ConfigOf>(own.row, half / 2));
        step[i] = tail ? Pieces::kTailStep : Pieces::kStep;
      }
      std::uint32_t place = to + mask_place<ConfigOf>(own.row, own.chunk);
      constexpr int kBatch = 2;
      static_assert(Pieces::kSteps % kBatch == 0);
#pragma unroll 1
      for (int row = pass * Pieces::kRowsAtOnce; row <= static_cast<int>(begins >> 8);
           row += kBatch * Pieces::kApart) {
        uint2 part[kBatch][3];
#pragma unroll
        for (int j = 0; j < kBatch; ++j)
#pragma unroll
          for (int k = 0; k < 3; ++k) {
            part[j][k] = ptx::load_shared_8(from[k]);
            from[k] += step[k];
          }
        __syncwarp();  // a row's pieces are lanes of one step: all are read before one is written
#pragma unroll
        for (int j = 0; j < kBatch; ++j)
          ptx::store_shared_16(place + j * Pieces::kStep,
                               shifted(part[j][0], part[j][1], part[j][2], shift % 8));
        place += kBatch * Pieces::kStep;
      }
    }
    // Rows behind the tile's last, of a warpgroup that has others: from here on by zeros.
    const int behind = static_cast<int>(begins >> 8) + 1;
    __syncwarp();  // other lanes have shifted some of them
#pragma unroll 1
    for (int piece = behind * Pieces::kOfRow + ptx::lane_id();
         piece < (behind + 63) / 64 * 64 * Pieces::kOfRow; piece += 32)
      ptx::store_shared_16(
          to + mask_place<ConfigOf>(piece / Pieces::kOfRow, piece % Pieces::kOfRow), uint4{});
    // A tile whose mask TMA takes may come into this stage. The fence waits for copies under way.
    if (mapped) ptx::fence_proxy_async_shared();
    ptx::mbarrier_arrive_if(shared.mask_full + 8 * stage, true);
    stage = -1;
  }

  /// 16 bytes that begin `shift` bytes into the first 8.
  __device__ __forceinline__ static uint4 shifted(uint2 a, uint2 b, uint2 c, std::uint32_t shift) {
    const bool word = shift >= 4;
    const std::uint32_t part[5] = {word ? a.y : a.x, word ? b.x : a.y, word ? b.y : b.x,
                                   word ? c.x : b.y, word ? c.y : c.x};
    return aligned(part, shift % 4);
  }
  /// The same of words, `shift` bytes into the first.
  __device__ __forceinline__ static uint4 aligned(const std::uint32_t (&part)[5],
                                                  std::uint32_t shift) {
    return {
        __funnelshift_r(part[0], part[1], 8 * shift), __funnelshift_r(part[1], part[2], 8 * shift),
        __funnelshift_r(part[2], part[3], 8 * shift), __funnelshift_r(part[3], part[4], 8 * shift)};
  }
};

/// A tile's part of the mask, by a warp.
template <class T, class ConfigOf>
struct MaskCopy {
  static constexpr Config kConfig = ConfigOf::value;
  static constexpr int kBytes = kConfig.mask == MaskArray::bias ? 2 : 1;  // of an element
  static constexpr int kRows = kConfig.rows(), kRowBytes = kConfig.mask_row_bytes();

  const MaskFacts& mask;
  const MaskedTile& tile;
  const std::uint8_t* first;  // element of the tile's row 0 and key 0
  int last_row, bytes;        // of the tile: its last row, and those of a row's keys
  bool mapped;                // by TMA, whose boxes begin at multiples of 16 bytes

  __device__ __forceinline__ MaskCopy(const MaskFacts& facts, const MaskedTile& at)
      : mask(facts), tile(at) {
    const int first_row = tile.index * kRows;
    first = static_cast<const std::uint8_t*>(facts.data) +
            (tile.entry * facts.batch + tile.head * facts.head + first_row * facts.row +
             tile.first_key) *
                kBytes;
    last_row = min(kRows, tile.extent.seq_q - first_row) - 1;
    bytes = tile.extent.band.keys * kBytes;
    mapped = mask.mapped && tile.first_key * kBytes % 16 == 0 &&
             (last_row == kRows - 1 || tile.extent.seq_q == mask.rows);
  }

  /// A block into a stage. One that comes unshifted takes the place of `before`, which is finished.
  __device__ __forceinline__ void copy(int block, const SharedMemory<ConfigOf>& shared, int stage,
                                       Unshifted<ConfigOf>& before) const {
    const int at = block * kRowBytes;
    const std::uint32_t to = shared.mask + stage * kConfig.mask_bytes();
    if (!mapped && row_bytes() != 0) {
      copy_unshifted(at, to);
      ptx::cp_async_commit();
      if (before.any()) before.template finish<1>(shared, mask.mapped);
      before = Unshifted<ConfigOf>::at(stage, low_bits(first),
                                       static_cast<std::uint32_t>(row_bytes()), last_row);
      return;
    }
    if (before.any()) before.template finish<0>(shared, mask.mapped);
    const std::uint32_t full = shared.mask_full + 8 * stage;
    if (mapped) {
      copy_mapped(block, to, full);
    } else {
      copy_row(at, to);
      if (mask.mapped) ptx::fence_proxy_async_shared();
      ptx::mbarrier_arrive_if(full, true);
    }
  }

 private:
  /// From a row to the next; not kept, for the registers.
  __device__ __forceinline__ std::int64_t row_bytes() const { return mask.row * kBytes; }
  __device__ __forceinline__ static std::uint32_t low_bits(const void* at) {
    return static_cast<std::uint32_t>(reinterpret_cast<std::uint64_t>(at));
  }

  __device__ __forceinline__ void copy_mapped(int block, std::uint32_t to,
                                              std::uint32_t full) const {
    const bool leader = ptx::lane_id() == 0;
    if (leader) {
      ptx::mbarrier_arrive_expect_tx(full, kConfig.mask_tile_bytes());
      ptx::tma_load_4d(to, reinterpret_cast<const CUtensorMap*>(mask.map), full,
                       tile.first_key + block * kConfig.keys, tile.index * kRows,
                       min(tile.head, mask.last_head), min(tile.entry, mask.last_batch));
    }
    ptx::mbarrier_arrive_if(full, !leader);
  }

  /// Calls work(place, row, byte of the row) for this lane's pieces of 16 bytes.
  template <class Work>
  __device__ __forceinline__ static void for_pieces(const Work& work) {
    constexpr int kPieces = kRowBytes / 16, kRowsAtOnce = 32 / kPieces;
    static_assert(32 % kPieces == 0 && kRows % kRowsAtOnce == 0);
    const int lane = ptx::lane_id(), chunk = lane % kPieces;
#pragma unroll 4
    for (int row = lane / kPieces; row < kRows; row += kRowsAtOnce)
      work(mask_place<ConfigOf>(row, chunk), row, chunk * 16);
  }

  /// The 16 bytes of memory that each of a row's 16 begin in, and those that its last end in. What lies behind a
  /// row's keys is any; in rows behind the tile's last, of the warpgroups that have others, too.
  __device__ __forceinline__ void copy_unshifted(int at, std::uint32_t to) const {
    using Pieces = MaskPieces<ConfigOf>;
    const int lane = ptx::lane_id(), rows = last_row / 64 * 64 + 64;
    if (begin_of(last_row) + at + kRowBytes + 16 <= mask.end) {
      // The tails are one more pass: each lane has that of every 32nd row.
#pragma unroll 1
      for (int pass = 0; pass <= Pieces::kPasses; ++pass) {
        const Pieces own(pass);
        const bool tails = pass == Pieces::kPasses;
        copy_rows(
            to + (tails ? mask_tail<ConfigOf>(lane) : mask_place<ConfigOf>(own.row, own.chunk)),
            tails ? 32 * 16 : Pieces::kStep, tails ? lane : own.row, tails ? 32 : Pieces::kApart,
            rows, at + (tails ? kRowBytes : own.chunk * 16));
      }
      return;
    }
#pragma unroll 1
    for (int row = lane; row < rows; row += 32) {
#pragma unroll 1
      for (int chunk = 0; chunk <= Pieces::kOfRow; ++chunk) {
        const std::uint8_t* const from = begin_of(row) + at + chunk * 16;
        const std::int64_t there = static_cast<const std::uint8_t*>(mask.end) - from;
        ptx::cp_async_16_part(to + (chunk == Pieces::kOfRow ? mask_tail<ConfigOf>(row)
                                                            : mask_place<ConfigOf>(row, chunk)),
                              there > 0 ? from : begin_of(0),
                              static_cast<int>(min(max(there, std::int64_t{0}), std::int64_t{16})));
      }
    }
  }
  /// Of this lane's rows a piece each, all inside of the mask. From row to row: `step` bytes of shared memory.
  __device__ __forceinline__ void copy_rows(std::uint32_t place, int step, int row, int apart,
                                            int rows, int byte) const {
    const std::uint8_t* from = begin_of(row) + byte;
    const std::int64_t next = apart * row_bytes();
    constexpr int kUnroll = 2;  // rows are 64, 128 or 192, every 8th, 16th or 32nd of them
#pragma unroll 1
    for (const int end = row + rows; row < end;) {
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        ptx::cp_async_16(place, from);
        place += step;
        row += apart;
        if (row <= last_row) from += next;
      }
    }
  }
  /// The 16 bytes of memory in which a row begins; of rows behind the tile's last that one's. They may begin before
  /// the mask does, never before its allocation, which begins at more than 16 bytes.
  __device__ __forceinline__ const std::uint8_t* begin_of(int row) const {
    return reinterpret_cast<const std::uint8_t*>(
        reinterpret_cast<std::uint64_t>(first + min(row, last_row) * row_bytes()) &
        ~std::uint64_t{15});
  }

  __device__ __forceinline__ void copy_row(int at, std::uint32_t to) const {
    const int byte = ptx::lane_id() % (kRowBytes / 16) * 16;
    const uint4 piece = piece_at(first + at + byte, bytes - at - byte);
    for_pieces([&](int place, int, int) { ptx::store_shared_16(to + place, piece); });
  }
  /// 16 bytes from anywhere on; what lies behind the first `there` is any.
  __device__ __forceinline__ uint4 piece_at(const std::uint8_t* from, int there) const {
    const std::uint32_t shift = low_bits(from) % 4;
    std::uint32_t part[5];
#pragma unroll
    for (int i = 0; i < 5; ++i)
      part[i] =
          there > 0 && 4 * i - static_cast<int>(shift) < there ? word(from - shift + 4 * i) : 0;
    return Unshifted<ConfigOf>::aligned(part, shift);
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
  Unshifted<ConfigOf> under_way;
  MaskedTile tile;
#pragma unroll 1
  for (int step = 0;; ++step) {
    // Nothing is under way where this warp waits for what others do: the next tile may be found only when a
    // tile before it, whose consumers wait for this block, is done with (tiles without keys between them).
    if (under_way.any() && !ptx::mbarrier_test(ring.full(step), ring.parity(step)))
      under_way.template finish<0>(shared, p.mask.mapped);
    ring.read(step, tile);
    ring.release(step);
    if (tile.index < 0) break;
    const BlockRange blocks = blocks_of_tile<ConfigOf>(tile.extent, tile.index);
    const MaskCopy<T, ConfigOf> mask(p.mask, tile);
#pragma unroll 1
    for (int block = blocks.end - 1; block >= blocks.begin; --block) {
      if (turn == 0) {
        // Whoever waits for the block under way may be what keeps this stage.
        if (under_way.any() && !ptx::mbarrier_test(stage.empty(), stage.parity))
          under_way.template finish<0>(shared, p.mask.mapped);
        ptx::mbarrier_wait(stage.empty(), stage.parity);
        mask.copy(block, shared, (stage.full - shared.mask_full) / 8, under_way);
      }
      turn ^= 1;
      stage.advance(shared.mask_full);
    }
  }
  if (under_way.any()) under_way.template finish<0>(shared, p.mask.mapped);
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
