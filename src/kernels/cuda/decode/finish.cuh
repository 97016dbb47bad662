// What follows the sums over a part's keys: adding parts of a row, the sink, O and the LSE.
#pragma once

#include "kernels/cuda/decode/config.hpp"
#include "kernels/cuda/device/softmax.cuh"

namespace greenfast::cuda::decode {

/// Four neighbouring columns of a row over some of its keys. Parts are added one after the other in
/// the order of their keys, wherever that is done, so that the place changes no bit.
struct Sums {
  float4 o = {0.0f, 0.0f, 0.0f, 0.0f};
  float sum = 0.0f;

  __device__ __forceinline__ void add(float4 part, float part_sum, float weight) {
    o.x = fmaf(weight, part.x, o.x);
    o.y = fmaf(weight, part.y, o.y);
    o.z = fmaf(weight, part.z, o.z);
    o.w = fmaf(weight, part.w, o.w);
    sum = fmaf(weight, part_sum, sum);
  }
};

/// What a part counts beside the whole. A part without a score above -inf counts nothing.
__device__ __forceinline__ float weight_of(float most_of_part, float most, float exponent_scale) {
  return exp2_fast((most_of_part - (most == -INFINITY ? 0.0f : most)) * exponent_scale);
}

template <class T>
__device__ __forceinline__ T rounded(float x) {
  if constexpr (std::is_same_v<T, __half>)
    return __float2half_rn(finite_mean(x));
  else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __float2bfloat16_rn(x);
  else
    return x;
}

template <class T>
__device__ __forceinline__ void store_four(T* to, float4 x, bool wide) {
  if (!wide) {
    to[0] = rounded<T>(x.x);
    to[1] = rounded<T>(x.y);
    to[2] = rounded<T>(x.z);
    to[3] = rounded<T>(x.w);
  } else if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float4*>(to) = x;
  } else {
    uint2 words;
    if constexpr (std::is_same_v<T, __half>) {
      words = make_uint2(pack2<T>(finite_mean(x.x), finite_mean(x.y)),
                         pack2<T>(finite_mean(x.z), finite_mean(x.w)));
    } else {
      words = make_uint2(pack2<T>(x.x, x.y), pack2<T>(x.z, x.w));
    }
    *reinterpret_cast<uint2*>(to) = words;
  }
}

/// What a difference of two scores of a row, as they are kept, is multiplied by: for the exponent of 2, and for
/// the LSE. Of e4m3 it is the row's own, and its sign is that of the scores then (kernel.cuh). 0 would make a
/// NaN of what is hidden.
struct RowScale {
  float exponent, natural;
};
__device__ __forceinline__ RowScale row_scale(const Params& p, std::int32_t b, std::int32_t head) {
  if (p.q_scale == nullptr || p.transform) return {p.exponent_scale, p.natural_scale};
  const float product = fabsf(product_scale(p, b, head));
  const float exponent = product * p.exponent_scale;
  constexpr float kLeast = 1.1754944e-38f, kMost = 3.4028235e38f;  // and a NaN stays one
  return {exponent == 0.0f   ? kLeast
          : exponent > kMost ? kMost
                             : exponent,
          product * p.natural_scale};
}
__device__ __forceinline__ std::int32_t head_of(const Params& p, std::int32_t kv_head,
                                                std::int32_t row) {
  return kv_head * p.group + (row - p.by_group(row) * p.group);
}

/// Writes columns 4 * chunk to 4 * chunk + 3 of O and, with the first, the LSE. `row` counts the
/// sequence's rows of that KV head.
template <Build kBuild = Build::general>
__device__ __forceinline__ void finish(const Params& p, std::int32_t b, const Sequence& sequence,
                                       std::int32_t kv_head, std::int32_t row, int chunk,
                                       float most, const Sums& sums) {
  constexpr bool kLean = kBuild == Build::lean;
  const std::int32_t query = kLean ? 0 : p.by_group(row);
  const std::int32_t head = kv_head * p.group + (row - query * p.group);
  const float natural = kLean ? p.natural_scale : row_scale(p, b, head).natural;
  float factor = sums.sum == 0.0f ? 0.0f : 1.0f / sums.sum;
  float lse = sums.sum == 0.0f ? -INFINITY : most * natural + logf(sums.sum);
  if (!kLean && p.sinks != nullptr) {
    const float sink = p.sinks[head];
    if (sums.sum == 0.0f) {
      lse = sink;
    } else if (sink != -INFINITY) {
      const float apart = most * natural - sink;
      const float high = apart >= 0.0f ? most * natural : sink;
      const float weight = apart >= 0.0f ? 1.0f : expf(apart);
      const float whole = fmaf(sums.sum, weight, apart >= 0.0f ? expf(-apart) : 1.0f);
      factor = weight / whole;
      lse = high + logf(whole);
    }
  }
  const std::int64_t q_row = sequence.q_row + query;
  if (chunk == 0 && p.lse != nullptr) {
    p.lse[(std::int64_t{sequence.q_batch} * p.heads_q + head) * p.lse_rows + q_row] = lse;
  }
  if (4 * chunk >= p.value_dim) return;
  if (!kLean && p.v_scale != nullptr)
    factor *= p.v_scale[p.scales_per_head ? b * p.heads_kv + kv_head : 0];
  // A row that sees nothing is 0 even where its tile held a NaN that others see.
  const bool empty = sums.sum == 0.0f;
  const float4 x = {empty ? 0.0f : sums.o.x * factor, empty ? 0.0f : sums.o.y * factor,
                    empty ? 0.0f : sums.o.z * factor, empty ? 0.0f : sums.o.w * factor};
  const std::int64_t at =
      sequence.q_batch * p.o_batch + head * p.o_head + q_row * p.o_row + 4 * chunk;
  switch (p.output) {
    case ElementType::f16:
      store_four(static_cast<__half*>(p.o) + at, x, p.wide_store);
      break;
    case ElementType::bf16:
      store_four(static_cast<__nv_bfloat16*>(p.o) + at, x, p.wide_store);
      break;
    case ElementType::f32:
      store_four(static_cast<float*>(p.o) + at, x, p.wide_store);
      break;
  }
}

}  // namespace greenfast::cuda::decode
