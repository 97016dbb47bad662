// The end of a tile of cuda.sm90.prefill: the two parts of a split tile become one, rows are
// normalised, and O and the log-sum-exp are stored.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/ptx_stmatrix.cuh"
#include "kernels/cuda/device/ptx_tma.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_prefill/consumer.cuh"
#include "kernels/cuda/sm90_prefill/products.cuh"
#include "kernels/cuda/sm90_prefill/shared_memory.cuh"
#include "kernels/cuda/sm90_prefill/softmax.cuh"

namespace greenfast::cuda::prefill {

// ---- Split tiles ----

/// Where a thread of the second warpgroup hands its part of a split tile to one of the first: bases
/// and sums of its rows, then its output.
template <class ConfigOf>
struct Exchange {
  static constexpr std::uint32_t kPitch = 16 * 128;  // 16 bytes a thread
  static constexpr int kParts = ConfigOf::value.values() / 8;
  std::uint32_t mine;

  __device__ __forceinline__ explicit Exchange(const SharedMemory<ConfigOf>& shared)
      : mine(shared.q + ConfigOf::value.exchange_offset() + 16 * (threadIdx.x & 127)) {}
};

template <class ConfigOf>
__device__ __forceinline__ void hand_over(const Exchange<ConfigOf>& at, const float (&base)[2],
                                          const float (&sum)[2],
                                          const typename Fragments<ConfigOf>::Output& o,
                                          bool works) {
  ptx::named_barrier_sync<256>(kExchangeEmpty);
  ptx::shared_store4(at.mine, {base[0], base[1], sum[0], sum[1]});
#pragma unroll
  for (int i = 0; i < at.kParts; ++i) {
    if (works)
      ptx::shared_store4(at.mine + (i + 1) * at.kPitch,
                         {o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]});
  }
  ptx::named_barrier_arrive<256>(kExchangeFull);
  __syncwarp();
}

/// Adds the other part's output, each times what its rows' new base asks for.
template <class ConfigOf>
__device__ __forceinline__ void add_part(const Exchange<ConfigOf>& at,
                                         typename Fragments<ConfigOf>::Output& o,
                                         const float (&ours)[2], const float (&theirs)[2]) {
#pragma unroll
  for (int i = 0; i < at.kParts; ++i) {
    const float4 part = ptx::shared_load4(at.mine + (i + 1) * at.kPitch);
    o[4 * i] = o[4 * i] * ours[0] + part.x * theirs[0];
    o[4 * i + 1] = o[4 * i + 1] * ours[0] + part.y * theirs[0];
    o[4 * i + 2] = o[4 * i + 2] * ours[1] + part.z * theirs[1];
    o[4 * i + 3] = o[4 * i + 3] * ours[1] + part.w * theirs[1];
  }
}

/// The first warpgroup's side: its part and the other's become one. `has_part` says whether there
/// is one; a tile of one block has none.
template <class ConfigOf>
__device__ __forceinline__ void take_over(const Exchange<ConfigOf>& at, float (&base)[2],
                                          float (&sum)[2], typename Fragments<ConfigOf>::Output& o,
                                          bool has_part) {
  ptx::named_barrier_sync<256>(kExchangeFull);
  const float4 theirs = ptx::shared_load4(at.mine);
  const float their_base[2] = {theirs.x, theirs.y};
  const float their_sum[2] = {theirs.z, theirs.w};
  float ours[2], factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float most = fmaxf(base[h], their_base[h]);
    const float from = most == -INFINITY ? 0.0f : most;
    ours[h] = exp2_fast(base[h] - from);
    factor[h] = exp2_fast(their_base[h] - from);
    sum[h] = sum[h] * ours[h] + their_sum[h] * factor[h];
    base[h] = most;
  }
  if (has_part) add_part(at, o, ours, factor);
  ptx::named_barrier_arrive<256>(kExchangeEmpty);
}

// ---- Stores ----

