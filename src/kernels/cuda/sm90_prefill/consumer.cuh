// A consumer thread of cuda.sm90.prefill: what it holds, and the moves it makes. The small ones stand
// here; guard.cuh has those of the guard, steps.cuh those that take a block as a whole.
//
// What changes is held by reference to the kernel's own variables: in a struct that owned it ptxas
// found other registers. For the same reason v_stage stands before k_stage (docs/kernels/sm90.md).
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/sm90_prefill/config.hpp"
#include "kernels/cuda/sm90_prefill/products.cuh"
#include "kernels/cuda/sm90_prefill/shared_memory.cuh"
#include "kernels/cuda/sm90_prefill/softmax.cuh"

namespace greenfast::cuda::prefill {

/// Where a consumer thread sits.
struct Seat {
  int group, warp;  // its warpgroup among the consumers, its warp in that
  bool leader;      // arrives for the warp
};

/// What a thread of a build that flushes keeps in memory: output and sums of the blocks before the
/// last flush.
//
// The tensor cores cut off what an addition cannot hold, always downwards: 1.2e-7 of the sum for
// every 16 keys (H200), 0.5% after a million. So the accumulators begin anew every 8192 keys, and
// what they held is added up here, rounded to nearest. Features::window has this, and takes all
// problems of more keys than kLongRow; in the others it costs up to 4% where a CTA has one tile,
// because every launch fetches its code anew (H200, 2026-11-22).
template <class ConfigOf>
struct Flushed {
  static constexpr bool kUsed = ConfigOf::value.features >= Features::window;
  static constexpr int kBlocks = 8192 / ConfigOf::value.keys;  // between two flushes
  float o[kUsed ? ConfigOf::value.columns() / 2 : 1];
  float sum[2];
};

/// What a thread knows of masks by array, where there are any: the stage of the next block's, and
/// whether that shows it some key of its rows g and g + 8.
template <int kStages>
struct MaskAtHand : Stage<kStages> {
  using Stage<kStages>::Stage;
  bool shows[2];
};
struct NoMask {
  __device__ NoMask(std::uint32_t, std::uint32_t) {}
};
template <class ConfigOf>
using MaskOf =
    std::conditional_t<ConfigOf::value.has_mask(), MaskAtHand<ConfigOf::value.mask_stages>, NoMask>;

/// A consumer thread; T is the type of the inputs.
template <class T, class ConfigOf>
struct Consumer {
  static constexpr Config kConfig = ConfigOf::value;
  static constexpr bool kFlush = Flushed<ConfigOf>::kUsed;
  using Low = Descriptors<ConfigOf>;
  using Softmax = OnlineSoftmax<ConfigOf>;

  // Stages of the next block; with one ring V's is that of the block whose V is wanted next.
  Stage<kConfig.v_stages>& v_stage;
  Stage<kConfig.k_stages>& k_stage;
  const Seat seat;
  const SharedMemory<ConfigOf>& shared;
  // Scores, then weights.
  typename Fragments<ConfigOf>::Scores& s;
  // Output, not yet normalised; then the row sums, if there is a column of ones.
  typename Fragments<ConfigOf>::Output& o;
  // Weights of the block before, as the A operand of O += P V.
  typename Fragments<ConfigOf>::Weights& weights;
  typename Fragments<ConfigOf>::Queries& q;
  Softmax& rows;
  // Of descriptors: the half that is constant, and of stages' low halves what does not move.
  const std::uint32_t& high;
  std::uint32_t& q_low;
  const std::uint32_t k_base, v_base;
  // Of the tile's Q among stages and warpgroups.
  const int& q_index;
  // The warpgroup's first block of the tile, and that with which O begins anew.
  const int &newest, &second;
  Flushed<ConfigOf>& in_memory;
  MaskOf<ConfigOf>& mask;

