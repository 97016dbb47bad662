// cuda.sm90.small: attention for problems that do not fill the machine. sm_90a.
//
// Idea    A cluster of two blocks shares a tile of 64 queries; each of its four warpgroups takes a
//         quarter of the keys, and the four parts merge through shared memory: the neighbour's by
//         ordinary stores, the other block's by st.async. Every part then finishes a quarter of the
//         columns. Up to 512 keys there is no loop: scores, weights and output are one wgmma chain
//         each. One kernel, no workspace, no memset.
// Takes   fp16 and bf16, head dims 8..128, all masks and options; rows at 16-byte boundaries.
// Limits  two blocks of the launch a multiprocessor, sequences up to 2^30.
// Budget  87 to 212 registers, and so much shared memory that one block has the SM for itself where
//         all blocks fit at once; each tile's in docs/kernels/sm90-small.md.
// Bound   latency: at 1x8x512x64 about 0.8 us pass before the loads arrive, 1.3 us in the products
//         and the softmax, 0.7 us in the exchange and the store.
#pragma once

#include <cuda.h>

#include <type_traits>
#include <utility>

#include "kernels/cuda/device/ptx_cluster.cuh"
#include "kernels/cuda/device/ptx_cp_async.cuh"
#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/ptx_tma.cuh"
#include "kernels/cuda/device/ptx_wgmma.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_small/config.hpp"

namespace greenfast::cuda::small {

/// Beyond this the rounding of maximum times scale would make a part's weights differ from the
/// others' by more than 5e-5.
inline constexpr float kLargeShift = 0x1p10f;

/// The address field of a wgmma descriptor. In a cluster the upper bits of a shared address hold
/// the block's rank; left in, they would run into the leading offset.
__device__ __forceinline__ std::uint32_t descriptor_low(std::uint32_t shared) {
  return (shared & 0x3ffffu) >> 4;
}

/// What the rows of a quad know of one part: maximum and sum of row g, then of row g + 8. Maxima as
/// scores before they are scaled: products of large ones would differ by more than the scores do.
struct Stats {
  float max0, max1, sum0, sum1;
};

__device__ __forceinline__ uint4 as_words(Stats s) {
  return make_uint4(__float_as_uint(s.max0), __float_as_uint(s.max1), __float_as_uint(s.sum0),
                    __float_as_uint(s.sum1));
}
__device__ __forceinline__ Stats load_stats(std::uint32_t shared) {
  const uint4 w = ptx::load_shared_16(shared);
  return {__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z), __uint_as_float(w.w)};
}

