// Questions about masks and sequences that selection and kernels both ask.
#pragma once

#include <cstdint>

#include <greenfast/types.hpp>

namespace greenfast::core {

/// A window, bounded on both sides, in which no row sees more than `keys` keys.
constexpr bool window_within(const Mask& mask, std::int64_t keys) {
  return mask.left >= 0 && mask.right >= 0 && mask.left < keys && mask.right < keys &&
         mask.left + mask.right < keys;
}

/// Every sequence has all of its rows and keys, one behind the other.
constexpr bool is_dense(const Problem& p) {
  const Sequences& s = p.sequences;
  return !(s.packed_q || s.packed_kv || s.used_q || s.used_kv || s.kv_index || s.kv_start ||
           p.pages.used());
}

/// One query a sequence that sees every key of a dense cache, and nothing that changes its scores or its sum
/// but a positive scale.
constexpr bool is_plain_query(const Problem& p) {
  const Mask& mask = p.mask;
  const bool sees_all =
      mask.is_none() || (mask.left < 0 && mask.alignment == Alignment::bottom_right);
  return p.seq_q == 1 && sees_all && is_dense(p) && p.chunk == 0 && !p.sinks && p.softcap == 0.0f &&
         p.scale > 0.0f && p.array_mask.kind == MaskKind::none && p.alibi == Alibi::none;
}

}  // namespace greenfast::core
