// Smoothing K: the mean of each column over sampled keys, and the log-sum-exp's share of it.
//
// Idea    A block has a head; a thread eight columns and every 32nd sampled key, whose sums are added in
//         order, so that the CPU finds the same bits. A warp has a row of the log-sum-exp.
// Takes   every problem that core::check_quantize accepts; attention's of codes in rows one behind the
//         other, as attention_quantized lays them.
// Limits  compute capability 8.0.
// Budget  32 KB of shared memory; at most 1,024 keys of a head are read.
// Bound   latency: some microseconds.
#include "backends/cuda/smooth.hpp"

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include <greenfast/arithmetic.hpp>

#include "backends/cuda/elements.cuh"
#include "backends/cuda/launched.hpp"
#include "backends/cuda/quantize_values.cuh"
#include "core/alignment.hpp"
#include "core/smooth.hpp"

namespace greenfast::cuda {
namespace {

constexpr int kColumns = 8;  // of a thread
constexpr int kWarps = 8;

template <class T, bool kAligned>
__global__ void __launch_bounds__(1024)
    means_kernel(const T* from, float* means, const __grid_constant__ QuantizeProblem p) {
  extern __shared__ float sums[];  // kSums rows of head_dim
  const int parts = static_cast<int>(p.head_dim) / kColumns;
  const int part = static_cast<int>(threadIdx.x) % parts, n = static_cast<int>(threadIdx.x) / parts;
  // Eight loads of fp32 would be spilled, and those of one element want twice the registers.
  constexpr int kUnroll = !kAligned ? 1 : sizeof(T) == 4 ? 4 : 8;
  const auto keys = static_cast<int>(core::sampled_keys(p.seq));
  for (std::int64_t head = blockIdx.x; head < p.batch * p.heads; head += gridDim.x) {
    const std::int64_t b = head / p.heads, h = head - b * p.heads;
    const T* const column = from + b * p.from.stride[0] + h * p.from.stride[1] + part * kColumns;
    float sum[kColumns] = {};
#pragma unroll kUnroll
    for (int key = n; key < keys; key += core::kSums) {
      const T* const row = column + core::sampled_key(key, p.seq) * p.from.stride[2];
      Part<T, kColumns> values;
      if constexpr (kAligned) {
        values = *reinterpret_cast<const Part<T, kColumns>*>(row);
      } else {
#pragma unroll
        for (int i = 0; i < kColumns; ++i) values.x[i] = row[i];
      }
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const float x = widen(values.x[i]);
        sum[i] = __fadd_rn(sum[i], isfinite(x) ? x : 0.0f);
      }
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sums[n * p.head_dim + part * kColumns + i] = sum[i];
    __syncthreads();
    for (int d = static_cast<int>(threadIdx.x); d < p.head_dim; d += static_cast<int>(blockDim.x)) {
      float all = 0.0f;
#pragma unroll
      for (int i = 0; i < core::kSums; ++i) all = __fadd_rn(all, sums[i * p.head_dim + d]);
      (p.rotate ? sums : means + head * p.head_dim)[d] = core::mean_of(all, p.seq);
    }
    if (p.rotate) {
      __syncthreads();
      for (int mine = static_cast<int>(threadIdx.x); mine < parts;
           mine += static_cast<int>(blockDim.x)) {
        const Values<float> rotated = rotated_part(sums, mine, parts);
#pragma unroll
        for (int i = 0; i < kColumns; ++i)
          means[head * p.head_dim + mine * kColumns + i] = rotated.at(i);
      }
    }
    __syncthreads();
  }
}

template <class T>
void find_means(const core::QuantizeCall& call, float* means, cudaStream_t stream) {
  const QuantizeProblem& p = call.problem;
  const auto threads = static_cast<unsigned>(p.head_dim / kColumns * core::kSums);
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(p.batch * p.heads, 1 << 20));
  const std::array shape{p.batch, p.heads, p.seq, p.head_dim};
  const auto launch = [&](auto kernel) {
    kernel<<<blocks, threads, core::kSums * p.head_dim * sizeof(float), stream>>>(
        static_cast<const T*>(call.tensors.from), means, p);
  };
  if (core::rows_aligned(call.tensors.from, p.from, shape, sizeof(T), kColumns * sizeof(T)))
    launch(means_kernel<T, true>);
  else
    launch(means_kernel<T, false>);
}

__global__ void __launch_bounds__(32 * kWarps)
    shift_kernel(const __grid_constant__ Problem p, const __nv_fp8_e4m3* q, const float* q_scale,
                 const float* means, float* lse) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t rows = p.batch * p.heads_q * p.seq_q, group = p.heads_q / p.heads_kv;
  for (std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; row < rows;
       row += std::int64_t{gridDim.x} * kWarps) {
    const std::int64_t head = row / p.seq_q, b = head / p.heads_q, h = head - b * p.heads_q;
    const float* const mean = means + (b * p.heads_kv + h / group) * p.head_dim;
    double sum = 0.0;  // which codes times large means may leave fp32 for
    for (std::int64_t d = lane; d < p.head_dim; d += 32)
      sum += static_cast<double>(static_cast<float>(q[row * p.head_dim + d])) * mean[d];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    // A row that sees no key has none, whatever Q holds.
    if (lane == 0 && lse[row] != -INFINITY)
      lse[row] = static_cast<float>(lse[row] + sum * q_scale[head] * p.scale);
  }
}

}  // namespace

Status column_means(const core::QuantizeCall& call, float* means, const core::Context& context) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  switch (call.problem.dtype) {
    case DType::f32:
      find_means<float>(call, means, stream);
      break;
    case DType::f16:
      find_means<__half>(call, means, stream);
      break;
    default:
      find_means<__nv_bfloat16>(call, means, stream);
      break;
  }
  return launched("cuda means of columns");
}

Status shift_lse(const Problem& p, const Tensors& codes, const float* means,
                 const core::Context& context) {
  const std::int64_t rows = p.batch * p.heads_q * p.seq_q;
  const auto blocks = static_cast<unsigned>(
      std::min<std::int64_t>(ceil_div(rows, std::int64_t{kWarps}), std::int64_t{1} << 20));
  shift_kernel<<<blocks, 32 * kWarps, 0, static_cast<cudaStream_t>(context.stream)>>>(
      p, static_cast<const __nv_fp8_e4m3*>(codes.q), codes.q_scale, means, codes.lse);
  return launched("cuda shift of the log-sum-exp");
}

}  // namespace greenfast::cuda
