// The mask as kernels see it: one band of visible keys, with every bound finite.
#pragma once

#include <algorithm>
#include <cstdint>

#include <greenfast/arithmetic.hpp>
#include <greenfast/types.hpp>

#include "kernels/cuda/device/host_device.hpp"

namespace greenfast::cuda {

/// Query i sees the keys [i + below, i + above] that lie in [0, keys). |below|, |above| and both
/// sequence lengths stay within kFar, so that the sums fit 32 bits.
struct Band {
  static constexpr std::int64_t kFar = std::int64_t{1} << 30;

  std::int32_t below = 0;
  std::int32_t above = 0;
  std::int32_t keys = 0;

  GREENFAST_HOST_DEVICE std::int32_t first(std::int32_t row) const {
    return row + below > 0 ? row + below : 0;
  }
  /// One past the last visible key; not above first(row) when the row sees none.
  GREENFAST_HOST_DEVICE std::int32_t end(std::int32_t row) const {
    const std::int32_t last = row + above;
    return last < keys - 1 ? last + 1 : keys;
  }
};

/// Needs seq_q and seq_kv <= Band::kFar.
inline Band make_band(const Problem& problem) {
  const Mask& mask = problem.mask;
  const std::int64_t shift =
      mask.alignment == Alignment::bottom_right ? problem.seq_kv - problem.seq_q : 0;
  // A bound beyond the other sequence is no bound; clamping before adding keeps it representable.
  const auto clamp = [](std::int64_t bound) {
    return static_cast<std::int32_t>(std::clamp(bound, -Band::kFar, Band::kFar));
  };
  Band band;
  band.below = mask.left < 0 ? static_cast<std::int32_t>(-Band::kFar)
                             : clamp(shift - std::min(mask.left, 2 * Band::kFar));
  band.above = mask.right < 0 ? static_cast<std::int32_t>(Band::kFar)
                              : clamp(shift + std::min(mask.right, 2 * Band::kFar));
  band.keys = static_cast<std::int32_t>(problem.seq_kv);
  return band;
}

/// Key blocks [begin, end) that the rows [first, last] see.
struct BlockRange {
  std::int32_t begin, end;
};
template <class Bounds>
GREENFAST_HOST_DEVICE inline BlockRange blocks_of(const Bounds& band, int keys_per_block, int first,
                                                  int last) {
  const int begin = band.first(first) / keys_per_block;
  const int end = ceil_div(band.end(last), keys_per_block);
  return {begin, end > begin ? end : begin};
}

/// The keys that some query sees, and the band over them. Tensor maps hold only these, so that
/// nothing in the others can reach the output.
struct VisibleKeys {
  std::int64_t first;
  Band band;
};
inline VisibleKeys visible_keys(const Problem& problem) {
  Band band = make_band(problem);
  const std::int32_t first = std::min(band.first(0), band.keys);
  const std::int32_t end = band.end(static_cast<std::int32_t>(problem.seq_q) - 1);
  // Clamping keeps an unbounded side unbounded and its sums within 32 bits.
  constexpr auto kFar = static_cast<std::int32_t>(Band::kFar);
  if (band.below > -kFar) band.below = std::max(band.below - first, -kFar);
  if (band.above < kFar) band.above = std::max(band.above - first, -kFar);
  band.keys = std::max(end - first, 0);
  return {first, band};
}

}  // namespace greenfast::cuda