template <class T, std::size_t kIndex>
__global__ void __cluster_dims__(kCluster)
    __launch_bounds__(kThreads, config_of(kIndex, false).blocks_per_sm())
        attention_kernel(const __grid_constant__ Params p,
                         const __grid_constant__ CUtensorMap q_map,
                         const __grid_constant__ CUtensorMap k_map,
                         const __grid_constant__ CUtensorMap v_map) {
  constexpr Config kC = config_of(kIndex, std::is_same_v<T, __half>);
  constexpr int kKeys = kC.keys;
  constexpr int kHeadDim = kC.head_dim;
  constexpr int kPieces = kC.pieces();
  constexpr bool kLooped = kC.looped;
  constexpr int kOwn = kC.own();
  constexpr int kColumns = kC.head_dim / kParts;  // of the output, finished by one part
  constexpr bool kHalfExchange = kC.half_exchange;
  constexpr int kNearOffset = kC.near_offset(), kNearBytes = kC.near_bytes();
  constexpr int kFarOffset = kC.far_offset(), kFarBytes = kC.far_bytes();
  constexpr int kStatsBytes = Config::kStatsBytes;

  extern __shared__ unsigned char shared_memory[];
  const std::uint32_t base = (ptx::shared_address(shared_memory) + 1023) & ~1023u;
  const std::uint32_t bar_q = base + kC.barrier_offset();
  const std::uint32_t bar_k = bar_q + 8, bar_v = bar_k + 8 * kWarpgroups * kPieces;
  const std::uint32_t bar_exchange = bar_v + 8 * kWarpgroups;

  const int thread = threadIdx.x % 128;
  const int lane = threadIdx.x % 32;
  const int warpgroup = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / 128, 0);
  const std::uint32_t rank = blockIdx.x % kCluster;
  const int part = static_cast<int>(rank) * kWarpgroups + warpgroup;
  const int tile_row = static_cast<int>(blockIdx.x / kCluster) * kRows;
  const std::uint32_t head = blockIdx.y, batch = blockIdx.z;
  const std::uint32_t kv_head = p.group == 1 ? head : head / p.group;

  // The tile's visible keys, in map coordinates. Their blocks go round the parts; without a loop
  // there is at most one for each.
  const int tile_last = min(tile_row + kRows, p.seq_q) - 1;
  const int keys_begin = p.band.first(tile_row);
  const int keys_end = p.band.end(tile_last);
  const int first_key = keys_begin + part * kKeys;
  const bool active = first_key < keys_end;
  constexpr int kRound = kParts * kKeys;

  const std::uint32_t k_tile = base + kC.k_offset() + warpgroup * kC.block_bytes();
  const std::uint32_t v_tile = base + kC.v_offset() + warpgroup * kC.block_bytes();
  const auto load_k = [&](int key) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const std::uint32_t bar = bar_k + 8 * (warpgroup * kPieces + i);
      ptx::mbarrier_arrive_expect_tx(bar, kC.block_bytes() / kPieces);
