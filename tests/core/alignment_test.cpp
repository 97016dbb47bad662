// Where rows begin: the address, the strides that move it, and those that do not.
#include "core/alignment.hpp"

#include <gtest/gtest.h>

namespace greenfast::core {
namespace {

TEST(Alignment, TheAddressAndEveryStrideThatMovesItCount) {
  const std::array<std::int64_t, 4> shape{2, 3, 4, 64};
  const Layout layout{.stride = {768, 256, 64}};
  EXPECT_TRUE(rows_aligned(32, layout, shape, 2, 16));
  EXPECT_FALSE(rows_aligned(8, layout, shape, 2, 16));
  for (std::size_t axis = 0; axis < 3; ++axis) {
    Layout odd = layout;
    odd.stride[axis] += 4;
    EXPECT_FALSE(rows_aligned(32, odd, shape, 2, 16)) << axis;
    EXPECT_TRUE(rows_aligned(32, odd, shape, 4, 16)) << axis;
    std::array<std::int64_t, 4> one = shape;
    one[axis] = 1;
    EXPECT_TRUE(rows_aligned(32, odd, one, 2, 16)) << axis;
  }
}

TEST(Alignment, APointerIsItsAddress) {
  alignas(16) const unsigned char bytes[32]{};
  const Layout layout{.stride = {16, 16, 16}};
  EXPECT_TRUE(rows_aligned(bytes, layout, {2, 2, 2, 16}, 1, 16));
  EXPECT_FALSE(rows_aligned(bytes + 1, layout, {2, 2, 2, 16}, 1, 16));
}

}  // namespace
}  // namespace greenfast::core
