// Number formats: every code, every midpoint between neighbours.
#include "workbench/base/numeric.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace greenfast::workbench::test {
namespace {

// IEEE-style value of a code from its fields, apart from the code under test.
double by_definition(std::uint32_t code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const std::uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
  const auto exponent = static_cast<int>((code >> mantissa_bits) & ((1u << exponent_bits) - 1));
  const double sign = (code >> (exponent_bits + mantissa_bits)) & 1 ? -1.0 : 1.0;
  const double fraction = mantissa / std::pow(2.0, mantissa_bits);
  return exponent == 0 ? sign * fraction * std::pow(2.0, 1 - bias)
                       : sign * (1.0 + fraction) * std::pow(2.0, exponent - bias);
}

TEST(Formats, EveryHalfDecodesByDefinitionAndEncodesBack) {
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    const double value = numeric::from_f16(bits);
    if (((code >> 10) & 31) == 31) {
      EXPECT_EQ(std::isnan(value), (code & 0x3ff) != 0) << code;
      EXPECT_EQ(std::isinf(value), (code & 0x3ff) == 0) << code;
      continue;
    }
    ASSERT_EQ(value, by_definition(code, 5, 10)) << code;
    ASSERT_EQ(numeric::to_f16(value), bits) << code;
  }
}

TEST(Formats, EveryBfloat16DecodesByDefinitionAndEncodesBack) {
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    const double value = numeric::from_bf16(bits);
    if (((code >> 7) & 255) == 255) {
      EXPECT_EQ(std::isnan(value), (code & 0x7f) != 0) << code;
      continue;
    }
    ASSERT_EQ(value, by_definition(code, 8, 7)) << code;
    ASSERT_EQ(numeric::to_bf16(value), bits) << code;
  }
}

TEST(Formats, EveryE4m3DecodesByDefinitionAndEncodesBack) {
  for (std::uint32_t code = 0; code < 256; ++code) {
    const auto bits = static_cast<std::uint8_t>(code);
    const double value = numeric::from_e4m3(bits);
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
      continue;
    }
    ASSERT_EQ(value, by_definition(code, 4, 3)) << code;
    ASSERT_EQ(numeric::to_e4m3(value), bits) << code;
  }
  EXPECT_EQ(numeric::from_e4m3(0x7e), 448.0);
}

// Between neighbours a < b: just below the midpoint gives a, just above gives b, the midpoint
// itself the one with an even code.
template <class Decode, class Encode>
void check_midpoints(std::uint32_t largest, Decode decode, Encode encode) {
  for (std::uint32_t code = 0; code < largest; ++code) {
    const double a = decode(code), b = decode(code + 1), middle = (a + b) / 2;
    const std::uint32_t even = code & 1 ? code + 1 : code;
    ASSERT_EQ(encode(middle), even) << code;
    ASSERT_EQ(encode(std::nextafter(middle, 0.0)), code) << code;
    ASSERT_EQ(encode(std::nextafter(middle, 1e300)), code + 1) << code;
  }
}

TEST(Formats, RoundsToNearestTiesToEven) {
  using namespace numeric;
  check_midpoints(
      0x7bff, [](std::uint32_t c) { return from_f16(static_cast<std::uint16_t>(c)); },
      [](double v) { return std::uint32_t{to_f16(v)}; });
  check_midpoints(
      0x7f7f, [](std::uint32_t c) { return from_bf16(static_cast<std::uint16_t>(c)); },
      [](double v) { return std::uint32_t{to_bf16(v)}; });
  check_midpoints(
      0x7e, [](std::uint32_t c) { return from_e4m3(static_cast<std::uint8_t>(c)); },
      [](double v) { return std::uint32_t{to_e4m3(v)}; });
}

TEST(Formats, OverflowAndSpecials) {
  using namespace numeric;
  EXPECT_EQ(to_f16(65519.999), 0x7bff);
  EXPECT_EQ(to_f16(65520.0), 0x7c00);
  EXPECT_EQ(to_f16(-1e300), 0xfc00);
  EXPECT_EQ(to_e4m3(1e9), 0x7e);
  EXPECT_EQ(to_e4m3(-std::numeric_limits<double>::infinity()), 0xfe);
  EXPECT_EQ(to_e4m3(470.0), 0x7e);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(from_f16(to_f16(nan))));
  EXPECT_TRUE(std::isnan(from_bf16(to_bf16(nan))));
  EXPECT_TRUE(std::isnan(from_e4m3(to_e4m3(nan))));
  EXPECT_EQ(to_f16(-0.0), 0x8000);
  EXPECT_EQ(to_f16(5e-324), 0);
}

TEST(Formats, RowsDecodeLikeSingleElements) {
  std::vector<std::uint16_t> codes(0x10000);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(i);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    std::vector<double> rows(codes.size());
    std::vector<float> floats(codes.size());
    numeric::load_row(dtype, codes.data(), 0, 0x10000, rows.data());
    numeric::load_row(dtype, codes.data(), 0, 0x10000, floats.data());
    for (std::int64_t i = 0; i < 0x10000; ++i) {
      const double one = numeric::load(dtype, codes.data(), i);
      const double row = rows[static_cast<std::size_t>(i)];
      const auto narrow = static_cast<double>(floats[static_cast<std::size_t>(i)]);
      if (std::isnan(one)) {
        ASSERT_TRUE(std::isnan(row) && std::isnan(narrow)) << i;
        continue;
      }
      ASSERT_EQ(row, one) << i;
      ASSERT_EQ(narrow, one) << i;
    }
  }
}

TEST(Formats, ARowIsStoredAsItsElementsAre) {
  std::vector<double> values{0.0,        -0.0,       HUGE_VAL,   -HUGE_VAL, std::nan(""), 0x1p-1074,
                             -0x1p-1030, 448.0,      464.0,      480.0,     65504.0,      65519.9,
                             65520.0,    0x1.fep127, 0x1.ffp127, 0x1p128,   1e308,        0x1p-9,
                             0x1p-10,    0x1.8p-10,  0x1p-25,    0x1.8p-25};
  // Of every octave that a double has, mantissas of all kinds.
  for (std::uint64_t n = 0; values.size() < 20000; ++n) {
    const double value = std::bit_cast<double>((n + 1) * 0x9e3779b97f4a7c15u);
    if (std::isfinite(value)) values.push_back(value);
    // And near what the formats have.
    values.push_back(
        std::ldexp(1.0 + static_cast<double>(n % 4096) / 4096, static_cast<int>(n % 60) - 40));
  }
  const auto count = static_cast<std::int64_t>(values.size());
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3}) {
    for (const std::int64_t step : {1, 3}) {
      const std::size_t bytes = static_cast<std::size_t>(count * step) * size_of(dtype);
      std::vector<std::byte> row(bytes), one_by_one(bytes);
      numeric::store_row(dtype, row.data(), 0, step, values.data(), count);
      for (std::int64_t i = 0; i < count; ++i)
        numeric::store(dtype, one_by_one.data(), i * step, values[static_cast<std::size_t>(i)]);
      EXPECT_EQ(row, one_by_one) << name_of(dtype) << " " << step;
    }
  }
}

}  // namespace
}  // namespace greenfast::workbench::test
