// V of e4m3 on its way to the products of cuda.sm90.prefill's loop: two warps beside the producer make
// fp16 of it, which holds every e4m3 number.
//
// Why. wgmma multiplies e4m3 with k along the rows only, which of P V are the keys: V would have to be
// transposed, by a pass (cuda.sm90.fp8) or by warps of the kernel, and its products cut off 13 bits
// below the largest. fp16 is taken as V lies, and weights need not be rounded to four bits. It costs
// the tensor cores half as much again as e4m3 for both products, and shared memory a pass of V.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/e4m3.cuh"
#include "kernels/cuda/device/ptx_cp_async.cuh"
#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/sm90_prefill/config.hpp"
#include "kernels/cuda/sm90_prefill/decoded_piece.hpp"
#include "kernels/cuda/sm90_prefill/paged.cuh"
#include "kernels/cuda/sm90_prefill/shared_memory.cuh"

namespace greenfast::cuda::prefill {

/// What a lane reads and writes of a block, of which its warp makes fp16 of the `part`th part.
template <class ConfigOf>
struct DecodedPart {
  static constexpr Config kConfig = ConfigOf::value;
  static constexpr int kKeys = kConfig.keys, kOwn = kKeys / kDecoders,
                       kRowBytes = kConfig.raw_row_bytes();
  using Piece = DecodedPiece<kRowBytes>;
  static constexpr int kChunks = kConfig.raw_bytes() / (kKeys * kRowBytes);
  static constexpr int kAtOnce = 4;  // loads under way
  static_assert(kOwn % (kAtOnce * Piece::kRows) == 0 && kAtOnce * Piece::kRows % 8 == 0);

  int first;  // row
  // Of the first of this lane's pieces. Those of later rows lie a multiple of 8 rows further, or, where a
  // warp takes four rows, of 4: then chunks change places by 4. All tiles lie at multiples of 1024.
  std::uint32_t from, to;

  __device__ __forceinline__ explicit DecodedPart(int part) {
    const Piece piece = Piece::of(ptx::lane_id());
    first = part * kOwn + piece.row;
    from = first * kRowBytes + piece.column * 16;
    to = decoded_place(kKeys, first, 2 * piece.column);
  }
  /// From a block of raw bytes to a stage; the first `hidden` keys become zeros.
  __device__ __forceinline__ void decode(std::uint32_t source, std::uint32_t target,
                                         int hidden) const {
#pragma unroll 1
    for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll 1
      for (int row = 0; row < kOwn; row += kAtOnce * Piece::kRows) {
        uint4 bytes[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
          bytes[i] =
              ptx::load_shared_16(source + (chunk * kKeys + row + i * Piece::kRows) * kRowBytes);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int further = row + i * Piece::kRows;
          if (first + further < hidden) bytes[i] = make_uint4(0, 0, 0, 0);
          uint4 halves[2];
          decode_e4m3x16(bytes[i], halves);
          const std::uint32_t at =
              (target + chunk * 2 * (kKeys * 128) + further * 128) ^ (i * Piece::kRows % 8 * 16);
          ptx::store_shared_16(at, halves[0]);
          ptx::store_shared_16(at ^ 16, halves[1]);
        }
      }
    }
    ptx::fence_proxy_async_shared();
    __syncwarp();
  }
};

