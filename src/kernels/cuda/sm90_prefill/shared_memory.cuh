// Shared memory of cuda.sm90.prefill as the kernel sees it: where the tiles lie, the rings of
// stages that the producer fills, and the barriers that say what is there.
#pragma once

#include <cstdint>

#include <greenfast/arithmetic.hpp>

#include "kernels/cuda/device/ptx_cp_async.cuh"
#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/ptx_stmatrix.cuh"
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

/// Warps that make fp16 of V's bytes.
inline constexpr int kDecoders = 2;
/// Warps that copy rows, and those of them that copy K, or V, whose bytes are copied by their decoders. One alone takes
/// 3,500 clocks for a block (H200, 2026-11-28).
template <class ConfigOf>
inline constexpr int kRowWarps = ConfigOf::value.bytes ? 1 : 3;
template <class ConfigOf>
inline constexpr int kRowWarpsOfOne = ConfigOf::value.bytes ? 1 : 2;

/// Addresses of the first stages and barriers. "Full" barriers count TMA bytes, or lanes whose copies of
/// rows have arrived; "empty" ones an arrival of each consumer warp.
template <class ConfigOf>
struct SharedMemory {
  static constexpr Config kConfig = ConfigOf::value;
  static constexpr int kKStages = kConfig.k_stages, kVStages = kConfig.v_stages;
  static constexpr int kQTiles = kConfig.q_stages * kConfig.warpgroups;
  static constexpr int kMaskStages = kConfig.mask_stages;
  static constexpr int kRawStages = kConfig.raw_stages;
  static constexpr int kBarriers = 2 * (kQTiles + kKStages + kVStages + kMaskStages + kRawStages);
  static_assert(kConfig.shared_bytes() <= 232448 && kConfig.keys % 16 == 0);

  std::uint32_t q, k, v, mask;
  std::uint32_t q_full, q_empty, k_full, k_empty, v_full, v_empty, mask_full, mask_empty;

  __device__ __forceinline__ SharedMemory(const void* memory, const std::uint64_t* barriers)
      : q(uniform((ptx::shared_address(memory) + 1023) & ~1023u)),
        k(q + kConfig.k_offset()),
        v(q + kConfig.v_offset()),
        mask(q + kConfig.mask_offset()),
        q_full(uniform(ptx::shared_address(barriers))),
        q_empty(q_full + 8 * kQTiles),
        k_full(q_empty + 8 * kQTiles),
        k_empty(k_full + 8 * kKStages),
        v_full(k_empty + 8 * kKStages),
        v_empty(v_full + 8 * kVStages),
        mask_full(v_empty + 8 * kVStages),
        mask_empty(mask_full + 8 * kMaskStages) {}

  /// V as it comes from memory: in V's own ring, or, of e4m3, in one before it.
  __device__ __forceinline__ std::uint32_t incoming_v() const {
    return kConfig.bytes ? q + kConfig.raw_offset() : v;
  }
  __device__ __forceinline__ std::uint32_t incoming_v_full() const {
    return kConfig.bytes ? mask_empty + 8 * kMaskStages : v_full;
  }

