// Division that rounds up: every remainder, mixed types, and in constants.
#include <greenfast/arithmetic.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace greenfast {
namespace {

static_assert(ceil_div(0, 7) == 0 && ceil_div(1, 7) == 1 && round_up(8, 7) == 14);
static_assert(std::is_same_v<decltype(ceil_div(std::int64_t{1}, 2)), std::int64_t>);
static_assert(std::is_same_v<decltype(round_up(std::size_t{1}, std::size_t{2})), std::size_t>);

TEST(Arithmetic, DivisionRoundsUp) {
  for (int divisor = 1; divisor <= 9; ++divisor) {
    for (int value = 0; value <= 40; ++value) {
      int whole = 0;
      while (whole * divisor < value) ++whole;
      EXPECT_EQ(ceil_div(value, divisor), whole) << value << " / " << divisor;
      EXPECT_EQ(round_up(value, divisor), whole * divisor) << value << " to " << divisor;
    }
  }
}

TEST(Arithmetic, CountsAreWideWhereOneSideIs) {
  const std::int64_t keys = std::int64_t{1} << 40;
  EXPECT_EQ(ceil_div(keys + 1, 64), (keys >> 6) + 1);
  EXPECT_EQ(round_up(keys - 1, 4096), keys);
}

}  // namespace
}  // namespace greenfast