  // ---- Shared memory ----
  __device__ __forceinline__ std::uint32_t q_tile() const {
    return shared.q + q_index * kConfig.q_bytes();
  }
  /// Gives a stage or Q back to the producer.
  __device__ __forceinline__ void release(std::uint32_t empty) const {
    ptx::mbarrier_arrive_if(empty, seat.leader);
  }
  __device__ __forceinline__ void release_q() const {
    // Rows of a group are copied by those that multiply them.
    if constexpr (!kIsGrouped<ConfigOf>) release(shared.q_empty + 8 * q_index);
  }
  /// V's stage becomes that of the block in K's.
  __device__ __forceinline__ void v_follows_k() const {
    v_stage.full = k_stage.full + (shared.v_full - shared.k_full);
    v_stage.parity = k_stage.parity;
  }
  /// From the stage of `block` to the warpgroup's next block, if there is one in the tile, whose
  /// last is `lowest`; else past the tile's last.
  template <int kStages>
  __device__ __forceinline__ void advance(Stage<kStages>& stage, std::uint32_t first, int block,
                                          int lowest) const {
    stage.advance(first);
    if (kConfig.split && block > lowest) stage.advance(first);
  }
  /// The same of both rings, after `block`; after the first, V's is not done with.
  template <bool kFirst>
  __device__ __forceinline__ void next_stages(int block, int lowest) const {
    if constexpr (kConfig.one_ring()) {
      v_follows_k();
    } else if constexpr (!kFirst) {
      advance(v_stage, shared.v_full, block + kConfig.stride(), lowest);
    }
    advance(k_stage, shared.k_full, block, lowest);
    if constexpr (kConfig.has_mask()) mask.advance(shared.mask_full);
  }

  // ---- Products ----
  /// S = Q K^T; asynchronous.
  __device__ __forceinline__ void issue_scores() const {
    multiply_qk<T, ConfigOf>(s, q, high, q_low, k_base + k_stage.full * Low::kPerBarrier);
  }
  /// O (+)= P V; asynchronous.
  __device__ __forceinline__ void issue_output(bool accumulate) const {
    multiply_pv<T, ConfigOf>(o, weights, high, v_base + v_stage.full * Low::kVPerBarrier,
                             accumulate);
  }
  /// Weights become the A operand of the next product.
  __device__ __forceinline__ void convert() const { convert_to<T>(weights, s); }
  /// S = Q K^T again by this warp alone, after the weights have overwritten it. K's stage must still
  /// be held.
  __device__ __forceinline__ void redo_scores() const {
    const auto k_tile = [&] {
      std::uint32_t first = shared.k;
      if constexpr (kConfig.general()) {
        first = shared.q;  // which is there; shared.k would be spilled
        asm volatile("" : "+r"(first));
        first += kConfig.k_offset();
      }
      return first + (k_stage.full - shared.k_full) / 8 * kConfig.k_bytes();
    };
    multiply_qk_alone<T, ConfigOf>(
        s, q, [&] { return q_tile(); }, k_tile, seat.warp);
  }

  // ---- Masks by array (masks.cuh) ----
  __device__ void add_mask() const;

  // ---- The guard (guard.cuh) ----
  __device__ bool softmax_guarded(float (&shrink)[2]) const;
  __device__ void guard_converted() const;
  __device__ void recover(const float (&large)[2], float (&shrink)[2]) const;
  __device__ void rescale_output(const float (&shrink)[2]) const;

  // ---- Long rows (guard.cuh) ----
  /// Whether there is something of this tile in memory.
  __device__ __forceinline__ bool flushed() const { return second != newest - kConfig.stride(); }
  __device__ __forceinline__ Flushed<ConfigOf>& memory() const {
    Flushed<ConfigOf>* address = &in_memory;
    asm volatile("" : "+l"(address));  // else the compiler would keep it all in registers
    return *address;
  }
  __device__ void flush() const;
  __device__ void add_flushed() const;

  // ---- Blocks (steps.cuh) ----
  __device__ void take_turn() const;
  __device__ void give_turn() const;
  __device__ void pass_on() const;
  __device__ void skip_block() const;
  template <class FindNext>
  __device__ void first_block(int block, int first_row, int last_row, float (&shrink)[2],
                              float (&large)[2], const FindNext& find_next_tile) const;
  __device__ void first_softmax_guessed(float (&shrink)[2], float (&large)[2]) const;
  __device__ void first_softmax_masked(float (&shrink)[2], int block, int first_row,
                                       int last_row) const;
  template <bool kExact>
  __device__ void step(int& block, int tile_step, int first_row, const int& lowest,
                       std::uint32_t zero, const TileRing<ConfigOf>& ring, TileOf<ConfigOf>& tile,
                       float (&shrink)[2]) const;
  __device__ void last_product(int block, int begun, const int& lowest) const;
};

}  // namespace greenfast::cuda::prefill
