// The mask as an interval of keys per query. Functions have internal linkage, as in convert.hpp.
#pragma once

#include <cstdint>

namespace greenfast::kernels {

/// Keys [begin, end) that one query sees; empty when begin == end.
struct Interval {
  std::int64_t begin = 0, end = 0;
};

/// A mask resolved for one sequence: query i sees keys i + first <= j <= i + last, within
/// [start, seq_kv) and, where chunk > 0, within the chunk of position i + shift; chunks are counted
/// from start. Bounds that reach past every key are clamped, so nothing here overflows.
struct Band {
  std::int64_t first = 0, last = 0, seq_kv = 0;
  std::int64_t start = 0, shift = 0, chunk = 0;
};

/// Keys that some of the queries `low` to `high` see. Neighbours' windows overlap or touch, for
/// each holds the query's own position, so this is an interval, and each key in it is seen.
static inline Interval seen_by_some(const Band& band, std::int64_t low, std::int64_t high) {
  std::int64_t begin = low + band.first, end = high + band.last + 1;
  if (band.chunk > 0) {
    // Rounded down: positions before start are in chunks without keys.
    const auto chunk_of = [&band](std::int64_t query) {
      const std::int64_t position = query + band.shift - band.start;
      const std::int64_t down = position < 0 ? band.chunk - 1 : 0;
      return band.start + (position - down) / band.chunk * band.chunk;
    };
    const std::int64_t from = chunk_of(low), to = chunk_of(high) + band.chunk;
    if (begin < from) begin = from;
    if (end > to) end = to;
  }
  if (begin < band.start) begin = band.start;
  if (end > band.seq_kv) end = band.seq_kv;
  if (begin >= end) return {0, 0};
  return {begin, end};
}

static inline Interval keys_of(const Band& band, std::int64_t query) {
  return seen_by_some(band, query, query);
}

/// Keys that all of them see; begin > end where there is none.
static inline Interval seen_by_all(const Band& band, std::int64_t low, std::int64_t high) {
  if (band.chunk > 0 || band.start > 0) {
    const Interval a = keys_of(band, low), b = keys_of(band, high);
    if (a.begin == a.end || b.begin == b.end) return {0, 0};
    return {b.begin, a.end};
  }
  const std::int64_t end = low + band.last + 1;
  return {high + band.first, end > band.seq_kv ? band.seq_kv : end};
}

/// left, right: as in Mask, negative for no bound; shift: 0 or seq_kv - seq_q.
static inline Band make_band(std::int64_t left, std::int64_t right, std::int64_t shift,
                             std::int64_t seq_q, std::int64_t seq_kv, std::int64_t start = 0,
                             std::int64_t chunk = 0) {
  // No bound, or one farther than any pair of positions, is this far.
  const std::int64_t reach = seq_q + seq_kv;
  if (left < 0 || left > reach) left = reach;
  if (right < 0 || right > reach) right = reach;
  return {shift - left, shift + right, seq_kv, start, shift, chunk};
}

}  // namespace greenfast::kernels
