#include "workbench/fast/draws.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace greenfast::workbench::test {
namespace {

// Undoes x ^= (x << shift) & mask, or with shift below 0 >>.
std::uint64_t undo(std::uint64_t x, int shift, std::uint64_t mask) {
  std::uint64_t out = x;
  for (int bits = 0; bits < 64; bits += shift < 0 ? -shift : shift)
    out = x ^ ((shift < 0 ? out >> -shift : out << shift) & mask);
  return out;
}

/// The number after `seen` of a 64-bit Mersenne Twister, whose whole state 312 outputs are
/// (Matsumoto and Nishimura 1998, parameters of std::mt19937_64).
std::uint64_t next_of_twister(const std::vector<std::uint64_t>& seen) {
  std::vector<std::uint64_t> state;
  for (std::uint64_t x : seen) {
    x = undo(x, -43, ~std::uint64_t{0});
    x = undo(x, 37, 0xfff7eee000000000u);
    x = undo(x, 17, 0x71d67fffeda60000u);
    state.push_back(undo(x, -29, 0x5555555555555555u));
  }
  const std::uint64_t y = (state[0] & 0xffffffff80000000u) | (state[1] & 0x7fffffffu);
  std::uint64_t x = state[156] ^ (y >> 1) ^ ((y & 1) != 0 ? 0xb5026f5aa96619e9u : 0);
  x ^= (x >> 29) & 0x5555555555555555u;
  x ^= (x << 17) & 0x71d67fffeda60000u;
  x ^= (x << 37) & 0xfff7eee000000000u;
  return x ^ (x >> 43);
}

template <class Generator>
bool is_foreseen(Generator generator) {
  std::vector<std::uint64_t> seen(312);
  for (std::uint64_t& x : seen) x = generator();
  return next_of_twister(seen) == generator();
}

TEST(Draws, EarlierOnesDoNotTellTheNext) {
  EXPECT_TRUE(is_foreseen(std::mt19937_64(5))) << "the attack works on what was used before";
  EXPECT_FALSE(is_foreseen(Draws(5)));
}

TEST(Draws, FollowFromTheKey) {
  Draws a(5), b(5), c(6);
  std::set<std::uint64_t> all;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t draw = a();
    EXPECT_EQ(draw, b());
    all.insert(draw);
    all.insert(c());
  }
  EXPECT_EQ(all.size(), 2000u);
}

}  // namespace
}  // namespace greenfast::workbench::test
