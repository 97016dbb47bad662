// cuda.sm90.fp8: attention on e4m3 for problems that fill the machine. sm_90a.
//
// Idea    Both products multiply e4m3 by wgmma, at twice the rate of 16 bits. The loop is that of
//         cuda.sm90.prefill: one producer warp, two consumer warpgroups of 64 query rows each; a
//         step issues S(j) = Q K(j)^T, then P(j-1) V(j-1), and weighs S(j) beside the second. No
//         row maximum but where a mask cuts: a stale base serves, and a guard watches the range of
//         e4m3. What e4m3 asks for beside that:
//         - V^T, because wgmma takes e4m3 with k along the rows only. A pass before (transpose.cuh)
//           lays it down with its keys in the order in which a lane packs its weights (layout.hpp).
//         - Two levels of accumulation. The tensor cores cut every product off against the
//           accumulator: V >= 0 would lose 7% over 4,096 keys. So each block's P V starts from 0,
//           and is added up in fp32 beside the next Q K^T.
//         - A base that leaves e4m3's few octaves to what counts (softmax.cuh).
//         - Two sums of a row. O is divided by that of the rounded weights, from eight rows of ones
//           behind V^T; the log-sum-exp is of the weights before rounding.
// Takes   e4m3 with factors for each tensor, head or (in builds of their own) block, D up to 128, full, causal and windows, GQA,
//         LSE, any sign of the scale, output fp16, bf16 or fp32 with any strides.
// Limits  sm_90a; 16-byte strides of Q, K and V; no softcap. Workspace: V^T.
// Budget  one CTA an SM: 40 registers for a producer thread, 232 for a consumer's: at D 128 64
//         scores, 68 of a block's output, 64 of their sum, 16 of weights; hence Q in shared memory.
// Bound   at D 128 MUFU and tensor cores alike (512 and 528 clocks for 64 rows of a block), at D 64
//         MUFU.
//
// Read config.hpp, layout.hpp, shared_memory.cuh, producer.cuh and softmax.cuh first.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include <greenfast/arithmetic.hpp>

#include "kernels/cuda/device/e4m3.cuh"
#include "kernels/cuda/device/ptx_e4m3.cuh"
#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/ptx_mma.cuh"
#include "kernels/cuda/device/ptx_stmatrix.cuh"
#include "kernels/cuda/device/ptx_tma.cuh"
#include "kernels/cuda/device/ptx_wgmma.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_fp8/config.hpp"
#include "kernels/cuda/sm90_fp8/layout.hpp"
#include "kernels/cuda/sm90_fp8/producer.cuh"
#include "kernels/cuda/sm90_fp8/shared_memory.cuh"
#include "kernels/cuda/sm90_fp8/softmax.cuh"

