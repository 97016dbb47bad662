// Random numbers that are the same on every machine. Counter based: every value is a function of
// (key, counter) alone, so rows can be made in any order and by any thread. Only + - * / and sqrt are
// used, which IEEE 754 rounds the same everywhere; the C library's log and cos are not. Include it
// where the compiler may not contract a * b + c.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace greenfast::workbench {

// Output function of SplitMix64 (Steele, Lea, Flood 2014), evaluated at any position.
inline std::uint64_t random_bits(std::uint64_t key, std::uint64_t counter) {
  std::uint64_t z = key + (counter + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Coefficients of the series below, evaluated when compiled (division is exact to half an ulp too).
struct Series {
  std::array<double, 11> log;          // 1 / (2k + 1)
  std::array<double, 8> cosine, sine;  // 1 / (2k)!, 1 / (2k + 1)! with sign, k from 1
};
inline constexpr Series kSeries = [] {
  Series series{};
  for (int k = 0; k < 11; ++k) series.log[static_cast<std::size_t>(k)] = 1.0 / (2 * k + 1);
  double factorial = 1.0;
  for (int k = 1; k <= 8; ++k) {
    const double sign = k % 2 ? -1.0 : 1.0;
    factorial *= 2 * k;
    if (k > 1) factorial *= 2 * k - 1;
    series.cosine[static_cast<std::size_t>(k - 1)] = sign / factorial;
    series.sine[static_cast<std::size_t>(k - 1)] = sign / (factorial * (2 * k + 1));
  }
  return series;
}();

// ln(x) for 0 < x <= 1 and normal: x = m 2^e with m in [sqrt(1/2), sqrt(2)), then
// ln m = 2 artanh((m-1)/(m+1)). Truncation is below 2^-53 for |t| <= 0.1716.
inline double natural_log(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double t = (m - 1.0) / (m + 1.0);
  const double t2 = t * t;
  double sum = kSeries.log[10];
  for (std::size_t k = 10; k-- > 0;) sum = sum * t2 + kSeries.log[k];
  return 2.0 * t * sum + exponent * std::numbers::ln2;
}

// cos and sin of 2 pi u, 0 <= u < 1, by quarter turns and Taylor series on [-pi/4, pi/4].
inline void unit_circle(double u, double& cosine, double& sine) {
  const double quarters = 4.0 * u;
  const auto quadrant = static_cast<int>(quarters + 0.5);
  const double x = (quarters - quadrant) * 1.5707963267948966;
  const double x2 = x * x;
  double c = kSeries.cosine[7], s = kSeries.sine[7];
  for (std::size_t k = 7; k-- > 0;) {
    c = c * x2 + kSeries.cosine[k];
    s = s * x2 + kSeries.sine[k];
  }
  c = c * x2 + 1.0;
  s = (s * x2 + 1.0) * x;
  switch (quadrant & 3) {
    case 0:
      cosine = c, sine = s;
      break;
    case 1:
      cosine = -s, sine = c;
      break;
    case 2:
      cosine = -c, sine = -s;
      break;
    default:
      cosine = s, sine = -c;
      break;
  }
}

// Standard normal values number [row * dim, (row + 1) * dim) of a stream; dim is even (Box-Muller
// makes them in pairs).
inline void normal_row(std::uint64_t key, std::int64_t row, std::int64_t dim, double* out) {
  for (std::int64_t d = 0; d < dim; d += 2) {
    const auto counter = static_cast<std::uint64_t>(row * dim + d);
    const double u1 = (static_cast<double>(random_bits(key, counter) >> 11) + 1.0) * 0x1p-53;
    const double u2 = static_cast<double>(random_bits(key, counter + 1) >> 11) * 0x1p-53;
    const double radius = std::sqrt(-2.0 * natural_log(u1));
    double c = 0, s = 0;
    unit_circle(u2, c, s);
    out[d] = radius * c;
    if (d + 1 < dim) out[d + 1] = radius * s;
  }
}

}  // namespace greenfast::workbench