#pragma unroll
      for (int c = 0; c < kC.chunks(); ++c) {
        ptx::tma_load_4d(k_tile + (c * kKeys + i * kPieceKeys) * 128, &k_map, bar, c * 64,
                         key + i * kPieceKeys, kv_head * p.k_head_step, batch * p.k_batch_step);
      }
    }
  };
  const auto load_v = [&](int key) {
    const std::uint32_t bar = bar_v + 8 * warpgroup;
    ptx::mbarrier_arrive_expect_tx(bar, kC.block_bytes());
#pragma unroll
    for (int c = 0; c < kC.chunks(); ++c) {
      ptx::tma_load_4d(v_tile + c * kKeys * 128, &v_map, bar, c * 64, key, kv_head * p.v_head_step,
                       batch * p.v_batch_step);
    }
  };

  // ---- Loads: one thread of each warpgroup fetches what its warpgroup needs ----
  if (thread == 0) {
    if (warpgroup == 0) {
      ptx::mbarrier_init(bar_q, 1);
      // The exchange: four warps of the neighbour, and one for the bytes of the other block.
      ptx::mbarrier_init(bar_exchange, 5);
      ptx::mbarrier_init(bar_exchange + 8, 5);
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      ptx::mbarrier_init(bar_k + 8 * (warpgroup * kPieces + i), 1);
    }
    ptx::mbarrier_init(bar_v + 8 * warpgroup, 1);
    ptx::fence_mbarrier_init();
    ptx::grid_launch_dependents();
    ptx::grid_dependency_wait();
    // Both blocks have work whenever the first part of either has: Q serves both warpgroups.
    if (warpgroup == 0 && active) {
      ptx::mbarrier_arrive_expect_tx(bar_q, kC.q_bytes());
#pragma unroll
      for (int c = 0; c < kC.chunks(); ++c) {
        ptx::tma_load_4d(base + c * kRows * 128, &q_map, bar_q, c * 64, tile_row,
                         head * p.q_head_step, batch * p.q_batch_step);
      }
    }
    if (active) {
      load_k(first_key);
      load_v(first_key);
    }
    if (warpgroup == 0) {
      ptx::mbarrier_arrive_expect_tx(bar_exchange, kWarpgroups * kC.far_bytes());
      ptx::mbarrier_arrive_expect_tx(bar_exchange + 8, kWarpgroups * kC.far_bytes());
    }
  } else {
    if (thread == 32 && warpgroup == 0) {
      ptx::tensormap_prefetch(&q_map);
      ptx::tensormap_prefetch(&k_map);
      ptx::tensormap_prefetch(&v_map);
    }
    // The output must not be touched before the grids this one depends on have finished, and this
    // grid not end before they do, even where there is nothing to load.
    ptx::grid_dependency_wait();
  }
  __syncthreads();
  ptx::cluster_arrive_relaxed();  // waited for before the exchange

  const int row0 = tile_row + thread / 32 * 16 + lane / 4;  // and row0 + 8
  float o[kC.head_dim / 2];
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};
  ptx::cluster_wait();

  const auto add_block = [&](int block_key, std::uint32_t parity) {
    // Read anew for each block where there is a loop: kept, they would be what spills.
    const int thread = kLooped ? ptx::thread_index() % 128 : threadIdx.x % 128;
    const int lane = thread % 32;
    const int row0 = tile_row + thread / 32 * 16 + lane / 4;
    // ---- S = Q K^T ----
    // K arrives in pieces, so that multiplying the first hides the arrival of the second.
    float s[kPieces][kPieceKeys / 2];
    const std::uint32_t q_low = descriptor_low(base);
    const std::uint32_t k_low = descriptor_low(k_tile);
    ptx::mbarrier_wait(bar_q, 0);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      ptx::mbarrier_wait(bar_k + 8 * (warpgroup * kPieces + i), parity);
      ptx::wgmma_fence();
#pragma unroll
      for (int d = 0; d < kHeadDim / 16; ++d) {
        const int chunk = d / 4, step = d % 4 * 2;
        ptx::wgmma_ss<T, kPieceKeys>(
            s[i], ptx::swizzle128_descriptor(q_low + chunk * (kRows * 8) + step),
            ptx::swizzle128_descriptor(k_low + (chunk * kKeys + i * kPieceKeys) * 8 + step),
            d != 0);
      }
      ptx::wgmma_commit();
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) ptx::pin_registers(s[i]);
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < kPieces; ++i) ptx::pin_registers(s[i]);
    const auto score = [&](int i) -> float& {
      return s[i / (kPieceKeys / 2)][i % (kPieceKeys / 2)];
    };

    const bool more = kLooped && block_key + kRound < keys_end;
    if (more) {
      ptx::named_barrier_sync<128>(1 + warpgroup);  // all warps have read K
      if (thread == 0) load_k(block_key + kRound);
    }

    // ---- Weights ----
    float scale = p.scale_log2;
    if (p.transform) {
      scale = 1.0f;
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        score(i) = transformed(score(i), p.transform_scale, p.transform_cap);
      }
    }
    const int warp_row = row0 - lane / 4;
    if (block_key < p.band.first(warp_row + 15) || block_key + kKeys > p.band.end(warp_row)) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int begin = p.band.first(row0 + 8 * half) - block_key - lane % 4 * 2;
        const int end = p.band.end(row0 + 8 * half) - block_key - lane % 4 * 2;
        const std::uint32_t visible = columns_below(end) & ~columns_below(begin);
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (!(visible & 1u << (2 * n + i))) score(4 * n + 2 * half + i) = -INFINITY;
          }
        }
      }
    }
    float shift[2];
    bool large = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float m[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) m[i] = score(i / 2 * 4 + i % 2 + 2 * half);