namespace greenfast::cuda::fp8 {

/// Of products to log2; all products are 0 in effect at less.
inline constexpr float kLeastScale = 1e-36f;

/// bar.sync of a warpgroup's 128 threads: Q's signs are turned.
inline constexpr int kQIsTurned = 1;

/// The upper half of a descriptor of rows of so many bytes, swizzled as wide (ptx_wgmma.cuh).
template <int kRowBytes>
inline constexpr std::uint32_t kDescriptorHigh = kRowBytes == 128 ? ptx::kSwizzle128High
                                                                  : (2u << 30) | (8 * 64 / 16);

/// S = Q K^T by one warp alone, for blocks whose weights have overwritten their scores. Q and K as
/// TMA laid them.
template <int kHeadDim, int kScores>
__device__ __forceinline__ void multiply_qk_alone(float (&s)[kScores], std::uint32_t q_rows,
                                                  std::uint32_t k_tile) {
  const int lane = ptx::lane_id();
  const Place at_q = ldmatrix_a(lane), at_k = ldmatrix_b(lane);
#pragma unroll
  for (float& x : s) x = 0.0f;
#pragma unroll 1
  for (int k = 0; k < kHeadDim / 32; ++k) {
    std::uint32_t q[4];
    ptx::ldmatrix_x4(q, q_rows + swizzled<kHeadDim>(at_q.row, 32 * k + at_q.column));
    // A word's first two bytes and its last two as k 2 t and k 8 + 2 t of an m16n8k16: another
    // order of k, the same one on both sides.
    std::uint32_t a[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i / 2][i % 2] = decode_e4m3x2(q[i]);
      a[i / 2][i % 2 + 2] = decode_e4m3x2(q[i] >> 16);
    }
#pragma unroll
    for (int n = 0; n < kScores / 8; ++n) {
      std::uint32_t b[4];
      ptx::ldmatrix_x4(
          b, k_tile + 16 * n * kHeadDim + swizzled<kHeadDim>(at_k.row, 32 * k + at_k.column));
#pragma unroll
      for (int i = 0; i < 4; ++i)
        ptx::mma_m16n8k16<__half>(reinterpret_cast<float(&)[4]>(s[8 * n + i / 2 * 4]), a[i % 2],
                                  decode_e4m3x2(b[i]), decode_e4m3x2(b[i] >> 16));
      __syncwarp();  // else ptxas loads ahead into registers that the main loop lacks
    }
  }
}

/// Two means of V in the output's 16-bit type. `kChecks`: whether rounding carried one past fp16's
/// end; else keep_finite has seen to that.
template <bool kChecks>
__device__ __forceinline__ std::uint32_t pack_output(bool f16, float x, float y) {
  if (!f16) return pack2<__nv_bfloat16>(x, y);
  if constexpr (kChecks) return pack2<__half>(finite_mean(x), finite_mean(y));
  return pack2<__half>(x, y);
}

/// Stores O by every thread, in any type and with any strides.
template <int kHeadDim, bool kChecks>
__device__ __forceinline__ void store_anywhere(const Params& p, const Tile& tile,
                                               const float (&o)[kHeadDim / 2],
                                               const float (&factor)[2], int row, int t) {
  const std::int64_t base = tile.batch * p.o_batch + tile.head * p.o_head;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (row + 8 * h >= p.seq_q) continue;
    const std::int64_t at = base + (row + 8 * h) * p.o_row + 2 * t;
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i) {
      if (8 * i >= p.head_dim) continue;
      const float x = o[4 * i + 2 * h] * factor[h], y = o[4 * i + 2 * h + 1] * factor[h];
      if (p.out_dtype == DType::f32) {
        static_cast<float*>(p.o)[at + 8 * i] = x;
        static_cast<float*>(p.o)[at + 8 * i + 1] = y;
      } else {
        // Rows may begin at odd elements.
        const std::uint32_t two = pack_output<kChecks>(p.out_dtype == DType::f16, x, y);
        static_cast<std::uint16_t*>(p.o)[at + 8 * i] = static_cast<std::uint16_t>(two);
        static_cast<std::uint16_t*>(p.o)[at + 8 * i + 1] = static_cast<std::uint16_t>(two >> 16);
      }
    }
  }
}

