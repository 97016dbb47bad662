// Only + - * / and sqrt are used, which IEEE 754 rounds the same everywhere; the C library's log and cos are not. Compiled so that
// a * b + c is not contracted.
#include "workbench/cases/random.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numbers>

namespace greenfast::workbench {
namespace {

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
[[gnu::always_inline]] inline double natural_log(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const double m = std::bit_cast<double>((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
  const bool above = m > 1.4142135623730951;
  const auto exponent = static_cast<double>(static_cast<int>(bits >> 52) - 1023 + (above ? 1 : 0));
  const double near = above ? m * 0.5 : m;
  const double t = (near - 1.0) / (near + 1.0);
  const double t2 = t * t;
  double sum = kSeries.log[10];
#pragma GCC unroll 10
  for (std::size_t k = 10; k-- > 0;) sum = sum * t2 + kSeries.log[k];
  return 2.0 * t * sum + exponent * std::numbers::ln2;
}

// cos and sin of 2 pi u, 0 <= u < 1, by quarter turns and Taylor series on [-pi/4, pi/4].
[[gnu::always_inline]] inline void unit_circle(double u, double& cosine, double& sine) {
  const double quarters = 4.0 * u;
  const auto quadrant = static_cast<int>(quarters + 0.5);
  const double x = (quarters - quadrant) * 1.5707963267948966;
  const double x2 = x * x;
  double c = kSeries.cosine[7], s = kSeries.sine[7];
#pragma GCC unroll 7
  for (std::size_t k = 7; k-- > 0;) {
    c = c * x2 + kSeries.cosine[k];
    s = s * x2 + kSeries.sine[k];
  }
  c = c * x2 + 1.0;
  s = (s * x2 + 1.0) * x;
  const double along = (quadrant & 1) != 0 ? s : c, across = (quadrant & 1) != 0 ? c : s;
  cosine = ((quadrant + 1) & 2) != 0 ? -along : along;
  sine = (quadrant & 2) != 0 ? -across : across;
}

// Up to kPairs pairs, without a branch, so that a row is made in vector registers.
inline constexpr std::int64_t kPairs = 64;
[[gnu::always_inline]] inline void normal_pairs_of(std::uint64_t key, std::uint64_t counter,
                                                   std::int64_t pairs, double* out) {
  std::array<double, kPairs> even, odd;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::uint64_t at = counter + 2 * static_cast<std::uint64_t>(i);
    const double u1 =
        (static_cast<double>(static_cast<std::int64_t>(random_bits(key, at) >> 11)) + 1.0) *
        0x1p-53;
    const double u2 =
        static_cast<double>(static_cast<std::int64_t>(random_bits(key, at + 1) >> 11)) * 0x1p-53;
    const double radius = std::sqrt(-2.0 * natural_log(u1));
    double c = 0, s = 0;
    unit_circle(u2, c, s);
    even[static_cast<std::size_t>(i)] = radius * c;
    odd[static_cast<std::size_t>(i)] = radius * s;
  }
  for (std::int64_t i = 0; i < pairs; ++i) {
    out[2 * i] = even[static_cast<std::size_t>(i)];
    out[2 * i + 1] = odd[static_cast<std::size_t>(i)];
  }
}
using NormalPairs = void (*)(std::uint64_t key, std::uint64_t counter, std::int64_t pairs,
                             double* out);
void normal_pairs(std::uint64_t key, std::uint64_t counter, std::int64_t pairs, double* out) {
  normal_pairs_of(key, counter, pairs, out);
}
#ifdef __x86_64__
[[gnu::target("avx512f,avx512dq,avx512vl")]] void normal_pairs_avx512(std::uint64_t key,
                                                                      std::uint64_t counter,
                                                                      std::int64_t pairs,
                                                                      double* out) {
  normal_pairs_of(key, counter, pairs, out);
}
#endif
NormalPairs fastest_here() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return &normal_pairs_avx512;
#endif
  return &normal_pairs;
}

void normal_row_by(NormalPairs make, std::uint64_t key, std::int64_t row, std::int64_t dim,
                   double* out) {
  const auto first = static_cast<std::uint64_t>(row * dim);
  const std::int64_t pairs = dim / 2;
  for (std::int64_t i = 0; i < pairs; i += kPairs)
    make(key, first + 2 * static_cast<std::uint64_t>(i), std::min(kPairs, pairs - i), out + 2 * i);
  if (dim % 2 != 0) {
    std::array<double, 2> last;
    make(key, first + static_cast<std::uint64_t>(dim - 1), 1, last.data());
    out[dim - 1] = last[0];
  }
}

}  // namespace

void normal_row(std::uint64_t key, std::int64_t row, std::int64_t dim, double* out) {
  static const NormalPairs make = fastest_here();
  normal_row_by(make, key, row, dim, out);
}
void normal_row_plainly(std::uint64_t key, std::int64_t row, std::int64_t dim, double* out) {
  normal_row_by(&normal_pairs, key, row, dim, out);
}

}  // namespace greenfast::workbench
