// The second kernel of cuda.sm90.grouped: parts of rows become rows. Its card is that of grouped_host.cu.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_prefill/config.hpp"
#include "kernels/cuda/sm90_prefill/grouped.cuh"

namespace greenfast::cuda::prefill {

inline constexpr int kJoinThreads = 256;

/// Adds the parts of rows. Grid: slots, and how many blocks share a slot's rows; the blocks of a part take
/// every so-many-th row of its tile, a warp each.
template <int kRows, int kValues>
__device__ __forceinline__ void join_parts(const Params& p) {
  const GroupedFacts& facts = p.grouped;
  const auto slot = static_cast<std::int32_t>(blockIdx.x);
  const PartPlace of = facts.places[slot];
  if (of.parts == 0) return;
  const int lane = ptx::lane_id(), warp = static_cast<int>(threadIdx.x) / 32;
  const auto at_part = [&](int part) { return std::int64_t{slot_of_part(of.first, part)} * kRows; };
  constexpr int kEach = kValues / 32;  // columns of a lane
  using Columns = std::conditional_t<kEach == 4, float4, float2>;
  const std::int64_t of_kv =
      p.bytes.per_head ? std::int64_t{of.entry} * p.bytes.heads_kv + of.head : 0;
  const float value_factor = p.bytes.v == nullptr ? 1.0f : p.bytes.v[of_kv];
  const int warps = kJoinThreads / 32 * static_cast<int>(gridDim.y);
#pragma unroll 1
  for (int row = of.part + (warp + static_cast<int>(blockIdx.y) * (kJoinThreads / 32)) * of.parts;
       row < of.rows; row += warps * of.parts) {
    // Everything is asked for before anything is looked at: the kernel lasts as long as it waits.
    constexpr int kAtOnce = 8;
    float4 s[kAtOnce];  // PartStats
    Columns x[kAtOnce];
    const auto load = [&](int part) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const std::int64_t at = at_part(min(part + i, of.parts - 1)) + row;
        s[i] = reinterpret_cast<const float4*>(facts.stats)[at];
        x[i] = reinterpret_cast<const Columns*>(facts.partial)[at * 32 + lane];
      }
    };
    load(0);
    // The largest base, as two floats.
    WideBase base{-INFINITY, 0.0f};
    if (of.parts <= kAtOnce) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) base = larger(base, {s[i].x, s[i].y});
    } else {
      for (int part = lane; part < of.parts; part += 32) {
        const float4 mine = reinterpret_cast<const float4*>(facts.stats)[at_part(part) + row];
        base = larger(base, {mine.x, mine.y});
      }
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2)
        base = larger(base, {__shfl_xor_sync(kFullWarp, base.high, lanes),
                             __shfl_xor_sync(kFullWarp, base.low, lanes)});
    }
    const WideBase from = base.high == -INFINITY ? WideBase{0.0f, 0.0f} : base;

    float sum = 0.0f, o[kEach] = {};
#pragma unroll 1
    for (int part = 0;;) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (part + i >= of.parts) break;
        const float weight = exp2_fast(distance({s[i].x, s[i].y}, from));
        sum = fmaf(weight, s[i].z, sum);
        o[0] = fmaf(weight, x[i].x, o[0]);
        o[1] = fmaf(weight, x[i].y, o[1]);
        if constexpr (kEach == 4) {
          o[2] = fmaf(weight, x[i].z, o[2]);
          o[3] = fmaf(weight, x[i].w, o[3]);
        }
      }
      part += kAtOnce;
      if (part >= of.parts) break;
      load(part);
    }
    const std::int32_t r = of.first_row + row, query = r / facts.by_group;
    const std::int32_t head = of.head * facts.group + (r - query * facts.group);
    const std::int64_t of_heads = std::int64_t{of.batch} * p.schedule.heads + head;
    const float factor = finish_row_of_head(p, of_heads * p.packed.lse_rows + of.q_row + query,
                                            head, value_factor, base, sum, lane == 0);
    const std::int64_t at = of.batch * p.o_batch + head * p.o_head + (of.q_row + query) * p.o_row;
    const bool empty = sum == 0.0f;
    const int column = kEach * lane;
    if (column >= p.serving.value_dim) continue;
#pragma unroll
    for (int c = 0; c < kEach; ++c) o[c] = empty ? 0.0f : o[c] * factor;
    if (!facts.o_aligned) {
#pragma unroll
      for (int c = 0; c < kEach; ++c) store_element(p, at + column + c, o[c]);
      continue;
    }
    auto* const to = static_cast<std::uint16_t*>(p.o) + at + column;
    if constexpr (kEach == 4)
      *reinterpret_cast<uint2*>(to) = {narrowed(p, o[0], o[1]), narrowed(p, o[2], o[3])};
    else
      *reinterpret_cast<std::uint32_t*>(to) = narrowed(p, o[0], o[1]);
  }
}

}  // namespace greenfast::cuda::prefill
