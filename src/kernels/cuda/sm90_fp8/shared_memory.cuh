// Shared memory of cuda.sm90.fp8 as the kernel sees it: where the tiles lie, the rings of stages
// that the producer fills, and the barriers that say what is there. As in cuda.sm90.prefill, but
// for what e4m3 tiles look like.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/ptx_cp_async.cuh"
#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/ptx_tma.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_fp8/config.hpp"

namespace greenfast::cuda::fp8 {

/// A value that all lanes hold, told to the compiler: what follows from it lives in uniform
/// registers.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(kFullWarp, x, 0); }

/// A stage of the K or V ring: the address of its "full" barrier, and the phase.
template <int kStages>
struct Stage {
  std::uint32_t full, parity;

  __device__ Stage(std::uint32_t first, std::uint32_t first_parity)
      : full(first), parity(first_parity) {}
  __device__ void advance(std::uint32_t first) {
    full += 8;
    if (full == first + 8 * kStages) {
      full = first;
      parity ^= 1;
    }
  }
  __device__ std::uint32_t empty() const { return full + 8 * kStages; }
};

/// The factors of a tile's heads, which the producer lays beside its Q, so that consumers wait for no
/// memory. By warpgroup, of this tile and the next ones: a second Q may have come while the first
/// tile's output is stored.
struct Factors {
  float q, k, v;
};
inline constexpr int kFactorTiles = 4;

/// Addresses of the first stages and barriers. "Full" barriers count TMA bytes; "empty" ones an
/// arrival of each consumer warp.
template <class ConfigOf>
struct SharedMemory {
  static constexpr Config kConfig = ConfigOf::value;
  static constexpr int kStages = kConfig.stages();
  static constexpr int kQTiles = kConfig.q_stages() * kConfig.warpgroups();
  static constexpr int kBarriers = 2 * (kQTiles + 2 * kStages);
  static_assert(kConfig.k_offset() % 1024 == 0 && kConfig.k_bytes() % 1024 == 0 &&
                kConfig.v_bytes() % 1024 == 0 && kConfig.o_offset() % 1024 == 0);

  std::uint32_t q, k, v;
  std::uint32_t q_full, q_empty, k_full, v_full;

  __device__ __forceinline__ SharedMemory(const void* memory, const std::uint64_t* barriers)
      : q(uniform((ptx::shared_address(memory) + 1023) & ~1023u)),
        k(q + kConfig.k_offset()),
        v(q + kConfig.v_offset()),
        q_full(uniform(ptx::shared_address(barriers))),
        q_empty(q_full + 8 * kQTiles),
        k_full(q_empty + 8 * kQTiles),
        v_full(k_full + 16 * kStages) {}

  /// Of builds with factors of blocks, behind the barriers: of the block in a stage of K, whose "full" barrier
  /// is given, the scale of its scores; of one of V its factor. Written before the barrier is armed.
  __device__ __forceinline__ std::uint32_t factor_slot(std::uint32_t full) const {
    return q_full + 8 * kBarriers + (full - k_full) / 2;
  }
  __device__ __forceinline__ float k_factor(std::uint32_t full) const {
    return __int_as_float(ptx::shared_load(factor_slot(full)));
  }
  __device__ __forceinline__ float v_factor(std::uint32_t full) const {
    return __int_as_float(ptx::shared_load(v_factor_slot(full)));
  }
  __device__ __forceinline__ std::uint32_t v_factor_slot(std::uint32_t full) const {
    return factor_slot(full - v_full + k_full) + 4 * kStages;
  }
  __device__ __forceinline__ static void store_factor(std::uint32_t slot, float factor) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(slot), "f"(factor) : "memory");
  }

  /// By one thread; __syncthreads must follow.
  __device__ __forceinline__ void init_barriers() const {
    constexpr int kReaders = 4 * kConfig.warpgroups();  // warps
    for (int i = 0; i < kQTiles; ++i) {
      ptx::mbarrier_init(q_full + 8 * i, 1);
      ptx::mbarrier_init(q_empty + 8 * i, 4);
    }
    for (const std::uint32_t ring : {k_full, v_full}) {
      for (int i = 0; i < kStages; ++i) {
        ptx::mbarrier_init(ring + 8 * i, 1);
        ptx::mbarrier_init(ring + 8 * (kStages + i), kReaders);
      }
    }
    ptx::fence_mbarrier_init();
  }

  /// Rows of ones behind every V^T: all bytes are alike, so the swizzle does not matter. `memory`
  /// is what the constructor was given. By all threads; __syncthreads must follow.
  __device__ __forceinline__ void lay_out_ones(std::uint8_t* memory) const {
    constexpr int kWords = kConfig.kOnes * kConfig.kKeys / 4;
    std::uint8_t* first =
        memory + (v - ptx::shared_address(memory)) + kConfig.head_dim * kConfig.kKeys;
    for (int i = static_cast<int>(threadIdx.x); i < kStages * kWords; i += kConfig.threads()) {
      reinterpret_cast<std::uint32_t*>(first + i / kWords * kConfig.v_bytes())[i % kWords] =
          0x38383838u;
    }
    ptx::fence_proxy_async_shared();
  }
};

/// The step-th tile of this CTA, in uniform registers; false when there is none.
__device__ __forceinline__ bool next_tile(const Params& p, int step, Tile& tile) {
  if (!tile_of(p.schedule, blockIdx.x, step, tile)) return false;
  tile = {uniform(tile.index), uniform(tile.head), uniform(tile.batch)};
  return true;
}

/// Blocks of keys that the rows [first, last] see.
template <class ConfigOf>
__device__ __forceinline__ BlockRange visible_blocks(const Params& p, int first, int last) {
  if constexpr (!ConfigOf::value.masked) return {0, p.key_blocks};
  return blocks_of(p.band, ConfigOf::value.kKeys, first, last);
}

}  // namespace greenfast::cuda::fp8