/// The same of one row, whose sum a sink may join.
template <class ConfigOf>
__device__ __forceinline__ void finish_row_with_sink(const Params& p, const TileOf<ConfigOf>& tile,
                                                     const OnlineSoftmax<ConfigOf>& rows, int h,
                                                     int row, int t) {
  const float sum = rows.sum[h];
  float lse = sum == 0.0f ? -INFINITY : kLn2 * (rows.top[h] + __log2f(sum));
  if constexpr (OnlineSoftmax<ConfigOf>::kNatural)
    lse = sum == 0.0f ? -INFINITY : fmaf(kLn2, __log2f(sum), rows.top[h]);
  float factor = sum == 0.0f ? 0.0f : reciprocal_fast(sum);
  if (p.serving.sinks != nullptr) factor *= join_sink(p.serving.sinks[tile.head], lse);
  if constexpr (ConfigOf::value.bytes) factor *= tile.value_factor;
  rows.sum[h] = factor;
  if (p.lse == nullptr || t != 0 || row >= rows.extent.seq_q) return;
  const std::int64_t head = static_cast<std::int64_t>(tile.batch) * p.schedule.heads + tile.head;
  p.lse[head * p.packed.lse_rows + tile.q_row + row] = lse;
}

/// Normalises the rows: stores their log-sum-exp, and turns the sums into what O is multiplied by.
/// `row` is the first of this thread's rows, `t` its place in the quad.
template <class ConfigOf>
__device__ __forceinline__ void finish_rows(const Params& p, const TileOf<ConfigOf>& tile,
                                            const OnlineSoftmax<ConfigOf>& rows, int row, int t) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    rows.sum[h] = quad_sum(rows.sum[h]);
    int r = row + 8 * h;
    if constexpr (ConfigOf::value.serving) {
      finish_row_with_sink<ConfigOf>(p, tile, rows, h, r, t);
      continue;
    }
    if (p.lse != nullptr && t == 0 && r < rows.extent.seq_q) {
      if constexpr (ConfigOf::value.packed) r += tile.q_row;
      const std::int64_t head =
          static_cast<std::int64_t>(tile.batch) * p.schedule.heads + tile.head;
      p.lse[head * lse_rows<ConfigOf>(p) + r] =
          rows.sum[h] == 0.0f ? -INFINITY : kLn2 * (rows.top[h] + __log2f(rows.sum[h]));
    }
    rows.sum[h] = rows.sum[h] == 0.0f ? 0.0f : reciprocal_fast(rows.sum[h]);  // no key seen: O = 0
  }
}

/// Stores O by every thread, in any type and with any strides.
template <class ConfigOf>
__device__ __forceinline__ void store_anywhere(const Params& p, const TileOf<ConfigOf>& tile,
                                               const typename Fragments<ConfigOf>::Output& o,
                                               const float (&factor)[2], bool works, int row,
                                               int t) {
  const auto first_of_tile = [&]() -> std::int64_t {
    const std::int64_t of_head = tile.batch * p.o_batch + tile.head * p.o_head;
    if constexpr (ConfigOf::value.packed) return of_head + tile.q_row * p.o_row;
    return of_head;
  };
  const auto rows_of_tile = [&] {
    if constexpr (ConfigOf::value.packed) return tile.extent.seq_q;
    return p.seq_q;
  };
  const auto columns = [&] {
    if constexpr (ConfigOf::value.serving) return p.serving.value_dim;
    return p.head_dim;
  };
  const std::int64_t base = first_of_tile();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (row + 8 * h >= rows_of_tile()) continue;
    const std::int64_t at = base + (row + 8 * h) * p.o_row + 2 * t;
#pragma unroll
    for (int i = 0; i < ConfigOf::value.values() / 8; ++i) {
      if (8 * i >= columns()) continue;
      const float x = works ? o[4 * i + 2 * h] * factor[h] : 0.0f;
      const float y = works ? o[4 * i + 2 * h + 1] * factor[h] : 0.0f;
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
}

/// The same of rows at 16 bytes, in 16 bits, by pieces of 8 columns, of which each lane of a quad has
/// every fourth.
template <class ConfigOf>
__device__ __forceinline__ void store_pieces(const Params& p, const TileOf<ConfigOf>& tile,
                                             const typename Fragments<ConfigOf>::Output& o,
                                             const float (&factor)[2], bool works, int row, int t) {
  auto* const out = static_cast<std::uint16_t*>(p.o) + tile.batch * p.o_batch +
                    tile.head * p.o_head + tile.q_row * p.o_row;
  const bool f16 = p.out_dtype == DType::f16;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const bool there = row + 8 * h < tile.extent.seq_q;
    const std::int64_t at = (row + 8 * h) * p.o_row + 8 * t;
#pragma unroll
    for (int i = 0; i < ConfigOf::value.values() / 8; i += 4) {
      std::uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float x = works ? o[4 * (i + j) + 2 * h] * factor[h] : 0.0f;
        const float y = works ? o[4 * (i + j) + 2 * h + 1] * factor[h] : 0.0f;
        words[j] = f16 ? pack2<__half>(finite_mean(x), finite_mean(y)) : pack2<__nv_bfloat16>(x, y);
      }
      const uint4 piece = quad_transpose(words);
      if (there && 8 * (i + t) < p.serving.value_dim)
        *reinterpret_cast<uint4*>(out + at + 8 * i) = piece;
    }
  }
}