#pragma unroll
      for (int n = 2; n < kKeys / 8; n += 2) {
#pragma unroll
        for (int i = 0; i < 4; ++i) m[i] = fmaxf(m[i], score((n + i / 2) * 4 + i % 2 + 2 * half));
      }
      const float old_max = max[half];
      max[half] = quad_max(fmaxf(fmaxf(m[0], m[1]), fmaxf(m[2], m[3])));
      if constexpr (kLooped) max[half] = fmaxf(max[half], old_max);
      const float finite_max = max[half] == -INFINITY ? 0.0f : max[half];
      shift[half] = finite_max * scale;
      large |= fabsf(shift[half]) > kLargeShift;
      if constexpr (kLooped) {
        const float decay = exp2_fast((old_max - finite_max) * scale);
        sum[half] *= decay;
#pragma unroll
        for (int n = 0; n < kHeadDim / 8; ++n) {
          o[4 * n + 2 * half] *= decay;
          o[4 * n + 2 * half + 1] *= decay;
        }
      }
    }
    std::uint32_t weights[kKeys / 16][4];
    const float before[2] = {sum[0], sum[1]};
    const auto subtract = [&] {  // before the product rounds
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        const float top = max[i / 2 % 2];
        score(i) -= top == -INFINITY ? 0.0f : top;
      }
      shift[0] = shift[1] = 0.0f;
    };
    const auto weigh = [&] {
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i) {
        const int half = i % 2;
        const float x0 = exp2_fast(fmaf(score(2 * i), scale, -shift[half]));
        const float x1 = exp2_fast(fmaf(score(2 * i + 1), scale, -shift[half]));
        sum[half] += x0 + x1;
        weights[i / 4][i % 4] = pack2<T>(x0, x1);
      }
    };
    if constexpr (kLooped) subtract();  // always, because a branch here would make ptxas spill
    weigh();
    if (!kLooped && __any_sync(kFullWarp, large)) {
      sum[0] = before[0];
      sum[1] = before[1];
      subtract();
      weigh();
    }

    // ---- O = P V ----
    ptx::mbarrier_wait(bar_v + 8 * warpgroup, parity);
    // Keys behind the tile's last have weight 0, but 0 times NaN is NaN: keys that only other tiles
    // see must not reach this one. So the product stops at 64 keys where that is enough, and zeros
    // replace what is left. Behind the map's end TMA has put zeros already.
    constexpr int kHalf = kKeys > 64 ? 64 : kKeys;
    const int visible_keys = keys_end - block_key;
    const bool all_keys = visible_keys > kHalf;
    const int used = min(all_keys ? kKeys : kHalf, p.band.keys - block_key);
    if (visible_keys < used) {
      for (int i = visible_keys * 8 + thread; i < used * 8; i += 128) {
#pragma unroll
        for (int c = 0; c < kC.chunks(); ++c) {
          ptx::store_shared_16(v_tile + c * kKeys * 128 + i * 16, make_uint4(0, 0, 0, 0));
        }
      }
      ptx::fence_proxy_async_shared();
      ptx::named_barrier_sync<128>(1 + warpgroup);
    }
    const std::uint32_t v_low = descriptor_low(v_tile) | (kKeys * 8) << 16;
    const auto multiply = [&]<int kSteps>(std::integral_constant<int, kSteps>) {
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        ptx::wgmma_rs_nmajor<T, kHeadDim>(
            o, weights[k], ptx::swizzle128_descriptor(v_low + k * 128), kLooped || k != 0);
      }
      ptx::wgmma_commit();
      ptx::pin_registers(o);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(o);
    };
    if (all_keys) {
      multiply(std::integral_constant<int, kKeys / 16>{});
    } else {
      multiply(std::integral_constant<int, kHalf / 16>{});
    }
    if (more) {
      ptx::named_barrier_sync<128>(1 + warpgroup);  // all warps have read V
      if (thread == 0) load_v(block_key + kRound);
    }
  };
  if (kLooped || !active) {
#pragma unroll
    for (float& x : o) x = 0.0f;
  }
  if constexpr (kLooped) {
    // Tensor cores cut off what an addition cannot hold (sm90_prefill/kernel.cuh, `flush`), so the
    // output begins anew after 64 blocks; what it held waits in memory, with the maximum it is for.
    constexpr int kFlushBlocks = 64;
    struct Flushed {
      float o[kHeadDim / 2], max[2];
    } in_memory;
    const auto flushed = [&]() -> Flushed& {
      Flushed* address = &in_memory;
      asm volatile("" : "+l"(address));  // else the compiler would keep it in registers
      return *address;
    };
    const auto add_flushed = [&] {
      Flushed& before = flushed();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float top = max[half] == -INFINITY ? 0.0f : max[half];
        const float decay =
            exp2_fast((before.max[half] - top) * (p.transform ? 1.0f : p.scale_log2));
#pragma unroll
        for (int n = 0; n < kHeadDim / 8; ++n) {
          o[4 * n + 2 * half] += before.o[4 * n + 2 * half] * decay;
          o[4 * n + 2 * half + 1] += before.o[4 * n + 2 * half + 1] * decay;
        }
      }
    };
    int blocks = 0;
