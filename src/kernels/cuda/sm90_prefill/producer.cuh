// The producer of cuda.sm90.prefill: one warp copies tiles in the order in which the consumers ask
// for them. All its lanes walk and one issues, so that control flow stays uniform.
#pragma once

#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/ptx_tma.cuh"
#include "kernels/cuda/sm90_prefill/factors.cuh"
#include "kernels/cuda/sm90_prefill/grouped.cuh"
#include "kernels/cuda/sm90_prefill/paged.cuh"
#include "kernels/cuda/sm90_prefill/shared_memory.cuh"

namespace greenfast::cuda::prefill {

template <class ConfigOf>
struct Producer {
  static constexpr Config kConfig = ConfigOf::value;
  static constexpr int kChunks = kConfig.chunks(), kWarpgroups = kConfig.warpgroups;
  static constexpr bool kServing = kConfig.serving;
  static constexpr int kQStages = kConfig.q_stages;

  const Params& p;
  const CUtensorMap &q_map, &k_map, &v_map;
  const SharedMemory<ConfigOf>& shared;
  const bool leader;
  Stage<kConfig.k_stages> k_stage;
  // Of V as it comes: its own ring, or that of its bytes.
  static constexpr int kVBytes = kConfig.bytes ? kConfig.raw_bytes() : kConfig.v_bytes();
  static constexpr int kVRowBytes = kConfig.bytes ? kConfig.raw_row_bytes() : 128;
  Stage<kConfig.bytes ? kConfig.raw_stages : kConfig.v_stages> v_stage;
  TileOf<ConfigOf>& tile;  // at hand
  const ExtentOf<ConfigOf>& extent;
  const std::uint32_t ring;  // of packed builds: where their tiles come from
  int kv_head;

  __device__ __forceinline__ Producer(const Params& params, const CUtensorMap& q,
                                      const CUtensorMap& k, const CUtensorMap& v,
                                      const SharedMemory<ConfigOf>& memory, bool issues,
                                      TileOf<ConfigOf>& first, const ExtentOf<ConfigOf>& facts,
                                      std::uint32_t tiles)
      : p(params),
        q_map(q),
        k_map(k),
        v_map(v),
        shared(memory),
        leader(issues),
        k_stage(shared.k_full, 1),
        v_stage(shared.incoming_v_full(), 1),
        tile(first),
        extent(facts),
        ring(tiles) {}

