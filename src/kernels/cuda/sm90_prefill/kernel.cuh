// 70_sm90a_prefill.cuh   Idea: TMA feeds wgmma; softmax hides under matrix work; no row maximum.
//
// One producer warp copies Q, K and V tiles by TMA into a ring of stages; each consumer warpgroup
// owns 64 query rows and keeps their scores, weights and output in registers. A step issues
// S(j) = Q K(j)^T before O += P(j-1) V(j-1), so that the tensor cores multiply while the other
// pipes exponentiate. Blocks run from the last visible key to the first.
//
// The row maximum is taken wherever a mask cuts. Else the first block takes that of a quarter of
// its keys, the others keep the stale one, and a guard watches the range: beyond 2^15, or 2^13 of a
// thread's sum, the weights are scaled down, beyond 2^100 the block is done again with its true maximum. It looks at the row
// sum, which is needed anyway, or, where the tensor cores sum the rows, at the largest weight. That
// leaves 3.7 instructions a score at D 64 and 4.6 at D 128, all counted, where the maximum took 2
// more (H200, 2026-11-20: +10% at D 128, +8% at D 64).
//
// Limits: sm_90a, 16-bit inputs, D <= 256, row strides that TMA takes (16 bytes).
// Budget: one CTA per SM; registers by setmaxnreg. Bound: issue slots under wgmma, then power.
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
#include "kernels/cuda/sm90_prefill/producer.cuh"
#include "kernels/cuda/sm90_prefill/shared_memory.cuh"