/// O of a warp's 16 rows: through its strip by TMA, or by every thread. strip(): the strip's address.
template <int kHeadDim, bool kChecks, class Strip>
__device__ __forceinline__ void store_output(const Params& p, const CUtensorMap& o_map,
                                             const Tile& tile, const float (&o)[kHeadDim / 2],
                                             const float (&factor)[2], const Strip& strip,
                                             bool leader, int warp_row, int row, int t) {
  if (p.o_by_tma) {
    const int here = ptx::lane_id();
    const std::uint32_t strip_row = strip() + (here & 15) * 128;
    const bool f16 = p.out_dtype == DType::f16;
    constexpr int kColumns = Config{.head_dim = kHeadDim}.strip_columns();
#pragma unroll
    for (int first = 0; first < kHeadDim; first += kColumns) {
      if (leader) ptx::tma_store_wait_read();
      __syncwarp();
      const auto fill = [&](const auto& pack) {
#pragma unroll
        for (int j = 0; j < kColumns / 16; ++j) {
          std::uint32_t words[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float* x = o + first / 2 + 8 * j + 2 * i;
            words[i] = pack(x[0] * factor[i & 1], x[1] * factor[i & 1]);
          }
          ptx::stmatrix_x4(
              strip_row + j / 4 * 16 * 128 + (((j % 4 * 2 + (here >> 4)) ^ (here & 7)) << 4),
              words);
        }
      };
      if constexpr (kChecks) {
        fill([&](float x, float y) { return pack_output<true>(f16, x, y); });
      } else if (f16) {
        fill([](float x, float y) { return pack2<__half>(x, y); });
      } else {
        fill([](float x, float y) { return pack2<__nv_bfloat16>(x, y); });
      }
      ptx::fence_proxy_async_shared();
      __syncwarp();
      if (leader) {
        // TMA leaves out rows past Sq.
        if (warp_row < p.seq_q) {
#pragma unroll
          for (int c = 0; c < kColumns / 64; ++c)
            ptx::tma_store_4d(&o_map, strip() + c * 16 * 128, first + 64 * c, warp_row, tile.head,
                              tile.batch);
        }
        ptx::tma_store_commit();
      }
    }
  } else {
    store_anywhere<kHeadDim, kChecks>(p, tile, o, factor, row, t);
  }
}

