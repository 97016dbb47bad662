// Random rows: the same bits by whatever instructions, and from wherever a row begins.
#include "workbench/cases/random.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace greenfast::workbench::test {
namespace {

std::vector<double> row_of(std::int64_t row, std::int64_t dim, bool plainly = false) {
  std::vector<double> values(static_cast<std::size_t>(dim));
  (plainly ? normal_row_plainly : normal_row)(7, row, dim, values.data());
  return values;
}

TEST(Random, ARowHasTheSameBitsByAnyInstructions) {
  for (const std::int64_t dim : {1, 2, 7, 64, 72, 128, 129, 256, 1000})
    for (std::int64_t row = 0; row < 50; ++row)
      ASSERT_EQ(row_of(row, dim), row_of(row, dim, true)) << row << " of " << dim;
}

TEST(Random, AStreamIsCutIntoRowsOfAnyEvenLength) {
  const std::vector<double> whole = row_of(0, 960);
  for (const std::int64_t dim : {2, 64, 96, 192}) {
    std::vector<double> parts;
    for (std::int64_t row = 0; row < 960 / dim; ++row)
      for (const double x : row_of(row, dim)) parts.push_back(x);
    EXPECT_EQ(parts, whole) << dim;
  }
}

TEST(Random, ItIsStandardNormal) {
  const std::vector<double> values = row_of(3, 1000000);
  double sum = 0, squares = 0, fourth = 0, beyond = 0;
  for (const double x : values) {
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    beyond += std::fabs(x) > 3 ? 1 : 0;
  }
  EXPECT_NEAR(sum / 1e6, 0.0, 0.005);
  EXPECT_NEAR(squares / 1e6, 1.0, 0.01);
  EXPECT_NEAR(fourth / 1e6, 3.0, 0.06);
  EXPECT_NEAR(beyond / 1e6, 0.0027, 0.0003);
}

}  // namespace
}  // namespace greenfast::workbench::test
