// Puts together what blocks of cuda.sm80.mma made of parts of their rows' keys. sm_80 and later.
//
// Idea    Parts fill a GPU that a problem's tiles leave idle. Each gives the mean of V over its own keys in
//         fp32 and the sum of its exponentials; a warp has a row, and weighs the means by the sums.
// Takes   up to kMaxParts parts, any output of cuda.sm80.mma.
// Budget  4 warps a block, no shared memory.
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

/// Puts the parts of a row together, whose outputs are means of their own keys: each weighs as the sum
/// of its exponentials, which its LSE has. A part whose weight is 0 is not read.
template <class TOut>
__device__ __forceinline__ void join_row(const JoinParams& p, std::int64_t row) {
  const int lane = threadIdx.x % 32;
  const std::int64_t flat_head = row / p.seq_q;
  const auto batch = flat_head / p.heads_q, head = flat_head - batch * p.heads_q;
  TOut* const o = static_cast<TOut*>(p.o) + batch * p.o_batch + head * p.o_head +
                  (row - flat_head * p.seq_q) * p.o_row;
  PartSum sums[kMaxParts], most = {-INFINITY, 0.0f};
#pragma unroll
  for (int i = 0; i < kMaxParts; ++i) {
    sums[i] = i < p.parts ? p.sums[i * p.rows + row] : PartSum{-INFINITY, 0.0f};
    if (sums[i].high + sums[i].low > most.high + most.low) most = sums[i];
  }
  float weight[kMaxParts], sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kMaxParts; ++i) {
    const float distance = (sums[i].high - most.high) + (sums[i].low - most.low);
    weight[i] = sums[i].high == -INFINITY ? 0.0f : exp2_fast(distance);
    sum += weight[i];
  }
  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
  if (p.lse != nullptr && lane == 0)
    p.lse[row] = sum == 0.0f ? -INFINITY : (most.high + (most.low + __log2f(sum))) * kLn2;
  for (int d = 4 * lane; d < p.head_dim; d += 4 * 32) {
    float4 mean = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kMaxParts; ++i) {
      if (weight[i] == 0.0f) continue;
      const float share = weight[i] * inverse;
      const float4 x =
          *reinterpret_cast<const float4*>(p.o_parts + (i * p.rows + row) * p.head_dim + d);
      mean = float4{fmaf(share, x.x, mean.x), fmaf(share, x.y, mean.y), fmaf(share, x.z, mean.z),
                    fmaf(share, x.w, mean.w)};
    }
    if constexpr (std::is_same_v<TOut, __half>)
      mean = float4{finite_mean(mean.x), finite_mean(mean.y), finite_mean(mean.z),
                    finite_mean(mean.w)};
    if constexpr (sizeof(TOut) == 2) {
      if (p.wide_store) {
        *reinterpret_cast<uint2*>(o + d) =
            make_uint2(pack2<TOut>(mean.x, mean.y), pack2<TOut>(mean.z, mean.w));
        continue;
      }
    }
    o[d] = from_float<TOut>(mean.x);
    o[d + 1] = from_float<TOut>(mean.y);
    o[d + 2] = from_float<TOut>(mean.z);
    o[d + 3] = from_float<TOut>(mean.w);
  }
}

__global__ void __launch_bounds__(32 * kJoinWarps)
    join_kernel(const __grid_constant__ JoinParams p) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kJoinWarps + threadIdx.x / 32;
  if (row >= p.rows) return;
  switch (p.output) {
    case ElementType::f16:
      return join_row<__half>(p, row);
    case ElementType::bf16:
      return join_row<__nv_bfloat16>(p, row);
    case ElementType::f32:
      return join_row<float>(p, row);
  }
}

}  // namespace greenfast::cuda::sm80_mma