template <class ConfigOf>
__global__ void __launch_bounds__(ConfigOf::value.threads(), 1)
    fp8_kernel(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
               const __grid_constant__ CUtensorMap v_map, const __grid_constant__ CUtensorMap o_map,
               const __grid_constant__ Params p) {
  static constexpr Config kConfig = ConfigOf::value;
  constexpr int kHeadDim = kConfig.head_dim, kKeys = kConfig.kKeys, kStages = kConfig.stages();
  constexpr int kWarpgroups = kConfig.warpgroups(), kQStages = kConfig.q_stages();
  constexpr bool kMasked = kConfig.masked, kBlockFactors = kConfig.block_factors;
  static_assert(!kBlockFactors || (kConfig.rows() == kScaleBlock && kKeys == kScaleBlock));
  static_assert(kConfig.shared_bytes() + 8192 <= 232448);

  // ---- Prologue: shared memory and barriers ----
  extern __shared__ std::uint8_t raw_shared[];
  // Behind the barriers, the factors of the blocks in flight.
  constexpr int kBarriers = SharedMemory<ConfigOf>::kBarriers;
  __shared__ alignas(8) std::uint64_t barriers[kBarriers + (kBlockFactors ? kStages : 0)];
  __shared__ WideBase wide_bases[128 * kWarpgroups][2];
  const SharedMemory<ConfigOf> shared(raw_shared, barriers);
  const int warpgroup = uniform(threadIdx.x >> 7), lane = threadIdx.x & 31;
  if (threadIdx.x == 0) {
    ptx::tensormap_prefetch(&q_map);
    ptx::tensormap_prefetch(&k_map);
    ptx::tensormap_prefetch(&v_map);
    shared.init_barriers();
  }
  shared.lay_out_ones(raw_shared);
  __syncthreads();

  if (warpgroup == 0) {
    // ---- Producer ----
    ptx::setmaxnreg_decrease<kConfig.producer_registers()>();
    if (threadIdx.x < 32) produce<ConfigOf>(p, q_map, k_map, v_map, shared, nullptr, lane == 0);
    return;
  }

  // ---- Consumers: what a thread holds ----
  ptx::setmaxnreg_increase<kConfig.consumer_registers()>();
  const int group = uniform(ptx::thread_index() >> 7) - 1, warp = uniform((threadIdx.x >> 5) & 3);
  const bool leader = lane == 0;
  float s[kKeys / 2];                    // scores, then weights
  float part[kConfig.columns() / 2];     // P V of one block, then its row sums
  float o[kHeadDim / 2];                 // of the blocks before, not yet normalised
  float rounded[2] = {};                 // and their sums of rounded weights
  std::uint32_t weights[kKeys / 32][4];  // of the block before, as the A operand
  OnlineSoftmax<ConfigOf> rows;
  rows.wide = &wide_bases[0][0];
  Stage<kStages> k_stage(shared.k_full, 0), v_stage(shared.v_full, 0);
  int q_index = group;  // of the tile's Q among stages and warpgroups
  const auto q_tile = [&] { return shared.q + q_index * kConfig.q_bytes(); };

  // Descriptors: upper halves, and what a stage's lower half follows from by one multiplication.
  std::uint32_t high = 0, high_v = 0;
  constexpr std::uint32_t kPerK = kConfig.k_bytes() / 128, kPerV = kConfig.v_bytes() / 128;
  const std::uint32_t k_base = uniform((shared.k / 16 | 0x10000u) - shared.k_full * kPerK);
  const std::uint32_t v_base = uniform((shared.v / 16 | 0x10000u) - shared.v_full * kPerV);
  // S = Q K^T; asynchronous.
  const auto issue_scores = [&] {
    const std::uint32_t q_low = q_tile() / 16 | 0x10000u, k_low = k_base + k_stage.full * kPerK;
#pragma unroll
    for (int k = 0; k < kHeadDim / 32; ++k)
      ptx::wgmma_ss_e4m3<kKeys>(s, ptx::descriptor(high, q_low + 2 * k),
                                ptx::descriptor(high, k_low + 2 * k), k > 0);
    ptx::wgmma_commit();
  };
  // part (+)= P V; asynchronous.
  const auto issue_output = [&](bool accumulate) {
    const std::uint32_t low = v_base + v_stage.full * kPerV;
#pragma unroll
    for (int k = 0; k < kKeys / 32; ++k)
      ptx::wgmma_rs_e4m3<kConfig.columns()>(part, weights[k], ptx::descriptor(high_v, low + 2 * k),
                                            k > 0 || accumulate);
    ptx::wgmma_commit();
  };
  // The second level: `part` is finished; `factor` is that of its block of V.
  const auto add_part = [&](float factor) {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) {
      if constexpr (kBlockFactors)
        o[i] = fmaf(part[i], factor, o[i]);
      else
        o[i] += part[i];
    }
    rounded[0] += part[kHeadDim / 2];
    rounded[1] += part[kHeadDim / 2 + 2];
  };
  const auto rescale = [&](const float(&shrink)[2]) {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) o[i] *= shrink[i >> 1 & 1];