#pragma unroll 1
    for (int key = first_key, parity = 0; key < keys_end; key += kRound, parity ^= 1) {
      add_block(key, parity);
      if (++blocks % kFlushBlocks == 0) {
        if (blocks > kFlushBlocks) add_flushed();
        Flushed& here = flushed();
        here.max[0] = max[0];
        here.max[1] = max[1];
#pragma unroll
        for (int i = 0; i < kC.head_dim / 2; ++i) {
          here.o[i] = o[i];
          o[i] = 0.0f;
        }
      }
    }
    if (blocks >= kFlushBlocks) add_flushed();
  } else if (active) {
    add_block(first_key, 0);
  }
  sum[0] = quad_sum(sum[0]);
  sum[1] = quad_sum(sum[1]);

  // Where this lane will store, computed before the wait that ends in the store.
  const std::int64_t o_base = batch * p.o_batch + head * p.o_head;
  const int store_row = row0 + lane % 2 * 8;
  const int store_column = part * kColumns + (lane & 2 ? 8 : 0);
  const bool store_ok = store_row < p.seq_q;
  const bool native =
      p.output == (std::is_same_v<T, __half> ? ElementType::f16 : ElementType::bf16);
  T* store_to = static_cast<T*>(p.o) + o_base + store_row * p.o_row + store_column;
  asm volatile("" : "+l"(store_to));

  // ---- Exchange: to every part its quarter of the columns ----
  const Stats mine{max[0], max[1], sum[0], sum[1]};
  const std::uint32_t quad = thread / 4 * 16;
  float own[kOwn];
  const auto send = [&]<int kPart>(std::integral_constant<int, kPart>) {
    constexpr int kNear = kPart ^ 1;
    constexpr int kFar = (kPart / 2 ^ 1) * 2;  // and kFar + 1
    // Across the cluster first: it takes longest.
    // As fp16 they cross as half of averages, which fit whatever the sums are; averages themselves
    // could be rounded past 65504.
    [[maybe_unused]] const float inverse0 = 0.5f * reciprocal_fast(fmaxf(sum[0], 1e-30f));
    [[maybe_unused]] const float inverse1 = 0.5f * reciprocal_fast(fmaxf(sum[1], 1e-30f));
    const std::uint32_t other = rank ^ 1;
    const std::uint32_t far =
        ptx::map_shared_rank(base + kFarOffset + kPart % 2 * kFarBytes, other);
    const std::uint32_t far_barrier = ptx::map_shared_rank(bar_exchange, other);
#pragma unroll
    for (int w = 0; w < kWarpgroups; ++w) {
      const std::uint32_t to = far + w * kWarpgroups * kFarBytes;
      const float* x = o + (kFar + w) * kOwn;
      if (lane % 4 == 0) {
        ptx::store_async_16(to + quad, as_words(mine), far_barrier + 8 * w);
      }
#pragma unroll
      for (int i = 0; i < kOwn; i += 8) {
        if constexpr (kHalfExchange) {
          ptx::store_async_16(to + kStatsBytes + i * 256 + thread * 16,
                              make_uint4(pack2<T>(x[i] * inverse0, x[i + 1] * inverse0),
                                         pack2<T>(x[i + 2] * inverse1, x[i + 3] * inverse1),
                                         pack2<T>(x[i + 4] * inverse0, x[i + 5] * inverse0),
                                         pack2<T>(x[i + 6] * inverse1, x[i + 7] * inverse1)),
                              far_barrier + 8 * w);
        } else {
#pragma unroll
          for (int j = i; j < i + 8; j += 4) {
            ptx::store_async_16(to + kStatsBytes + j * 512 + thread * 16,
                                make_uint4(__float_as_uint(x[j]), __float_as_uint(x[j + 1]),
                                           __float_as_uint(x[j + 2]), __float_as_uint(x[j + 3])),
                                far_barrier + 8 * w);
          }
        }
      }
    }
    const std::uint32_t near = base + kNearOffset + kNear % 2 * kNearBytes;
    if (lane % 4 == 0) ptx::store_shared_16(near + quad, as_words(mine));
    const float* x = o + kNear * kOwn;
#pragma unroll
    for (int j = 0; j < kOwn; j += 4) {
      ptx::store_shared_16(near + kStatsBytes + j * 512 + thread * 16,
                           make_uint4(__float_as_uint(x[j]), __float_as_uint(x[j + 1]),
                                      __float_as_uint(x[j + 2]), __float_as_uint(x[j + 3])));
    }
#pragma unroll
    for (int j = 0; j < kOwn; ++j) own[j] = o[kPart * kOwn + j];
  };
  switch (part) {
    case 0:
      send(std::integral_constant<int, 0>{});
      break;
    case 1:
      send(std::integral_constant<int, 1>{});
      break;
    case 2:
      send(std::integral_constant<int, 2>{});
      break;
    default:
      send(std::integral_constant<int, 3>{});
      break;
  }
  __syncwarp();
  ptx::mbarrier_arrive_if(bar_exchange + 8 * (warpgroup ^ 1), lane == 0);
  ptx::mbarrier_wait(bar_exchange + 8 * warpgroup, 0);

  // ---- Merge ----
  const std::uint32_t near = base + kNearOffset + warpgroup * kNearBytes;
  const std::uint32_t far = base + kFarOffset + warpgroup * kWarpgroups * kFarBytes;
  const Stats stats[3] = {load_stats(near + quad), load_stats(far + quad),
                          load_stats(far + kFarBytes + quad)};
  const auto load_floats = [&](float* to, std::uint32_t from) {
    const uint4 w = ptx::load_shared_16(from);
    to[0] = __uint_as_float(w.x);
    to[1] = __uint_as_float(w.y);
    to[2] = __uint_as_float(w.z);
    to[3] = __uint_as_float(w.w);
  };
  // Everything is on its way before the first of it is needed.
  float theirs[3][kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; i += 8) {
    load_floats(theirs[0] + i, near + kStatsBytes + i * 512 + thread * 16);
    load_floats(theirs[0] + i + 4, near + kStatsBytes + (i + 4) * 512 + thread * 16);
#pragma unroll
    for (int w = 0; w < kWarpgroups; ++w) {
      const std::uint32_t from = far + w * kFarBytes + kStatsBytes + thread * 16;
      float* to = theirs[1 + w] + i;
      if constexpr (kHalfExchange) {
        const uint4 words = ptx::load_shared_16(from + i * 256);
        const std::uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 pair = __half22float2(reinterpret_cast<const __half2&>(word[j]));
          to[2 * j] = pair.x;
          to[2 * j + 1] = pair.y;
        }
      } else {
        load_floats(to, from + i * 512);
        load_floats(to + 4, from + (i + 4) * 512);
      }
    }
  }
  float top0 = max[0], top1 = max[1];