  static constexpr int kReaders = kConfig.split ? 4 : 4 * kConfig.warpgroups;  // warps
  /// By one thread; __syncthreads must follow.
  __device__ __forceinline__ void init_barriers(int readers = kReaders) const {
    for (int i = 0; i < kQTiles; ++i) {
      ptx::mbarrier_init(q_full + 8 * i, 1);
      ptx::mbarrier_init(q_empty + 8 * i, 4);
    }
    for (int i = 0; i < kKStages; ++i) {
      ptx::mbarrier_init(k_full + 8 * i, kCopiesRows<ConfigOf> ? 32 * kRowWarpsOfOne<ConfigOf> : 1);
      ptx::mbarrier_init(k_empty + 8 * i, readers);
    }
    for (int i = 0; i < kVStages; ++i) {
      ptx::mbarrier_init(v_full + 8 * i, kConfig.bytes           ? kDecoders
                                         : kCopiesRows<ConfigOf> ? 32 * kRowWarpsOfOne<ConfigOf>
                                                                 : 1);
      ptx::mbarrier_init(v_empty + 8 * i, readers);
    }
    for (int i = 0; i < kMaskStages; ++i) {
      ptx::mbarrier_init(mask_full + 8 * i, 32);  // the lanes of the warp that copies it
      ptx::mbarrier_init(mask_empty + 8 * i, kReaders);
    }
    for (int i = 0; i < kRawStages; ++i) {
      ptx::mbarrier_init(incoming_v_full() + 8 * i, 1);
      ptx::mbarrier_init(incoming_v_full() + 8 * (kRawStages + i), kDecoders);
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

/// A warp that looks for a sequence together.
struct WarpLanes {
  __device__ __forceinline__ std::int32_t first() const { return ptx::lane_id(); }
  __device__ __forceinline__ std::int32_t step() const { return 32; }
  __device__ __forceinline__ std::uint32_t most(std::uint32_t x) const {
    return __reduce_max_sync(kFullWarp, x);
  }
  __device__ __forceinline__ std::int32_t sum(std::int32_t x) const {
    return __reduce_add_sync(kFullWarp, x);
  }
  __device__ __forceinline__ std::int32_t up_to(std::int32_t x) const {
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const std::int32_t before = __shfl_up_sync(kFullWarp, x, lanes);
      if (ptx::lane_id() >= lanes) x += before;
    }
    return x;
  }
  __device__ __forceinline__ std::int32_t of(std::int32_t x, std::int32_t lane) const {
    return __shfl_sync(kFullWarp, x, lane);
  }
  __device__ __forceinline__ std::int32_t first_above(std::int32_t x, std::int32_t bound) const {
    return __ffs(static_cast<int>(__ballot_sync(kFullWarp, x > bound))) - 1;
  }
};
/// The CTA's tiles, by a whole warp.
template <class ConfigOf, class Work>
__device__ __forceinline__ void with_warp_walk(const PackedFacts& facts,
                                               const TileSchedule& schedule, const Work& work) {
  with_walk<ConfigOf::value.rows(), ConfigOf::value.keys, TileOf<ConfigOf>>(
      facts, schedule, static_cast<std::int32_t>(blockIdx.x), WarpLanes{}, work);
}
template <class ConfigOf, class Work>
requires(kIsGrouped<ConfigOf>) __device__ __forceinline__
    void with_warp_walk(const PackedFacts& facts, const GroupedFacts& grouped, const Work& work) {
  GroupedWalk<ConfigOf::value.rows(), ConfigOf::value.keys, WarpLanes> walk(
      facts, grouped, static_cast<std::int32_t>(blockIdx.x), WarpLanes{});
  work(walk);
}

/// Tiles of packed sequences on their way from the warp that finds them to the producer and the
/// consumers. Of a slot: a barrier that says it is full, one that says it is empty, the tile.
template <class ConfigOf>
struct TileRing {
  static constexpr int kSlots = 4;
  static constexpr bool kServing = ConfigOf::value.serving, kMask = ConfigOf::value.has_mask();
  static constexpr bool kBytes = ConfigOf::value.bytes, kGrouped = kIsGrouped<ConfigOf>;
  static constexpr int kFields = kGrouped ? 26 : kBytes ? 20 : kMask ? 18 : kServing ? 17 : 10;
  static constexpr int kSlotBytes = kGrouped ? 112 : kServing ? 80 : 48;
  static constexpr int kWords = kSlots * (16 + kSlotBytes) / 8;  // of 8 bytes
  // Warps.
  static constexpr int kReaders = 1 + 4 * ConfigOf::value.warpgroups + (kMask ? 2 : 0) +
                                  (kBytes ? kDecoders : 0) +
                                  (kCopiesRows<ConfigOf> ? kRowWarps<ConfigOf> - 1 : 0);

  std::uint32_t first;  // address

  __device__ __forceinline__ std::uint32_t full(int step) const {
    return first + step % kSlots * 8;
  }
  __device__ __forceinline__ std::uint32_t empty(int step) const { return full(step) + kSlots * 8; }
  __device__ __forceinline__ std::uint32_t slot(int step) const {
    return first + kSlots * 16 + step % kSlots * kSlotBytes;
  }
  __device__ __forceinline__ static std::uint32_t parity(int step) { return step / kSlots & 1; }

  /// By one thread; __syncthreads must follow.
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < kSlots; ++i) {
      ptx::mbarrier_init(full(i), 1);
      ptx::mbarrier_init(empty(i), kReaders);
    }
    ptx::fence_mbarrier_init();
  }