#pragma unroll
    for (int i = 0; i < kConfig.columns() / 2; ++i) part[i] *= shrink[i >> 1 & 1];
    rounded[0] *= shrink[0];
    rounded[1] *= shrink[1];
  };
  const auto convert = [&] {
#pragma unroll
    for (int k = 0; k < kKeys / 32; ++k) {
#pragma unroll
      for (int w = 0; w < 4; ++w)
        weights[k][w] =
            ptx::pack_e4m3(s[packed_accumulator(k, w, 0)], s[packed_accumulator(k, w, 1)],
                           s[packed_accumulator(k, w, 2)], s[packed_accumulator(k, w, 3)]);
    }
  };
  const auto release = [&](std::uint32_t barrier) { ptx::mbarrier_arrive_if(barrier, leader); };
  // The warp's output. lane / 32 is 0, but keeps the address from living in a register.
  const auto strip = [&] {
    return shared.q + kConfig.o_offset() +
           (4 * group + warp + ptx::lane_id() / 32) * kConfig.strip_bytes();
  };
  // This thread's 16 bytes of it, and more at steps of 512, once its last tile is stored.
  const auto free_strip = [&] {
    if (leader) ptx::tma_store_wait_read();
    __syncwarp();
    return strip() + 16 * ptx::lane_id();
  };
  // Nothing is in `part`. In assembly, because an assignment serialises wgmma (C7511).
  const auto clear_part = [&] {
#pragma unroll
    for (float& x : part) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(x));
  };
  float shrink[2];  // of a step's new bases
  // Of a block in K's stage: the scale of its scores, which are to be turned where that is negative.
  bool turns = false;
  const auto take_scale = [&] {
    if constexpr (kBlockFactors) {
      const float scale = shared.k_factor(k_stage.full);
      turns = scale < 0.0f;
      rows.scale = fabsf(scale);
      if (rows.scale < kLeastScale) rows.scale = kLeastScale;
    }
  };
  const auto turn_scores = [&] {
    if constexpr (kBlockFactors) {
      if (turns) {
#pragma unroll
        for (float& x : s) x = -x;
      }
    }
  };
  // A block again from its scores. At D 128 there are no registers for this while P V is under way,
  // so half of O steps aside into the warp's strip.
  const auto redo = [&] {
    constexpr int kAside = kHeadDim == 128 ? 32 : 0;
    static_assert(kAside * 4 * 32 <= kConfig.strip_bytes());
    const std::uint32_t aside = free_strip();
    if constexpr (kAside > 0) {
#pragma unroll
      for (int i = 0; i < kAside; i += 4)
        ptx::shared_store4(aside + 128 * i, {o[i], o[i + 1], o[i + 2], o[i + 3]});
    }
    multiply_qk_alone<kHeadDim>(s, q_tile() + 16 * warp * kHeadDim,
                                shared.k + (k_stage.full - shared.k_full) / 8 * kConfig.k_bytes());
    turn_scores();
    rows.exact(s, shrink);
#pragma unroll
    for (int i = 0; i < kAside; i += 4) {
      const float4 x = ptx::shared_load4(aside + 128 * i);
      o[i] = x.x;
      o[i + 1] = x.y;
      o[i + 2] = x.z;
      o[i + 3] = x.w;
    }
  };

  // ---- Consumers: tile after tile ----
  Tile tile, next = {};
  // An index below 0 says that there is no tile.
  const auto find_next = [&](int step, Tile& found) {
    if (!next_tile(p, step, found)) found.index = -1;
  };
  find_next(0, tile);
  for (int tile_step = 0; tile.index >= 0; tile = next, ++tile_step) {
    const int tile_row = tile.index * kConfig.rows(), first_row = tile_row + 64 * group;
    const BlockRange tile_blocks =
        visible_blocks<ConfigOf>(p, tile_row, min(tile_row + kConfig.rows(), p.seq_q) - 1);
    const int last_row = min(first_row + 63, p.seq_q - 1);
    const BlockRange blocks = visible_blocks<ConfigOf>(p, first_row, last_row);
    const bool works = first_row < p.seq_q && blocks.end > blocks.begin;
    // Blocks from exact_from on, and up to exact_to, are not seen whole by all rows.
    const int exact_from = min(max(first_row + p.band.above, 0), p.band.keys) / kKeys;
    const int exact_to = ceil_div(last_row + p.band.below, kKeys) - 1;
    // A block that the other warpgroup wants.
    const auto skip_block = [&] {
      ptx::mbarrier_wait(k_stage.full, k_stage.parity);
      release(k_stage.empty());
      k_stage.advance(shared.k_full);
      ptx::mbarrier_wait(v_stage.full, v_stage.parity);
      release(v_stage.empty());
      v_stage.advance(shared.v_full);
    };
#pragma unroll 1
    for (int block = tile_blocks.end; block > (works ? blocks.end : tile_blocks.begin); --block)
      skip_block();

    // ---- Q and its factors ----
    if constexpr (kQStages > 1) q_index = group + tile_step % kQStages * kWarpgroups;
    ptx::mbarrier_wait(shared.q_full + 8 * q_index, tile_step / kQStages & 1);
    const int kv = tile.batch * p.heads_kv + tile.head / p.group;
    if constexpr (!kBlockFactors) {
      rows.scale = static_cast<float>(
          p.scale_log2 *
          factor_of(p.scales.q, p.scales.per_head, tile.batch * p.schedule.heads + tile.head) *
          factor_of(p.scales.k, p.scales.per_head, kv));
      if (rows.scale < 0.0f) {
        // The largest product must be the largest score: turn Q's signs, which is exact.
        rows.scale = -rows.scale;
#pragma unroll 1
        for (int at = 16 * (ptx::thread_index() & 127); at < kConfig.q_bytes(); at += 16 * 128) {
          const float4 x = ptx::shared_load4(q_tile() + at);
          const auto turned = [](float four) {  // e4m3 numbers
            return __uint_as_float(__float_as_uint(four) ^ 0x80808080u);
          };
          ptx::shared_store4(q_tile() + at, {turned(x.x), turned(x.y), turned(x.z), turned(x.w)});
        }
        ptx::fence_proxy_async_shared();
        ptx::named_barrier_sync<128>(kQIsTurned + group);
      }
      // -inf times 0 would be NaN; at this scale all products are 0 in effect.
      if (rows.scale < kLeastScale) rows.scale = kLeastScale;
    }

    // The constant halves in a way that ptxas cannot know: it would set a constant again for every
    // wgmma. For each tile, because it would copy what lives longer.
    const std::uint32_t zero = uniform(ptx::lane_id());
    high = kDescriptorHigh<kHeadDim> + zero;
    high_v = kHeadDim == 128 ? high : ptx::kSwizzle128High + zero;
    rows.top[0] = rows.top[1] = -INFINITY;
    rows.sum[0] = rows.sum[1] = rounded[0] = rounded[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) o[i] = 0.0f;
    if (works) {
      // ---- First block: the true maximum ----
      int block = blocks.end - 1;
      ptx::mbarrier_wait(k_stage.full, k_stage.parity);
      take_scale();
      ptx::pin_registers(s);
      ptx::wgmma_fence();
      issue_scores();
      find_next(tile_step + 1, next);  // passes beside this product
      ptx::wgmma_wait<0>();
      ptx::pin_registers(s);
      release(k_stage.empty());
      turn_scores();
      if (kMasked || (block + 1) * kKeys > p.band.keys)
        rows.mask(p, s, block, first_row + 16 * warp);
      rows.begin(s);
      convert();
      k_stage.advance(shared.k_full);
      clear_part();
      [[maybe_unused]] float of_part = 0.0f;  // the factor of V's block whose product is in `part`

      // ---- Main loop: S(block), and P V of the block before ----
      const auto step = [&]<bool kExact>() {
        ptx::mbarrier_wait(k_stage.full, k_stage.parity);
        ptx::pin_registers(s);
        ptx::wgmma_fence();
        issue_scores();
        add_part(of_part);
        ptx::mbarrier_wait(v_stage.full, v_stage.parity);
        ptx::pin_registers(part);
        ptx::wgmma_fence();
        issue_output(false);
        // Before the scale, which is looked at before V's stage is given back: shared loads end in order.
        if constexpr (kBlockFactors) of_part = shared.v_factor(v_stage.full);
        take_scale();
        ptx::wgmma_wait<1>();
        ptx::pin_registers(s);
        turn_scores();
        bool moved = true;  // a base
        if constexpr (kExact) {
          // Masks and maxima have no registers for these at D 128: they step aside, as in `redo`.
          const std::uint32_t aside = free_strip();
          ptx::shared_store4(aside, {rounded[0], rounded[1], o[0], o[1]});
          rows.mask(p, s, block, first_row + 16 * warp);
          rows.exact(s, shrink);
          const float4 back = ptx::shared_load4(strip() + 16 * ptx::lane_id());
          rounded[0] = back.x;
          rounded[1] = back.y;
          o[0] = back.z;
          o[1] = back.w;
        } else {
          moved = rows.guarded(s, redo, shrink);
        }
        release(k_stage.empty());
        ptx::pin_registers(s);
        ptx::wgmma_wait<0>();
        ptx::pin_registers(part);
        ptx::pin_registers(s);
        release(v_stage.empty());
        convert();
        if (moved) rescale(shrink);
        k_stage.advance(shared.k_full);
        v_stage.advance(shared.v_full);
      };
      // Diagonal, inside, far edge of a window: exact, guarded, exact.
      --block;
      if constexpr (kMasked) {
#pragma unroll 1
        for (; block >= blocks.begin; --block) {
          if (block >= exact_from || block <= exact_to)
            step.template operator()<true>();
          else
            step.template operator()<false>();
        }
      } else {
#pragma unroll 1
        for (; block >= blocks.begin; --block) step.template operator()<false>();
      }

      // ---- Last product ----
      // On top of the one before: where it began anew, ptxas would serialise all of wgmma (C7511).
      // Two blocks in one accumulator lose 0.25% of V >= 0, one 0.16%.
      release(shared.q_empty + 8 * q_index);
      if constexpr (kBlockFactors) {
        // Blocks of different factors have no accumulator together.
        add_part(of_part);
        clear_part();
      }
      ptx::mbarrier_wait(v_stage.full, v_stage.parity);
      ptx::pin_registers(part);
      ptx::wgmma_fence();
      issue_output(true);
      if constexpr (kBlockFactors) of_part = shared.v_factor(v_stage.full);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(part);
      // The factor is used before its stage is given back, or the producer could write the next one over a load under way.
      if constexpr (kBlockFactors) add_part(of_part);
      release(v_stage.empty());
      v_stage.advance(shared.v_full);
      if constexpr (!kBlockFactors) add_part(of_part);
    } else {
      find_next(tile_step + 1, next);
      release(shared.q_empty + 8 * q_index);
    }
#pragma unroll 1
    for (int block = works ? blocks.begin : tile_blocks.begin; block > tile_blocks.begin; --block)
      skip_block();

    // ---- Epilogue: normalise, store ----
    const int here = ptx::lane_id();  // anew: `lane` would live through the main loop
    const int row = first_row + 16 * warp + (here >> 2), t = here & 3;
    const float v_factor = kBlockFactors ? 1.0f : factor_of(p.scales.v, p.scales.per_head, kv);
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.sum[h] = quad_sum(rows.sum[h]);
      if (p.lse != nullptr && t == 0 && row + 8 * h < p.seq_q) {
        const std::int64_t head =
            static_cast<std::int64_t>(tile.batch) * p.schedule.heads + tile.head;
        const WideBase base = rows.base_of_row(h);
        p.lse[head * p.seq_q + row + 8 * h] =
            rows.sum[h] == 0.0f ? -INFINITY
                                : kLn2 * (base.high + (base.low + __log2f(rows.sum[h])));
      }
      factor[h] = rounded[h] == 0.0f ? 0.0f : v_factor * reciprocal_fast(rounded[h]);
    }
    // Here, and with factors from the producer, ptxas would spill what fast.cuh saves.
    store_output<kHeadDim, true>(p, o_map, tile, o, factor, strip, leader, first_row + 16 * warp,
                                 row, t);
    // A point of convergence: without it ptxas keeps the loop's state in vector registers.
    __syncwarp();
  }
  if (leader) ptx::tma_store_wait();
}

/// Gives a compiled kernel a name that a plan can say.
template <int kHeadDim, bool kMasked>
struct Compiled : With<Config{.head_dim = kHeadDim, .masked = kMasked}> {};
/// With factors of blocks.
template <int kHeadDim, bool kMasked>
struct CompiledBlocks
    : With<Config{.head_dim = kHeadDim, .masked = kMasked, .block_factors = true}> {};

}  // namespace greenfast::cuda::fp8
