// Elements of any floating type on the GPU: to fp32 and back, and several at once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace greenfast::cuda {

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void narrow(float x, float& to) { to = x; }
__device__ __forceinline__ void narrow(float x, __half& to) { to = __float2half_rn(x); }
__device__ __forceinline__ void narrow(float x, __nv_bfloat16& to) { to = __float2bfloat16_rn(x); }

/// Elements of one copy, which begin at a multiple of all their bytes.
template <class T, int kPart>
struct alignas(kPart * sizeof(T)) Part {
  T x[kPart];
};

}  // namespace greenfast::cuda
