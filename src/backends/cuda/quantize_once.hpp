// What quantize_once.cuh is launched with, and when it may be. For host and device alike.
#pragma once

#include <cstdint>

namespace greenfast::cuda {

// Twelve workers and four slots were the best of (8 to 16, 3 to 6); more warps that ask were slower.
inline constexpr int kWorkers = 12, kOnceThreads = 32 * (kWorkers + 2);
inline constexpr int kLag = 2, kAhead = 2, kSlots = kLag + kAhead;  // turns
inline constexpr int kTurns = 4;  // of the exchange; more than kLag, a power of two
static_assert(kTurns > kLag && (kTurns & (kTurns - 1)) == 0);

/// Of a scale, zero before the launch: the bits of the largest magnitude, and how many of its items
/// have been looked at.
struct ScaleState {
  std::uint32_t largest, seen;
};

/// A tensor of the launch. Its items are those from `first` on, column blocks of 32 keys beside each
/// other.
struct OnceTensor {
  const void* from;
  std::uint8_t* to;
  float* scale;
  const float* offset;  // of each head's columns, or null
  ScaleState* state;
  std::int64_t from_b, from_h, from_s, to_b, to_h, to_s;
  std::int64_t to_d;  // 1, or the codes are transposed and to_s is 1
  std::uint32_t first, items_of_head, items_of_scale;
  std::int32_t heads, seq, parts, column_blocks;
  bool rotate;  // of codes in rows
};
struct OnceTensors {
  static constexpr int kMost = 3;
  OnceTensor tensor[kMost];  // of those that are not there `first` is `items`
  std::uint32_t items;

  /// Whether `items` of a scale are looked at by the turn in which the first of them is encoded, of
  /// `step` in a turn: else blocks would wait for each other forever.
  static constexpr bool reaches(std::uint64_t items, std::uint64_t step) {
    return items <= kLag * step + 1;
  }
};

}  // namespace greenfast::cuda
