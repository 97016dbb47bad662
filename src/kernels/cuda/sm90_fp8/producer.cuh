// The producer of cuda.sm90.fp8: one warp copies tiles in the order in which the consumers ask for
// them. All its lanes walk and one issues, so that control flow stays uniform.
#pragma once

#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/ptx_tma.cuh"
#include "kernels/cuda/sm90_fp8/shared_memory.cuh"

namespace greenfast::cuda::fp8 {

/// The factor of a tensor's head.
__device__ __forceinline__ float factor_of(const float* factors, bool per_head, std::int64_t head) {
  return factors == nullptr ? 1.0f : factors[per_head ? head : 0];
}

/// Factors of a head's blocks for a warp that asks for one after the other, downwards: 32 at a time.
struct HeldFactors {
  const float* of_head;
  float held = 0.0f;
  int high = -1;  // the block whose factor lane 0 holds; none yet

  __device__ __forceinline__ float of(int block) {
    if (high < 0 || high - block >= 32) {
      high = block;
      const int mine = block - ptx::lane_id();
      if (mine >= 0) held = __ldg(of_head + mine);
    }
    return __shfl_sync(kFullWarp, held, high - block);
  }
};

template <class ConfigOf>
__device__ __forceinline__ void produce(const Params& p, const CUtensorMap& q_map,
                                        const CUtensorMap& k_map, const CUtensorMap& v_map,
                                        const SharedMemory<ConfigOf>& shared, Factors* factors,
                                        bool leader) {
  constexpr Config kConfig = ConfigOf::value;
  constexpr int kKeys = kConfig.kKeys, kQStages = kConfig.q_stages();
  constexpr int kWarpgroups = kConfig.warpgroups();
  Stage<kConfig.stages()> k_stage(shared.k_full, 1), v_stage(shared.v_full, 1);
  Tile tile;
  bool more = next_tile(p, 0, tile);
  // Inputs, V^T, and room for outputs, from here on: consumers read no memory and store nothing
  // before a Q has come.
  ptx::grid_dependency_wait();
  for (int step = 0; more; ++step) {
    const int first_row = tile.index * kConfig.rows();
    const BlockRange blocks =
        visible_blocks<ConfigOf>(p, first_row, min(first_row + kConfig.rows(), p.seq_q) - 1);
    const int kv_head = uniform(tile.head / p.group);
    // Of builds with factors of blocks.
    constexpr bool kBlockFactors = kConfig.block_factors;
    [[maybe_unused]] double tile_scale = 0.0;
    [[maybe_unused]] HeldFactors k_factors{}, v_factors{};
    if constexpr (kBlockFactors) {
      const std::int64_t of_q = std::int64_t{tile.batch} * p.schedule.heads + tile.head;
      const std::int64_t of_kv = std::int64_t{tile.batch} * p.heads_kv + kv_head;
      tile_scale = p.scale_log2 * __ldg(p.scales.q + of_q * p.blocks.of_q + tile.index);
      k_factors.of_head = p.scales.k + of_kv * p.blocks.of_kv + p.blocks.first;
      v_factors.of_head = p.scales.v + of_kv * p.blocks.of_kv + p.blocks.first;
    }
    const auto load_k = [&](int block) {
      ptx::mbarrier_wait(k_stage.empty(), k_stage.parity);
      if constexpr (kBlockFactors) {
        // Rounded once, because either factor may bring the other back.
        const auto scale = static_cast<float>(tile_scale * k_factors.of(block));
        if (leader) shared.store_factor(shared.factor_slot(k_stage.full), scale);
      }
      if (leader) {
        ptx::mbarrier_arrive_expect_tx(k_stage.full, kConfig.k_bytes());
        const std::uint32_t to = shared.k + (k_stage.full - shared.k_full) / 8 * kConfig.k_bytes();
#pragma unroll
        for (int i = 0; i < 2 * kConfig.row_pieces(); ++i) {
          const int piece = i / 2, half = i % 2;
          ptx::tma_load_5d(to + (2 * piece + half) * (kKeys / 2 * kConfig.row_bytes()), &k_map,
                           k_stage.full, piece * kConfig.row_bytes(),
                           block * p.k_block[0] + half * p.k_half, block * p.k_block[1],
                           min(kv_head, p.k_last_head), min(tile.batch, p.k_last_batch));
        }
      }
      k_stage.advance(shared.k_full);
    };
    const auto load_v = [&](int block) {
      ptx::mbarrier_wait(v_stage.empty(), v_stage.parity);
      if constexpr (kBlockFactors) {
        const float factor = v_factors.of(block);
        if (leader) shared.store_factor(shared.v_factor_slot(v_stage.full), factor);
      }
      if (leader) {
        // Without the ones, which stay.
        ptx::mbarrier_arrive_expect_tx(v_stage.full, kConfig.head_dim * kKeys);
        ptx::tma_load_4d(shared.v + (v_stage.full - shared.v_full) / 8 * kConfig.v_bytes(), &v_map,
                         v_stage.full, block * kKeys, 0, min(kv_head, p.v_last_head),
                         min(tile.batch, p.v_last_batch));
      }
      v_stage.advance(shared.v_full);
    };
    // kernel.cuh reads its own.
    constexpr bool kFactors = kConfig.halves();
    const std::int64_t q_head = std::int64_t{tile.batch} * p.schedule.heads + tile.head;
    const std::int64_t kv = std::int64_t{tile.batch} * p.heads_kv + kv_head;
    Factors own;
    if constexpr (kFactors) {
      own = {factor_of(p.scales.q, p.scales.per_head, q_head),
             factor_of(p.scales.k, p.scales.per_head, kv),
             factor_of(p.scales.v, p.scales.per_head, kv)};
    }
#pragma unroll
    for (int w = 0; w < kWarpgroups; ++w) {
      const int at = w + step % kQStages * kWarpgroups;
      ptx::mbarrier_wait(shared.q_empty + 8 * at, (step / kQStages & 1) ^ 1);
      if (leader) {
        if constexpr (kFactors) factors[step % kFactorTiles * kWarpgroups + w] = own;
        ptx::mbarrier_arrive_expect_tx(shared.q_full + 8 * at, kConfig.q_bytes());
#pragma unroll
        for (int piece = 0; piece < kConfig.row_pieces(); ++piece)
          ptx::tma_load_4d(shared.q + at * kConfig.q_bytes() + piece * 64 * kConfig.row_bytes(),
                           &q_map, shared.q_full + 8 * at, piece * kConfig.row_bytes(),
                           first_row + 64 * w, tile.head, tile.batch);
      }
    }
    // K runs one block ahead of V, as the consumers do.
    if (blocks.end > blocks.begin) load_k(blocks.end - 1);
#pragma unroll 1
    for (int block = blocks.end - 1; block > blocks.begin; --block) {
      load_k(block - 1);
      load_v(block);
    }
    Tile next = tile;
    more = next_tile(p, step + 1, next);
    if (blocks.end > blocks.begin) load_v(blocks.begin);
    tile = next;
    __syncwarp();
  }
  // The next kernel may set up beside the last blocks of this one.
  ptx::grid_launch_dependents();
}

}  // namespace greenfast::cuda::fp8
