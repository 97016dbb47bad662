// What cuda.sm90.decode and cuda.sm80.decode decide from lengths alone: which keys a row sees, how a sequence's keys are
// parted, which part is whose. Host and device run the same functions, so that tests without a GPU
// walk what the kernel will do.
#pragma once

#include <cstdint>

namespace greenfast::cuda::decode {

/// Parts end at multiples of so many keys, counted from the first that the sequence sees.
inline constexpr std::int32_t kUnit = 64;
/// A warp adds 16 keys a step into accumulators that lose up to 1.2e-7 of their value each time
/// (docs/numerics.md): after so many keys of a block a part ends, whatever the caller asked.
inline constexpr std::int32_t kMostKeys = 65536;
/// Blocks of a cluster: 8 is the most that every device of sm_90 takes.
inline constexpr std::int32_t kCluster = 8;
/// Up to so many keys a rule that goes by length makes no more parts than a cluster has blocks.
inline constexpr std::int32_t kClusterKeys = 4096;
/// Sequences whose parts one block can count through.
inline constexpr std::int32_t kMostCounted = 1024;

/// Of any length: ceil_div's sum would pass the last int32.
constexpr std::int32_t divide_up(std::int32_t a, std::int32_t b) { return a / b + (a % b != 0); }
constexpr std::int32_t whole_units(std::int32_t keys) { return divide_up(keys, kUnit) * kUnit; }
constexpr std::int32_t least_of(std::int32_t a, std::int32_t b) { return a < b ? a : b; }
constexpr std::int32_t most_of(std::int32_t a, std::int32_t b) { return a > b ? a : b; }
constexpr std::int32_t within(std::int32_t x, std::int32_t low, std::int32_t high) {
  return x < low ? low : x > high ? high : x;
}

/// How the keys that a sequence sees are parted.
struct SplitRule {
  bool by_length = false;         // batch_invariant: by the sequence's own length and nothing else
  std::int32_t parts = 1;         // otherwise so many,
  std::int32_t least = kUnit;     // of no fewer keys than this
  std::int32_t most = kMostKeys;  // and no more than this
  std::int32_t bound = 0;         // Options::max_splits; 0: none
};

/// Keys of each part but the last, for a sequence that sees `keys` of them, at least one.
constexpr std::int32_t keys_of_part(const SplitRule& rule, std::int32_t keys) {
  std::int32_t size = 0;
  if (rule.by_length) {
    // About the square root of 32 times the length: more parts would be merged for longer than they
    // save (docs/kernels/sm90-decode.md).
    size = keys <= kClusterKeys ? divide_up(keys, kCluster)
           : keys <= 16384      ? 512
           : keys <= 65536      ? 1024
           : keys <= 131072     ? 2048
                                : divide_up(keys, 64);
  } else {
    size = most_of(least_of(most_of(divide_up(keys, rule.parts), rule.least), rule.most), 1);
  }
  if (rule.bound > 0) size = most_of(size, divide_up(keys, rule.bound));
  size = least_of(whole_units(size), kMostKeys);
  return whole_units(divide_up(keys, divide_up(keys, size)));  // all parts alike
}

/// No sequence that sees up to `keys` has more parts: what the workspace holds.
constexpr std::int32_t most_parts(const SplitRule& rule, std::int32_t keys) {
  if (keys <= 0) return 1;
  std::int32_t parts = 0;
  if (rule.by_length) {
    parts = keys <= kClusterKeys ? least_of(kCluster, divide_up(keys, kUnit))
            : keys <= 16384      ? 32
                                 : 64;
  } else {
    parts = most_of(least_of(rule.parts, divide_up(keys, kUnit)), divide_up(keys, rule.most));
  }
  if (rule.bound > 0) parts = least_of(parts, rule.bound);
  return most_of(parts, divide_up(keys, kMostKeys));
}

/// A division by a number that the host knows, for numerators from 0 to 2^31 - 1 (Granlund and
/// Montgomery 1994). What tile_schedule.hpp's Divisor computes, by other instructions: one of the two
/// goes when this kernel is recorded anew.
struct FastDivide {
  std::uint32_t divisor = 1, multiplier = 1u << 31, shift = 31;

