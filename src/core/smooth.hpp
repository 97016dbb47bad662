// What smoothing K subtracts: a mean of each column over some keys of its head. Any vector leaves
// attention as it is, since it moves all scores of a row alike; all devices take the same one.
#pragma once

#include <cstdint>

namespace greenfast::core {

/// Keys that a mean is of: enough that what is left of a column's bias, about its deviation over 32,
/// is less than what e4m3 rounds.
inline constexpr std::int64_t kSampledKeys = 1024;
/// Sums that are kept side by side: the n-th sampled key belongs to sum n % kSums, and the sums are
/// added in their order. fp32, each addition rounded.
inline constexpr int kSums = 32;

constexpr std::int64_t sampled_keys(std::int64_t seq) {
  return seq < kSampledKeys ? seq : kSampledKeys;  // std::min refers to it, which a GPU cannot
}
/// The n-th of them.
constexpr std::int64_t sampled_key(std::int64_t n, std::int64_t seq) {
  return seq <= kSampledKeys ? n : n * seq / kSampledKeys;
}

/// Of a sum over all of them; infinities and NaN were left out of it.
constexpr float mean_of(float sum, std::int64_t seq) {
  const float mean = sum / static_cast<float>(sampled_keys(seq));
  return mean - mean == 0.0f ? mean : 0.0f;  // finite
}

}  // namespace greenfast::core