#pragma unroll
  for (const Stats& other : stats) {
    top0 = fmaxf(top0, other.max0);
    top1 = fmaxf(top1, other.max1);
  }
  const float scale = p.transform ? 1.0f : p.scale_log2;
  const float shift0 = top0 == -INFINITY ? 0.0f : top0;
  const float shift1 = top1 == -INFINITY ? 0.0f : top1;
  const float own0 = exp2_fast((max[0] - shift0) * scale);
  const float own1 = exp2_fast((max[1] - shift1) * scale);
  float weight0[3], weight1[3];
  float total0 = own0 * sum[0], total1 = own1 * sum[1];
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    weight0[i] = exp2_fast((stats[i].max0 - shift0) * scale);
    weight1[i] = exp2_fast((stats[i].max1 - shift1) * scale);
    total0 = fmaf(weight0[i], stats[i].sum0, total0);
    total1 = fmaf(weight1[i], stats[i].sum1, total1);
  }
  const float inverse0 = total0 == 0.0f ? 0.0f : reciprocal_fast(total0);
  const float inverse1 = total1 == 0.0f ? 0.0f : reciprocal_fast(total1);
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    weight0[i] *= inverse0;
    weight1[i] *= inverse1;
    if (kHalfExchange && i > 0) {
      weight0[i] *= 2.0f * stats[i].sum0;
      weight1[i] *= 2.0f * stats[i].sum1;
    }
  }
