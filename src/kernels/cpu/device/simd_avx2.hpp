// Vectors of 8 floats in AVX2, FMA and F16C; the operations of simd_avx512.hpp.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/device/convert.hpp"

#define GREENFAST_OP [[gnu::always_inline]] static inline

namespace greenfast::kernels {
namespace {

using Vec = __m256;
constexpr int kLanes = 8;

/// 12 sums, two vectors of queries and one broadcast fit in 16 registers.
template <int kVectors>
struct RegisterTile;
template <>
struct RegisterTile<2> {
  static constexpr int kKeys = 6, kColumns = 6, kFewColumns = 4;
};
template <>
struct RegisterTile<1> {
  static constexpr int kKeys = 8, kColumns = 8, kFewColumns = 8;
};
constexpr int kMaxVectors = 2;

GREENFAST_OP Vec set(float x) { return _mm256_set1_ps(x); }
GREENFAST_OP __m256i set_int(int x) { return _mm256_set1_epi32(x); }
GREENFAST_OP Vec zero() { return _mm256_setzero_ps(); }
GREENFAST_OP Vec load(const float* p) { return _mm256_load_ps(p); }
GREENFAST_OP void store(float* p, Vec x) { _mm256_store_ps(p, x); }
GREENFAST_OP Vec broadcast(const char* p) {
  float x;
  __builtin_memcpy(&x, p, sizeof x);
  return _mm256_set1_ps(x);
}
GREENFAST_OP Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
GREENFAST_OP Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
GREENFAST_OP Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
GREENFAST_OP Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
GREENFAST_OP Vec mul_add(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
GREENFAST_OP Vec mul_sub(Vec a, Vec b, Vec c) { return _mm256_fmsub_ps(a, b, c); }
GREENFAST_OP Vec neg_mul_add(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }
/// b where either is NaN.
GREENFAST_OP Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
/// b where either is NaN.
GREENFAST_OP Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
GREENFAST_OP Vec abs(Vec a) { return _mm256_andnot_ps(set(-0.0f), a); }
GREENFAST_OP Vec copy_sign(Vec magnitude, Vec sign) {
  return _mm256_or_ps(magnitude, _mm256_and_ps(sign, set(-0.0f)));
}
GREENFAST_OP Vec if_equal(Vec a, Vec b, Vec yes, Vec no) {
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_EQ_OQ));
}
GREENFAST_OP Vec if_less(Vec a, Vec b, Vec yes, Vec no) {
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
GREENFAST_OP __m256i load_ints(const std::int32_t* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}
GREENFAST_OP Vec if_between(int n, const std::int32_t* begin, const std::int32_t* end, Vec x,
                            Vec other) {
  const __m256i at = set_int(n);
  const __m256i before = _mm256_cmpgt_epi32(load_ints(begin), at);
  const __m256i inside = _mm256_andnot_si256(before, _mm256_cmpgt_epi32(load_ints(end), at));
  return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(inside));
}

/// 2^x for x up to 127, 0 below -126.5, exactly 1 for 0 as with AVX-512. Degree 6 over [-0.5, 0.5]
/// errs by 2.6e-9 before it is rounded; kDegree only says how little would do. With kDown it is
/// 2^(x - kDown), and 0 below x = kDown - 126.5.
template <int kDegree, int kDown = 0>
GREENFAST_OP Vec exp2(Vec x) {
  const Vec shifter = set(12582912.0f);  // 1.5 * 2^23: a sum with it rounds to an integer
  x = max(set(-127.0f + kDown), x);      // NaN stays
  const Vec shifted = add(x, shifter);
  const Vec r = sub(x, sub(shifted, shifter));
  Vec p = mul_add(set(0.00015594680035f), r, set(0.0013406644f));
  p = mul_add(p, r, set(0.0096176929699f));
  p = mul_add(p, r, set(0.055503105508f));
  p = mul_add(p, r, set(0.24022652783f));
  p = mul_add(p, r, set(0.69314721497f));
  p = mul_add(p, r, set(1.0f));
  // The low bits of the sum are the integer: as an exponent, biased, it is the power; -127 gives 0.
  const __m256i power =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(shifted), set_int(127 - kDown)), 23);
  return mul(p, _mm256_castsi256_ps(power));
}

// Head dims are multiples of 8, so a vector is always whole.
GREENFAST_OP Vec load_n(const float* p, int /*n*/) { return _mm256_loadu_ps(p); }
GREENFAST_OP Vec load_n(const F16* p, int /*n*/) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
GREENFAST_OP Vec load_n(const Bf16* p, int /*n*/) {
  const __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}
// By way of fp16, as with AVX-512.
GREENFAST_OP Vec load_n(const E4m3* p, int /*n*/) {
  const __m128i x = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m128i half = _mm_and_si128(_mm_slli_epi16(x, 7), _mm_set1_epi16(0x3f80));
  const __m128i sign = _mm_and_si128(x, _mm_set1_epi16(static_cast<short>(0x8000)));
  const Vec value = mul(_mm256_cvtph_ps(_mm_or_si128(half, sign)), set(256.0f));
  const __m256i nan = _mm256_cvtepi16_epi32(_mm_cmpeq_epi16(half, _mm_set1_epi16(0x3f80)));
  return _mm256_or_ps(value, _mm256_castsi256_ps(nan));
}

GREENFAST_OP void store_n(float* p, Vec x, int /*n*/) { _mm256_storeu_ps(p, x); }
GREENFAST_OP void store_n(F16* p, Vec x, int /*n*/) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
GREENFAST_OP void store_n(Bf16* p, Vec x, int /*n*/) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), set_int(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, set_int(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, set_int(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i value = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(value, value), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

/// Lane i of the result is the sum of the lanes of vector i of p.
GREENFAST_OP Vec sum_lanes(const float* p) {
  Vec quad[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const float* const at = p + 4 * i * kLanes;
    const Vec a = _mm256_hadd_ps(load(at), load(at + kLanes));
    const Vec b = _mm256_hadd_ps(load(at + 2 * kLanes), load(at + 3 * kLanes));
    quad[i] = _mm256_hadd_ps(a, b);
  }
  return add(_mm256_permute2f128_ps(quad[0], quad[1], 0x20),
             _mm256_permute2f128_ps(quad[0], quad[1], 0x31));
}

/// 8 x 8 transposition of 4-byte elements; strides in elements.
GREENFAST_OP void transpose(const float* from, std::int64_t from_stride, float* to,
                            std::int64_t to_stride) {
  __m256 r[8], t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = _mm256_load_ps(from + i * from_stride);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int b = 0; b < 4; ++b) {
    _mm256_store_ps(to + b * to_stride, _mm256_permute2f128_ps(r[b], r[4 + b], 0x20));
    _mm256_store_ps(to + (4 + b) * to_stride, _mm256_permute2f128_ps(r[b], r[4 + b], 0x31));
  }
}

}  // namespace
}  // namespace greenfast::kernels
