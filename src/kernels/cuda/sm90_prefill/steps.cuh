// What a consumer warpgroup of cuda.sm90.prefill does with the blocks of a tile, in the order of
// time: pass over one, begin with its first, step through the others, multiply the last weights.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/ptx_wgmma.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_prefill/consumer.cuh"
#include "kernels/cuda/sm90_prefill/grouped.cuh"
#include "kernels/cuda/sm90_prefill/guard.cuh"
#include "kernels/cuda/sm90_prefill/masks.cuh"
#include "kernels/cuda/sm90_prefill/repair.cuh"

namespace greenfast::cuda::prefill {

/// Waits until the warpgroup may issue its products.
template <class T, class ConfigOf>
__device__ __forceinline__ void Consumer<T, ConfigOf>::take_turn() const {
  if constexpr (kConfig.takes_turns()) ptx::named_barrier_sync<256>(kTurn + seat.group);
}
/// Lets the other one issue.
template <class T, class ConfigOf>
__device__ __forceinline__ void Consumer<T, ConfigOf>::give_turn() const {
  if constexpr (kConfig.takes_turns()) ptx::named_barrier_arrive<256>(kTurn + (seat.group + 1) % 2);
}

/// Where warpgroups alternate: all blocks of this tile have been waited for, and the other may wait for its
/// own. Not before: it does not look at the rings meanwhile, and a phase two ahead looks like this one.
template <class T, class ConfigOf>
__device__ __forceinline__ void Consumer<T, ConfigOf>::pass_on() const {
  if (alternates<ConfigOf>(rows.p)) ptx::named_barrier_arrive<256>(kTurn + (seat.group + 1) % 2);
}

/// Passes over a block that only other warpgroups of the CTA want.
template <class T, class ConfigOf>
__device__ __forceinline__ void Consumer<T, ConfigOf>::skip_block() const {
  take_turn();
  give_turn();
  ptx::mbarrier_wait(k_stage.full, k_stage.parity);
  release(k_stage.empty());
  if constexpr (kConfig.one_ring()) v_follows_k();
  k_stage.advance(shared.k_full);
  ptx::mbarrier_wait(v_stage.full, v_stage.parity);
  release(v_stage.empty());
  if constexpr (!kConfig.one_ring()) v_stage.advance(shared.v_full);
  if constexpr (kConfig.has_mask()) {
    ptx::mbarrier_wait(mask.full, mask.parity);
    release(mask.empty());
    mask.advance(shared.mask_full);
  }
}

/// The warpgroup's first block of a tile: S = Q K^T, then its weights. Nothing is multiplied with V
/// yet, and the next tile is looked for meanwhile.
template <class T, class ConfigOf>
template <class FindNext>
__device__ __forceinline__ void Consumer<T, ConfigOf>::first_block(
    int block, int first_row, int last_row, float (&shrink)[2], float (&large)[2],
    const FindNext& find_next_tile) const {
  ptx::mbarrier_wait(k_stage.full, k_stage.parity);
  if constexpr (kCopiesRows<ConfigOf>) ptx::fence_proxy_async_shared();
  take_turn();
  ptx::pin_registers(s);
  ptx::wgmma_fence();
  issue_scores();
  give_turn();
  // Not before wgmma_fence, which waits for ldmatrix to finish: an arrival overtakes it, and the
  // next Q then lands in rows not yet read (seen once in 400 runs).
  if constexpr (kConfig.q_in_registers) release_q();
  // Not where tiles are packed: what it takes to know of them would be spilled.
  if constexpr (!kConfig.packed) find_next_tile();  // 300 clocks that pass beside this product
  ptx::wgmma_wait<0>();
  ptx::pin_registers(s);
  if (!kConfig.masked() && (block + 1) * kConfig.keys <= rows.extent.band.keys) {
    first_softmax_guessed(shrink, large);
    release(k_stage.empty());
  } else {
    release(k_stage.empty());
    first_softmax_masked(shrink, block, first_row, last_row);
    convert();
  }
}

/// The first softmax of rows that see the whole block: with guessed bases, and where those do not
/// hold, again with the true maximum.
template <class T, class ConfigOf>
__device__ __forceinline__ void Consumer<T, ConfigOf>::first_softmax_guessed(
    float (&shrink)[2], float (&large)[2]) const {
  rows.guess_bases(s);
  rows.exponentiate(s, large);
  if constexpr (kConfig.ones) {
    rows.largest_weights(s, large);
  } else {
    rows.sum[0] = large[0];
    rows.sum[1] = large[1];
  }
  convert();
  note_large_bases(rows.noted, rows.top[0], rows.top[1]);
  const bool fits = large[0] + large[1] <= Softmax::kLimit;
  if (__any_sync(kFullWarp, !fits)) {
    redo_scores();
    rows.template exact<true>(s, shrink);
    convert();
  }
}

/// The first softmax of rows that may see a part of the block: masked, with the true maximum.
template <class T, class ConfigOf>
__device__ __forceinline__ void Consumer<T, ConfigOf>::first_softmax_masked(float (&shrink)[2],
                                                                            int block,
                                                                            int first_row,
                                                                            int last_row) const {
  constexpr int kKeys = kConfig.keys;
  const auto softmax = [&]<int kCount>(float(&scores)[kCount]) {
    rows.transform(scores);
    if constexpr (kConfig.has_mask()) {
      ptx::mbarrier_wait(mask.full, mask.parity);
      add_mask();
    }
    rows.mask(scores, block, first_row, seat.warp);
    rows.template exact<true>(scores, shrink);
    // Behind what waits for its loads, which an arrival would overtake.
    if constexpr (kConfig.has_mask()) release(mask.empty());
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

/// A step of the main loop: S = Q K^T of the next block and O += P V of the one before, and while
/// the tensor cores are at the second, the softmax of the first. kExact: masked, with the true
/// maximum; else with the bases at hand, and the guard watches.
template <class T, class ConfigOf>
template <bool kExact>
__device__ __forceinline__ void Consumer<T, ConfigOf>::step(
    int& block, int tile_step, int first_row, const int& lowest, std::uint32_t zero,
    const TileRing<ConfigOf>& ring, TileOf<ConfigOf>& tile, float (&shrink)[2]) const {
  constexpr bool kLateGuard = kConfig.late_guard() && !kExact;
  block -= kConfig.stride();
  // Else ptxas keeps the descriptors of a large Q in registers that it does not have.
  if constexpr (kConfig.head_dim > 128) q_low ^= zero;
  ptx::mbarrier_wait(k_stage.full, k_stage.parity);
  ptx::mbarrier_wait(v_stage.full, v_stage.parity);
  if constexpr (kConfig.has_mask()) ptx::mbarrier_wait(mask.full, mask.parity);
  if constexpr (kCopiesRows<ConfigOf>) ptx::fence_proxy_async_shared();
  take_turn();
  ptx::pin_registers(s);
  ptx::pin_registers(o);
  ptx::wgmma_fence();
  issue_scores();
  issue_output(block < second);
  give_turn();
  ptx::wgmma_wait<1>();
  ptx::pin_registers(s);
  if constexpr (kExact || !kConfig.general()) rows.transform(s);
  bool rescale = true;
  if constexpr (kConfig.has_mask()) add_mask();
  if constexpr (kExact) {
    // Three warpgroups have no registers to keep it, nor has anyone for eight numbers.
    if constexpr (kConfig.packed && (kConfig.warpgroups == 3 || kConfig.serving))
      ring.read_band(tile_step, band_of<ConfigOf>(tile));
    rows.mask(s, block, first_row, seat.warp);
    rows.template exact<false>(s, shrink);
  } else if constexpr (kLateGuard) {
    float unused[2];
    rows.exponentiate(s, unused);
  } else {
    rescale = softmax_guarded(shrink);
  }
  if constexpr (!kLateGuard) release(k_stage.empty());
  if constexpr (kConfig.has_mask()) release(mask.empty());
  ptx::pin_registers(s);
  ptx::wgmma_wait<0>();
  ptx::pin_registers(o);
  ptx::pin_registers(s);
  release(v_stage.empty());
  if constexpr (kLateGuard) {
    convert();
    guard_converted();
    release(k_stage.empty());
  } else {
    if (rescale) rescale_output(shrink);
    convert();
  }
  next_stages<false>(block, lowest);
}

/// O += P V of the tile's last block, and with it what was flushed; then the row sums are whole.
/// `begun` is `second`, as a value.
template <class T, class ConfigOf>
__device__ __forceinline__ void Consumer<T, ConfigOf>::last_product(int block, int begun,
                                                                    const int& lowest) const {
  // Q's place is free from here on, if it was not since Q came to registers; where O takes it,
  // after O is stored.
  if constexpr (!kConfig.q_in_registers && !kConfig.o_over_q()) release_q();
  ptx::mbarrier_wait(v_stage.full, v_stage.parity);
  if constexpr (kCopiesRows<ConfigOf> && !kConfig.bytes) ptx::fence_proxy_async_shared();
  pass_on();
  ptx::pin_registers(o);
  ptx::wgmma_fence();
  issue_output(block <= begun);
  // Bases only rise: the first was noted, so with the last all were, whoever raised them.
  if constexpr (!Softmax::kNatural) note_large_bases(rows.noted, rows.top[0], rows.top[1]);
  if constexpr (kConfig.bytes) note_large_bases(rows.noted, rows.cut_of_scores(), 0.0f);
  ptx::wgmma_wait<0>();
  ptx::pin_registers(o);
  release(v_stage.empty());
  if constexpr (!kConfig.one_ring()) advance(v_stage, shared.v_full, block, lowest);
  if constexpr (kFlush) {
    if (flushed()) add_flushed();
  }
  // The other columns of the ones are zeros.
  if constexpr (kConfig.ones) {
    constexpr int kSums = kConfig.head_dim / 2;
    rows.sum[0] = o[kSums] + o[kSums + 1];
    rows.sum[1] = o[kSums + 2] + o[kSums + 3];
  }
}

}  // namespace greenfast::cuda::prefill