#pragma unroll
  for (int i = 0; i < kOwn; i += 8) {
    float x[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const bool upper = j & 2;  // row g + 8
      x[j] = own[i + j] * (upper ? own1 * inverse1 : own0 * inverse0);
#pragma unroll
      for (int n = 0; n < 3; ++n) {
        x[j] = fmaf(upper ? weight1[n] : weight0[n], theirs[n][i + j], x[j]);
      }
    }
    if (p.output == ElementType::f32) {  // 32 neighbouring bytes a quad
      float* out = static_cast<float*>(p.o) + o_base;
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        const int row = row0 + (j & 2 ? 8 : 0);
        const int column = part * kColumns + i * 2 + (j & 4 ? 8 : 0) + lane % 4 * 2;
        if (row < p.seq_q && column < p.head_dim) {
          *reinterpret_cast<float2*>(out + row * p.o_row + column) = make_float2(x[j], x[j + 1]);
        }
      }
    } else {  // two lanes a row: whole 32-byte sectors
      using Other = std::conditional_t<std::is_same_v<T, __half>, __nv_bfloat16, __half>;
      std::uint32_t words[4];
      if (native) {
        pack_means<T>(words, x);
      } else {
        pack_means<Other>(words, x);
      }
      const uint4 eight = quad_transpose(words);
      if (store_ok && store_column + i * 2 < p.head_dim) {
        ptx::store_global_16(store_to + i * 2, eight);
      }
    }
  }
  if (p.lse != nullptr && part == 0 && lane % 4 == 0) {
    float* lse = p.lse + (std::int64_t{batch} * p.heads_q + head) * p.seq_q;
    if (row0 < p.seq_q)
      lse[row0] = total0 == 0.0f ? -INFINITY : (top0 * scale + __log2f(total0)) * kLn2;
    if (row0 + 8 < p.seq_q) {
      lse[row0 + 8] = total1 == 0.0f ? -INFINITY : (top1 * scale + __log2f(total1)) * kLn2;
    }
  }
}

template <class T>
const std::array<const void*, kKernels>& entries() {
  constexpr std::size_t kDifferent = std::is_same_v<T, __half> ? kKernels : kConfigs.size();
  static const auto table = []<std::size_t... kI>(std::index_sequence<kI...>) {
    return std::array{reinterpret_cast<const void*>(&attention_kernel<T, kI % kDifferent>)...};
  }
  (std::make_index_sequence<kKernels>());
  return table;
}

}  // namespace greenfast::cuda::small
