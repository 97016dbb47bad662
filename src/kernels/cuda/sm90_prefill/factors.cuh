// Factors of e4m3 tensors, as cuda.sm90.prefill's loop wants them.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_prefill/config.hpp"

namespace greenfast::cuda::prefill {

__device__ __forceinline__ void set_scale(ScaledTile& tile, float scale) {
  // The largest product must be the largest score.
  tile.q_turn = scale < 0.0f ? 0x80808080u : 0;
  // Times 0 the -inf of a hidden key would be NaN; products are below 2^26, so this is as good.
  tile.scale = scale == scale ? fmaxf(fabsf(scale), 0x1p-100f) : scale;
}

/// The factors of a tile's heads.
__device__ __forceinline__ void find_factors(const Params& p, ScaledTile& tile) {
  const ByteFacts& facts = p.bytes;
  const int kv_head = tile.head / p.group;
  const auto factor = [&](const float* factors, int head, int heads) {
    const std::int64_t at = facts.per_head ? std::int64_t{tile.entry} * heads + head : 0;
    return factors == nullptr ? 1.0f : factors[at];
  };
  const auto scale =
      static_cast<float>(facts.scale_log2 * factor(facts.q, tile.head, p.packed.heads) *
                         factor(facts.k, kv_head, facts.heads_kv));
  set_scale(tile, scale);
  tile.value_factor = factor(facts.v, kv_head, facts.heads_kv);
}

/// The same of a group, by a whole warp: with the largest factor of its heads, to which those of rows are
/// related (factor_of_row).
__device__ __forceinline__ void find_factors(const Params& p, GroupedTile& tile) {
  const ByteFacts& facts = p.bytes;
  const std::int64_t of_kv =
      facts.per_head ? std::int64_t{tile.entry} * facts.heads_kv + tile.head : 0;
  float largest = facts.q == nullptr ? 1.0f : 0.0f;
  const int heads = facts.q == nullptr ? 0 : facts.per_head ? p.grouped.group : 1;
  for (int i = ptx::lane_id(); i < heads; i += 32)
    largest = fmaxf(largest, fabsf(facts.q[of_kv * heads + i]));
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, lanes));
  tile.q_largest = largest;
  const auto scale =
      static_cast<float>(facts.scale_log2 * largest * (facts.k == nullptr ? 1.0f : facts.k[of_kv]));
  set_scale(tile, scale);
  tile.value_factor = facts.v == nullptr ? 1.0f : facts.v[of_kv];
}
/// What a row's scores are multiplied by before the tile's scale: -1 to 1.
__device__ __forceinline__ float factor_of_row(const Params& p, const GroupedTile& tile, int row) {
  const ByteFacts& facts = p.bytes;
  if (facts.q == nullptr || row >= tile.extent.seq_q) return 1.0f;
  const int of_group = row - row / p.grouped.by_group * p.grouped.group;
  const std::int64_t of_kv = std::int64_t{tile.entry} * facts.heads_kv + tile.head;
  const float factor = facts.q[facts.per_head ? of_kv * p.grouped.group + of_group : 0];
  return tile.q_largest == 0.0f ? factor : factor / tile.q_largest;
}

}  // namespace greenfast::cuda::prefill
