// The mask as an interval of keys per query. Functions have internal linkage, as in convert.hpp.
#pragma once

#include <cstdint>

namespace greenfast::kernels {

/// Keys [begin, end) that one query sees; empty when begin == end.
struct Interval {
  std::int64_t begin = 0, end = 0;
};

/// A mask resolved for one problem: query i sees keys i + first <= j <= i + last, within
/// [0, seq_kv). Bounds that reach past every key are clamped, so nothing here overflows.
struct Band {
  std::int64_t first = 0, last = 0, seq_kv = 0;
};

static inline Interval keys_of(const Band& band, std::int64_t query) {
  std::int64_t begin = query + band.first, end = query + band.last + 1;
  if (begin < 0) begin = 0;
  if (end > band.seq_kv) end = band.seq_kv;
  if (begin >= end) return {0, 0};
  return {begin, end};
}

/// left, right: as in Mask, negative for no bound; shift: 0 or seq_kv - seq_q.
static inline Band make_band(std::int64_t left, std::int64_t right, std::int64_t shift,
                             std::int64_t seq_q, std::int64_t seq_kv) {
  // No bound, or one farther than any pair of positions, is this far.
  const std::int64_t reach = seq_q + seq_kv;
  if (left < 0 || left > reach) left = reach;
  if (right < 0 || right > reach) right = reach;
  return {shift - left, shift + right, seq_kv};
}

}  // namespace greenfast::kernels
