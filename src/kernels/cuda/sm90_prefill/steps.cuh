// What a consumer warpgroup of cuda.sm90.prefill does with the blocks of a tile, in the order of
// time: pass over one, begin with its first, step through the others, multiply the last weights.
//
// The moves that they are given are the kernel's lambdas over its own arrays (kernel.cuh says why):
// issue_scores begins S = Q K^T of the block in k_stage, issue_output O (+)= P V of that in v_stage,
// convert turns weights into P, redo_scores computes S again for one warp.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/ptx_wgmma.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_prefill/config.hpp"
#include "kernels/cuda/sm90_prefill/guard.cuh"
#include "kernels/cuda/sm90_prefill/products.cuh"
#include "kernels/cuda/sm90_prefill/repair.cuh"
#include "kernels/cuda/sm90_prefill/shared_memory.cuh"
#include "kernels/cuda/sm90_prefill/softmax.cuh"

namespace greenfast::cuda::prefill {

template <class ConfigOf>
using KStage = Stage<ConfigOf::value.k_stages>;
template <class ConfigOf>
using VStage = Stage<ConfigOf::value.v_stages>;

/// Where a consumer thread sits.
struct Seat {
  int group, warp;  // its warpgroup among the consumers, its warp in that
  bool leader;      // arrives for the warp
};

/// Waits until the warpgroup may issue its products.
template <class ConfigOf>
__device__ __forceinline__ void take_turn(int group) {
  if constexpr (ConfigOf::value.takes_turns()) ptx::named_barrier_sync<256>(kTurn + group);
}
/// Lets the other one issue.
template <class ConfigOf>
__device__ __forceinline__ void give_turn(int group) {
  if constexpr (ConfigOf::value.takes_turns())
    ptx::named_barrier_arrive<256>(kTurn + (group + 1) % 2);
}

/// Passes over a block that only other warpgroups of the CTA want.
template <class ConfigOf>
__device__ __forceinline__ void skip_block(const SharedMemory<ConfigOf>& shared,
                                           KStage<ConfigOf>& k_stage, VStage<ConfigOf>& v_stage,
                                           Seat seat, const auto& v_follows_k) {
  take_turn<ConfigOf>(seat.group);
  give_turn<ConfigOf>(seat.group);
  ptx::mbarrier_wait(k_stage.full, k_stage.parity);
  ptx::mbarrier_arrive_if(k_stage.empty(), seat.leader);
  if constexpr (ConfigOf::value.one_ring()) v_follows_k();
  k_stage.advance(shared.k_full);
  ptx::mbarrier_wait(v_stage.full, v_stage.parity);
  ptx::mbarrier_arrive_if(v_stage.empty(), seat.leader);
  if constexpr (!ConfigOf::value.one_ring()) v_stage.advance(shared.v_full);
}

/// The first softmax of rows that see the whole block: with guessed bases, and where those do not
/// hold, again with the true maximum.
template <class ConfigOf>
__device__ __forceinline__ void first_softmax_guessed(OnlineSoftmax<ConfigOf>& rows,
                                                      typename Fragments<ConfigOf>::Scores& s,
                                                      float (&shrink)[2], float (&large)[2],
                                                      const auto& convert,
                                                      const auto& redo_scores) {
  rows.guess_bases(s);
  rows.exponentiate(s, large);
  if constexpr (ConfigOf::value.ones) {
    rows.largest_weights(s, large);
  } else {
    rows.sum[0] = large[0];
    rows.sum[1] = large[1];
  }
  convert();
  note_large_bases(rows.noted, rows.top[0], rows.top[1]);
  const bool fits = large[0] + large[1] <= OnlineSoftmax<ConfigOf>::kLimit;
  if (__any_sync(kFullWarp, !fits)) {
    redo_scores();
    rows.template exact<true>(s, shrink);
    convert();
  }
}

/// The first softmax of rows that may see a part of the block: masked, with the true maximum.
template <class ConfigOf>
__device__ __forceinline__ void first_softmax_masked(OnlineSoftmax<ConfigOf>& rows,
                                                     typename Fragments<ConfigOf>::Scores& s,
                                                     float (&shrink)[2], int block, int first_row,
                                                     int last_row, int warp) {
  constexpr int kKeys = ConfigOf::value.keys;
  const auto softmax = [&]<int kCount>(float(&scores)[kCount]) {
    rows.transform(scores);
    rows.mask(scores, block, first_row, warp);
    rows.template exact<true>(scores, shrink);
  };
  // A diagonal, or the end of the keys, often leaves half of it. (Multiplying only that half would
  // need accumulators of two sizes, which ptxas answers with C7511 in some builds.)
  if (kKeys == 128 && rows.extent.band.end(last_row) - block * kKeys <= 64) {
    softmax(reinterpret_cast<float(&)[32]>(s));
#pragma unroll
    for (int i = 32; i < kKeys / 2; ++i) s[i] = 0.0f;
  } else {
    softmax(s);
  }
}

/// The warpgroup's first block of a tile: S = Q K^T, then its weights. Nothing is multiplied with V
/// yet, and the next tile is looked for meanwhile.
template <class ConfigOf>
__device__ __forceinline__ void first_block(
    int block, int first_row, int last_row, Seat seat, KStage<ConfigOf>& k_stage,
    typename Fragments<ConfigOf>::Scores& s, OnlineSoftmax<ConfigOf>& rows, float (&shrink)[2],
    float (&large)[2], const auto& issue_scores, const auto& release_q, const auto& find_next,
    const int& tile_step, TileOf<ConfigOf>& next, const auto& convert, const auto& redo_scores) {
  constexpr Config kConfig = ConfigOf::value;
  ptx::mbarrier_wait(k_stage.full, k_stage.parity);
  take_turn<ConfigOf>(seat.group);
  ptx::pin_registers(s);
  ptx::wgmma_fence();
  issue_scores();
  give_turn<ConfigOf>(seat.group);
  // Not before wgmma_fence, which waits for ldmatrix to finish: an arrival overtakes it, and the
  // next Q then lands in rows not yet read (seen once in 400 runs).
  if constexpr (kConfig.q_in_registers) release_q();
  // Not where tiles are packed: what it takes to know of them would be spilled.
  if constexpr (!kConfig.packed)
    find_next(tile_step + 1, next);  // 300 clocks that pass beside this product
  ptx::wgmma_wait<0>();
  ptx::pin_registers(s);
  if (!kConfig.masked() && (block + 1) * kConfig.keys <= rows.extent.band.keys) {
    first_softmax_guessed<ConfigOf>(rows, s, shrink, large, convert, redo_scores);
    ptx::mbarrier_arrive_if(k_stage.empty(), seat.leader);
  } else {
    ptx::mbarrier_arrive_if(k_stage.empty(), seat.leader);
    first_softmax_masked<ConfigOf>(rows, s, shrink, block, first_row, last_row, seat.warp);
    convert();
  }
}

/// A step of the main loop: S = Q K^T of the next block and O += P V of the one before, and while
/// the tensor cores are at the second, the softmax of the first. kExact: masked, with the true
/// maximum; else with the bases at hand, and the guard watches.
template <class ConfigOf, bool kExact>
__device__ __forceinline__ void step_block(
    int& block, int second, int tile_step, int first_row, Seat seat, std::uint32_t zero,
    std::uint32_t& q_low, KStage<ConfigOf>& k_stage, VStage<ConfigOf>& v_stage,
    typename Fragments<ConfigOf>::Scores& s, typename Fragments<ConfigOf>::Output& o,
    OnlineSoftmax<ConfigOf>& rows, const TileRing<ConfigOf>& ring, TileOf<ConfigOf>& tile,
    float (&shrink)[2], const auto& issue_scores, const auto& issue_output,
    const auto& softmax_guarded, const auto& convert, const auto& guard_converted,
    const auto& rescale_output, const auto& next_stages) {
  constexpr Config kConfig = ConfigOf::value;
  constexpr bool kLateGuard = kConfig.late_guard() && !kExact;
  block -= kConfig.stride();
  // Else ptxas keeps the descriptors of a large Q in registers that it does not have.
  if constexpr (kConfig.head_dim > 128) q_low ^= zero;
  ptx::mbarrier_wait(k_stage.full, k_stage.parity);
  ptx::mbarrier_wait(v_stage.full, v_stage.parity);
  take_turn<ConfigOf>(seat.group);
  ptx::pin_registers(s);
  ptx::pin_registers(o);
  ptx::wgmma_fence();
  issue_scores();
  issue_output(block < second);
  give_turn<ConfigOf>(seat.group);
  ptx::wgmma_wait<1>();
  ptx::pin_registers(s);
  rows.transform(s);
  bool rescale = true;
  if constexpr (kExact) {
    // Three warpgroups have no registers to keep it, nor has anyone for eight numbers.
    if constexpr (kConfig.packed && (kConfig.warpgroups == 3 || kConfig.serving))
      ring.read_band(tile_step, tile.extent.band);
    rows.mask(s, block, first_row, seat.warp);
    rows.template exact<false>(s, shrink);
  } else if constexpr (kLateGuard) {
    float unused[2];
    rows.exponentiate(s, unused);
  } else {
    rescale = softmax_guarded(shrink);
  }
  if constexpr (!kLateGuard) ptx::mbarrier_arrive_if(k_stage.empty(), seat.leader);
  ptx::pin_registers(s);
  ptx::wgmma_wait<0>();
  ptx::pin_registers(o);
  ptx::pin_registers(s);
  ptx::mbarrier_arrive_if(v_stage.empty(), seat.leader);
  if constexpr (kLateGuard) {
    convert();
    guard_converted();
    ptx::mbarrier_arrive_if(k_stage.empty(), seat.leader);
  } else {
    if (rescale) rescale_output(shrink);
    convert();
  }
  next_stages.template operator()<false>();
}

/// O += P V of the tile's last block, and with it what was flushed; then the row sums are whole.
template <class ConfigOf>
__device__ __forceinline__ void last_product(int block, int second, Seat seat,
                                             const SharedMemory<ConfigOf>& shared,
                                             VStage<ConfigOf>& v_stage,
                                             typename Fragments<ConfigOf>::Output& o,
                                             OnlineSoftmax<ConfigOf>& rows, const auto& release_q,
                                             const auto& issue_output, const auto& advance,
                                             const auto& flushed, const auto& seldom) {
  constexpr Config kConfig = ConfigOf::value;
  // Q's place is free from here on, if it was not since Q came to registers; where O takes it,
  // after O is stored.
  if constexpr (!kConfig.q_in_registers && !kConfig.o_over_q()) release_q();
  ptx::mbarrier_wait(v_stage.full, v_stage.parity);
  ptx::pin_registers(o);
  ptx::wgmma_fence();
  issue_output(block <= second);
  ptx::wgmma_wait<0>();
  ptx::pin_registers(o);
  ptx::mbarrier_arrive_if(v_stage.empty(), seat.leader);
  if constexpr (!kConfig.one_ring()) advance(v_stage, shared.v_full, block);
  if constexpr (Flushed<ConfigOf>::kUsed) {
    if (flushed()) add_flushed<ConfigOf>(seldom, o, rows.sum);
  }
  // The other columns of the ones are zeros.
  if constexpr (kConfig.ones) {
    constexpr int kSums = kConfig.head_dim / 2;
    rows.sum[0] = o[kSums] + o[kSums + 1];
    rows.sum[1] = o[kSums + 2] + o[kSums + 3];
  }
}

}  // namespace greenfast::cuda::prefill
