// Factors of e4m3 tensors, as cuda.sm90.prefill's loop wants them.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90_prefill/config.hpp"

namespace greenfast::cuda::prefill {

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
  // The largest product must be the largest score.
  tile.q_turn = scale < 0.0f ? 0x80808080u : 0;
  // Times 0 the -inf of a hidden key would be NaN; products are below 2^26, so this is as good.
  tile.scale = scale == scale ? fmaxf(fabsf(scale), 0x1p-100f) : scale;
  tile.value_factor = factor(facts.v, kv_head, facts.heads_kv);
}

}  // namespace greenfast::cuda::prefill
