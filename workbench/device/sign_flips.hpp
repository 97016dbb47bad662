// Other inputs in place, at the price of one pass: the signs of elements are drawn anew. Values of
// a symmetric distribution keep their distribution, every score and every output changes, and
// nothing that was computed before is of use, however it was kept. Which signs follows from a
// number that nobody knows before; whoever knows it can say what the inputs are now.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define GREENFAST_HOST_DEVICE __host__ __device__
#else
#define GREENFAST_HOST_DEVICE
#endif

namespace greenfast::workbench {

/// From one draw of signs to another, of the same buffer; 0 is the draw that changes nothing.
struct SignFlips {
  std::uint64_t sign_bits = 0;  ///< of the elements in 8 bytes
  std::uint64_t from = 0, to = 0;
  /// Words of 8 bytes after which the signs repeat: a row, where all rows shall change alike. 0:
  /// never.
  std::size_t period = 0;
};

/// Signs of the elements in a word under one draw. A hash serves four words: of each of its bytes the
/// upper bits become signs, each in at most one of them, and the lower ones are never shown. What it
/// was made of is added at the end: of a hash that can be turned back, the signs of a few elements
/// told the draw and with it all others.
GREENFAST_HOST_DEVICE inline std::uint64_t signs_of(std::uint64_t draw, std::size_t word,
                                                    const SignFlips& flips) {
  if (draw == 0) return 0;
  if (flips.period != 0) word %= flips.period;
  const std::uint64_t x = draw + 0x9e3779b97f4a7c15ull * (word / 4 + 1);
  std::uint64_t z = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z = (z ^ (z >> 31)) + x;
  return (z << (word % 4)) & flips.sign_bits;
}

/// What to XOR a word with.
GREENFAST_HOST_DEVICE inline std::uint64_t change_of(std::size_t word, const SignFlips& flips) {
  return signs_of(flips.from, word, flips) ^ signs_of(flips.to, word, flips);
}

}  // namespace greenfast::workbench
