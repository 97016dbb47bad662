// cuda.sm90.prefill: attention for problems that fill the machine. sm_90a.
//
// Idea    TMA feeds wgmma, and the softmax hides under matrix work. One producer warp copies Q, K
//         and V tiles into rings of stages; each consumer warpgroup owns 64 query rows and keeps
//         their scores, weights and output in registers. A step issues S(j) = Q K(j)^T before
//         O += P(j-1) V(j-1), so that the tensor cores multiply while the other pipes exponentiate.
//         Blocks run from the last visible key to the first.
//         No row maximum but where a mask cuts: the first block takes that of a quarter of its
//         keys, the others keep the stale one, and a guard watches the range. Beyond 2^15, or 2^13
//         of a thread's sum, the weights are scaled down; beyond 2^100 the block is done again with
//         its true maximum. The guard looks at the row sum, which is needed anyway, or, where the
//         tensor cores sum the rows, at the largest weight. That leaves 3.7 instructions a score at
//         D 64 and 4.6 at D 128, all counted, where the maximum took 2 more (H200, 2026-11-20: +10%
//         at D 128, +8% at D 64).
// Takes   fp16 and bf16, head dims 8..256, every mask, softcap, any type and strides of the output;
//         strides of Q, K and V that TMA takes (16 bytes). Builds differ by what they take
//         (Features, config.hpp).
// Limits  sm_90a; 2^30 - 1 tiles of 128 queries in a batch entry.
// Budget  one CTA an SM, its shared memory and registers whole: setmaxnreg gives a producer thread
//         32 or 40 registers, a consumer thread 160 or 232.
// Bound   issue slots under wgmma, then power.
//
// Read config.hpp, shared_memory.cuh and producer.cuh first; then the kernel here, whose consumers
// are a script of moves. consumer.cuh names them: steps.cuh takes the blocks one by one,
// products.cuh multiplies, softmax.cuh masks and exponentiates, guard.cuh rescales and has blocks
// done again, epilogue.cuh merges and stores.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/ptx_mma.cuh"
#include "kernels/cuda/device/ptx_stmatrix.cuh"
#include "kernels/cuda/device/ptx_tma.cuh"
#include "kernels/cuda/device/ptx_wgmma.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_prefill/bytes.cuh"
#include "kernels/cuda/sm90_prefill/config.hpp"
#include "kernels/cuda/sm90_prefill/epilogue.cuh"
#include "kernels/cuda/sm90_prefill/grouped.cuh"
#include "kernels/cuda/sm90_prefill/guard.cuh"
#include "kernels/cuda/sm90_prefill/masks.cuh"
#include "kernels/cuda/sm90_prefill/producer.cuh"
#include "kernels/cuda/sm90_prefill/products.cuh"
#include "kernels/cuda/sm90_prefill/repair.cuh"
#include "kernels/cuda/sm90_prefill/shared_memory.cuh"
#include "kernels/cuda/sm90_prefill/softmax.cuh"
#include "kernels/cuda/sm90_prefill/steps.cuh"

