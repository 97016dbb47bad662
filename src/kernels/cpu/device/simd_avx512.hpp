// Vectors of 16 floats in AVX-512 F, BW, DQ, VL. Names follow Highway's (google/highway) where it
// has the operation. Everything has internal linkage, because two files compiled with different
// flags include this.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/device/convert.hpp"

#define GREENFAST_OP [[gnu::always_inline]] static inline

namespace greenfast::kernels {
namespace {

using Vec = __m512;
constexpr int kLanes = 16;

/// Register tiles: rows of keys (or columns of V) beside kVectors vectors of queries. 24 sums, the
/// vectors and one broadcast fit in 32 registers.
template <int kVectors>
struct RegisterTile;
template <>
struct RegisterTile<4> {
  static constexpr int kKeys = 6, kColumns = 6, kFewColumns = 4;
};
template <>
struct RegisterTile<2> {
  static constexpr int kKeys = 12, kColumns = 12, kFewColumns = 4;
};
template <>
struct RegisterTile<1> {
  static constexpr int kKeys = 12, kColumns = 16, kFewColumns = 8;
};
constexpr int kMaxVectors = 4;

GREENFAST_OP Vec set(float x) { return _mm512_set1_ps(x); }
GREENFAST_OP Vec zero() { return _mm512_setzero_ps(); }
GREENFAST_OP Vec load(const float* p) { return _mm512_load_ps(p); }
GREENFAST_OP void store(float* p, Vec x) { _mm512_store_ps(p, x); }
/// The same 4 bytes in every lane.
GREENFAST_OP Vec broadcast(const char* p) {
  float x;
  __builtin_memcpy(&x, p, sizeof x);
  return _mm512_set1_ps(x);
}
GREENFAST_OP Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
GREENFAST_OP Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
GREENFAST_OP Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
GREENFAST_OP Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
GREENFAST_OP Vec mul_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
GREENFAST_OP Vec mul_sub(Vec a, Vec b, Vec c) { return _mm512_fmsub_ps(a, b, c); }
GREENFAST_OP Vec neg_mul_add(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }
/// b where either is NaN.
GREENFAST_OP Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
/// b where either is NaN.
GREENFAST_OP Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
GREENFAST_OP Vec abs(Vec a) { return _mm512_abs_ps(a); }
GREENFAST_OP Vec copy_sign(Vec magnitude, Vec sign) {
  return _mm512_or_ps(magnitude, _mm512_and_ps(sign, set(-0.0f)));
}
GREENFAST_OP Vec if_equal(Vec a, Vec b, Vec yes, Vec no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), no, yes);
}
GREENFAST_OP Vec if_less(Vec a, Vec b, Vec yes, Vec no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
/// x in lanes where begin <= n < end, else `other`.
GREENFAST_OP Vec if_between(int n, const std::int32_t* begin, const std::int32_t* end, Vec x,
                            Vec other) {
  const __m512i at = _mm512_set1_epi32(n);
  const __mmask16 from = _mm512_cmple_epi32_mask(_mm512_load_si512(begin), at);
  return _mm512_mask_blend_ps(_mm512_mask_cmpgt_epi32_mask(from, _mm512_load_si512(end), at), other,
                              x);
}

/// 2^x, 0 for -inf, exactly 1 for 0: a row's largest weight is then the same in its sum and beside
/// its value. The polynomials are 1 + r q(r), minimax in relative error over [0, 1) among those:
/// degree 5 errs by 8.2e-8, degree 4 by 2.9e-6. With kDown it is 2^(x - kDown).
template <int kDegree, int kDown = 0>
GREENFAST_OP Vec exp2(Vec x) {
  constexpr float kUnit = power_of_two(-kDown);
  const Vec r = _mm512_reduce_ps(x, 0x09);  // x - floor(x), no exceptions
  Vec p;
  if constexpr (kDegree == 5) {
    p = mul_add(set(0.0018671300835f * kUnit), r, set(0.0090170302842f * kUnit));
    p = mul_add(p, r, set(0.055799913142f * kUnit));
    p = mul_add(p, r, set(0.24016445014f * kUnit));
    p = mul_add(p, r, set(0.69315131181f * kUnit));
  } else {
    static_assert(kDegree == 4);
    p = mul_add(set(0.013426684251f * kUnit), r, set(0.052242474269f * kUnit));
    p = mul_add(p, r, set(0.24128020472f * kUnit));
    p = mul_add(p, r, set(0.69304484491f * kUnit));
  }
  p = mul_add(p, r, set(kUnit));
  return _mm512_scalef_ps(p, x);  // p * 2^floor(x)
}

GREENFAST_OP __mmask16 first_lanes(int n) {
  return static_cast<__mmask16>(n >= kLanes ? 0xffffu : (1u << n) - 1u);
}

// Loads of the first n elements, widened; the other lanes are 0 and their memory is not touched.
GREENFAST_OP Vec load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
GREENFAST_OP Vec load_n(const F16* p, int n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
GREENFAST_OP Vec load_n(const Bf16* p, int n) {
  const __m512i x = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(n), p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}
// By way of fp16, whose subnormals the conversion takes without the assist that a subnormal float
// costs: the magnitude in fp16's place is short by 2^8.
GREENFAST_OP Vec load_n(const E4m3* p, int n) {
  const __m128i bytes = _mm_maskz_loadu_epi8(first_lanes(n), p);
  const __m256i x = _mm256_cvtepi8_epi16(bytes);  // bit 7, the sign, reaches bit 15
  const __m256i half = _mm256_and_si256(_mm256_slli_epi16(x, 7), _mm256_set1_epi16(0x3f80));
  const __m256i sign = _mm256_and_si256(x, _mm256_set1_epi16(static_cast<short>(0x8000)));
  const Vec value = mul(_mm512_cvtph_ps(_mm256_or_si256(half, sign)), set(256.0f));
  const __mmask16 nan =
      _mm_cmpeq_epi8_mask(_mm_and_si128(bytes, _mm_set1_epi8(0x7f)), _mm_set1_epi8(0x7f));
  return _mm512_mask_blend_ps(nan, value, set(__builtin_nanf("")));
}

// Stores of the first n lanes, rounded to nearest even.
GREENFAST_OP void store_n(float* p, Vec x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }
GREENFAST_OP void store_n(F16* p, Vec x, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
GREENFAST_OP void store_n(Bf16* p, Vec x, int n) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __m512i value = _mm512_mask_blend_epi32(nan, rounded, quiet);
  _mm256_mask_storeu_epi16(p, first_lanes(n), _mm512_cvtepi32_epi16(_mm512_srli_epi32(value, 16)));
}

/// Lane i of the result is the sum of the lanes of vector i of p.
GREENFAST_OP Vec sum_lanes(const float* p) {
  Vec pair[8], quad[4];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const Vec a = load(p + 2 * i * kLanes), b = load(p + (2 * i + 1) * kLanes);
    pair[i] = add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Vec a = pair[2 * i], b = pair[2 * i + 1];
    quad[i] = add(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
  }
  // quad[i] holds vectors 4i..4i+3, each in four partial sums a quarter apart.
  const Vec low = add(_mm512_shuffle_f32x4(quad[0], quad[1], 0x44),
                      _mm512_shuffle_f32x4(quad[0], quad[1], 0xee));
  const Vec high = add(_mm512_shuffle_f32x4(quad[2], quad[3], 0x44),
                       _mm512_shuffle_f32x4(quad[2], quad[3], 0xee));
  return add(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
}

/// 16 x 16 transposition of 4-byte elements; strides in elements.
GREENFAST_OP void transpose(const float* from, std::int64_t from_stride, float* to,
                            std::int64_t to_stride) {
  __m512 r[16], t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = _mm512_load_ps(from + i * from_stride);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  // r[4a + b] now holds columns b, 4 + b, 8 + b, 12 + b of rows 4a..4a+3, a column a quarter.
#pragma GCC unroll 4
  for (int b = 0; b < 4; ++b) {
    t[b] = _mm512_shuffle_f32x4(r[b], r[4 + b], 0x88);
    t[4 + b] = _mm512_shuffle_f32x4(r[8 + b], r[12 + b], 0x88);
    t[8 + b] = _mm512_shuffle_f32x4(r[b], r[4 + b], 0xdd);
    t[12 + b] = _mm512_shuffle_f32x4(r[8 + b], r[12 + b], 0xdd);
  }
#pragma GCC unroll 4
  for (int b = 0; b < 4; ++b) {
    _mm512_store_ps(to + b * to_stride, _mm512_shuffle_f32x4(t[b], t[4 + b], 0x88));
    _mm512_store_ps(to + (4 + b) * to_stride, _mm512_shuffle_f32x4(t[8 + b], t[12 + b], 0x88));
    _mm512_store_ps(to + (8 + b) * to_stride, _mm512_shuffle_f32x4(t[b], t[4 + b], 0xdd));
    _mm512_store_ps(to + (12 + b) * to_stride, _mm512_shuffle_f32x4(t[8 + b], t[12 + b], 0xdd));
  }
}

}  // namespace
}  // namespace greenfast::kernels
