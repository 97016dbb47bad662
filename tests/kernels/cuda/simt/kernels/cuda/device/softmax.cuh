// Stand-in: the algebra of the softmax, as exact as the host has it.
#pragma once
#include <type_traits>

#include "cuda_bf16.h"
#include "cuda_fp16.h"

namespace greenfast::cuda {
inline constexpr unsigned kFullWarp = 0xffffffffu;
inline float exp2_fast(float x) { return std::exp2(x); }
inline float quad_max(float x) {
  x = std::fmax(x, __shfl_xor_sync(kFullWarp, x, 1));
  return std::fmax(x, __shfl_xor_sync(kFullWarp, x, 2));
}
inline float quad_sum(float x) {
  x += __shfl_xor_sync(kFullWarp, x, 1);
  return x + __shfl_xor_sync(kFullWarp, x, 2);
}
inline constexpr float kLn2 = 0.693147181f;
struct WideBase {
  float high, low;
};
inline WideBase wide_base(float score, float scale) {
  return {score * scale, std::fma(score, scale, -(score * scale))};
}
inline constexpr float kLargestBase = 0x1p22f;
inline float distance(WideBase a, WideBase b) { return (a.high - b.high) + (a.low - b.low); }
inline WideBase larger(WideBase a, WideBase b) {
  return a.high == -INFINITY || (b.high != -INFINITY && distance(b, a) > 0.0f) ? b : a;
}
inline WideBase finite(WideBase base) {
  return base.high == -INFINITY ? WideBase{0.0f, 0.0f} : base;
}
inline float exponent(float score, float scale, WideBase base) {
  return std::fma(score, scale, -base.high) - base.low;
}
inline std::uint32_t columns_below(int limit) {
  std::uint32_t below = 0;
  for (int bit = 0; bit < 32; ++bit) below |= (bit / 2 * 8 + bit % 2 < limit ? 1u : 0u) << bit;
  return below;
}
inline float transformed(float dot, float scale, float cap) {
  const float x = dot * scale;  // twice the argument of tanh times log2(e), where cap > 0
  return cap > 0.0f ? cap * std::tanh(x * 0.34657359f) : x;
}
inline float join_sink(float sink, float& lse) {
  const float before = lse, high = before < sink ? sink : before;
  if (high == -INFINITY || high == INFINITY) {
    lse = high;
    return sink == high ? 0.0f : 1.0f;
  }
  const float ours = std::exp(before - high), theirs = std::exp(sink - high);
  lse = high + std::log(ours + theirs);
  return ours / (ours + theirs);
}
inline float finite_mean(float x) {
  return std::fabs(x) > 65504.0f && std::fabs(x) < 65600.0f ? std::copysign(65504.0f, x) : x;
}
template <class T>
T from_float(float x) {
  if constexpr (std::is_same_v<T, __half>)
    return __float2half_rn(x);
  else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __float2bfloat16_rn(x);
  else
    return x;
}
template <class T>
std::uint32_t pack2(float lo, float hi) {
  if constexpr (std::is_same_v<T, __half>)
    return __float2half_rn(lo).bits | std::uint32_t{__float2half_rn(hi).bits} << 16;
  else
    return __float2bfloat16_rn(lo).bits | std::uint32_t{__float2bfloat16_rn(hi).bits} << 16;
}
/// Lane t of a quad has word i of column block t, and gets words 0..3 of block t.
inline uint4 quad_transpose(const std::uint32_t (&x)[4]) {
  const simt::Given* all = simt::exchange({{x[0], x[1], x[2], x[3], 0, 0, 0, 0}});
  const unsigned first = simt::lane() & ~3u, t = simt::lane() % 4;
  return make_uint4(all[first].word[t], all[first + 1].word[t], all[first + 2].word[t],
                    all[first + 3].word[t]);
}
}  // namespace greenfast::cuda