namespace greenfast::cuda::prefill {

template <class T, class ConfigOf>
__global__ void __launch_bounds__(ConfigOf::value.threads(), 1)
    prefill_kernel(const __grid_constant__ CUtensorMap q_map,
                   const __grid_constant__ CUtensorMap k_map,
                   const __grid_constant__ CUtensorMap v_map,
                   const __grid_constant__ CUtensorMap o_map, const __grid_constant__ Params p) {
  static constexpr Config kConfig = ConfigOf::value;
  // The second warpgroup of a split tile goes on without giving the tile's slot back.
  static_assert(!kConfig.packed || !kConfig.split);
  constexpr bool kFlush = Flushed<ConfigOf>::kUsed;
  constexpr int kStride = kConfig.stride();

  // ---- Prologue: shared memory and barriers ----
  extern __shared__ std::uint8_t raw_shared[];
  // The last of them is none: it is where large bases are noted.
  constexpr int kWords = SharedMemory<ConfigOf>::kBarriers + 1;
  // Behind them, at 16 bytes, the tiles of packed sequences.
  constexpr int kRingAt = (kWords + 1) / 2 * 2;
  __shared__ alignas(kConfig.packed ? 16 : 8)
      std::uint64_t barriers[kConfig.packed ? kRingAt + TileRing<ConfigOf>::kWords : kWords];
  const SharedMemory<ConfigOf> shared(raw_shared, barriers);
  [[maybe_unused]] const TileRing<ConfigOf> ring{shared.q_full + 8 * kRingAt};
  const int warpgroup = uniform(threadIdx.x >> 7), lane = threadIdx.x & 31;
  if (threadIdx.x == 0) {
    barriers[kWords - 1] = 0;
    ptx::tensormap_prefetch(&q_map);
    ptx::tensormap_prefetch(&k_map);
    ptx::tensormap_prefetch(&v_map);
    if constexpr (kIsGrouped<ConfigOf>)
      shared.init_barriers(p.grouped.alternate ? 4 : SharedMemory<ConfigOf>::kReaders);
    else
      shared.init_barriers();
    if constexpr (kConfig.packed) ring.init();
    if (p.release_at_entry) ptx::grid_launch_dependents();
  }
  if constexpr (kConfig.ones) shared.template lay_out_ones<T>(raw_shared);
  __syncthreads();

  TileOf<ConfigOf> tile;
  // Not a function of the tile: where it is not packed the compiler would not find the same code.
#pragma nv_diag_suppress 836  // `p` is the kernel's argument and outlives the lambda that returns it
  const ExtentOf<ConfigOf>& extent = [&]() -> const ExtentOf<ConfigOf>& {
    if constexpr (kIsGrouped<ConfigOf>)
      return tile.grouped;
    else if constexpr (kConfig.packed)
      return tile.extent;
    else
      return p;
  }();
#pragma nv_diag_default 836
  if (warpgroup == 0) {
    // ---- Producer ----
    ptx::setmaxnreg_decrease<kConfig.producer_registers()>();
    if (threadIdx.x < 32) {
      Producer<ConfigOf> producer(p, q_map, k_map, v_map, shared, lane == 0, tile, extent,
                                  ring.first);
      producer.run();
    } else if (kConfig.packed && threadIdx.x < 64) {
      if constexpr (kConfig.packed) send_tiles<ConfigOf>(p, ring);
    } else if constexpr (kConfig.bytes && kCopiesRows<ConfigOf>) {
      copy_and_decode_values<ConfigOf>(p, shared, ring, uniform(threadIdx.x >> 5) - 2);
    } else if constexpr (kConfig.bytes) {
      decode_values<ConfigOf>(shared, ring, uniform(threadIdx.x >> 5) - 2);
    } else if constexpr (kCopiesRows<ConfigOf>) {
      using Rows = Producer<ConfigOf>;
      Rows producer(p, q_map, k_map, v_map, shared, lane == 0, tile, extent, ring.first);
      if (threadIdx.x < 96)
        producer.template run_rows<false, true, typename Rows::MostRows>(0);
      else
        producer.template run_rows<true, true, typename Rows::LastRows>(Rows::MostRows::kRows);
    } else if constexpr (kConfig.has_mask()) {
      send_masks<T, ConfigOf>(p, shared, ring, uniform(threadIdx.x >> 5) - 2);
    }
    return;
  }

  // ---- Consumers: what a thread holds ----
  ptx::setmaxnreg_increase<kConfig.consumer_registers()>();
  const int group = uniform(ptx::thread_index() >> 7) - 1, warp = uniform((threadIdx.x >> 5) & 3);
  // Of the tile's Q among stages and warpgroups.
  int q_index = group;
  const bool leader = lane == 0;
  const Seat seat{group, warp, leader};
  const float of_all = kConfig.general()                 ? 1.0f
                       : kConfig.mask == MaskArray::bias ? 1.0f / kLn2
                                                         : p.scale_log2;
#pragma nv_diag_suppress 836  // as above
  const float& scale = [&]() -> const float& {
    if constexpr (kConfig.bytes && !kConfig.general())
      return tile.scale;
    else
      return of_all;
  }();
#pragma nv_diag_default 836

  // consumer.cuh says what they are.
  typename Fragments<ConfigOf>::Scores s;
  typename Fragments<ConfigOf>::Output o;
  typename Fragments<ConfigOf>::Weights weights;
  typename Fragments<ConfigOf>::Queries q;
  // Of rows g and g + 8: base of the exponents, and this thread's part of the sum.
  float top[2] = {}, sum[2];
  Stage<kConfig.k_stages> k_stage(shared.k_full, 0);
  Stage<kConfig.v_stages> v_stage(shared.v_full, 0);

  // Of descriptors: the half that is constant, and Q's other half.
  std::uint32_t high = 0, q_low = 0;
  using Low = Descriptors<ConfigOf>;
  const std::uint32_t k_base =
      uniform(((shared.k / 16) | Low::kK) - shared.k_full * Low::kPerBarrier);
  const std::uint32_t v_base =
      uniform(((shared.v / 16) | Low::kV) - shared.v_full * Low::kVPerBarrier);
  Flushed<ConfigOf> in_memory;
  MaskOf<ConfigOf> mask(shared.mask_full, 0);
  using Softmax = OnlineSoftmax<ConfigOf>;
  ScoreFactorOf<ConfigOf> before{tile};
  Softmax rows{p, extent, scale, top, sum, shared.q_full + 8 * (kWords - 1), before};
  // The warpgroup's first block of the tile, and that with which O begins anew.
  int newest = 0, second = 0;
  const Consumer<T, ConfigOf> consumer{
      .v_stage = v_stage,
      .k_stage = k_stage,
      .seat = seat,
      .shared = shared,
      .s = s,
      .o = o,
      .weights = weights,
      .q = q,
      .rows = rows,
      .high = high,
      .q_low = q_low,
      .k_base = k_base,
      .v_base = v_base,
      .q_index = q_index,
      .newest = newest,
      .second = second,
      .in_memory = in_memory,
      .mask = mask,
  };

  // ---- Consumers: tile after tile ----
  if (kConfig.takes_turns() && group == 1) ptx::named_barrier_arrive<256>(kTurn);
  if (kConfig.split && group == 0) ptx::named_barrier_arrive<256>(kExchangeEmpty);
  TileOf<ConfigOf> next = {};
  // An index below 0 says that there is no tile: a bool beside it would be what spills.
  const auto find_next = [&](int step, auto& found) {
    if constexpr (kConfig.packed)
      ring.read(step, found);
    else if (!next_tile(p, step, found))
      found.index = -1;
  };
  if constexpr (kIsGrouped<ConfigOf>) ptx::grid_dependency_wait();  // for Q, and room for outputs
  find_next(0, tile);
  for (int tile_step = 0; tile.index >= 0; tile = next, ++tile_step) {
    const int tile_row = tile.index * kConfig.rows(),
              first_row = tile_row + first_of_warpgroup<ConfigOf>(p, group);
    const BlockRange tile_blocks = blocks_of_tile<ConfigOf>(extent, tile.index);
    const int last_row = min(first_row + 63, extent.seq_q - 1);
    const BlockRange blocks = visible_blocks<ConfigOf>(extent, first_row, last_row);
    newest = blocks.end - 1 - (kConfig.split ? group : 0);
    const bool works = first_row < extent.seq_q && newest >= blocks.begin;
    // Blocks from exact_from on, and up to exact_to, are not seen whole by all rows.
    const SeenInPart part = seen_in_part<ConfigOf>(extent.band, first_row, last_row);
    const int exact_from = part.from, exact_to = part.to;

    const auto find_next_tile = [&] { find_next(tile_step + 1, next); };
    if constexpr (kIsGrouped<ConfigOf>) {
      if (is_of_other<ConfigOf>(p, tile_step, group)) {
#pragma unroll 1
        for (int block = tile_blocks.end; block > tile_blocks.begin; --block) {
          k_stage.advance(shared.k_full);
          if constexpr (!kConfig.one_ring()) v_stage.advance(shared.v_full);
        }
        ring.release(tile_step);
        find_next_tile();
        __syncwarp();
        continue;
      }
    }

    // Blocks before the warpgroup's first: of split tiles the other's, else what it sees none of.
    if constexpr (kConfig.split) {
      if (group == 1 && blocks.end > blocks.begin) {
        k_stage.advance(shared.k_full);
        if constexpr (!kConfig.one_ring()) v_stage.advance(shared.v_full);
      }
    } else {
#pragma unroll 1
      for (int block = tile_blocks.end; block > (works ? blocks.end : tile_blocks.begin); --block)
        consumer.skip_block();
    }

    // ---- Q ----
    if constexpr (kConfig.q_stages > 1)
      q_index = group + tile_step % kConfig.q_stages * kConfig.warpgroups;
    if constexpr (kIsGrouped<ConfigOf>) {
      if (works) copy_group_queries<T, ConfigOf>(p, tile, consumer.q_tile(), first_row, warp);
      if constexpr (kConfig.bytes) {
        const int row = first_row + 16 * warp + (ptx::lane_id() >> 2);
        tile.row_factor[0] = factor_of_row(p, tile, row);
        tile.row_factor[1] = factor_of_row(p, tile, row + 8);
      }
    } else {
      ptx::mbarrier_wait(shared.q_full + 8 * q_index, tile_step / kConfig.q_stages & 1);
    }
    if constexpr (kConfig.q_in_registers) load_queries<ConfigOf>(q, consumer.q_tile(), warp);
    if constexpr (kConfig.bytes)
      turn_queries<ConfigOf>(q, consumer.q_tile(), tile.q_turn, kQIsRead + group);

    // The constant half, in a way that ptxas cannot know: it would set a constant again for every
    // wgmma, in a register that holds it already. For each tile, because it would copy what lives
    // longer.
    const std::uint32_t zero = uniform(ptx::lane_id());
    high = ptx::kSwizzle128High + zero;
    q_low = (consumer.q_tile() / 16) | Low::kQ;
    top[0] = top[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
    second = newest - kStride;
    if constexpr (kIsGrouped<ConfigOf>) {
      if (p.grouped.alternate && tile_step > 0) ptx::named_barrier_sync<256>(kTurn + group);
    }
    if (works) {
      // ---- First block ----
      int block = newest;
      // What a new base takes from the output, and what the guard looks at. They stand here for
      // ptxas, which finds other code where they are the first block's own.
      float shrink[2], large[2];
      consumer.first_block(block, first_row, last_row, shrink, large, find_next_tile);
      consumer.template next_stages<true>(block, blocks.begin);

      // ---- Main loop: S(block) and O += P V of the block before ----
      // Diagonal, inside, far edge of a window: exact, guarded, exact.
      while (true) {
        const int stop =
            kFlush ? max(blocks.begin, block - kStride * Flushed<ConfigOf>::kBlocks) : blocks.begin;
        const auto more = [&] { return block - kStride >= stop; };
        const auto far_edge = [&] { return kConfig.windowed() && block - kStride <= exact_to; };
        while (more()) {
          if constexpr (kConfig.masked()) {
            while (more() && (block - kStride >= exact_from || far_edge()))
              consumer.template step<true>(block, tile_step, first_row, blocks.begin, zero, ring,
                                           tile, shrink);
          }
          while (more() && !far_edge())
            consumer.template step<false>(block, tile_step, first_row, blocks.begin, zero, ring,
                                          tile, shrink);
        }
        if (!kFlush || block - kStride < blocks.begin) break;
        if constexpr (kFlush) consumer.flush();
        second = block - kStride;
      }

      // ---- Last product ----
      consumer.last_product(block, second, blocks.begin);
    } else {
      if constexpr (!kConfig.packed) find_next_tile();
      if constexpr (!kConfig.o_over_q()) consumer.release_q();
      consumer.pass_on();
    }
    if constexpr (!kConfig.split) {
#pragma unroll 1
      for (int block = works ? blocks.begin : tile_blocks.begin; block > tile_blocks.begin; --block)
        consumer.skip_block();
    } else {
      // ---- Merge: the second warpgroup hands its part to the first ----
      const Exchange<ConfigOf> exchange(shared);
      if (group == 1) {
        hand_over(exchange, top, sum, o, works);
        continue;
      }
      take_over(exchange, top, sum, o, blocks.end - blocks.begin > 1);
    }

    // ---- Epilogue: normalise, store ----
    // Read again, so that it does not live in registers through the main loop.
    if constexpr (kConfig.packed) {
      ring.read(tile_step, tile);
      if constexpr (!kIsGrouped<ConfigOf>) ring.release(tile_step, tile);
    }
    const int lane = ptx::lane_id();
    const int row = first_row + 16 * warp + (lane >> 2), t = lane & 3;
    // Whether there is an output: asked again, where the answer would be spilled.
    bool has_output = works;
    if constexpr (kConfig.packed)
      has_output = __any_sync(kFullWarp, sum[0] != 0.0f || sum[1] != 0.0f);
    if constexpr (kIsGrouped<ConfigOf>) {
      store_group_rows<ConfigOf>(p, tile, rows, o, has_output, row, t);
    } else {
      finish_rows<ConfigOf>(p, tile, rows, row, t);
      store_rows<T, ConfigOf>(p, o_map, tile, consumer, sum, has_output, first_row, row, lane);
    }
    if constexpr (kConfig.o_over_q()) consumer.release_q();
    // Of groups behind what the stores needed of the tile: this arrival may overtake a load whose result
    // nobody has used.
    if constexpr (kIsGrouped<ConfigOf>) ring.release(tile_step);
    if constexpr (kConfig.packed) find_next_tile();
    // A point of convergence: without it ptxas keeps the loop's state in vector registers.
    __syncwarp();
  }
  if (!kIsGrouped<ConfigOf> && !kConfig.stores_anywhere() && leader) ptx::tma_store_wait();
  __syncwarp();
  if constexpr (!Softmax::kNatural) {
    if (*static_cast<volatile std::uint64_t*>(barriers + kWords - 1) != 0)
      repair_rows<T, ConfigOf>(p);
  }
}

/// Gives a compiled kernel a name that a plan can say.
template <class T, int kTile, Features kFeatures>
struct Compiled
    : With<config_of(kTile, std::is_same_v<T, __half> ? DType::f16 : DType::bf16, kFeatures)> {};

template <class T, int kTile, Features kFeatures>
const void* entry() {
  return reinterpret_cast<const void*>(&prefill_kernel<T, Compiled<T, kTile, kFeatures>>);
}

template <class T, int kTile>
Entries entries() {
  Entries kernels{entry<T, kTile, Features::plain>(), entry<T, kTile, Features::causal>()};
  if constexpr (kTiles[kTile].takes(Features::window)) {
    kernels[3] = entry<T, kTile, Features::general>();
    if constexpr (config_of(kTile, DType::f16, Features::window).features == Features::general)
      kernels[2] = kernels[3];
    else
      kernels[2] = entry<T, kTile, Features::window>();
  }
  return kernels;
}

template <class T, int kTile, Features kFeatures>
struct Packed : With<packed_config_of(kTile, std::is_same_v<T, __half> ? DType::f16 : DType::bf16,
                                      kFeatures)> {};

template <class T, int kTile, Features kFeatures>
const void* packed_entry() {
  return reinterpret_cast<const void*>(&prefill_kernel<T, Packed<T, kTile, kFeatures>>);
}

template <class T, int kTile>
Entries packed_entries() {
  Entries kernels{packed_entry<T, kTile, Features::plain>(),
                  packed_entry<T, kTile, Features::causal>()};
  if constexpr (kTiles[kTile].takes(Features::window))
    kernels[2] = packed_entry<T, kTile, Features::window>();
  return kernels;
}

template <class T, int kTile>
struct Serving : With<serving_config_of(kTile)> {};

template <class T, int kTile>
const void* serving_entry() {
  return reinterpret_cast<const void*>(&prefill_kernel<T, Serving<T, kTile>>);
}

template <class T, int kTile>
struct RowByRow : With<row_config_of(kTile)> {
  static constexpr bool kCopiesRows = true;
};

template <class T, int kTile>
const void* row_entry() {
  return reinterpret_cast<const void*>(&prefill_kernel<T, RowByRow<T, kTile>>);
}

template <class T, int kTile>
struct Capped : With<capped_config_of(kTile)> {};

template <class T, int kTile>
const void* capped_entry() {
  return reinterpret_cast<const void*>(&prefill_kernel<T, Capped<T, kTile>>);
}

template <class T, int kTile, MaskArray kMask>
struct Masked : With<mask_config_of(kTile, kMask)> {};

template <class T, int kTile, MaskArray kMask>
const void* mask_entry() {
  return reinterpret_cast<const void*>(&prefill_kernel<T, Masked<T, kTile, kMask>>);
}

template <int kTile, bool kCapped>
struct Bytes : With<byte_config_of(kTile, kCapped)> {};

template <int kTile>
struct BytesRowByRow : With<byte_row_config_of(kTile)> {
  static constexpr bool kCopiesRows = true;
};

template <int kTile>
const void* byte_row_entry() {
  return reinterpret_cast<const void*>(&prefill_kernel<__half, BytesRowByRow<kTile>>);
}

template <class T, int kTile, bool kBytes>
struct Grouped : With<grouped_config_of(kTile, kBytes)> {
  static constexpr bool kGrouped = true;
};

template <class T, int kTile, bool kBytes>
const void* grouped_entry() {
  return reinterpret_cast<const void*>(&prefill_kernel<T, Grouped<T, kTile, kBytes>>);
}

template <class T, int kTile, bool kBytes>
struct GroupedRowByRow : Grouped<T, kTile, kBytes> {
  static constexpr bool kCopiesRows = true;
};

template <class T, int kTile, bool kBytes>
const void* grouped_row_entry() {
  return reinterpret_cast<const void*>(&prefill_kernel<T, GroupedRowByRow<T, kTile, kBytes>>);
}

template <int kTile>
std::array<const void*, 2> byte_entries() {
  return {reinterpret_cast<const void*>(&prefill_kernel<__half, Bytes<kTile, false>>),
          reinterpret_cast<const void*>(&prefill_kernel<__half, Bytes<kTile, true>>)};
}

}  // namespace greenfast::cuda::prefill