  static constexpr FastDivide by(std::uint32_t divisor) {
    std::uint32_t log2 = 0;
    while ((std::uint64_t{1} << log2) < divisor) ++log2;
    const std::uint64_t power = std::uint64_t{1} << (31 + log2);
    return {divisor, static_cast<std::uint32_t>((power + divisor - 1) / divisor), 31 + log2};
  }
  constexpr std::int32_t operator()(std::int32_t x) const {
    return static_cast<std::int32_t>(std::uint64_t{static_cast<std::uint32_t>(x)} * multiplier >>
                                     shift);
  }
};

/// The band and the chunks, as in Problem; a negative bound is none, a chunk of 0 as well.
struct Sight {
  std::int64_t left = -1, right = -1;
  std::int32_t chunk = 0;
  FastDivide by_chunk;  // a division of 64 bits would be a hundred instructions
  bool bottom_right = false;
};
constexpr Sight make_sight(std::int64_t left, std::int64_t right, std::int64_t chunk,
                           bool bottom_right) {
  // No position is farther than 2^31 - 1 from the first.
  constexpr std::int64_t kWhole = 0x7fffffff;
  Sight sight{
      left, right, static_cast<std::int32_t>(chunk < kWhole ? chunk : kWhole), {}, bottom_right};
  if (sight.chunk > 0) sight.by_chunk = FastDivide::by(static_cast<std::uint32_t>(sight.chunk));
  return sight;
}

struct Lengths {
  std::int32_t seq_q = 0, seq_kv = 0;
  std::int32_t kv_start = 0;
};

/// Keys [begin, end), both of them 0 to seq_kv; none where end <= begin. Neither falls from one row
/// to the next, and neighbours' ranges overlap or touch, for each holds the row's own position.
struct KeyRange {
  std::int32_t begin = 0, end = 0;
  constexpr std::int32_t count() const { return end > begin ? end - begin : 0; }
};

constexpr KeyRange keys_of_row(const Sight& sight, const Lengths& s, std::int32_t row) {
  const std::int64_t position =
      std::int64_t{row} + (sight.bottom_right ? std::int64_t{s.seq_kv} - s.seq_q : 0);
  std::int64_t begin = s.kv_start, end = s.seq_kv;
  if (sight.left >= 0 && position - sight.left > begin) begin = position - sight.left;
  if (sight.right >= 0 && position + sight.right + 1 < end) end = position + sight.right + 1;
  if (sight.chunk > 0) {
    // Positions before the first key are in chunks without keys.
    const std::int64_t place = position - s.kv_start;
    const std::int64_t of_chunk = place < 0 ? -1 : sight.by_chunk(static_cast<std::int32_t>(place));
    const std::int64_t from = s.kv_start + of_chunk * sight.chunk;
    if (from > begin) begin = from;
    if (from + sight.chunk < end) end = from + sight.chunk;
  }
  const std::int64_t all = s.seq_kv;
  return {static_cast<std::int32_t>(begin < all ? begin : all),
          static_cast<std::int32_t>(end > 0 ? end : 0)};
}

/// What some row of the sequence sees: nothing else is read. Needs a row.
constexpr KeyRange keys_of_sequence(const Sight& sight, const Lengths& s) {
  return {keys_of_row(sight, s, 0).begin, keys_of_row(sight, s, s.seq_q - 1).end};
}

/// How one sequence's keys are parted.
struct Parts {
  std::int32_t size = kUnit;  // keys of each but the last
  std::int32_t count = 1;
};
constexpr Parts parts_for(const SplitRule& rule, std::int32_t keys) {
  if (keys <= 0) return {};  // somebody writes the rows
  const std::int32_t size = keys_of_part(rule, keys);
  return {size, divide_up(keys, size)};
}

/// Empty from Parts::count on: a cluster may have more blocks than there are parts.
constexpr KeyRange keys_of_part(const Parts& parts, const KeyRange& seen, std::int32_t part) {
  if (part >= parts.count || seen.count() == 0) return {seen.begin, seen.begin};
  const std::int32_t begin = seen.begin + part * parts.size;
  return {begin, seen.end - begin < parts.size ? seen.end : begin + parts.size};
}

/// Which sequence the part with this number belongs to: before[b] counts the parts of the sequences
/// before b, before[batch] all of them; a sequence without rows has none.
template <class Before>
constexpr std::int32_t sequence_of_part(const Before& before, std::int32_t batch,
                                        std::int32_t number) {
  std::int32_t low = 0, high = batch;
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    if (before[middle] <= number)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/// Tiles of keys, numbered sequence after sequence and head after head, in even shares: holder n has those
/// from begin(n) to begin(n + 1). A holder's tiles may be of several heads, a head's those of several
/// holders, each of which has a part of its keys.
struct Shares {
  std::int32_t tiles = 0, holders = 0;
  std::int32_t each = 0, longer = 0;  // so many holders have one more

  constexpr std::int32_t begin(std::int32_t holder) const {
    return holder >= holders ? tiles : holder * each + least_of(holder, longer);
  }
  constexpr std::int32_t holder_of(std::int32_t tile) const {
    const std::int32_t of_longer = longer * (each + 1);
    return tile < of_longer ? tile / (each + 1) : longer + (tile - of_longer) / each;
  }
};
/// No share but of fewer holders than `most` is shorter than `least` tiles.
constexpr Shares share_out(std::int32_t tiles, std::int32_t most, std::int32_t least) {
  if (tiles <= 0) return {};
  const std::int32_t holders = within(tiles / least, 1, most);
  return {tiles, holders, tiles / holders, tiles % holders};
}

}  // namespace greenfast::cuda::decode
