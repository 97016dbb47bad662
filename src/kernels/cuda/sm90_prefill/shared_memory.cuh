// Shared memory of cuda.sm90.prefill as the kernel sees it: where the tiles lie, the rings of
// stages that the producer fills, and the barriers that say what is there.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/ptx_cp_async.cuh"
#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/ptx_tma.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_prefill/config.hpp"

namespace greenfast::cuda::prefill {

/// A value that all lanes hold, told to the compiler: descriptors computed from it then live in
/// uniform registers. Without it every wgmma needs R2UR moves (H200: 60.8 -> 65.7% at D 64).
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(kFullWarp, x, 0); }

/// Barriers of bar.sync and bar.arrive. Those that are counted from are one for each warpgroup.
enum NamedBarrier : int {
  kQIsRead = 1,        // a warpgroup's warps are done with Q, whose place O takes
  kTurn = 4,           // a warpgroup may issue its products
  kExchangeEmpty = 6,  // split tiles: the second warpgroup may hand over its part
  kExchangeFull = 7,   // and has done so
};

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

/// Addresses of the first stages and barriers. "Full" barriers count TMA bytes; "empty" ones an
/// arrival of each consumer warp.
template <class ConfigOf>
struct SharedMemory {
  static constexpr Config kConfig = ConfigOf::value;
  static constexpr int kKStages = kConfig.k_stages, kVStages = kConfig.v_stages;
  static constexpr int kQTiles = kConfig.q_stages * kConfig.warpgroups;
  static constexpr int kBarriers = 2 * (kQTiles + kKStages + kVStages);
  static_assert(kConfig.shared_bytes() <= 232448 && kConfig.keys % 16 == 0);

  std::uint32_t q, k, v;
  std::uint32_t q_full, q_empty, k_full, k_empty, v_full, v_empty;

  __device__ __forceinline__ SharedMemory(const void* memory, const std::uint64_t* barriers)
      : q(uniform((ptx::shared_address(memory) + 1023) & ~1023u)),
        k(q + kConfig.k_offset()),
        v(q + kConfig.v_offset()),
        q_full(uniform(ptx::shared_address(barriers))),
        q_empty(q_full + 8 * kQTiles),
        k_full(q_empty + 8 * kQTiles),
        k_empty(k_full + 8 * kKStages),
        v_full(k_empty + 8 * kKStages),
        v_empty(v_full + 8 * kVStages) {}

  /// By one thread; __syncthreads must follow.
  __device__ __forceinline__ void init_barriers() const {
    constexpr int kReaders = kConfig.split ? 4 : 4 * kConfig.warpgroups;  // warps
    for (int i = 0; i < kQTiles; ++i) {
      ptx::mbarrier_init(q_full + 8 * i, 1);
      ptx::mbarrier_init(q_empty + 8 * i, 4);
    }
    for (int i = 0; i < kKStages; ++i) {
      ptx::mbarrier_init(k_full + 8 * i, 1);
      ptx::mbarrier_init(k_empty + 8 * i, kReaders);
    }
    for (int i = 0; i < kVStages; ++i) {
      ptx::mbarrier_init(v_full + 8 * i, 1);
      ptx::mbarrier_init(v_empty + 8 * i, kReaders);
    }
    ptx::fence_mbarrier_init();
  }

  /// The 8 columns beside V whose first holds ones; `memory` is what the constructor was given. By
  /// all threads; __syncthreads must follow.
  template <class T>
  __device__ __forceinline__ void lay_out_ones(std::uint8_t* memory) const {
    // Key r's ones start at 16-byte chunk 0, which the swizzle moves to r % 8.
    std::uint32_t* words = reinterpret_cast<std::uint32_t*>(
        memory + (q - ptx::shared_address(memory)) + kConfig.ones_offset());
    for (int i = threadIdx.x; i < 16 * 32; i += kConfig.threads()) {
      const int key = i / 32, word = i % 32;
      words[i] = word == (key & 7) * 4 ? pack2<T>(1.0f, 0.0f) : 0;
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
  constexpr Config kConfig = ConfigOf::value;
  if constexpr (kConfig.features == Features::plain) return {0, p.key_blocks};
  BlockRange range = blocks_of(p.band, kConfig.keys, first, last);
  // Said to the compiler, which saves a register.
  if constexpr (kConfig.features == Features::causal) range.begin = 0;
  return range;
}

}  // namespace greenfast::cuda::prefill