/// V of the CTA's tiles, by one of kDecoders warps: it takes every block's `part`th part of the keys.
template <class ConfigOf>
__device__ __forceinline__ void decode_values(const SharedMemory<ConfigOf>& shared,
                                              const TileRing<ConfigOf>& ring, int part) {
  constexpr Config kConfig = ConfigOf::value;
  const DecodedPart<ConfigOf> own(part);
  const bool leader = ptx::lane_id() == 0;
  Stage<kConfig.raw_stages> raw(shared.incoming_v_full(), 0);
  Stage<kConfig.v_stages> decoded(shared.v_full, 1);
  TileOf<ConfigOf> tile;
#pragma unroll 1
  for (int step = 0;; ++step) {
    ring.read(step, tile);
    ring.release(step);
    if (tile.index < 0) break;
    const BlockRange blocks = blocks_of_tile<ConfigOf>(extent_in<ConfigOf>(tile), tile.index);
#pragma unroll 1
    for (int block = blocks.end - 1; block >= blocks.begin; --block) {
      ptx::mbarrier_wait(raw.full, raw.parity);
      ptx::mbarrier_wait(decoded.empty(), decoded.parity);
      const std::uint32_t source = shared.incoming_v() +
                                   (raw.full - shared.incoming_v_full()) / 8 * kConfig.raw_bytes() +
                                   own.from;
      const std::uint32_t target =
          shared.v + (decoded.full - shared.v_full) / 8 * kConfig.v_bytes() + own.to;
      // Keys in front that no row sees may be NaN.
      own.decode(source, target, block == 0 ? tile.cut : 0);
      ptx::mbarrier_arrive_if(decoded.full, leader);
      ptx::mbarrier_arrive_if(raw.empty(), leader);
      raw.advance(shared.incoming_v_full());
      decoded.advance(shared.v_full);
    }
  }
}

/// The same out of pages that are no multiple of 8 keys, of which this warp's rows come by its own copies, so that
/// nobody else need know of them: a group of copies a stage, as many blocks ahead as there are stages.
template <class ConfigOf>
__device__ __forceinline__ void copy_and_decode_values(const Params& p,
                                                       const SharedMemory<ConfigOf>& shared,
                                                       const TileRing<ConfigOf>& ring, int part) {
  constexpr Config kConfig = ConfigOf::value;
  constexpr int kStages = kConfig.raw_stages, kStageBytes = kConfig.raw_bytes();
  const DecodedPart<ConfigOf> own(part);
  using Share = typename RowShares<kConfig.keys>::Half;
  static_assert(Share::kRows == DecodedPart<ConfigOf>::kOwn);
  const bool leader = ptx::lane_id() == 0;
  Stage<kConfig.v_stages> decoded(shared.v_full, 1);
  TileOf<ConfigOf> tile;
  RowPages<ConfigOf, Share> pages(p, tile, part * Share::kRows);
  using Rows = RowsInShared<kConfig.values() / 16, kConfig.raw_row_bytes(), false>;
  RowCopier<ConfigOf, Share, Rows> values(part * Share::kRows, p.serving.value_dim);
  ptx::grid_dependency_wait();
#pragma unroll 1
  for (int step = 0;; ++step) {
    ring.read(step, tile);
    ring.release(step);
    if (tile.index < 0) break;
    const BlockRange blocks = blocks_of_tile<ConfigOf>(extent_in<ConfigOf>(tile), tile.index);
    const int kv_head = uniform(tile.head / p.group);
    values.set_head(static_cast<const std::uint8_t*>(p.v) + min(kv_head, p.v_last_head) * p.v_head);
    const auto copy = [&](int block, std::uint32_t stage) {
      if (block >= blocks.begin) {
        const auto of_v = pages.pieces(p.rows.v);
        pages.ask(block - 1);
        values.copy(tile, block, of_v, stage);
      }
      ptx::cp_async_commit();
    };
    const std::uint32_t stages = shared.incoming_v(), end = stages + kStages * kStageBytes;
    if (blocks.end > blocks.begin) {
      pages.begin(blocks.end - 1);
#pragma unroll 1
      for (int i = 0; i < kStages; ++i) copy(blocks.end - 1 - i, stages + i * kStageBytes);
    }
    std::uint32_t stage = stages;
#pragma unroll 1
    for (int block = blocks.end - 1; block >= blocks.begin; --block) {
      ptx::mbarrier_wait(decoded.empty(), decoded.parity);
      ptx::cp_async_wait<kStages - 1>();
      __syncwarp();  // for the other lanes' copies
      // Keys that no row sees came as zeros.
      own.decode(stage + own.from,
                 shared.v + (decoded.full - shared.v_full) / 8 * kConfig.v_bytes() + own.to, 0);
      ptx::mbarrier_arrive_if(decoded.full, leader);
      decoded.advance(shared.v_full);
      copy(block - kStages, stage);
      stage += kStageBytes;
      if (stage == end) stage = stages;
    }
  }
}

}  // namespace greenfast::cuda::prefill