  /// A block of K or V into the next stage of its ring, once its readers have given that back.
  template <int kBytes, int kRowBytes, class RingStage>
  __device__ __forceinline__ void load_block(const CUtensorMap& map, std::uint32_t ring,
                                             std::uint32_t first, RingStage& stage, int block,
                                             int last_head, [[maybe_unused]] int last_batch,
                                             [[maybe_unused]] int rows_of_entry) {
    ptx::mbarrier_wait(stage.empty(), stage.parity);
    if (leader) {
      ptx::mbarrier_arrive_expect_tx(stage.full, kBytes);
      const std::uint32_t to = ring + (stage.full - first) / 8 * kBytes;
#pragma unroll
      for (int c = 0; c < kBytes / (kConfig.keys * kRowBytes); ++c) {
        if constexpr (kConfig.packed) {
          const RaggedPlace at = ragged_place(tile.kv_row + tile.kv_batch * rows_of_entry,
                                              tile.extent.band.keys, block * kConfig.keys);
          ptx::tma_load_5d(to + c * kConfig.keys * kRowBytes, &map, stage.full,
                           kConfig.chunk_columns() * c, at.row, min(kv_head, last_head), at.end,
                           kRaggedRows);
        } else {
          ptx::tma_load_4d(to + c * kConfig.keys * 128, &map, stage.full, 64 * c,
                           block * kConfig.keys, min(kv_head, last_head),
                           min(tile.batch, last_batch));
        }
      }
    }
    stage.advance(first);
  }
  __device__ __forceinline__ void load_k(int block) {
    load_block<kConfig.k_bytes(), 128>(k_map, shared.k, shared.k_full, k_stage, block,
                                       p.k_last_head, p.k_last_batch, k_rows());
  }
  __device__ __forceinline__ void load_v(int block) {
    load_block<kVBytes, kVRowBytes>(v_map, shared.incoming_v(), shared.incoming_v_full(), v_stage,
                                    block, p.v_last_head, p.v_last_batch, v_rows());
  }
  /// The same out of pages, in boxes.
  __device__ __forceinline__ void load_k(int block, PageReader<ConfigOf>& pages) {
    pages.step(block);
    ptx::mbarrier_wait(k_stage.empty(), k_stage.parity);
    if (leader) ptx::mbarrier_arrive_expect_tx(k_stage.full, kConfig.k_bytes());
    __syncwarp();
    const std::uint32_t to = shared.k + (k_stage.full - shared.k_full) / 8 * kConfig.k_bytes();
    pages.copy(k_map, to, k_stage.full, block, pages.of_k, min(kv_head, p.k_last_head), kChunks,
               k_rows());
    k_stage.advance(shared.k_full);
  }
  /// Of the blocks of a tile the last one copied may be cut, and no other.
  template <bool kLast>
  __device__ __forceinline__ void load_v(int block, const PageReader<ConfigOf>& pages) {
    ptx::mbarrier_wait(v_stage.empty(), v_stage.parity);
    const std::uint32_t to =
        shared.incoming_v() + (v_stage.full - shared.incoming_v_full()) / 8 * kVBytes;
    const int head = min(kv_head, p.v_last_head);
    int bytes = kVBytes;
    bool copies = true;
    // Of bytes the hidden keys of that box come along, and are left out as V becomes fp16.
    if constexpr (kLast && !kConfig.bytes) {
      if (pages.has_cut(block)) {
        pages.copy_cut(static_cast<const std::uint16_t*>(p.v) + head * p.v_head, p.v_batch, p.v_row,
                       to);
        bytes -= pages.box() * 128 * kConfig.value_chunks();
        copies = ptx::lane_id() != pages.cut_lane();
      }
    }
    if (leader) ptx::mbarrier_arrive_expect_tx(v_stage.full, bytes);
    __syncwarp();
    if (copies)
      pages.template copy<kVRowBytes>(v_map, to, v_stage.full, block, pages.of_v, head,
                                      kVBytes / (kConfig.keys * kVRowBytes), v_rows());
    v_stage.advance(shared.incoming_v_full());
  }
  // Rows from one entry of the batch to the next.
  __device__ __forceinline__ int q_rows() const {
    if constexpr (kConfig.packed) return p.packed.q_rows;
    return 0;
  }
  __device__ __forceinline__ int k_rows() const {
    if constexpr (kConfig.packed) return p.packed.k_rows;
    return 0;
  }
  __device__ __forceinline__ int v_rows() const {
    if constexpr (kConfig.packed) return p.packed.v_rows;
    return 0;
  }

  /// Q of the CTA's step-th tile, 64 rows for each warpgroup.
  __device__ __forceinline__ void load_q(int step, int first_row) {
#pragma unroll
    for (int w = 0; w < kWarpgroups; ++w) {
      const int at = w + step % kQStages * kWarpgroups;
      ptx::mbarrier_wait(shared.q_empty + 8 * at, (step / kQStages & 1) ^ 1);
      if (leader) {
        ptx::mbarrier_arrive_expect_tx(shared.q_full + 8 * at, kConfig.q_bytes());
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          if constexpr (kConfig.packed) {
            const RaggedPlace place = ragged_place(tile.q_row + tile.batch * q_rows(),
                                                   tile.extent.seq_q, first_row + 64 * w);
            ptx::tma_load_5d(shared.q + at * kConfig.q_bytes() + c * 64 * 128, &q_map,
                             shared.q_full + 8 * at, kConfig.chunk_columns() * c, place.row,
                             tile.head, place.end, kRaggedRows);
          } else {
            ptx::tma_load_4d(shared.q + at * kConfig.q_bytes() + c * 64 * 128, &q_map,
                             shared.q_full + 8 * at, 64 * c,
                             first_row + (kConfig.split ? 0 : 64 * w), tile.head, tile.batch);
          }
        }
      }
    }
  }

