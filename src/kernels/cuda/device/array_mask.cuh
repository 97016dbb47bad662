// What an element of an array mask does to a score.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/device/softmax.cuh"

namespace greenfast::cuda {

/// A score and what a mask's element adds to it, in units of log2.
__device__ __forceinline__ float masked(float score, unsigned char seen) {
  return seen != 0 ? score : -INFINITY;
}
/// What lies below -2^127 counts as that, so that it is finite in units of log2: where a row sees nothing
/// else, such keys share its weight.
__device__ __forceinline__ float masked(float score, float bias) {
  return bias == -INFINITY ? bias : fmaf(bias < -0x1p127f ? -0x1p127f : bias, 1.0f / kLn2, score);
}
__device__ __forceinline__ float masked(float score, __half bias) {
  return masked(score, __half2float(bias));
}
__device__ __forceinline__ float masked(float score, __nv_bfloat16 bias) {
  return masked(score, __bfloat162float(bias));
}

}  // namespace greenfast::cuda
