/* What the CUDA example plugins share: one warp a query row, fp16 or fp32, full or causal. */
#ifndef GREENFAST_EXAMPLES_ATTENTION_CUH
#define GREENFAST_EXAMPLES_ATTENTION_CUH

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdio>

#include <greenfast/plugin.h>

namespace example {

constexpr int kWarps = 4, kMostPerLane = 8;  // elements of D that a lane holds: D up to 256
/* Sums begin anew after as many keys: a sum of very many numbers no longer sees the next one. */
constexpr int kPart = 1024;

__device__ inline float sum_of_warp(float x) {
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(~0u, x, lane);
  return x;
}

/* Grid: rows of O over kWarps; block: kWarps warps. */
template <class T>
__global__ void attend(gf_problem p, gf_tensors t) {
  const long long row = (long long)blockIdx.x * kWarps + threadIdx.x / 32;
  if (row >= p.batch * p.heads_q * p.seq_q) return;
  const int lane = threadIdx.x % 32, dim = (int)p.head_dim;
  const long long i = row % p.seq_q, h = row / p.seq_q % p.heads_q, b = row / p.seq_q / p.heads_q;
  const long long kv_head = h / (p.heads_q / p.heads_kv);
  const long long shift = p.mask_alignment == GF_BOTTOM_RIGHT ? p.seq_kv - p.seq_q : 0;
  long long end = p.mask_right < 0 ? p.seq_kv : i + shift + p.mask_right + 1;
  if (end > p.seq_kv) end = p.seq_kv;
  const auto at = [&](const void* base, const gf_layout& l, long long head, long long s) {
    return (T*)base + b * l.stride[0] + head * l.stride[1] + s * l.stride[2];
  };
  const T *q = at(t.q, p.q, h, i), *k = at(t.k, p.k, kv_head, 0), *v = at(t.v, p.v, kv_head, 0);
  float o[kMostPerLane] = {}, part[kMostPerLane] = {}, max = -INFINITY, sum = 0, part_sum = 0;
  for (long long j = 0; j < end; ++j) {
    float score = 0;
    for (int d = lane; d < dim; d += 32) score += (float)q[d] * (float)k[j * p.k.stride[2] + d];
    score = sum_of_warp(score) * p.scale;
    const bool merge = j % kPart == kPart - 1 || j == end - 1;
    /* Where all scores are -inf so far, all weights are 0. */
    const float higher = fmaxf(max, score), base = higher == -INFINITY ? 0 : higher;
    const float rescale = expf(max - base), w = expf(score - base);
    max = higher;
    sum *= rescale;
    part_sum = part_sum * rescale + w;
    for (int n = 0; n < kMostPerLane && lane + 32 * n < dim; ++n) {
      o[n] *= rescale;
      part[n] = part[n] * rescale + w * (float)v[j * p.v.stride[2] + lane + 32 * n];
      if (merge) o[n] += part[n], part[n] = 0;
    }
    if (merge) sum += part_sum, part_sum = 0;
  }
  T* to = at(t.o, p.o, h, i);
  for (int n = 0; n < kMostPerLane && lane + 32 * n < dim; ++n)
    to[lane + 32 * n] = (T)(sum == 0 ? 0.0f : o[n] / sum);
  if (p.lse && lane == 0) t.lse[row] = sum == 0 ? -INFINITY : max + logf(sum);
}

inline int supports(const gf_problem* p, char* why, size_t capacity) {
  const bool types = (p->dtype == GF_FP16 || p->dtype == GF_FP32) && p->out_dtype == p->dtype;
  if (types && p->mask_left < 0 && p->mask_right <= 0 && p->softcap == 0) return 1;
  snprintf(why, capacity, "takes fp16 and fp32, full or causal, no window, no softcap");
  return 0;
}

inline gf_status attend_on(const gf_plugin_call* call, cudaStream_t stream) {
  const gf_problem& p = *call->problem;
  const unsigned blocks = (unsigned)((p.batch * p.heads_q * p.seq_q + kWarps - 1) / kWarps);
  if (p.dtype == GF_FP16)
    attend<__half><<<blocks, 32 * kWarps, 0, stream>>>(p, *call->tensors);
  else
    attend<float><<<blocks, 32 * kWarps, 0, stream>>>(p, *call->tensors);
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return GF_OK;
  snprintf(call->error, call->error_capacity, "launch: %s", cudaGetErrorString(error));
  return GF_DEVICE_ERROR;
}

}  // namespace example

/* The table of a plugin with one kernel of this name and launch function. */
#define EXAMPLE_CUDA_PLUGIN(kernel_name, one_line, launch_function)                            \
  static const gf_plugin_kernel kKernels[] = {{sizeof(gf_plugin_kernel), GF_CUDA, kernel_name, \
                                               one_line, example::supports, nullptr, nullptr,  \
                                               launch_function}};                              \
  static const gf_plugin kPlugin = GF_PLUGIN_INIT("examples", kKernels);                       \
  GF_PLUGIN_EXPORT const gf_plugin* gf_plugin_get(void) { return &kPlugin; }

#endif
