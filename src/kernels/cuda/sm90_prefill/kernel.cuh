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
// are a script of moves: steps.cuh takes the blocks one by one, products.cuh multiplies, softmax.cuh
// masks and exponentiates, guard.cuh rescales and has blocks done again, epilogue.cuh merges and
// stores. That the arrays are the kernel's own, and the moves lambdas over functions, is for the
// compiler: in a struct of arrays it finds other registers, and 74 KB of code are not the same code
// any more.
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
#include "kernels/cuda/sm90_prefill/config.hpp"
#include "kernels/cuda/sm90_prefill/epilogue.cuh"
#include "kernels/cuda/sm90_prefill/guard.cuh"
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
    if constexpr (kConfig.packed)
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
    }
    return;
  }

  // ---- Consumers: what a thread holds ----
  ptx::setmaxnreg_increase<kConfig.consumer_registers()>();
  const int group = uniform(ptx::thread_index() >> 7) - 1, warp = uniform((threadIdx.x >> 5) & 3);
  // Of the tile's Q among stages and warpgroups.
  int q_index = group;
  const auto q_tile = [&] { return shared.q + q_index * kConfig.q_bytes(); };
  const bool leader = lane == 0;
  const Seat seat{group, warp, leader};
  const auto release_q = [&] { ptx::mbarrier_arrive_if(shared.q_empty + 8 * q_index, leader); };
  const float scale = kConfig.general() ? 1.0f : p.scale_log2;

  // Scores, then weights.
  typename Fragments<ConfigOf>::Scores s;
  // Output, not yet normalised; then the row sums, if there is a column of ones.
  typename Fragments<ConfigOf>::Output o;
  // Weights of the block before, as the A operand of O += P V.
  typename Fragments<ConfigOf>::Weights weights;
  typename Fragments<ConfigOf>::Queries q;
  // Of rows g and g + 8: base of the exponents, and this thread's part of the sum.
  float top[2] = {}, sum[2];
  // The stage of the next block; with one ring V's is that of the block whose V is wanted next.
  Stage<kConfig.k_stages> k_stage(shared.k_full, 0);
  Stage<kConfig.v_stages> v_stage(shared.v_full, 0);
  const auto v_follows_k = [&] {
    v_stage.full = k_stage.full + (shared.v_full - shared.k_full);
    v_stage.parity = k_stage.parity;
  };

  // Of descriptors: the half that is constant, and Q's other half.
  std::uint32_t high = 0, q_low = 0;
  using Low = Descriptors<ConfigOf>;
  const std::uint32_t k_base =
      uniform(((shared.k / 16) | Low::kK) - shared.k_full * Low::kPerBarrier);
  // S = Q K^T; asynchronous.
  const auto issue_scores = [&] {
    multiply_qk<T, ConfigOf>(s, q, high, q_low, k_base + k_stage.full * Low::kPerBarrier);
  };
  const std::uint32_t v_base =
      uniform(((shared.v / 16) | Low::kV) - shared.v_full * Low::kVPerBarrier);
  // O (+)= P V; asynchronous.
  const auto issue_output = [&](bool accumulate) {
    multiply_pv<T, ConfigOf>(o, weights, high, v_base + v_stage.full * Low::kVPerBarrier,
                             accumulate);
  };
  Flushed<ConfigOf> in_memory;
  const auto seldom = [&]() -> Flushed<ConfigOf>& {
    Flushed<ConfigOf>* address = &in_memory;
    asm volatile("" : "+l"(address));  // else the compiler would keep it all in registers
    return *address;
  };
  using Softmax = OnlineSoftmax<ConfigOf>;
  Softmax rows{p, extent, scale, top, sum, shared.q_full + 8 * (kWords - 1)};
  // Weights become the A operand of the next product.
  const auto convert = [&] { convert_to<T>(weights, s); };
  // S = Q K^T again by this warp alone, after the weights have overwritten it. K's stage must still
  // be held.
  const auto redo_scores = [&] {
    const auto k_tile = [&] {
      std::uint32_t first = shared.k;
      if constexpr (kConfig.general()) {
        first = shared.q;  // which is there; shared.k would be spilled
        asm volatile("" : "+r"(first));
        first += kConfig.k_offset();
      }
      return first + (k_stage.full - shared.k_full) / 8 * kConfig.k_bytes();
    };
    multiply_qk_alone<T, ConfigOf>(s, q, q_tile, k_tile, warp);
  };
  // Weights out of range: the guard's remedies.
  const auto recover = [&](const float(&large)[2], float(&shrink)[2]) {
    recover_weights(rows, s, redo_scores, large, shrink);
  };
  const auto softmax_guarded = [&](float(&shrink)[2]) {
    return guarded_softmax(rows, s, recover, shrink);
  };
  // The warpgroup's first block of the tile, and that with which O begins anew.
  int newest = 0, second = 0;
  const auto flushed = [&] { return second != newest - kConfig.stride(); };
  const auto rescale_output = [&](const float(&shrink)[2]) {
    rescale<ConfigOf>(o, seldom, flushed, shrink);
  };
  const auto flush = [&] { flush_to<ConfigOf>(seldom, flushed, o, sum); };
  const auto guard_converted = [&] {
    guard_words(rows, s, weights, recover, convert, rescale_output);
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
  find_next(0, tile);
  for (int tile_step = 0; tile.index >= 0; tile = next, ++tile_step) {
    const int tile_row = tile.index * kConfig.rows(),
              first_row = tile_row + (kConfig.split ? 0 : 64 * group);
    const BlockRange tile_blocks = visible_blocks<ConfigOf>(
        extent, tile_row, min(tile_row + kConfig.rows(), extent.seq_q) - 1);
    const int last_row = min(first_row + 63, extent.seq_q - 1);
    const BlockRange blocks = visible_blocks<ConfigOf>(extent, first_row, last_row);
    newest = blocks.end - 1 - (kConfig.split ? group : 0);
    const bool works = first_row < extent.seq_q && newest >= blocks.begin;
    // Blocks from exact_from on, and up to exact_to, are not seen whole by all rows.
    const SeenInPart part = seen_in_part<ConfigOf>(extent.band, first_row, last_row);
    const int exact_from = part.from, exact_to = part.to;

    // Blocks before the warpgroup's first: of split tiles the other's, else what it sees none of.
    if constexpr (kConfig.split) {
      if (group == 1 && blocks.end > blocks.begin) {
        k_stage.advance(shared.k_full);
        if constexpr (!kConfig.one_ring()) v_stage.advance(shared.v_full);
      }
    } else {
#pragma unroll 1
      for (int block = tile_blocks.end; block > (works ? blocks.end : tile_blocks.begin); --block)
        skip_block<ConfigOf>(shared, k_stage, v_stage, seat, v_follows_k);
    }

    // ---- Q ----
    if constexpr (kConfig.q_stages > 1)
      q_index = group + tile_step % kConfig.q_stages * kConfig.warpgroups;
    ptx::mbarrier_wait(shared.q_full + 8 * q_index, tile_step / kConfig.q_stages & 1);
    if constexpr (kConfig.q_in_registers) load_queries<ConfigOf>(q, q_tile(), warp);

    // The constant half, in a way that ptxas cannot know: it would set a constant again for every
    // wgmma, in a register that holds it already. For each tile, because it would copy what lives
    // longer.
    const std::uint32_t zero = uniform(ptx::lane_id());
    high = ptx::kSwizzle128High + zero;
    q_low = (q_tile() / 16) | Low::kQ;
    top[0] = top[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
    second = newest - kConfig.stride();
    if (works) {
      // ---- First block ----
      int block = newest;
      float shrink[2];
      float large[2];
      first_block<ConfigOf>(block, first_row, last_row, seat, k_stage, s, rows, shrink, large,
                            issue_scores, release_q, find_next, tile_step, next, convert,
                            redo_scores);
      // To the warpgroup's next block, if there is one in the tile, else past the tile's last.
      const auto advance = [&](auto& stage, std::uint32_t first, int from) {
        stage.advance(first);
        if (kConfig.split && from > blocks.begin) stage.advance(first);
      };
      const auto next_stages = [&]<bool kFirst>() {
        if constexpr (kConfig.one_ring()) {
          v_follows_k();
        } else if constexpr (!kFirst) {
          advance(v_stage, shared.v_full, block + kConfig.stride());
        }
        advance(k_stage, shared.k_full, block);
      };
      next_stages.template operator()<true>();

      // ---- Main loop: S(block) and O += P V of the block before ----
      const auto step = [&]<bool kExact>() {
        step_block<ConfigOf, kExact>(block, second, tile_step, first_row, seat, zero, q_low,
                                     k_stage, v_stage, s, o, rows, ring, tile, shrink, issue_scores,
                                     issue_output, softmax_guarded, convert, guard_converted,
                                     rescale_output, next_stages);
      };
      // Diagonal, inside, far edge of a window: exact, guarded, exact.
      while (true) {
        const int stop =
            Flushed<ConfigOf>::kUsed
                ? max(blocks.begin, block - kConfig.stride() * Flushed<ConfigOf>::kBlocks)
                : blocks.begin;
        const auto more = [&] { return block - kConfig.stride() >= stop; };
        const auto far_edge = [&] {
          return kConfig.windowed() && block - kConfig.stride() <= exact_to;
        };
        while (more()) {
          if constexpr (kConfig.masked()) {
            while (more() && (block - kConfig.stride() >= exact_from || far_edge()))
              step.template operator()<true>();
          }
          while (more() && !far_edge()) step.template operator()<false>();
        }
        if (!Flushed<ConfigOf>::kUsed || block - kConfig.stride() < blocks.begin) break;
        if constexpr (Flushed<ConfigOf>::kUsed) flush();
        second = block - kConfig.stride();
      }

      // ---- Last product ----
      last_product<ConfigOf>(block, second, seat, shared, v_stage, o, rows, release_q, issue_output,
                             advance, flushed, seldom);
    } else {
      if constexpr (!kConfig.packed) find_next(tile_step + 1, next);
      if constexpr (!kConfig.o_over_q()) release_q();
    }
    if constexpr (!kConfig.split) {
#pragma unroll 1
      for (int block = works ? blocks.begin : tile_blocks.begin; block > tile_blocks.begin; --block)
        skip_block<ConfigOf>(shared, k_stage, v_stage, seat, v_follows_k);
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
      ring.release(tile_step);
    }
    const int lane = ptx::lane_id();
    const int row = first_row + 16 * warp + (lane >> 2), t = lane & 3;
    // Whether there is an output: asked again, where the answer would be spilled.
    bool has_output = works;
    if constexpr (kConfig.packed)
      has_output = __any_sync(kFullWarp, sum[0] != 0.0f || sum[1] != 0.0f);
    finish_rows<ConfigOf>(p, tile, rows, row, t);
    if constexpr (kConfig.general()) {
      store_anywhere<ConfigOf>(p, tile, o, sum, has_output, row, t);
    } else {
      Strip<ConfigOf> strip;
      if constexpr (kConfig.o_over_q()) {
        strip.address = q_tile() + warp * 16 * 128;
        ptx::named_barrier_sync<128>(kQIsRead + group);
      } else {
        // lane / 32 is 0, but keeps the address from living in a register through the main loop.
        strip.address =
            shared.q + kConfig.o_offset() + (4 * group + warp + lane / 32) * kConfig.strip_bytes();
        if (leader) ptx::tma_store_wait_read();
        __syncwarp();
      }
      fill_strip<T>(strip, o, sum, has_output, lane);
      ptx::fence_proxy_async_shared();
      __syncwarp();
      if (leader) strip.store(p, extent, o_map, tile, first_row, warp);
    }
    if constexpr (kConfig.o_over_q()) release_q();
    if constexpr (kConfig.packed) find_next(tile_step + 1, next);
    // A point of convergence: without it ptxas keeps the loop's state in vector registers.
    __syncwarp();
  }
  if (!kConfig.general() && leader) ptx::tma_store_wait();
  __syncwarp();
  if (*static_cast<volatile std::uint64_t*>(barriers + kWords - 1) != 0)
    repair_rows<T, ConfigOf>(p);
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

}  // namespace greenfast::cuda::prefill