  __device__ __forceinline__ bool find(int step, TileOf<ConfigOf>& found) const {
    if constexpr (kConfig.packed) {
      TileRing<ConfigOf>{ring}.read(step, found);
      TileRing<ConfigOf>{ring}.release(step);
      return found.index >= 0;
    } else {
      return next_tile(p, step, found);
    }
  }

  /// The blocks of a tile whose keys are in pages; the next tile, and whether there is one.
  __device__ __forceinline__ bool run_paged(int step, const BlockRange& blocks) {
    PageReader<ConfigOf> pages(p, tile);
    if (blocks.end > blocks.begin) {
      pages.begin(blocks.end - 1);
      load_k(blocks.end - 1, pages);
#pragma unroll 1
      for (int block = blocks.end - 1; block > blocks.begin; --block) {
        load_k(block - 1, pages);
        load_v<false>(block, pages);
      }
      pages.catch_up();
      load_v<true>(blocks.begin, pages);
    }
    const bool more = find(step + 1, tile);
    __syncwarp();
    return more;
  }

  // Row by row.
  using AllRows = typename RowShares<kConfig.keys>::All;
  using MostRows = typename RowShares<kConfig.keys>::Most;
  using LastRows = typename RowShares<kConfig.keys>::Last;
  using Element = std::conditional_t<kConfig.bytes, std::uint8_t, std::uint16_t>;
  using KeyRows = RowsInShared<kConfig.head_dim * sizeof(Element) / 16>;
  using ValueRows = RowsInShared<8 * kConfig.value_chunks()>;

  /// Copies that arrive at a stage once that has room for them; the next one is at hand then.
  template <class RingStage, class Copy>
  __device__ __forceinline__ void fill(RingStage& stage, std::uint32_t first,
                                       std::uint32_t ring_of_stages, int bytes, const Copy& copy) {
    ptx::mbarrier_wait(stage.empty(), stage.parity);
    const std::uint32_t full = uniform(stage.full);
    copy(ring_of_stages + (full - first) / 8 * bytes);
    ptx::cp_async_arrive(full);
    stage.advance(first);
  }
  /// All tiles, of K, V or both the rows from `first` on; who has row 0 of K copies Q as well.
  template <bool kKeys, bool kValues, class Share>
  __device__ __forceinline__ void run_rows(int first) {
    static_assert(kConfig.keys % 64 == 0);  // or quarters are no runs of 16
    RowPages<ConfigOf, Share> pages(p, tile, first);
    [[maybe_unused]] RowCopier<ConfigOf, Share, KeyRows> keys(first, p.head_dim);
    [[maybe_unused]] RowCopier<ConfigOf, Share, ValueRows> values(first, p.serving.value_dim);
    bool more = find(0, tile);
    ptx::grid_dependency_wait();
    for (int step = 0; more; ++step) {
      [[maybe_unused]] const int first_row = tile.index * kConfig.rows();
      const BlockRange blocks = blocks_of_tile<ConfigOf>(extent, tile.index);
      kv_head = uniform(tile.head / p.group);
      if (blocks.end > blocks.begin) pages.begin(blocks.end - 1);
      if constexpr (kKeys) {
        if constexpr (!kIsGrouped<ConfigOf>) {
          if (first == 0) load_q(step, first_row);
        }
        keys.set_head(static_cast<const Element*>(p.k) + min(kv_head, p.k_last_head) * p.k_head);
      }
      if constexpr (kValues)
        values.set_head(static_cast<const Element*>(p.v) + min(kv_head, p.v_last_head) * p.v_head);
      // Behind K by a block, as the consumers are.
      constexpr int kBehind = kKeys && kValues;
      [[maybe_unused]] typename decltype(pages)::Pieces of_v, of_next_v;
#pragma unroll 1
      for (int block = blocks.end - 1; block >= blocks.begin - kBehind; --block) {
        if (!kBehind || block >= blocks.begin) {
          [[maybe_unused]] const auto of_k = pages.pieces(p.rows.k);
          of_next_v = pages.pieces(p.rows.v);
          pages.ask(block - 1);
          if constexpr (kKeys)
            fill(k_stage, shared.k_full, shared.k, kConfig.k_bytes(),
                 [&](std::uint32_t stage) { keys.copy(tile, block, of_k, stage); });
        }
        if constexpr (kValues) {
          if constexpr (!kBehind) of_v = of_next_v;
          if (block + kBehind < blocks.end)
            fill(v_stage, shared.v_full, shared.v, kConfig.v_bytes(),
                 [&](std::uint32_t stage) { values.copy(tile, block + kBehind, of_v, stage); });
          of_v = of_next_v;
        }
      }
      more = find(step + 1, tile);
      __syncwarp();
    }
  }