  /// The step-th tile, by a whole warp; one with an index below 0 is the last.
  __device__ __forceinline__ void send(int step, const TileOf<ConfigOf>& tile) const {
    ptx::mbarrier_wait(empty(step), parity(step) ^ 1);
    const bool leader = ptx::lane_id() == 0;
    if (leader) {
      const std::uint32_t to = slot(step);
      const auto& e = tile.extent;
      ptx::shared_store4(to, as_floats(tile.index, tile.head, tile.batch, tile.q_row));
      ptx::shared_store4(to + 16, as_floats(e.band.below, e.band.above, e.band.keys, e.seq_q));
      if constexpr (kServing) {
        const TileBand& b = e.band;
        ptx::shared_store4(to + 32, as_floats(b.turn, b.first_before, b.first_from, b.end_before));
        ptx::shared_store4(to + 48, as_floats(b.end_from, tile.kv_row, tile.kv_batch, tile.cut));
        int first_key = 0;
        if constexpr (kMask) first_key = tile.first_key;
        if constexpr (kGrouped) {
          const Divisor& by_group = tile.grouped.band.by_group;
          ptx::shared_store4(to + 80, as_floats(tile.part, tile.parts, tile.slot,
                                                static_cast<int>(by_group.multiplier)));
          ptx::shared_store4(to + 96,
                             {__uint_as_float(by_group.shift), tile.q_largest, 0.0f, 0.0f});
        }
        if constexpr (kBytes || kGrouped)
          ptx::shared_store4(to + 64, {__int_as_float(tile.entry), __uint_as_float(tile.q_turn),
                                       tile.scale, tile.value_factor});
        else
          ptx::shared_store4(to + 64, as_floats(tile.entry, first_key, 0, 0));
      } else {
        ptx::shared_store4(to + 32, as_floats(tile.kv_row, tile.kv_batch, 0, 0));
      }
    }
    __syncwarp();
    ptx::mbarrier_arrive_if(full(step), leader);
  }
  /// By a whole warp, into uniform registers.
  __device__ __forceinline__ void read(int step, TileOf<ConfigOf>& tile) const {
    ptx::mbarrier_wait(full(step), parity(step));
    const int lane = ptx::lane_id();
    const int field = ptx::shared_load(slot(step) + 4 * min(lane, kFields - 1));
    const auto at = [&](int i) { return __shfl_sync(kFullWarp, field, i); };
    tile.index = at(0);
    tile.head = at(1);
    tile.batch = at(2);
    tile.q_row = at(3);
    if constexpr (kServing) {
      tile.extent.seq_q = at(7);
      tile.extent.band = {at(4), at(5), at(6), at(8), at(9), at(10), at(11), at(12)};
      tile.kv_row = at(13);
      tile.kv_batch = at(14);
      tile.cut = at(15);
      tile.entry = at(16);
      if constexpr (kMask) tile.first_key = at(17);
      if constexpr (kBytes) {
        tile.q_turn = at(17);
        tile.scale = __int_as_float(at(18));
        tile.value_factor = __int_as_float(at(19));
      }
      if constexpr (kGrouped) {
        tile.part = at(20);
        tile.parts = at(21);
        tile.slot = at(22);
        tile.q_largest = __int_as_float(at(25));
        tile.grouped.band = {
            tile.extent.band,
            {static_cast<std::uint32_t>(at(23)), static_cast<std::uint32_t>(at(24))}};
        tile.grouped.seq_q = tile.extent.seq_q;
      }
    } else {
      tile.extent.band = {at(4), at(5), at(6)};
      tile.extent.seq_q = at(7);
      tile.kv_row = at(8);
      tile.kv_batch = at(9);
      tile.extent.key_blocks = ceil_div(tile.extent.band.keys, ConfigOf::value.keys);
    }
  }
  /// Of a tile that was read: its band, by every lane.
  __device__ __forceinline__ void read_band(int step, Band& band) const {
    const std::uint32_t from = slot(step) + 16;
    band = {ptx::shared_load(from), ptx::shared_load(from + 4), ptx::shared_load(from + 8)};
  }
  __device__ __forceinline__ void read_band(int step, TileBand& band) const {
    const std::uint32_t from = slot(step) + 16;
    const auto at = [&](int i) { return ptx::shared_load(from + 4 * i); };
    band = {at(0), at(1), at(2), at(4), at(5), at(6), at(7), at(8)};
  }
  __device__ __forceinline__ void read_band(int step, GroupedBand& band) const {
    read_band(step, static_cast<TileBand&>(band));
    const std::uint32_t from = slot(step) + 92;
    band.by_group = {static_cast<std::uint32_t>(ptx::shared_load(from)),
                     static_cast<std::uint32_t>(ptx::shared_load(from + 4))};
  }
  /// Done with the tile: its slot may be overwritten.
  __device__ __forceinline__ void release(int step) const {
    // One lane arrives for 32 that have read; without this racecheck sees loads and stores of a slot meet.
    if constexpr (kIsGrouped<ConfigOf>) __syncwarp();
    ptx::mbarrier_arrive_if(empty(step), ptx::lane_id() == 0);
  }
  /// The same right behind read(), by a consumer, which reads no last tile: whether lane 0 arrives is a
  /// matter of what was read, which no arrival can overtake.
  __device__ __forceinline__ void release(int step, const TileOf<ConfigOf>& read) const {
    ptx::mbarrier_arrive_if(empty(step), ptx::lane_id() == 0 && read.index >= 0);
  }

