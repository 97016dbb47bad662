// Rows of a group in cuda.sm90.prefill's loop: where Q and O of a tile's rows lie, Q on its way to shared
// memory, and how rows end, in O or as partial results. Its card is that of kernel.cuh.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/ptx_cp_async.cuh"
#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_prefill/config.hpp"
#include "kernels/cuda/sm90_prefill/products.cuh"

namespace greenfast::cuda::prefill {

/// Whose a row is.
struct GroupRow {
  std::int32_t query, head;
};
__device__ __forceinline__ GroupRow row_in_group(const Params& p, const GroupedTile& tile,
                                                 int row) {
  const std::int32_t query = row / p.grouped.by_group;
  return {query, tile.head * p.grouped.group + (row - query * p.grouped.group)};
}

/// A row of Q: elements from the first of the tensor.
__device__ __forceinline__ std::int64_t q_of_group(const Params& p, const GroupedTile& tile,
                                                   int row) {
  const GroupRow r = row_in_group(p, tile, row);
  return tile.batch * p.q_batch + r.head * p.q_head + (tile.q_row + r.query) * p.q_row;
}
__device__ __forceinline__ std::int64_t o_of_group(const Params& p, const GroupedTile& tile,
                                                   int row) {
  const GroupRow r = row_in_group(p, tile, row);
  return tile.batch * p.o_batch + r.head * p.o_head + (tile.q_row + r.query) * p.o_row;
}

/// The 16 rows of Q that this warp multiplies, as TMA would lay them; zeros behind the sequence's last
/// row and the last column. Nobody else reads them.
template <class T, class ConfigOf>
__device__ __forceinline__ void copy_group_queries(const Params& p, const GroupedTile& tile,
                                                   std::uint32_t q_tile, int first_row, int warp) {
  constexpr Config kConfig = ConfigOf::value;
  constexpr int kBytes = kConfig.bytes ? 1 : 2, kOfRow = 8 * kConfig.chunks();
  const int lane = ptx::lane_id();
  const auto* const q = static_cast<const std::uint8_t*>(p.q);
#pragma unroll 2
  for (int i = lane; i < 16 * kOfRow; i += 32) {
    const int row = 16 * warp + i / kOfRow, piece = i % kOfRow;
    const int left = (p.head_dim - piece * (16 / kBytes)) * kBytes;
    const bool there = first_row + row < tile.extent.seq_q && left > 0;
    const std::int64_t at = there ? q_of_group(p, tile, first_row + row) * kBytes + piece * 16 : 0;
    ptx::cp_async_16_part(
        q_tile + piece / 8 * (64 * 128) + row * 128 + ((piece % 8 ^ (row & 7)) << 4), q + at,
        there ? min(left, 16) : 0);
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncwarp();
}

/// Whether each warpgroup takes every other tile, whole, so that one begins a tile beside the end of the other's.
template <class ConfigOf>
__device__ __forceinline__ bool alternates(const Params& p) {
  if constexpr (kIsGrouped<ConfigOf>) return p.grouped.alternate;
  return false;
}
/// Whether all rows of a CTA's step-th tile are the other warpgroup's.
template <class ConfigOf>
__device__ __forceinline__ bool is_of_other(const Params& p, int step, int warpgroup) {
  return alternates<ConfigOf>(p) && (step + warpgroup) % 2 != 0;
}
/// Of a tile's rows the first that a warpgroup works on.
template <class ConfigOf>
__device__ __forceinline__ int first_of_warpgroup(const Params& p, int warpgroup) {
  return ConfigOf::value.split || alternates<ConfigOf>(p) ? 0 : 64 * warpgroup;
}

// ---- Partial results ----

template <class ConfigOf>
__device__ __forceinline__ std::int64_t place_in_slot(const GroupedTile& tile, int row) {
  constexpr int kRows = ConfigOf::value.rows();
  return std::int64_t{tile.slot} * kRows + (row - tile.index * kRows);
}
template <class ConfigOf>
__device__ __forceinline__ float* partial_of_row(const Params& p, const GroupedTile& tile,
                                                 int row) {
  return p.grouped.partial + place_in_slot<ConfigOf>(tile, row) * ConfigOf::value.values();
}
template <class ConfigOf>
__device__ __forceinline__ PartStats* stats_of_row(const Params& p, const GroupedTile& tile,
                                                   int row) {
  return p.grouped.stats + place_in_slot<ConfigOf>(tile, row);
}

/// Says that none of this CTA's slots is used, before note_place says whose they are. By a whole warp.
__device__ __forceinline__ void clear_places(const Params& p) {
  const int lane = ptx::lane_id();
  if (p.grouped.places != nullptr && lane < 2) p.grouped.places[2 * blockIdx.x + lane].parts = 0;
  __syncwarp();
}
template <class ConfigOf>
__device__ __forceinline__ void note_place(const Params& p, const GroupedTile& tile) {
  if (tile.index < 0 || tile.slot < 0 || ptx::lane_id() != 0) return;
  constexpr int kRows = ConfigOf::value.rows();
  const int row = tile.index * kRows;
  p.grouped.places[tile.slot] = {
      tile.batch, tile.q_row, tile.head,  row,       min(kRows, tile.extent.seq_q - row),
      tile.part,  tile.parts, tile.first, tile.entry};
}

// ---- Whole rows ----

/// The log-sum-exp of a row whose weights, of a base of two floats, add up to `sum`; stores it where it is
/// asked for. Returns what the row's output is multiplied by.
__device__ __forceinline__ float finish_row_of_head(const Params& p, std::int64_t lse_at,
                                                    std::int32_t head, float value_factor,
                                                    WideBase base, float sum, bool writes) {
  float lse = sum == 0.0f ? -INFINITY : kLn2 * (base.high + (base.low + __log2f(sum)));
  float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
  if (p.serving.sinks != nullptr) factor *= join_sink(p.serving.sinks[head], lse);
  if (p.lse != nullptr && writes) p.lse[lse_at] = lse;
  return factor * value_factor;
}
template <class ConfigOf>
__device__ __forceinline__ float finish_in_group(const Params& p, const GroupedTile& tile, int row,
                                                 WideBase base, float sum, bool writes) {
  const GroupRow r = row_in_group(p, tile, row);
  const std::int64_t head = std::int64_t{tile.batch} * p.schedule.heads + r.head;
  return finish_row_of_head(p, head * p.packed.lse_rows + tile.q_row + r.query, r.head,
                            ConfigOf::value.bytes ? tile.value_factor : 1.0f, base, sum, writes);
}

/// One element of O.
__device__ __forceinline__ void store_element(const Params& p, std::int64_t at, float x) {
  if (p.out_dtype == DType::f32)
    static_cast<float*>(p.o)[at] = x;
  else if (p.out_dtype == DType::f16)
    static_cast<__half*>(p.o)[at] = __float2half_rn(finite_mean(x));
  else
    static_cast<__nv_bfloat16*>(p.o)[at] = __float2bfloat16_rn(x);
}
/// Two of them as 16 bits.
__device__ __forceinline__ std::uint32_t narrowed(const Params& p, float x, float y) {
  return p.out_dtype == DType::f16 ? pack2<__half>(finite_mean(x), finite_mean(y))
                                   : pack2<__nv_bfloat16>(x, y);
}

/// The end of a tile.
template <class ConfigOf, class Rows, class Output>
__device__ __forceinline__ void store_group_rows(const Params& p, const GroupedTile& tile,
                                                 const Rows& rows, const Output& o, bool has_output,
                                                 int row, int t) {
  constexpr int kValues = ConfigOf::value.values();
  const float sums[2] = {quad_sum(rows.sum[0]), quad_sum(rows.sum[1])};
  if (tile.slot >= 0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = row + 8 * h;
      if (r >= tile.extent.seq_q) continue;
      if (t == 0)
        *stats_of_row<ConfigOf>(p, tile, r) = {sums[h] == 0.0f ? -INFINITY : rows.top[h], 0.0f,
                                               sums[h], 0.0f};
      float* const to = partial_of_row<ConfigOf>(p, tile, r) + 2 * t;
#pragma unroll
      for (int i = 0; i < kValues / 8; ++i)
        *reinterpret_cast<float2*>(to + 8 * i) =
            has_output ? float2{o[4 * i + 2 * h], o[4 * i + 2 * h + 1]} : float2{0.0f, 0.0f};
    }
    return;
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = row + 8 * h;
    const bool there = r < tile.extent.seq_q;
    float factor = 0.0f;
    std::int64_t at = 0;
    if (there) {
      factor = finish_in_group<ConfigOf>(p, tile, r, {rows.top[h], 0.0f}, sums[h], t == 0);
      at = o_of_group(p, tile, r);
    }
    const bool empty = !has_output || sums[h] == 0.0f;
#pragma unroll
    for (int i = 0; i < kValues / 8; i += 4) {
      if (p.grouped.o_aligned) {
        std::uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float* const x = o + 4 * (i + j) + 2 * h;
          words[j] = empty ? 0 : narrowed(p, x[0] * factor, x[1] * factor);
        }
        const uint4 piece = quad_transpose(words);
        if (there && 8 * (i + t) < p.serving.value_dim)
          *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(p.o) + at + 8 * (i + t)) = piece;
        continue;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* const x = o + 4 * (i + j) + 2 * h;
        if (!there || 8 * (i + j) >= p.serving.value_dim) continue;
        store_element(p, at + 8 * (i + j) + 2 * t, empty ? 0.0f : x[0] * factor);
        store_element(p, at + 8 * (i + j) + 2 * t + 1, empty ? 0.0f : x[1] * factor);
      }
    }
  }
}

}  // namespace greenfast::cuda::prefill
