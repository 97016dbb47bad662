// What selection calls a narrow window, against the keys that a row sees.
#include "core/window.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace greenfast::core {
namespace {

TEST(Window, CountsTheKeysOfARow) {
  constexpr std::int64_t kKeys = 6, kRow = 100;
  for (std::int64_t left = 0; left <= 8; ++left) {
    for (std::int64_t right = 0; right <= 8; ++right) {
      std::int64_t seen = 0;
      for (std::int64_t key = 0; key < 2 * kRow; ++key)
        seen += key >= kRow - left && key <= kRow + right ? 1 : 0;
      EXPECT_EQ(window_within(Mask::window(left, right, Alignment::top_left), kKeys), seen <= kKeys)
          << left << " and " << right;
    }
  }
}

TEST(Window, OpenSidesAndHugeOnesAreNotNarrow) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  for (const Mask& mask : {Mask::none(), Mask::causal(Alignment::top_left),
                           Mask::window(3, Mask::kUnbounded, Alignment::bottom_right),
                           Mask::window(kHuge, kHuge, Alignment::top_left)})
    EXPECT_FALSE(window_within(mask, 1024));
}

}  // namespace
}  // namespace greenfast::core
