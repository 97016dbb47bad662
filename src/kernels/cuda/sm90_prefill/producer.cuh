// The producer of cuda.sm90.prefill: one warp copies tiles in the order in which the consumers ask
// for them. All its lanes walk and one issues, so that control flow stays uniform.
#pragma once

#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/ptx_tma.cuh"
#include "kernels/cuda/sm90_prefill/shared_memory.cuh"

namespace greenfast::cuda::prefill {

template <class ConfigOf>
struct Producer {
  static constexpr Config kConfig = ConfigOf::value;
  static constexpr int kChunks = kConfig.chunks(), kWarpgroups = kConfig.warpgroups;
  static constexpr int kQStages = kConfig.q_stages;

  const Params& p;
  const CUtensorMap &q_map, &k_map, &v_map;
  const SharedMemory<ConfigOf>& shared;
  const bool leader;
  Stage<kConfig.k_stages> k_stage;
  Stage<kConfig.v_stages> v_stage;
  Tile& tile;  // at hand
  int kv_head;

  __device__ __forceinline__ Producer(const Params& params, const CUtensorMap& q,
                                      const CUtensorMap& k, const CUtensorMap& v,
                                      const SharedMemory<ConfigOf>& memory, bool issues,
                                      Tile& first)
      : p(params),
        q_map(q),
        k_map(k),
        v_map(v),
        shared(memory),
        leader(issues),
        k_stage(shared.k_full, 1),
        v_stage(shared.v_full, 1),
        tile(first) {}

  /// A block of K or V into the next stage of its ring, once its readers have given that back.
  template <class RingStage>
  __device__ __forceinline__ void load_block(const CUtensorMap& map, std::uint32_t ring,
                                             std::uint32_t first, RingStage& stage, int block,
                                             int last_head, int last_batch) {
    ptx::mbarrier_wait(stage.empty(), stage.parity);
    if (leader) {
      ptx::mbarrier_arrive_expect_tx(stage.full, kConfig.block_bytes());
      const std::uint32_t to = ring + (stage.full - first) / 8 * kConfig.block_bytes();
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
        ptx::tma_load_4d(to + c * kConfig.keys * 128, &map, stage.full, 64 * c,
                         block * kConfig.keys, min(kv_head, last_head),
                         min(tile.batch, last_batch));
    }
    stage.advance(first);
  }
  __device__ __forceinline__ void load_k(int block) {
    load_block(k_map, shared.k, shared.k_full, k_stage, block, p.k_last_head, p.k_last_batch);
  }
  __device__ __forceinline__ void load_v(int block) {
    load_block(v_map, shared.v, shared.v_full, v_stage, block, p.v_last_head, p.v_last_batch);
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
        for (int c = 0; c < kChunks; ++c)
          ptx::tma_load_4d(shared.q + at * kConfig.q_bytes() + c * 64 * 128, &q_map,
                           shared.q_full + 8 * at, 64 * c, first_row + (kConfig.split ? 0 : 64 * w),
                           tile.head, tile.batch);
      }
    }
  }

  __device__ __forceinline__ void run() {
    bool more = next_tile(p, 0, tile);
    // Inputs, and room for outputs, from here on: consumers store nothing before a Q has come.
    ptx::grid_dependency_wait();
    for (int step = 0; more; ++step) {
      const int first_row = tile.index * kConfig.rows();
      const BlockRange blocks =
          visible_blocks<ConfigOf>(p, first_row, min(first_row + kConfig.rows(), p.seq_q) - 1);
      kv_head = uniform(tile.head / p.group);
      load_q(step, first_row);
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
    // The next kernel may set up beside the last blocks of this one; shared memory leaves it no
    // room on an SM whose CTA still works. At D 256 this would spill a register, for 1 us of 200.
    if constexpr (kConfig.head_dim <= 128) ptx::grid_launch_dependents();
  }
};

}  // namespace greenfast::cuda::prefill
