// Puts together what blocks of cuda.sm80.mma made of parts of their rows' keys. sm_80 and later.
//
// Idea    Parts fill a GPU that a problem's tiles leave idle. Each gives the mean of V over its own keys in
//         fp32 and the sum of its exponentials; a thread has four columns of a row, and weighs the
//         means by the sums.
// Takes   up to kMaxParts parts, any output of cuda.sm80.mma.
// Limits  compute capability 8.0; head dims in steps of 4.
// Budget  256 threads a block, no shared memory.
// Bound   L2: parts are read once, soon after they were written.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/ptx_mma.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm80_mma/config.hpp"

namespace greenfast::cuda::sm80_mma {

/// Puts the parts of four columns of a row together. Everything is asked of memory before anything is
/// looked at: the kernel lasts as long as it waits.
template <class TOut>
__device__ __forceinline__ void join_columns(const JoinParams& p, std::int64_t row, int column) {
  PartSum sums[kMaxParts];
  float4 means[kMaxParts];
#pragma unroll
  for (int i = 0; i < kMaxParts; ++i) {
    sums[i] = {-INFINITY, -INFINITY};
    means[i] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (i < p.parts) {
      const std::int64_t at = i * p.rows + row;
      sums[i] = p.sums[at];
      means[i] = *reinterpret_cast<const float4*>(p.o_parts + at * p.head_dim + column);
    }
  }
  PartSum most = {0.0f, -INFINITY};
#pragma unroll
  for (const PartSum& x : sums)
    // By the difference: beside a high of 2^31 a low is lost.
    if ((x.high - most.high) + (x.low - most.low) > 0.0f) most = x;
  float4 mean = {0.0f, 0.0f, 0.0f, 0.0f};
  float weights = 0.0f;
#pragma unroll
  for (int i = 0; i < kMaxParts; ++i) {
    if (sums[i].low == -INFINITY) continue;  // of no key
    const float distance = (sums[i].high - most.high) + (sums[i].low - most.low);
    const float weight =
        exp2_fast(distance);  // or NaN; where it is 0 a mean that is NaN still counts
    weights += weight;
    mean = float4{fmaf(weight, means[i].x, mean.x), fmaf(weight, means[i].y, mean.y),
                  fmaf(weight, means[i].z, mean.z), fmaf(weight, means[i].w, mean.w)};
  }
  if (p.lse != nullptr && column == 0)
    p.lse[row] = weights == 0.0f ? -INFINITY : (most.high + (most.low + __log2f(weights))) * kLn2;
  const float inverse = weights == 0.0f ? 0.0f : 1.0f / weights;
  mean = float4{mean.x * inverse, mean.y * inverse, mean.z * inverse, mean.w * inverse};
  if constexpr (std::is_same_v<TOut, __half>)
    mean =
        float4{finite_mean(mean.x), finite_mean(mean.y), finite_mean(mean.z), finite_mean(mean.w)};
  const std::int64_t flat_head = row / p.seq_q, batch = flat_head / p.heads_q;
  TOut* const o = static_cast<TOut*>(p.o) + batch * p.o_batch +
                  (flat_head - batch * p.heads_q) * p.o_head +
                  (row - flat_head * p.seq_q) * p.o_row + column;
  if constexpr (sizeof(TOut) == 2) {
    if (p.wide_store) {
      *reinterpret_cast<uint2*>(o) =
          make_uint2(pack2<TOut>(mean.x, mean.y), pack2<TOut>(mean.z, mean.w));
      return;
    }
  }
  o[0] = from_float<TOut>(mean.x);
  o[1] = from_float<TOut>(mean.y);
  o[2] = from_float<TOut>(mean.z);
  o[3] = from_float<TOut>(mean.w);
}

__global__ void __launch_bounds__(kJoinThreads) join_kernel(const __grid_constant__ JoinParams p) {
  // The grid's x has columns of the first row, then of the next.
  const std::int64_t four =
      (std::int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * kJoinThreads + threadIdx.x;
  const int of_a_row = p.head_dim / 4;
  const std::int64_t row = four / of_a_row;
  if (row >= p.rows) return;
  const int column = 4 * static_cast<int>(four - row * of_a_row);
  switch (p.output) {
    case ElementType::f16:
      return join_columns<__half>(p, row, column);
    case ElementType::bf16:
      return join_columns<__nv_bfloat16>(p, row, column);
    case ElementType::f32:
      return join_columns<float>(p, row, column);
  }
}

}  // namespace greenfast::cuda::sm80_mma