  __device__ __forceinline__ void run() {
    if constexpr (kCopiesRows<ConfigOf>) {
      run_rows<true, false, std::conditional_t<kConfig.bytes, AllRows, MostRows>>(0);
      if constexpr (kConfig.head_dim <= 128) ptx::grid_launch_dependents();
      return;
    }
    bool more = find(0, tile);
    // Inputs, and room for outputs, from here on: consumers store nothing before a Q has come.
    ptx::grid_dependency_wait();
    for (int step = 0; more; ++step) {
      const int first_row = tile.index * kConfig.rows();
      const BlockRange blocks = blocks_of_tile<ConfigOf>(extent, tile.index);
      kv_head = uniform(tile.head / p.group);
      if constexpr (!kIsGrouped<ConfigOf>) load_q(step, first_row);
      if constexpr (kServing) {
        if (p.packed.arrays.page_table != nullptr) {
          more = run_paged(step, blocks);
          continue;
        }
      }
      // K runs one block ahead of V, as the consumers do.
      if (blocks.end > blocks.begin) load_k(blocks.end - 1);
#pragma unroll 1
      for (int block = blocks.end - 1; block > blocks.begin; --block) {
        load_k(block - 1);
        load_v(block);
      }
      TileOf<ConfigOf> next = tile;
      more = find(step + 1, next);
      if (blocks.end > blocks.begin) load_v(blocks.begin);
      tile = next;
      __syncwarp();
    }
    // The next kernel may set up beside the last blocks of this one; shared memory leaves it no
    // room on an SM whose CTA still works. At D 256 this would spill a register, for 1 us of 200.
    if constexpr (kConfig.head_dim <= 128) ptx::grid_launch_dependents();
  }
};

/// The tiles of packed sequences, by one warp.
template <class ConfigOf>
__device__ __forceinline__ void send_tiles(const Params& p, const TileRing<ConfigOf>& ring) {
  ptx::grid_dependency_wait();  // for the arrays
  with_warp_walk<ConfigOf>(p.packed, order_of<ConfigOf>(p), [&](auto& walk) {
    TileOf<ConfigOf> tile;
    if constexpr (kIsGrouped<ConfigOf>) clear_places(p);
#pragma unroll 1
    for (int step = 0;; ++step) {
      if (!walk.next(tile))
        tile.index = -1;
      else if constexpr (ConfigOf::value.bytes)
        find_factors(p, tile);
      ring.send(step, tile);
      if constexpr (kIsGrouped<ConfigOf>) note_place<ConfigOf>(p, tile);
      if (tile.index < 0) break;
    }
  });
}

}  // namespace greenfast::cuda::prefill
