// The rotation of Q and K: every head dim has an orthogonal matrix, and what it is for happens.
#include "core/rotate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace greenfast::core {
namespace {

std::vector<float> rotated(std::vector<float> row) {
  rotate_row(row.data(), static_cast<int>(row.size()) / kRotatedColumns);
  return row;
}

std::vector<float> unit(int dim, int column, float size = 1.0f) {
  std::vector<float> row(static_cast<std::size_t>(dim));
  row[static_cast<std::size_t>(column)] = size;
  return row;
}

double product(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

class RotateRow : public testing::TestWithParam<int> {};

TEST_P(RotateRow, ChangesNoProductOfTwoRows) {
  const int dim = GetParam();
  std::vector<std::vector<float>> columns;
  for (int column = 0; column < dim; ++column) columns.push_back(rotated(unit(dim, column)));
  for (int a = 0; a < dim; ++a)
    for (int b = 0; b <= a; ++b)
      ASSERT_NEAR(
          product(columns[static_cast<std::size_t>(a)], columns[static_cast<std::size_t>(b)]),
          a == b ? 1.0 : 0.0, 3e-7)
          << a << " " << b;
}

TEST_P(RotateRow, DealsAColumnToAllOfItsBlock) {
  const int dim = GetParam();
  for (int column = 0; column < dim; ++column) {
    const std::vector<float> row = rotated(unit(dim, column, 100.0f));
    const int left = dim - column / 32 * 32, at = column % 32;  // of the row, of the block
    const int size = left >= 32 ? 32 : left >= 16 ? (at < 16 ? 16 : left - 16) : left;
    const auto most = std::ranges::max(row, {}, [](float x) { return std::fabs(x); });
    ASSERT_NEAR(std::fabs(most), 100 / std::sqrt(size), 1e-4) << column;
    ASSERT_EQ(std::ranges::count_if(row, [](float x) { return x != 0.0f; }), size) << column;
  }
}

TEST_P(RotateRow, MakesNoLargeOneOfEqualColumns) {
  const int dim = GetParam();
  const std::vector<float> row = rotated(std::vector<float>(static_cast<std::size_t>(dim), 1.0f));
  for (const float x : row) EXPECT_LT(std::fabs(x), 2.9f);  // Hadamard's matrix alone: 5.7
}

INSTANTIATE_TEST_SUITE_P(HeadDims, RotateRow, testing::Range(8, 257, 8));

TEST(RotateRow, HasPositiveZeros) {
  std::vector<float> row(24, -0.0f);
  row[16] = 3.0f, row[17] = 3.0f;
  for (const float x : rotated(row)) EXPECT_FALSE(x == 0.0f && std::signbit(x));
}

TEST(RotateRow, HasPositiveZerosOfWhatIsTooSmall) {
  std::vector<float> row(32);
  row[0] = -std::numeric_limits<float>::denorm_min();
  for (const float x : rotated(row)) EXPECT_EQ(std::bit_cast<std::uint32_t>(x), 0u);
}

TEST(RotateRow, MakesNanOfTheBlockThatHasOne) {
  std::vector<float> row(64, 1.0f);
  row[40] = std::numeric_limits<float>::quiet_NaN();
  row = rotated(row);
  for (std::size_t i = 0; i < row.size(); ++i) EXPECT_EQ(std::isnan(row[i]), i >= 32) << i;
}

}  // namespace
}  // namespace greenfast::core
