// Random numbers that are the same on every machine. Counter based: every value is a function of
// (key, counter) alone, so rows can be made in any order and by any thread.
#pragma once

#include <cstdint>

namespace greenfast::workbench {

// Output function of SplitMix64 (Steele, Lea, Flood 2014), evaluated at any position.
inline std::uint64_t random_bits(std::uint64_t key, std::uint64_t counter) {
  std::uint64_t z = key + (counter + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// Standard normal values number [row * dim, (row + 1) * dim) of a stream. Box-Muller makes them in pairs; of an odd
/// number the last one's other half is left out.
void normal_row(std::uint64_t key, std::int64_t row, std::int64_t dim, double* out);
/// The same bits without AVX-512, where normal_row() has it.
void normal_row_plainly(std::uint64_t key, std::int64_t row, std::int64_t dim, double* out);

}  // namespace greenfast::workbench
