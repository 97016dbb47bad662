// Vectors of 4 floats in the compiler's own vector type, which is SSE2 on x86-64 and NEON on
// aarch64; the operations of simd_avx512.hpp.
#pragma once

#include <cstdint>

#include "kernels/cpu/device/convert.hpp"

#define GREENFAST_OP [[gnu::always_inline]] static inline

namespace greenfast::kernels {
namespace {

typedef float Vec __attribute__((vector_size(16)));
typedef std::int32_t Ints __attribute__((vector_size(16)));
constexpr int kLanes = 4;

template <int kVectors>
struct RegisterTile;
#if defined(__aarch64__)
/// 24 sums, as with AVX-512: 32 registers.
template <>
struct RegisterTile<4> {
  static constexpr int kKeys = 6, kColumns = 6, kFewColumns = 4;
};
constexpr int kMaxVectors = 4;
#else
constexpr int kMaxVectors = 2;
#endif
template <>
struct RegisterTile<2> {
  static constexpr int kKeys = 4, kColumns = 4, kFewColumns = 4;
};
template <>
struct RegisterTile<1> {
  static constexpr int kKeys = 8, kColumns = 8, kFewColumns = 8;
};

GREENFAST_OP Vec set(float x) { return Vec{x, x, x, x}; }
GREENFAST_OP Ints set_int(std::int32_t x) { return Ints{x, x, x, x}; }
GREENFAST_OP Vec zero() { return set(0.0f); }
GREENFAST_OP Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
GREENFAST_OP void store(float* p, Vec x) { *reinterpret_cast<Vec*>(p) = x; }
GREENFAST_OP Vec broadcast(const char* p) {
  float x;
  __builtin_memcpy(&x, p, sizeof x);
  return set(x);
}
GREENFAST_OP Vec select(Ints mask, Vec yes, Vec no) {
  return reinterpret_cast<Vec>((reinterpret_cast<Ints>(yes) & mask) |
                               (reinterpret_cast<Ints>(no) & ~mask));
}
GREENFAST_OP Vec add(Vec a, Vec b) { return a + b; }
GREENFAST_OP Vec sub(Vec a, Vec b) { return a - b; }
GREENFAST_OP Vec mul(Vec a, Vec b) { return a * b; }
GREENFAST_OP Vec div(Vec a, Vec b) { return a / b; }
// Fused where the target can (-ffp-contract=fast).
GREENFAST_OP Vec mul_add(Vec a, Vec b, Vec c) { return a * b + c; }
GREENFAST_OP Vec mul_sub(Vec a, Vec b, Vec c) { return a * b - c; }
GREENFAST_OP Vec neg_mul_add(Vec a, Vec b, Vec c) { return c - a * b; }
/// b where either is NaN.
GREENFAST_OP Vec max(Vec a, Vec b) { return select(a > b, a, b); }
/// b where either is NaN.
GREENFAST_OP Vec min(Vec a, Vec b) { return select(a < b, a, b); }
GREENFAST_OP Vec abs(Vec a) {
  return reinterpret_cast<Vec>(reinterpret_cast<Ints>(a) & set_int(0x7fffffff));
}
GREENFAST_OP Vec copy_sign(Vec magnitude, Vec sign) {
  return reinterpret_cast<Vec>(reinterpret_cast<Ints>(magnitude) |
                               (reinterpret_cast<Ints>(sign) & ~set_int(0x7fffffff)));
}
GREENFAST_OP Vec if_equal(Vec a, Vec b, Vec yes, Vec no) { return select(a == b, yes, no); }
GREENFAST_OP Vec if_less(Vec a, Vec b, Vec yes, Vec no) { return select(a < b, yes, no); }
GREENFAST_OP Vec if_between(int n, const std::int32_t* begin, const std::int32_t* end, Vec x,
                            Vec other) {
  const Ints at = set_int(n);
  return select(
      (*reinterpret_cast<const Ints*>(begin) <= at) & (*reinterpret_cast<const Ints*>(end) > at), x,
      other);
}

/// As with AVX2.
template <int kDegree, int kDown = 0>
GREENFAST_OP Vec exp2(Vec x) {
  const Vec shifter = set(12582912.0f);
  x = max(set(-127.0f + kDown), x);
  const Vec shifted = x + shifter;
  const Vec r = x - (shifted - shifter);
  Vec p = mul_add(set(0.00015594680035f), r, set(0.0013406644f));
  p = mul_add(p, r, set(0.0096176929699f));
  p = mul_add(p, r, set(0.055503105508f));
  p = mul_add(p, r, set(0.24022652783f));
  p = mul_add(p, r, set(0.69314721497f));
  p = mul_add(p, r, set(1.0f));
  return p * reinterpret_cast<Vec>((reinterpret_cast<Ints>(shifted) + set_int(127 - kDown)) << 23);
}

template <class T>
GREENFAST_OP Vec load_n(const T* p, int /*n*/) {
  return Vec{widen(p[0]), widen(p[1]), widen(p[2]), widen(p[3])};
}
template <class T>
GREENFAST_OP void store_n(T* p, Vec x, int /*n*/) {
  for (int i = 0; i < kLanes; ++i) narrow(x[i], p[i]);
}

/// Lane i of the result is the sum of the lanes of vector i of p.
GREENFAST_OP Vec sum_lanes(const float* p) {
  Vec sums = zero();
  for (int i = 0; i < kLanes; ++i) {
    const Vec x = load(p + i * kLanes);
    sums[i] = (x[0] + x[2]) + (x[1] + x[3]);
  }
  return sums;
}

GREENFAST_OP void transpose(const float* from, std::int64_t from_stride, float* to,
                            std::int64_t to_stride) {
  const Vec a = load(from), b = load(from + from_stride), c = load(from + 2 * from_stride),
            d = load(from + 3 * from_stride);
  for (int i = 0; i < kLanes; ++i) store(to + i * to_stride, Vec{a[i], b[i], c[i], d[i]});
}

}  // namespace
}  // namespace greenfast::kernels
