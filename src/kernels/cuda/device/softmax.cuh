// Softmax algebra in base 2, and the small register moves that go with accumulator fragments.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace greenfast::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
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

/// tanh(x), given 2 * log2(e) * x. Absolute error about 1e-7, where tanh.approx has 5e-4, which a
/// softcap of 50 would turn into 2% of a weight.
__device__ __forceinline__ float tanh_from_log2(float x_2log2e) {
  return 1.0f - 2.0f * reciprocal_fast(1.0f + exp2_fast(x_2log2e));
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

}  // namespace greenfast::cuda