/// Where a warp's 16 rows lie before TMA stores them, alone: [chunk][row][128 bytes], swizzled.
template <class ConfigOf>
struct Strip {
  static constexpr int kChunkBytes = ConfigOf::value.o_over_q() ? 64 * 128 : 16 * 128;
  std::uint32_t address;

  /// Columns 16 * j to 16 * j + 15.
  __device__ __forceinline__ void put(int j, int lane, const std::uint32_t (&words)[4]) const {
    const std::uint32_t row = address + (lane & 15) * 128;
    ptx::stmatrix_x4(
        row + (j / 4) * kChunkBytes + ((((j % 4) * 2 + (lane >> 4)) ^ (lane & 7)) << 4), words);
  }
  /// TMA leaves out rows past Sq.
  __device__ __forceinline__ void store([[maybe_unused]] const Params& p,
                                        const ExtentOf<ConfigOf>& extent, const CUtensorMap& o_map,
                                        const TileOf<ConfigOf>& tile, int first_row,
                                        int warp) const {
    if (first_row + 16 * warp < extent.seq_q) {
      if constexpr (ConfigOf::value.packed) {
        const RaggedPlace at = ragged_place(tile.q_row + tile.batch * p.packed.o_rows,
                                            tile.extent.seq_q, first_row + 16 * warp);
#pragma unroll
        for (int c = 0; c < ConfigOf::value.value_chunks(); ++c)
          ptx::tma_store_5d(&o_map, address + c * kChunkBytes, 64 * c, at.row, tile.head, at.end,
                            kRaggedRows);
      }
      if constexpr (!ConfigOf::value.packed) {
#pragma unroll
        for (int c = 0; c < ConfigOf::value.value_chunks(); ++c)
          ptx::tma_store_4d(&o_map, address + c * kChunkBytes, 64 * c, first_row + 16 * warp,
                            tile.head, tile.batch);
      }
    }
    ptx::tma_store_commit();
    if constexpr (ConfigOf::value.o_over_q()) ptx::tma_store_wait_read();
  }
};

