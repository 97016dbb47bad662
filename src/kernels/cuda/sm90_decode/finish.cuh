// What follows the sums over the keys: merging parts of a row, the sink, O and the LSE.
#pragma once

#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_decode/config.hpp"

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

/// Writes columns 4 * chunk to 4 * chunk + 3 of O and, with the first, the LSE. `row` counts the
/// sequence's rows of that KV head.
__device__ __forceinline__ void finish(const Params& p, const Sequence& sequence,
                                       std::int32_t kv_head, std::int32_t row, int chunk,
                                       float most, const Sums& sums) {
  const std::int32_t query = row / p.group;
  const std::int32_t head = kv_head * p.group + (row - query * p.group);
  float factor = sums.sum == 0.0f ? 0.0f : 1.0f / sums.sum;
  float lse = sums.sum == 0.0f ? -INFINITY : most * p.natural_scale + logf(sums.sum);
  if (p.sinks != nullptr) {
    const float sink = p.sinks[head];
    if (sums.sum == 0.0f) {
      lse = sink;
    } else if (sink != -INFINITY) {
      const float apart = most * p.natural_scale - sink;
      const float high = apart >= 0.0f ? most * p.natural_scale : sink;
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
  // A row that sees nothing is 0 even where its tile held a NaN that others see.
  const bool empty = sums.sum == 0.0f;
  const float4 x = {empty ? 0.0f : sums.o.x * factor, empty ? 0.0f : sums.o.y * factor,
                    empty ? 0.0f : sums.o.z * factor, empty ? 0.0f : sums.o.w * factor};
  const std::int64_t at =
      sequence.q_batch * p.o_batch + head * p.o_head + q_row * p.o_row + 4 * chunk;
  switch (p.output) {
    case Output::f16:
      store_four(static_cast<__half*>(p.o) + at, x, p.wide_store);
      break;
    case Output::bf16:
      store_four(static_cast<__nv_bfloat16*>(p.o) + at, x, p.wide_store);
      break;
    case Output::f32:
      store_four(static_cast<float*>(p.o) + at, x, p.wide_store);
      break;
  }
}

inline constexpr int kMergeThreads = 256;

/// Merges the parts of the rows that have several. Grid: rows of a sequence over all KV heads, and
/// sequences. A thread adds eight parts in their order for four columns, then every eighth such
/// group; the groups are added in the order of the threads that hold them. Up to eight parts that is
/// the order of a cluster.
template <class>  // a template, so that every source may have it
__global__ void __launch_bounds__(kMergeThreads) merge_kernel(const __grid_constant__ Params p) {
  // Every thread waits: this grid must not end before the one whose work the next call reads over.
  ptx::grid_dependency_wait();
  const auto b = static_cast<std::int32_t>(blockIdx.y);
  const std::int32_t kv_head = static_cast<std::int32_t>(blockIdx.x) / p.rows;
  const std::int32_t row = static_cast<std::int32_t>(blockIdx.x) - kv_head * p.rows;
  const Sequence sequence = sequence_at(p, b);
  if (row >= sequence.lengths.seq_q * p.group) return;
  const std::int32_t parts = parts_of(p.rule, keys_of_sequence(p.sight, sequence.lengths).count());
  if (parts == 1) return;  // written by its only block

  constexpr int kEach = 8;
  const std::int64_t first = partial_index(p, b, kv_head, row, 0);
  const Stats* stats = p.stats + first;
  float most = -INFINITY;
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x) % 32; i < parts; i += 32) {
    most = fmaxf(most, stats[i].most);
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, lanes));
  }

  const int columns = p.tile_dim / 4;  // 16, 32 or 64
  const int chunk = static_cast<int>(threadIdx.x) % columns;
  const int group = static_cast<int>(threadIdx.x) / columns, groups = kMergeThreads / columns;
  const auto* partial = reinterpret_cast<const float4*>(p.partial) + first * columns + chunk;
  Sums sums;
  for (std::int32_t begin = group * kEach; begin < parts; begin += groups * kEach) {
    float4 o[kEach];
    Stats of[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int32_t part = begin + i;
      of[i] = part < parts ? stats[part] : Stats{-INFINITY, 0.0f};
      o[i] = part < parts ? partial[std::int64_t{part} * columns] : float4{0.0f, 0.0f, 0.0f, 0.0f};
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      sums.add(o[i], of[i].sum, weight_of(of[i].most, most, p.exponent_scale));
    }
  }
  if (parts > kEach) {  // uniform over the block
    __shared__ Sums shared[kMergeThreads];
    shared[threadIdx.x] = sums;
    __syncthreads();
    if (group != 0) return;
    for (int other = 1; other < groups && other * kEach < parts; ++other) {
      const Sums& more = shared[other * columns + chunk];
      sums.add(more.o, more.sum, 1.0f);
    }
  }
  if (group == 0) finish(p, sequence, kv_head, row, chunk, most, sums);
}

}  // namespace greenfast::cuda::decode