namespace greenfast::cuda::prefill {

template <class T, class ConfigOf>
__global__ void __launch_bounds__(ConfigOf::value.threads(), 1)
    prefill_kernel(const __grid_constant__ CUtensorMap q_map,
                   const __grid_constant__ CUtensorMap k_map,
                   const __grid_constant__ CUtensorMap v_map,
                   const __grid_constant__ CUtensorMap o_map, const __grid_constant__ Params p) {
  static constexpr Config kConfig = ConfigOf::value;
  constexpr int kHeadDim = kConfig.head_dim, kKeys = kConfig.keys;
  constexpr bool kOnes = kConfig.ones;
  constexpr bool kLateGuard = kConfig.late_guard();
  constexpr int kColumns = kConfig.columns();
  constexpr int kQStages = kConfig.q_stages;
  constexpr bool kOneRing =
      kConfig.k_stages == kConfig.v_stages;  // a block's K and V are in stages of one index
  using KStage = Stage<kConfig.k_stages>;
  using VStage = Stage<kConfig.v_stages>;
  constexpr int kChunks = kConfig.chunks(), kWarpgroups = kConfig.warpgroups;
  constexpr bool kMasked = kConfig.features != Features::plain;
  constexpr bool kWindow = kConfig.features >= Features::window;
  constexpr bool kGeneral = kConfig.features == Features::general;
  constexpr bool kFlush = kWindow;
  constexpr bool kSplit = kConfig.split;
  constexpr int kStride = kSplit ? kWarpgroups : 1;  // from a warpgroup's block to its next
  constexpr bool kTurns = kOnes && !kMasked && kWarpgroups == 2 && !kSplit;
  // A word of bits becomes predicates in five instructions, where comparisons are one for each
  // score; at D 128 causal that was 1 to 2% slower, at D 64 up to 3% faster (H200, 2026-11-22).
  constexpr bool kMaskByBits = kHeadDim == 64 || !kMasked;

  // ---- Prologue: shared memory and barriers ----
  extern __shared__ std::uint8_t raw_shared[];
  __shared__ alignas(8) std::uint64_t barriers[SharedMemory<ConfigOf>::kBarriers];
  const SharedMemory<ConfigOf> shared(raw_shared, barriers);
  const std::uint32_t q_shared = shared.q, k_shared = shared.k, v_shared = shared.v,
                      q_full = shared.q_full, q_empty = shared.q_empty, k_full = shared.k_full,
                      v_full = shared.v_full;
  const int warpgroup = uniform(threadIdx.x >> 7), lane = threadIdx.x & 31;
  if (threadIdx.x == 0) {
    ptx::tensormap_prefetch(&q_map);
    ptx::tensormap_prefetch(&k_map);
    ptx::tensormap_prefetch(&v_map);
    shared.init_barriers();
    if (p.release_at_entry) ptx::grid_launch_dependents();
  }
  if constexpr (kOnes) shared.template lay_out_ones<T>(raw_shared);
  __syncthreads();

  Tile tile;
  if (warpgroup == 0) {
    ptx::setmaxnreg_decrease<kConfig.producer_registers()>();
    if (threadIdx.x < 32) {
      Producer<ConfigOf> producer(p, q_map, k_map, v_map, shared, lane == 0, tile);
      producer.run();
    }
    return;
  }
  // ---- Consumers ----
  ptx::setmaxnreg_increase<kConfig.consumer_registers()>();
  const int group = uniform(ptx::thread_index() >> 7) - 1, warp = uniform((threadIdx.x >> 5) & 3);
  int q_index = group;  // of the tile's Q among stages and warpgroups
  const auto q_tile = [&] { return q_shared + q_index * kConfig.q_bytes(); };
  const bool leader = lane == 0;
  const float scale = kGeneral ? 1.0f : p.scale_log2;

  float s[kKeys / 2];                    // scores, then weights
  float o[kColumns / 2];                 // output, not yet normalised; then the row sums if kOnes
  std::uint32_t weights[kKeys / 16][4];  // of the previous block, as A operand
  std::uint32_t q[kConfig.q_in_registers ? kHeadDim / 16 : 1][4];
  float top[2] = {},
        sum[2];  // of rows g and g + 8: base of the exponents, this thread's part of the sum
  KStage k_stage(k_full, 0);
  VStage v_stage(v_full, 0);  // with kOneRing the stage of the block whose V is wanted next
  const auto v_follows_k = [&] {
    v_stage.full = k_stage.full + (v_full - k_full);
    v_stage.parity = k_stage.parity;
  };

  // Of descriptors: the half that is constant, and Q's other half.
  std::uint32_t high = 0, q_low = 0;
  constexpr std::uint32_t kPerBarrier = kConfig.block_bytes() / 128;  // of a descriptor
  const std::uint32_t k_base = uniform(((k_shared / 16) | 0x10000u) - k_full * kPerBarrier);
  // S = Q K^T; asynchronous.
  const auto issue_scores = [&] {
    const std::uint32_t k_low = k_base + k_stage.full * kPerBarrier;
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      const auto b = ptx::descriptor(high, k_low + (k / 4) * (kKeys * 128 / 16) + (k % 4) * 2);
      if constexpr (kConfig.q_in_registers) {
        ptx::wgmma_rs<T, kKeys>(s, q[k], b, k > 0);
      } else {
        const auto a = ptx::descriptor(high, q_low + (k / 4) * (64 * 128 / 16) + (k % 4) * 2);
        ptx::wgmma_ss<T, kKeys>(s, a, b, k > 0);
      }
    }
    ptx::wgmma_commit();
  };
  // The leading offset leads from a chunk of 64 columns to the next, or to the ones.
  constexpr std::uint32_t kChunk =
      (kOnes ? kConfig.ones_offset() - kConfig.v_offset() : kKeys * 128) / 16;
  constexpr std::uint32_t kStep = kOnes ? 1u - 0x10000u : 1u;
  const std::uint32_t v_base =
      uniform(((v_shared / 16) | (kChunk << 16)) - v_full * (kPerBarrier * kStep));
  // O (+)= P V; asynchronous.
  const auto issue_output = [&](bool accumulate) {
    const std::uint32_t v_low = v_base + v_stage.full * (kPerBarrier * kStep);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k)
      ptx::wgmma_rs_nmajor<T, kColumns>(o, weights[k],
                                        ptx::descriptor(high, v_low + k * (16 * 128 / 16) * kStep),
                                        k > 0 || accumulate);
    ptx::wgmma_commit();
  };
  // Scores as the softmax wants them, in units of log2 after one multiplication by `scale`.
  const auto transform = [&]<int kCount>(float(&scores)[kCount]) {
    if constexpr (kGeneral) {
      if (p.softcap_out > 0.0f) {
#pragma unroll
        for (float& x : scores) x = softcap_from_log2(x * p.softcap_in, p.softcap_out);
      } else {
#pragma unroll
        for (float& x : scores) x *= p.scale_log2;
      }
    }
  };
  // Hides what the rows do not see.
  const auto mask = [&]<int kCount>(float(&scores)[kCount], int block, int first_row) {
    const int lane = ptx::lane_id();  // anew, as in redo_scores
    const int row = first_row + 16 * warp + (lane >> 2);
    const int first_key = block * kKeys + 2 * (lane & 3);
    // columns_below for blocks of kKeys. (One of the two could go when kernels are next recorded.)
    const auto before = [](int key) {
      const int keys = min(max(key, 0), kKeys);
      return low_bits(2 * (keys >> 3) + min(keys & 7, 2));
    };
    const auto hide_from = [&]<int kFrom>() {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int end = p.band.end(row + 8 * h) - first_key;
        const int begin = kWindow ? p.band.first(row + 8 * h) - first_key : 0;
        const std::uint32_t visible = kMaskByBits ? before(end) & ~before(begin) : 0;
#pragma unroll
        for (int bit = kFrom / 2; bit < kCount / 2; ++bit) {
          const int i = 4 * (bit / 2) + 2 * h + bit % 2, key = 8 * (bit / 2) + bit % 2;
          const bool hidden =
              kMaskByBits ? (visible >> bit & 1) == 0 : key >= end || (kWindow && key < begin);
          if (hidden) scores[i] = -INFINITY;
        }
      }
    };
    // Of the second of two diagonal warpgroups, every row sees the first half.
    if (!kWindow && kCount == 64 && p.band.end(first_row) - block * kKeys >= 64) {
      hide_from.template operator()<kCount / 2>();
    } else {
      hide_from.template operator()<0>();
    }
  };
  // scores = 2^scores, and, without kOnes, their sums.
  const auto weigh = [&]<int kCount>(float(&scores)[kCount], float(&block_sum)[2]) {
    [[maybe_unused]] float part[4];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      scores[i] = exp2_fast(scores[i]);
      if constexpr (!kOnes) part[i & 3] = i < 4 ? scores[i] : part[i & 3] + scores[i];
    }
    if constexpr (!kOnes) {
      block_sum[0] = part[0] + part[1];
      block_sum[1] = part[2] + part[3];
    }
  };
  // The same of scale * scores - base.
  const auto exponentiate = [&]<int kCount>(float(&scores)[kCount], float base0, float base1,
                                            float(&block_sum)[2]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) scores[i] = fmaf(scores[i], scale, i & 2 ? -base1 : -base0);
    weigh(scores, block_sum);
  };
  // Of the guard. The weights begin at 2^0, as low as fp16's subnormals allow when thousands of
  // keys share the tail of a row, and may grow to this before a base is raised; fp16 ends at 65504.
  // The second is for a thread's sum of them.
  constexpr float kLimit = kOnes ? 0x1p15f : 0x1p13f;
  // What a thread wants seldom, and keeps in memory.
  struct Seldom {
    float o[kFlush ? kColumns / 2 : 1];  // output and sums of the blocks before the last `flush`
    float sum[2];
  } in_memory;
  const auto seldom = [&]() -> Seldom& {
    Seldom* address = &in_memory;
    asm volatile("" : "+l"(address));  // else the compiler would keep it all in registers
    return *address;
  };
  // The bases of rows whose `top` is NaN. With three warpgroups in shared memory, where they have
  // room: an address of their own memory would be what spills.
  constexpr bool kSharedBases = kWarpgroups == 3;
  __shared__ WideBase shared_bases[kSharedBases ? kWarpgroups * 128 : 1][2];
  WideBase own_bases[kSharedBases ? 1 : 2];
  const auto bases = [&]() -> WideBase* {
    if constexpr (kSharedBases) {
      return shared_bases[ptx::thread_index() - 128];
    } else {
      WideBase* address = own_bases;
      asm volatile("" : "+l"(address));
      return address;
    }
  };
  const auto base_of_row = [&](int h) -> WideBase {
    return isnan(top[h]) ? bases()[h] : WideBase{top[h], 0.0f};
  };
  const auto set_base = [&](int h, WideBase base) {
    top[h] = base.high;
    if (base.low != 0.0f) {
      bases()[h] = base;
      top[h] = NAN;  // so that the guard trips, and every block comes to softmax_exact
    }
  };
  // One block of online softmax with the true maximum; `shrink` is what O must be multiplied by.
  // It has no branch for bases that one float cannot hold, but subtracts their second half always:
  // a branch costs 3 to 8% under a causal mask at S 512 and 1024, where the subtraction costs 1 to
  // 2 (H200, 2026-11-22).
  const auto softmax_exact = [&]<bool kFirst, int kCount>(float(&scores)[kCount],
                                                          float(&shrink)[2]) {
    float most[4] = {scores[0], scores[1], scores[2], scores[3]}, block_sum[2];
#pragma unroll
    for (int i = 4; i < kCount; ++i) most[i & 3] = fmaxf(most[i & 3], scores[i]);
    WideBase from[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      WideBase base = wide_base(quad_max(fmaxf(most[2 * h], most[2 * h + 1])), scale);
      if constexpr (kFirst) {
        from[h] = finite(base);  // no key seen yet: weights 0, not NaN
      } else {
        const WideBase before = base_of_row(h);
        base = larger(before, base);
        from[h] = finite(base);
        shrink[h] = exp2_fast(distance(before, from[h]));
      }
      set_base(h, base);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) scores[i] = exponent(scores[i], scale, from[i >> 1 & 1]);
    weigh(scores, block_sum);
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if constexpr (!kOnes) sum[h] = kFirst ? block_sum[h] : sum[h] * shrink[h] + block_sum[h];
  };
  // Scores become the A operand of the next product.
  const auto convert = [&]<int kCount>(const float(&scores)[kCount]) {
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 8 * k + 2 * i;
        weights[k][i] = at < kCount ? pack2<T>(scores[at % kCount], scores[(at + 1) % kCount]) : 0;
      }
    }
  };
  // S = Q K^T again by this warp alone, after the weights have overwritten it. K's stage must still
  // be held.
  const auto redo_scores = [&] {
    // Read anew, so that addresses of this rare path do not live in registers all the time.
    const int lane = ptx::lane_id();
    const int row = (lane & 7) + ((lane >> 4) << 3), half = (lane >> 3) & 1;
#pragma unroll
    for (float& x : s) x = 0.0f;
    // Rolled where Q is not in registers: the loads of an unrolled loop would take registers that
    // the main loop has none of to spare.
    constexpr int kUnroll = kConfig.q_in_registers ? kHeadDim / 16 : 1;
#pragma unroll kUnroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      std::uint32_t a[4];
      if constexpr (kConfig.q_in_registers) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = q[k][i];
      } else {
        const int q_row = 16 * warp + (lane & 15);
        ptx::ldmatrix_x4(a, q_tile() + (k / 4) * 64 * 128 + q_row * 128 +
                                ((((k % 4) * 2 + (lane >> 4)) ^ (lane & 7)) << 4));
      }
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        std::uint32_t b[4];
        ptx::ldmatrix_x4(b, k_shared + (k_stage.full - k_full) / 8 * kConfig.block_bytes() +
                                (k / 4) * kKeys * 128 + (16 * n + row) * 128 +
                                ((((k % 4) * 2 + half) ^ (lane & 7)) << 4));
        ptx::mma_m16n8k16<T>(reinterpret_cast<float(&)[4]>(s[8 * n]), a, b[0], b[1]);
        ptx::mma_m16n8k16<T>(reinterpret_cast<float(&)[4]>(s[8 * n + 4]), a, b[2], b[3]);
      }
    }
  };
  constexpr float kEnough = kOnes ? 16.0f : 64.0f;  // worth a new base where another row needs one
  // The bases of rows whose largest weights, or sums of them, are large; `shrink` is what O must be
  // multiplied by. A power of two keeps weights that are rounded already as they are. Where they
  // are summed before rounding, the largest becomes 1: a key that decides the row alone then has
  // the same weight above and below the fraction, and O is V.
  const auto raise_bases = [&](float large0, float large1, float(&shrink)[2]) {
    const float large[2] = {quad_max(large0), quad_max(large1)};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float size =
          kOnes ? static_cast<float>((__float_as_int(large[h]) >> 23) - 127) : __log2f(large[h]);
      const float before = top[h];
      top[h] += large[h] > kEnough ? size : 0.0f;
      shrink[h] = exp2_fast(before - top[h]);  // what the rounded sum really is
    }
  };
  constexpr float kHuge = 0x1p100f;  // ex2.approx.ftz of -127 is 0, so larger steps are redone
  // Weights beyond the range of the guard, `large` of them at most or their sum: scales them down
  // exactly, or takes the block's true maximum.
  const auto recover = [&](const float(&large)[2], float(&shrink)[2]) {
    if (__any_sync(kFullWarp, !(large[0] + large[1] <= kHuge))) {
      redo_scores();
      transform(s);
      softmax_exact.template operator()<false>(s, shrink);
      return;
    }
    raise_bases(large[0], large[1], shrink);
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if constexpr (!kOnes) sum[h] = sum[h] * shrink[h] + large[h] * shrink[h];
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) s[i] *= shrink[(i >> 1) & 1];
  };
  // The largest weights of this thread's part of both rows. Positive floats are ordered as
  // integers, of which three compare at once, and the NaN of ex2.approx (0x7fffffff) above them.
  const auto largest_weights = [&](float(&most)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int largest = 0;
#pragma unroll
      for (int i = 2 * h; i < kKeys / 2; i += 4)
        largest = __vimax3_s32(largest, __float_as_int(s[i]), __float_as_int(s[i + 1]));
      most[h] = __int_as_float(largest);
    }
  };
  // Softmax with the maximum of earlier blocks. Returns whether O must be multiplied by `shrink`.
  const auto softmax_guarded = [&](float(&shrink)[2]) -> bool {
    float large[2];  // sums, or with kOnes the largest
    exponentiate(s, top[0], top[1], large);
    if constexpr (kOnes) largest_weights(large);
    const bool trouble = __any_sync(kFullWarp, !(large[0] + large[1] <= kLimit));  // or NaN
    if (trouble) {
      recover(large, shrink);
    } else if constexpr (!kOnes) {
      sum[0] += large[0];
      sum[1] += large[1];
    }
    return trouble;
  };
  int newest = 0, second = 0;  // the warpgroup's first block, and that with which O begins anew
  const auto flushed = [&] { return second != newest - kStride; };
  const auto rescale_output = [&](const float(&shrink)[2]) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) o[i] *= shrink[(i >> 1) & 1];
    if constexpr (kFlush) {
      if (flushed()) {
        Seldom& before = seldom();
#pragma unroll
        for (int i = 0; i < kColumns / 2; ++i) before.o[i] *= shrink[(i >> 1) & 1];
#pragma unroll
        for (int h = 0; h < 2; ++h) before.sum[h] *= shrink[h];
      }
    }
  };
  // The tensor cores cut off what an addition cannot hold, always downwards: 1.2e-7 of the sum for
  // every 16 keys (H200), 0.5% after a million. So the accumulators begin anew every 8192 keys, and
  // what they held is added up here, rounded to nearest. Features::window has this, and takes all
  // problems of more keys than kLongRow; in the others it costs up to 4% where a CTA has one tile,
  // because every launch fetches its code anew (H200, 2026-11-22).
  constexpr int kFlushBlocks = 8192 / kKeys;
  const auto flush = [&] {
    Seldom& before = seldom();
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) before.o[i] = flushed() ? before.o[i] + o[i] : o[i];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      before.sum[h] = flushed() ? before.sum[h] + sum[h] : sum[h];
      sum[h] = 0.0f;
    }
  };
  // The guard on weights that are converted already, two to a word.
  const auto guard_converted = [&] {
    const auto pair = [&](int i, int h) {
      return reinterpret_cast<const __half2&>(weights[i / 2][2 * (i % 2) + h]);
    };
    __half2 most[2] = {pair(0, 0), pair(0, 1)};
#pragma unroll
    for (int i = 1; i < kKeys / 8; ++i) {
      most[0] = __hmax2_nan(most[0], pair(i, 0));
      most[1] = __hmax2_nan(most[1], pair(i, 1));
    }
    const bool inside = __hble2(__hmax2_nan(most[0], most[1]), __float2half2_rn(kLimit));
    if (!__any_sync(kFullWarp, !inside)) return;
    float shrink[2];
    const float2 row[2] = {__half22float2(most[0]), __half22float2(most[1])};
    if (__any_sync(kFullWarp, !(row[0].x + row[0].y + row[1].x + row[1].y <= 4 * 65504.0f))) {
      // Beyond fp16; the weights before conversion say how far.
      float large[2];
      largest_weights(large);
      recover(large, shrink);
      convert(s);
    } else {
      raise_bases(fmaxf(row[0].x, row[0].y), fmaxf(row[1].x, row[1].y), shrink);
      const __half2 factor[2] = {__float2half2_rn(shrink[0]), __float2half2_rn(shrink[1])};
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) {
        auto& two = reinterpret_cast<__half2&>(weights[i / 4][i % 4]);
        two = __hmul2(two, factor[i & 1]);
      }
    }
    rescale_output(shrink);
  };

  if (kTurns && group == 1) ptx::named_barrier_arrive(kTurn, 256);
  if (kSplit && group == 0) ptx::named_barrier_arrive(kExchangeEmpty, 256);
  Tile next = {};
  // An index below 0 says that there is no tile: a bool beside it would be what spills.
  const auto find_next = [&](int step, Tile& found) {
    if (!next_tile(p, step, found)) found.index = -1;
  };
  find_next(0, tile);
  for (int tile_step = 0; tile.index >= 0; tile = next, ++tile_step) {
    const int tile_row = tile.index * kConfig.rows(),
              first_row = tile_row + (kSplit ? 0 : 64 * group);
    const BlockRange tile_blocks =
        visible_blocks<ConfigOf>(p, tile_row, min(tile_row + kConfig.rows(), p.seq_q) - 1);
    const int last_row = min(first_row + 63, p.seq_q - 1);
    const BlockRange blocks = visible_blocks<ConfigOf>(p, first_row, last_row);
    // The warpgroup's first block and how many it has.
    newest = blocks.end - 1 - (kSplit ? group : 0);
    const bool works = first_row < p.seq_q && newest >= blocks.begin;
    // Blocks from exact_from on, and up to exact_to, are not seen whole by all rows.
    const int exact_from = min(max(first_row + p.band.above, 0), p.band.keys) / kKeys;
    const int exact_to = (last_row + p.band.below + kKeys - 1) / kKeys - 1;

    const auto release = [&](std::uint32_t barrier) { ptx::mbarrier_arrive_if(barrier, leader); };
    // Two warpgroups that start together stay together and wait for the same pipe; taking turns to
    // issue keeps one multiplying while the other exponentiates. Causal rows differ enough without.
    const auto my_turn = [&] {
      if constexpr (kTurns) ptx::named_barrier_sync(kTurn + group, 256);
    };
    const auto your_turn = [&] {
      if constexpr (kTurns) ptx::named_barrier_arrive(kTurn + (group + 1) % 2, 256);
    };
    // A block that other warpgroups of the CTA want.
    const auto skip_block = [&] {
      my_turn();
      your_turn();
      ptx::mbarrier_wait(k_stage.full, k_stage.parity);
      release(k_stage.empty());
      if constexpr (kOneRing) v_follows_k();
      k_stage.advance(k_full);
      ptx::mbarrier_wait(v_stage.full, v_stage.parity);
      release(v_stage.empty());
      if constexpr (!kOneRing) v_stage.advance(v_full);
    };
    if constexpr (kSplit) {
      if (group == 1 && blocks.end > blocks.begin) {
        k_stage.advance(k_full);
        if constexpr (!kOneRing) v_stage.advance(v_full);
      }
    } else {
#pragma unroll 1
      for (int block = tile_blocks.end; block > (works ? blocks.end : tile_blocks.begin); --block)
        skip_block();
    }

    if constexpr (kQStages > 1) q_index = group + tile_step % kQStages * kWarpgroups;
    ptx::mbarrier_wait(q_full + 8 * q_index, tile_step / kQStages & 1);
    if constexpr (kConfig.q_in_registers) {
      const int lane = ptx::lane_id();
#pragma unroll
      for (int k = 0; k < kHeadDim / 16; ++k)
        ptx::ldmatrix_x4(q[k], q_tile() + (k / 4) * 64 * 128 + (16 * warp + (lane & 15)) * 128 +
                                   ((((k % 4) * 2 + (lane >> 4)) ^ (lane & 7)) << 4));
    }

    // In a way that ptxas cannot know: it would set a constant again for every wgmma, in a register
    // that holds it already. For each tile, because it would copy what lives longer.
    const std::uint32_t zero = uniform(ptx::lane_id());
    high = ptx::kSwizzle128High + zero;
    q_low = (q_tile() / 16) | 0x10000u;
    top[0] = top[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
    second = newest - kStride;
    if (works) {
      int block = newest;
      // ---- First block ----
      float shrink[2];
      ptx::mbarrier_wait(k_stage.full, k_stage.parity);
      my_turn();
      ptx::pin_registers(s);
      ptx::wgmma_fence();
      issue_scores();
      your_turn();
      // Not before wgmma_fence, which waits for ldmatrix to finish: an arrival overtakes it, and
      // the next Q then lands in rows not yet read (seen once in 400 runs).
      if constexpr (kConfig.q_in_registers) release(q_empty + 8 * q_index);
      find_next(tile_step + 1, next);  // 300 clocks that pass beside this product
      ptx::wgmma_wait<0>();
      ptx::pin_registers(s);
      if (!kMasked && (block + 1) * kKeys <= p.band.keys) {
        // A base from a quarter of the keys; where that is not enough, the block is done again.
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float most = s[2 * h];
#pragma unroll
          for (int i = 1; i < kKeys / 16; ++i) most = fmaxf(most, s[4 * (i / 2) + 2 * h + (i & 1)]);
          top[h] = quad_max(most) * scale;
        }
        float large[2];  // sums of weights, or with kOnes the largest
        exponentiate(s, top[0], top[1], large);
        if constexpr (kOnes) {
          largest_weights(large);
        } else {
          sum[0] = large[0];
          sum[1] = large[1];
        }
        convert(s);
        const bool fits =
            large[0] + large[1] <= kLimit && fmaxf(fabsf(top[0]), fabsf(top[1])) <= kLargestBase;
        if (__any_sync(kFullWarp, !fits)) {
          redo_scores();
          softmax_exact.template operator()<true>(s, shrink);
          convert(s);
        }
        release(k_stage.empty());
      } else {
        release(k_stage.empty());
        const auto first_softmax = [&]<int kCount>(float(&scores)[kCount]) {
          transform(scores);
          mask(scores, block, first_row);
          softmax_exact.template operator()<true>(scores, shrink);
        };
        // A diagonal, or the end of the keys, often leaves half of it. (Multiplying only that half
        // would need accumulators of two sizes, which ptxas answers with C7511 in some builds.)
        if (kKeys == 128 && p.band.end(last_row) - block * kKeys <= 64) {
          first_softmax(reinterpret_cast<float(&)[32]>(s));
#pragma unroll
          for (int i = 32; i < kKeys / 2; ++i) s[i] = 0.0f;
        } else {
          first_softmax(s);
        }
        convert(s);
      }
      // To the warpgroup's next block, if there is one in the tile, else past the tile's last.
      const auto advance = [&](auto& stage, std::uint32_t first, int from) {
        stage.advance(first);
        if (kSplit && from > blocks.begin) stage.advance(first);
      };
      const auto next_stages = [&]<bool kFirst>() {
        if constexpr (kOneRing) {
          v_follows_k();
        } else if constexpr (!kFirst) {
          advance(v_stage, v_full, block + kStride);
        }
        advance(k_stage, k_full, block);
      };
      next_stages.template operator()<true>();

      // ---- Main loop: S(block) and O += P V of the block before ----
      const auto step = [&]<bool kExact>() {
        block -= kStride;
        // Else ptxas keeps the descriptors of a large Q in registers that it does not have.
        if constexpr (kHeadDim > 128) q_low ^= zero;
        ptx::mbarrier_wait(k_stage.full, k_stage.parity);
        ptx::mbarrier_wait(v_stage.full, v_stage.parity);
        my_turn();
        ptx::pin_registers(s);
        ptx::pin_registers(o);
        ptx::wgmma_fence();
        issue_scores();
        issue_output(block < second);
        your_turn();
        ptx::wgmma_wait<1>();
        ptx::pin_registers(s);
        transform(s);
        bool rescale = true;
        if constexpr (kExact) {
          mask(s, block, first_row);
          softmax_exact.template operator()<false>(s, shrink);
        } else if constexpr (kLateGuard) {
          float unused[2];
          exponentiate(s, top[0], top[1], unused);
        } else {
          rescale = softmax_guarded(shrink);
        }
        if constexpr (!kLateGuard || kExact) {
          release(k_stage.empty());
        }
        ptx::pin_registers(s);
        ptx::wgmma_wait<0>();
        ptx::pin_registers(o);
        ptx::pin_registers(s);
        release(v_stage.empty());
        if constexpr (kLateGuard && !kExact) {
          convert(s);
          guard_converted();
          release(k_stage.empty());
        } else {
          if (rescale) rescale_output(shrink);
          convert(s);
        }
        next_stages.template operator()<false>();
      };
      // Diagonal, inside, far edge of a window: exact, guarded, exact.
      while (true) {
        const int stop = kFlush ? max(blocks.begin, block - kStride * kFlushBlocks) : blocks.begin;
        const auto more = [&] { return block - kStride >= stop; };
        const auto far_edge = [&] { return kWindow && block - kStride <= exact_to; };
        while (more()) {
          if constexpr (kMasked) {
            while (more() && (block - kStride >= exact_from || far_edge()))
              step.template operator()<true>();
          }
          while (more() && !far_edge()) step.template operator()<false>();
        }
        if (!kFlush || block - kStride < blocks.begin) break;
        if constexpr (kFlush) flush();
        second = block - kStride;
      }

      // ---- Last product ----
      // Q's place is free from here on, if it was not since Q came to registers; where O takes it,
      // after O is stored.
      if constexpr (!kConfig.q_in_registers && !kConfig.o_over_q()) release(q_empty + 8 * q_index);
      ptx::mbarrier_wait(v_stage.full, v_stage.parity);
      ptx::pin_registers(o);
      ptx::wgmma_fence();
      issue_output(block <= second);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(o);
      release(v_stage.empty());
      if constexpr (!kOneRing) advance(v_stage, v_full, block);
      if constexpr (kFlush) {
        if (flushed()) {
          const Seldom& before = seldom();
#pragma unroll
          for (int i = 0; i < kColumns / 2; ++i) o[i] += before.o[i];
#pragma unroll
          for (int h = 0; h < 2; ++h) sum[h] += before.sum[h];
        }
      }
      // The other columns of the ones are zeros.
      if constexpr (kOnes) {
        sum[0] = o[kHeadDim / 2] + o[kHeadDim / 2 + 1];
        sum[1] = o[kHeadDim / 2 + 2] + o[kHeadDim / 2 + 3];
      }
    } else {
      find_next(tile_step + 1, next);
      if constexpr (!kConfig.o_over_q()) release(q_empty + 8 * q_index);
    }
    if constexpr (!kSplit) {
#pragma unroll 1
      for (int block = works ? blocks.begin : tile_blocks.begin; block > tile_blocks.begin; --block)
        skip_block();
    } else {
      // ---- Merge: each thread of the second warpgroup hands its part to one of the first ----
      const std::uint32_t mine = q_shared + kConfig.exchange_offset() + 16 * (threadIdx.x & 127);
      constexpr std::uint32_t kPitch = 16 * 128;
      const std::uint32_t bases = mine + (kHeadDim / 8 + 1) * kPitch;
      const WideBase base[2] = {base_of_row(0), base_of_row(1)};
      if (group == 1) {
        ptx::named_barrier_sync(kExchangeEmpty, 256);
        ptx::shared_store4(mine, {base[0].high, base[1].high, sum[0], sum[1]});
        ptx::shared_store4(bases, {base[0].low, base[1].low, 0.0f, 0.0f});
#pragma unroll
        for (int i = 0; i < kHeadDim / 8; ++i) {
          if (works)
            ptx::shared_store4(mine + (i + 1) * kPitch,
                               {o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]});
        }
        ptx::named_barrier_arrive(kExchangeFull, 256);
        __syncwarp();
        continue;
      }
      ptx::named_barrier_sync(kExchangeFull, 256);
      const float4 theirs = ptx::shared_load4(mine);
      const float4 their_low = ptx::shared_load4(bases);
      const WideBase their_base[2] = {{theirs.x, their_low.x}, {theirs.y, their_low.y}};
      const float their_sum[2] = {theirs.z, theirs.w};
      float ours[2], factor[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const WideBase most = larger(base[h], their_base[h]);
        const WideBase from = finite(most);
        ours[h] = exp2_fast(distance(base[h], from));
        factor[h] = exp2_fast(distance(their_base[h], from));
        sum[h] = sum[h] * ours[h] + their_sum[h] * factor[h];
        set_base(h, most);
      }
      // A tile of one block has no second part.
      if (blocks.end - blocks.begin > 1) {
#pragma unroll
        for (int i = 0; i < kHeadDim / 8; ++i) {
          const float4 part = ptx::shared_load4(mine + (i + 1) * kPitch);
          o[4 * i] = o[4 * i] * ours[0] + part.x * factor[0];
          o[4 * i + 1] = o[4 * i + 1] * ours[0] + part.y * factor[0];
          o[4 * i + 2] = o[4 * i + 2] * ours[1] + part.z * factor[1];
          o[4 * i + 3] = o[4 * i + 3] * ours[1] + part.w * factor[1];
        }
      }
      ptx::named_barrier_arrive(kExchangeEmpty, 256);
    }

    // ---- Epilogue: normalise, store ----
    const int lane = ptx::lane_id();
    const int row = first_row + 16 * warp + (lane >> 2), t = lane & 3;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] = quad_sum(sum[h]);
      const int r = row + 8 * h;
      if (p.lse != nullptr && t == 0 && r < p.seq_q) {
        const std::int64_t head =
            static_cast<std::int64_t>(tile.batch) * p.schedule.heads + tile.head;
        const WideBase base = base_of_row(h);
        p.lse[head * p.seq_q + r] =
            sum[h] == 0.0f ? -INFINITY : kLn2 * (base.high + (base.low + __log2f(sum[h])));
      }
      sum[h] = sum[h] == 0.0f ? 0.0f : reciprocal_fast(sum[h]);  // no key seen: O = 0
    }
    if constexpr (kGeneral) {
      const std::int64_t base = tile.batch * p.o_batch + tile.head * p.o_head;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (row + 8 * h >= p.seq_q) continue;
        const std::int64_t at = base + (row + 8 * h) * p.o_row + 2 * t;
#pragma unroll
        for (int i = 0; i < kHeadDim / 8; ++i) {
          if (8 * i >= p.head_dim) continue;
          const float x = works ? o[4 * i + 2 * h] * sum[h] : 0.0f;
          const float y = works ? o[4 * i + 2 * h + 1] * sum[h] : 0.0f;
          if (p.out_dtype == DType::f32) {
            static_cast<float*>(p.o)[at + 8 * i] = x;
            static_cast<float*>(p.o)[at + 8 * i + 1] = y;
          } else if (p.out_dtype == DType::f16) {
            static_cast<__half*>(p.o)[at + 8 * i] = __float2half_rn(finite_mean(x));
            static_cast<__half*>(p.o)[at + 8 * i + 1] = __float2half_rn(finite_mean(y));
          } else {
            static_cast<__nv_bfloat16*>(p.o)[at + 8 * i] = __float2bfloat16_rn(x);
            static_cast<__nv_bfloat16*>(p.o)[at + 8 * i + 1] = __float2bfloat16_rn(y);
          }
        }
      }
      if constexpr (kConfig.o_over_q()) release(q_empty + 8 * q_index);
    } else {
      // Each warp lays out its 16 rows and stores them alone; TMA leaves out rows past Sq.
      std::uint32_t strip, chunk_bytes;
      if constexpr (kConfig.o_over_q()) {
        strip = q_tile() + warp * 16 * 128;
        chunk_bytes = 64 * 128;
        ptx::named_barrier_sync(kQIsRead + group, 128);
      } else {
        // lane / 32 is 0, but keeps the address from living in a register through the main loop.
        strip =
            q_shared + kConfig.o_offset() + (4 * group + warp + lane / 32) * kConfig.strip_bytes();
        chunk_bytes = 16 * 128;
        if (leader) ptx::tma_store_wait_read();
        __syncwarp();
      }
      const std::uint32_t strip_row = strip + (lane & 15) * 128;
      const auto store = [&](int j, const std::uint32_t(&r)[4]) {  // columns 16 * j to 16 * j + 15
        ptx::stmatrix_x4(
            strip_row + (j / 4) * chunk_bytes + ((((j % 4) * 2 + (lane >> 4)) ^ (lane & 7)) << 4),
            r);
      };
      // Apart, so that the accumulators stay where they are.
      if (works) {
        // Weights rounded above the fraction and not below it may carry O past fp16's last number,
        // by a factor of 1 + 2^-11. Such rows are stored a second time.
        constexpr bool kMayOverflow = std::is_same_v<T, __half> && !kOnes;
#pragma unroll 1
        for (int pass = 0; pass < (kMayOverflow ? 2 : 1); ++pass) {
          [[maybe_unused]] __half2 most[2] = {};
#pragma unroll
          for (int j = 0; j < kHeadDim / 16; ++j) {
            std::uint32_t words[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const float* x = o + 8 * j + 2 * i;
              words[i] = pack2<T>(x[0] * sum[i & 1], x[1] * sum[i & 1]);
              if constexpr (kMayOverflow)
                most[i & 1] = __hmax2(most[i & 1], __habs2(reinterpret_cast<__half2&>(words[i])));
            }
            store(j, words);
          }
          if constexpr (kMayOverflow) {
            const __half2 last = __float2half2_rn(65504.0f);
            if (!__any_sync(kFullWarp, !__hble2(__hmax2(most[0], most[1]), last))) break;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              const float2 two = __half22float2(most[h]);
              sum[h] *= quad_max(fmaxf(two.x, two.y)) > 65504.0f ? 1.0f - 0x1p-11f : 1.0f;
            }
          }
        }
      } else {
#pragma unroll
        for (int j = 0; j < kHeadDim / 16; ++j) store(j, {0, 0, 0, 0});
      }
      ptx::fence_proxy_async_shared();
      __syncwarp();
      if (leader) {
        if (first_row + 16 * warp < p.seq_q) {
#pragma unroll
          for (int c = 0; c < kChunks; ++c)
            ptx::tma_store_4d(&o_map, strip + c * chunk_bytes, 64 * c, first_row + 16 * warp,
                              tile.head, tile.batch);
        }
        ptx::tma_store_commit();
        if constexpr (kConfig.o_over_q()) ptx::tma_store_wait_read();
      }
      if constexpr (kConfig.o_over_q()) release(q_empty + 8 * q_index);
    }
    // A point of convergence: without it ptxas keeps the loop's state in vector registers.
    __syncwarp();
  }
  if (!kGeneral && leader) ptx::tma_store_wait();
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

}  // namespace greenfast::cuda::prefill