/// Rows of the output into their strip, times what finish_rows left in `factor`; zeros apart, so
/// that the accumulators stay where they are.
template <class T, class ConfigOf>
__device__ __forceinline__ void fill_strip(const Strip<ConfigOf>& strip,
                                           const typename Fragments<ConfigOf>::Output& o,
                                           float (&factor)[2], bool has_output, int lane) {
  constexpr int kPieces = ConfigOf::value.values() / 16;
  if (!has_output) {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) strip.put(j, lane, {0, 0, 0, 0});
    return;
  }
  // Weights rounded above the fraction and not below it may carry O past fp16's last number, by a
  // factor of 1 + 2^-11. Such rows are stored a second time. With a factor of V they may go anywhere,
  // and each element stops at the last number for itself, where the first pass found one beyond: a
  // look at the largest costs one instruction for two elements, stopping them seven.
  constexpr bool kHalf = std::is_same_v<T, __half>, kStops = kHalf && ConfigOf::value.bytes;
  constexpr bool kMayOverflow = kHalf && (kStops || !ConfigOf::value.ones);
  [[maybe_unused]] __half2 most[2] = {};
  const auto put_all = [&](const auto& word_of) {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* x = o + 8 * j + 2 * i;
        words[i] = word_of(i & 1, x[0] * factor[i & 1], x[1] * factor[i & 1]);
      }
      strip.put(j, lane, words);
    }
  };
#pragma unroll 1
  for (int pass = 0; pass < (kMayOverflow ? 2 : 1); ++pass) {
    most[0] = most[1] = {};
    put_all([&](int h, float x, float y) {
      const std::uint32_t word = pack2<T>(x, y);
      if constexpr (kMayOverflow)
        most[h] = __hmax2(most[h], __habs2(reinterpret_cast<const __half2&>(word)));
      return word;
    });
    if constexpr (kMayOverflow) {
      const __half2 last = __float2half2_rn(65504.0f);
      if (!__any_sync(kFullWarp, !__hble2(__hmax2(most[0], most[1]), last))) break;
      if constexpr (kStops) {
        put_all([](int, float x, float y) { return pack2<T>(finite_mean(x), finite_mean(y)); });
        break;
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 two = __half22float2(most[h]);
        factor[h] *= quad_max(fmaxf(two.x, two.y)) > 65504.0f ? 1.0f - 0x1p-11f : 1.0f;
      }
    }
  }
}

/// The end of a tile: O is stored, times what finish_rows left in `factor`.
template <class T, class ConfigOf>
__device__ __forceinline__ void store_rows(const Params& p, const CUtensorMap& o_map,
                                           const TileOf<ConfigOf>& tile,
                                           const Consumer<T, ConfigOf>& consumer,
                                           float (&factor)[2], bool has_output, int first_row,
                                           int row, int lane) {
  constexpr Config kConfig = ConfigOf::value;
  constexpr bool kInPieces = !kConfig.stores_anywhere();
  if (!kInPieces || (kConfig.bytes && !p.bytes.o_aligned)) {
    store_anywhere<ConfigOf>(p, tile, consumer.o, factor, has_output, row, lane & 3);
    return;
  }
  if constexpr (!kConfig.o_has_strip())
    store_pieces<ConfigOf>(p, tile, consumer.o, factor, has_output, row, lane & 3);
  if constexpr (kInPieces && kConfig.o_has_strip()) {
    Strip<ConfigOf> strip;
    if constexpr (kConfig.o_over_q()) {
      strip.address = consumer.q_tile() + consumer.seat.warp * 16 * 128;
      ptx::named_barrier_sync<128>(kQIsRead + consumer.seat.group);
    } else {
      // lane / 32 is 0, but keeps the address from living in a register through the main loop.
      strip.address =
          consumer.shared.q + kConfig.o_offset() +
          (4 * consumer.seat.group + consumer.seat.warp + lane / 32) * kConfig.strip_bytes();
      if (consumer.seat.leader) ptx::tma_store_wait_read();
      __syncwarp();
    }
    if (kConfig.bytes && p.out_dtype == DType::bf16)
      fill_strip<__nv_bfloat16>(strip, consumer.o, factor, has_output, lane);
    else
      fill_strip<T>(strip, consumer.o, factor, has_output, lane);
    ptx::fence_proxy_async_shared();
    __syncwarp();
    if (consumer.seat.leader)
      strip.store(p, consumer.rows.extent, o_map, tile, first_row, consumer.seat.warp);
  }
}

}  // namespace greenfast::cuda::prefill