 private:
  __device__ __forceinline__ static float4 as_floats(int a, int b, int c, int d) {
    return {__int_as_float(a), __int_as_float(b), __int_as_float(c), __int_as_float(d)};
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
__device__ __forceinline__ BlockRange visible_blocks(const ExtentOf<ConfigOf>& p, int first,
                                                     int last) {
  constexpr Config kConfig = ConfigOf::value;
  if constexpr (kConfig.features == Features::plain) return {0, p.key_blocks};
  BlockRange range = blocks_of(p.band, kConfig.keys, first, last);
  // Said to the compiler, which saves a register.
  if constexpr (kConfig.features == Features::causal) range.begin = 0;
  return range;
}

/// And that a tile's rows see.
template <class ConfigOf>
__device__ __forceinline__ BlockRange blocks_of_tile(const ExtentOf<ConfigOf>& extent, int index) {
  constexpr int kRows = ConfigOf::value.rows();
  return visible_blocks<ConfigOf>(extent, index * kRows,
                                  min(index * kRows + kRows, extent.seq_q) - 1);
}

/// Of the rows [first, last]: blocks from the first number on, and up to the second, are not seen
/// whole by all of them.
struct SeenInPart {
  int from, to;
};
template <class ConfigOf>
__device__ __forceinline__ SeenInPart seen_in_part(const decltype(ExtentOf<ConfigOf>::band)& band,
                                                   int first, int last) {
  constexpr int kKeys = ConfigOf::value.keys;
  if constexpr (ConfigOf::value.serving)
    return {max(band.end(first), 0) / kKeys, ceil_div(band.first(last), kKeys) - 1};
  else
    return {min(max(first + band.above, 0), band.keys) / kKeys,
            ceil_div(last + band.below, kKeys) - 1};
}

}  // namespace greenfast::cuda::prefill
