// AVX512-BF16 on top of simd_avx512.hpp: pairs of bf16 in 4-byte lanes.
#pragma once

#include "kernels/cpu/device/simd_avx512.hpp"

namespace greenfast::kernels {
namespace {

constexpr int kHalfLanes = 32;

/// acc + a.even * b.even + a.odd * b.odd in every lane.
GREENFAST_OP Vec dot_add(Vec acc, Vec a, Vec b) {
  return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}

GREENFAST_OP __mmask32 first_halves(int n) {
  return static_cast<__mmask32>(n >= kHalfLanes ? 0xffffffffu : (1u << n) - 1u);
}

/// The first n elements as bf16, the other lanes 0.
GREENFAST_OP __m512i load_bf16_n(const Bf16* p, int n) {
  return _mm512_maskz_loadu_epi16(first_halves(n), p);
}

// e4m3 fits into bf16 exactly. Its 128 magnitudes stand in a table of four registers.
struct E4m3Table {
  std::uint16_t entry[128];
};
constexpr E4m3Table make_e4m3_table() {
  E4m3Table table{};
  for (int i = 0; i < 128; ++i) {
    const int exponent = i >> 3, mantissa = i & 7;
    int bits = 0;
    if (i == 127) {
      bits = 0x7fc0;
    } else if (exponent > 0) {
      bits = ((exponent + 120) << 7) | (mantissa << 4);
    } else if (mantissa > 0) {  // mantissa * 2^-9, normal in bf16
      const int top = mantissa >= 4 ? 2 : mantissa >= 2 ? 1 : 0;
      bits = ((127 - 9 + top) << 7) | ((mantissa << (7 - top)) & 0x7f);
    }
    table.entry[i] = static_cast<std::uint16_t>(bits);
  }
  return table;
}
alignas(64) constexpr E4m3Table kE4m3 = make_e4m3_table();

GREENFAST_OP __m512i load_bf16_n(const E4m3* p, int n) {
  const __m512i x = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(first_halves(n), p));
  const auto part = [](int i) { return _mm512_load_si512(kE4m3.entry + 32 * i); };
  const __m512i low = _mm512_permutex2var_epi16(part(0), x, part(1));
  const __m512i high = _mm512_permutex2var_epi16(part(2), x, part(3));
  const __mmask32 upper = _mm512_test_epi16_mask(x, _mm512_set1_epi16(0x40));
  const __m512i magnitude = _mm512_mask_blend_epi16(upper, low, high);
  const __m512i sign = _mm512_slli_epi16(_mm512_srli_epi16(x, 7), 15);
  return _mm512_or_si512(magnitude, sign);
}

/// bf16 times 0: NaN for what is not finite.
GREENFAST_OP __m512i nan_or_zero(__m512i x) {
  const __m512i top = _mm512_set1_epi16(0x7f80);
  const __mmask32 special = _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, top), top);
  return _mm512_maskz_set1_epi16(special, 0x7fc0);
}

/// Lanes {first, second} rounded to bf16 as pairs.
GREENFAST_OP Vec pack_pair(Vec first, Vec second) {
  alignas(64) static constexpr std::uint16_t kOrder[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(second, first);
  return _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_load_si512(kOrder), both));
}

/// Stores {a[i], b[i]} for i < n as pairs; n is a multiple of 8.
GREENFAST_OP void store_pairs_n(char* p, __m512i a, __m512i b, int n) {
  alignas(64) static constexpr std::uint16_t kLow[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                         37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                         11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i order = _mm512_load_si512(kLow);
  const __m512i low = _mm512_permutex2var_epi16(a, order, b);
  const __m512i high =
      _mm512_permutex2var_epi16(a, _mm512_add_epi16(order, _mm512_set1_epi16(16)), b);
  _mm512_mask_storeu_epi32(p, first_lanes(n), low);
  _mm512_mask_storeu_epi32(p + 64, first_lanes(n > kLanes ? n - kLanes : 0), high);
}

}  // namespace
}  // namespace greenfast::kernels
