// Softmax algebra in base 2, and the small register moves that go with accumulator fragments.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <numbers>
#include <type_traits>

namespace greenfast::cuda {

inline constexpr float kLn2 = std::numbers::ln2_v<float>;
inline constexpr unsigned kFullWarp = 0xffffffffu;

/// 2^x with relative error 2^-22 and subnormals flushed. exp2f would add three instructions.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// tanh(x), given y = 2 * log2(e) * x, for |x| <= 0.55: a polynomial in y^2, of least relative error.
inline constexpr float kNearOfSoftcap = 1.58f;  // y up to there
__device__ __forceinline__ float tanh_near(float y) {
  const float square = y * y;
  float near = 1.1649248e-6f;
  near = fmaf(near, square, -3.152979e-5f);
  near = fmaf(near, square, 6.6588045e-4f);
  near = fmaf(near, square, -1.3875771e-2f);
  near = fmaf(near, square, 3.465736e-1f);
  return near * y;
}
/// The same for any x. Relative error 4e-7: a cap of 1e8 multiplies arguments near 0, where 1 - 2 / (e^2x + 1) cancels,
/// and where tanh.approx is off by 5e-4.
__device__ __forceinline__ float tanh_from_log2(float y) {
  const float far = 1.0f - 2.0f * reciprocal_fast(1.0f + exp2_fast(y));
  return fabsf(y) < kNearOfSoftcap ? tanh_near(y) : far;
}
__device__ __forceinline__ float softcap_from_log2(float y, float cap) {
  return cap * tanh_from_log2(y);
}

/// core::ScoreTransform of a dot product.
__device__ __forceinline__ float transformed(float dot, float scale, float cap) {
  const float x = dot * scale;
  return cap > 0.0f ? softcap_from_log2(x, cap) : x;
}

/// Up to here one float holds the base of a row's exponents, which is the largest score times the
/// scale: rounding moves it by a quarter at most, and all weights of the row alike. At 2^29 it
/// would move it by 32, and fp16 weights from 1 to infinity or to 0.
inline constexpr float kLargestBase = 0x1p22f;

/// A base of any size: high + low is the product, exactly; low is 0 where one float is enough.
struct WideBase {
  float high, low;
};
__device__ __forceinline__ WideBase wide_base(float score, float scale) {
  const float high = score * scale;
  const bool two = fabsf(high) > kLargestBase && fabsf(high) <= 3.4028235e38f;
  return {high, two ? fmaf(score, scale, -high) : 0.0f};
}
/// a - b, where b is no infinity.
__device__ __forceinline__ float distance(WideBase a, WideBase b) {
  return (a.high - b.high) + (a.low - b.low);
}
__device__ __forceinline__ WideBase larger(WideBase a, WideBase b) {
  return a.high == -INFINITY || (b.high != -INFINITY && distance(b, a) > 0.0f) ? b : a;
}
/// What to subtract: a row without a score above -inf has weights of 0, not NaN.
__device__ __forceinline__ WideBase finite(WideBase base) {
  return base.high == -INFINITY ? WideBase{0.0f, 0.0f} : base;
}
/// The exponent of a score's weight.
__device__ __forceinline__ float exponent(float score, float scale, WideBase base) {
  return fmaf(score, scale, -base.high) - base.low;
}

/// What rounding carried past fp16's last finite number. A mean of V is no larger than V, but the
/// weights that multiply V are rounded and those that are summed are not: up to 2^-11 apart.
__device__ __forceinline__ float finite_mean(float x) {
  return fabsf(x) > 65504.0f && fabsf(x) < 65600.0f ? copysignf(65504.0f, x) : x;
}

/// Maximum, or sum, over the four lanes that share a row of an accumulator fragment.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, 1));
  return fmaxf(x, __shfl_xor_sync(kFullWarp, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(kFullWarp, x, 1);
  return x + __shfl_xor_sync(kFullWarp, x, 2);
}

/// Which of a lane's score columns lie below `limit`, as the low bits: bit 2 n + i stands for
/// column 8 n + i of an accumulator row. Testing bits costs half of comparing columns.
__device__ __forceinline__ std::uint32_t columns_below(int limit) {
  const int clamped = max(0, min(limit, 128));
  const int bits = clamped / 8 * 2 + min(clamped % 8, 2);
  return bits >= 32 ? 0xffffffffu : (1u << bits) - 1;
}

/// The `count` lowest bits; all from 32 on. What columns_below ends with, in one instruction.
__device__ __forceinline__ std::uint32_t low_bits(int count) {
  std::uint32_t bits;
  asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(bits) : "r"(count));
  return bits;
}

/// Two floats rounded to nearest even into one register, lo in the low half.
template <class T>
__device__ __forceinline__ std::uint32_t pack2(float lo, float hi);
template <>
__device__ __forceinline__ std::uint32_t pack2<__half>(float lo, float hi) {
  std::uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
template <>
__device__ __forceinline__ std::uint32_t pack2<__nv_bfloat16>(float lo, float hi) {
  std::uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

/// One float rounded to nearest even.
template <class T>
__device__ __forceinline__ T from_float(float x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

/// pack2 of means of V, which stay finite where V is.
template <class T>
__device__ __forceinline__ void pack_means(std::uint32_t (&words)[4], const float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = pack2<T>(x[2 * i], x[2 * i + 1]);
  if constexpr (std::is_same_v<T, __half>) {
    __half2 most = __float2half2_rn(0.0f);
#pragma unroll
    for (const std::uint32_t& two : words)
      most = __hmax2(most, __habs2(reinterpret_cast<const __half2&>(two)));
    if (!__hble2(most, __float2half2_rn(65504.0f))) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        words[i] = pack2<T>(finite_mean(x[2 * i]), finite_mean(x[2 * i + 1]));
    }
  }
}

/// Transposes 4 words over the 4 lanes of a quad: lane t had word i of column block t, and gets
/// words 0..3 of block t. Turns "two columns of each of four 8-column atoms" into eight
/// neighbouring columns, one 16-byte store.
__device__ __forceinline__ uint4 quad_transpose(const std::uint32_t (&x)[4]) {
  const bool upper = threadIdx.x & 2;
  const bool odd = threadIdx.x & 1;
  const std::uint32_t far0 = __shfl_xor_sync(kFullWarp, upper ? x[0] : x[2], 2);
  const std::uint32_t far1 = __shfl_xor_sync(kFullWarp, upper ? x[1] : x[3], 2);
  // Words of atoms 2 * upper (even) and 2 * upper + 1 (odd), from the lower and the upper lane.
  const std::uint32_t even_lower = upper ? far0 : x[0], odd_lower = upper ? far1 : x[1];
  const std::uint32_t even_upper = upper ? x[2] : far0, odd_upper = upper ? x[3] : far1;
  const std::uint32_t near0 = __shfl_xor_sync(kFullWarp, odd ? even_lower : odd_lower, 1);
  const std::uint32_t near1 = __shfl_xor_sync(kFullWarp, odd ? even_upper : odd_upper, 1);
  return odd ? make_uint4(near0, odd_lower, near1, odd_upper)
             : make_uint4(even_lower, near0, even_upper, near1);
}

/// What a row whose sum has this logarithm is multiplied by when a sink joins the sum; the
/// logarithm becomes that of the whole. -inf: an empty row.
__device__ __forceinline__ float join_sink(float sink, float& lse) {
  const float before = lse, high = before < sink ? sink : before;
  if (high == -INFINITY || high == INFINITY) {
    lse = high;
    return sink == high ? 0.0f : 1.0f;
  }
  const float ours = expf(before - high), theirs = expf(sink - high);
  lse = high + logf(ours + theirs);
  return ours / (ours + theirs);
}

}  // namespace greenfast::cuda
