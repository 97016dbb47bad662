// merge: two parts of a row's keys become one, on the GPU.
//
// Idea    A warp has one row. The weights are fp64, from the LSEs; the sum of both parts is fp32 with
//         each product rounded by itself, so that the order of the parts changes no bit.
// Takes   every problem that core::check_merge accepts; a part whose weight is 0 is not read.
// Limits  compute capability 8.0.
// Budget  8 warps a block, no shared memory.
// Bound   device memory: each part read once, O written once.
#include "backends/cuda/merge.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include <greenfast/arithmetic.hpp>

#include "backends/cuda/elements.cuh"
#include "backends/cuda/launched.hpp"
#include "core/alignment.hpp"

namespace greenfast::cuda {
namespace {

constexpr int kWarps = 8;

template <class In, class Out, int kPart>
__global__ void __launch_bounds__(32 * kWarps)
    merge_kernel(const __grid_constant__ MergeProblem p, const __grid_constant__ MergeTensors t,
                 std::int64_t rows) {
  const int lane = threadIdx.x % 32;
  for (std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; row < rows;
       row += std::int64_t{gridDim.x} * kWarps) {
    const std::int64_t s = row % p.seq, head = row / p.seq, h = head % p.heads, b = head / p.heads;
    const auto at = [&](const Layout& layout) {
      return b * layout.stride[0] + h * layout.stride[1] + s * layout.stride[2];
    };
    const double lse_a = t.lse_a[row], lse_b = t.lse_b[row];
    const bool has_a = !isinf(lse_a), has_b = !isinf(lse_b);
    double weight_a = has_a ? 1.0 : 0.0, weight_b = has_b ? 1.0 : 0.0;
    double lse = has_a ? lse_a : has_b ? lse_b : -HUGE_VAL;
    if (has_a && has_b) {
      const double high = lse_a < lse_b ? lse_b : lse_a;
      const double share_a = exp(lse_a - high), share_b = exp(lse_b - high);
      const double sum = share_a + share_b;
      weight_a = share_a / sum;
      weight_b = share_b / sum;
      lse = high + log(sum);
    }
    // Before lane 0 writes the LSE, which may be a part's.
    __syncwarp();
    // A part is read while its weight is not 0 in fp64, as on the CPU: where that is 0 in fp32 its
    // Inf and NaN count all the same.
    const bool reads_a = weight_a != 0.0, reads_b = weight_b != 0.0;
    const auto of_a = static_cast<float>(weight_a), of_b = static_cast<float>(weight_b);
    const auto weighed = [](float weight, float x) {
      return weight != 0.0f || isfinite(x) ? __fmul_rn(weight, x) : x;
    };
    const In* const a = static_cast<const In*>(t.a) + at(p.a);
    const In* const b_part = static_cast<const In*>(t.b) + at(p.b);
    Out* const o = static_cast<Out*>(t.o) + at(p.o);
    for (std::int64_t d = lane * kPart; d < p.head_dim; d += 32 * kPart) {
      Part<In, kPart> from_a{}, from_b{};
      if (reads_a) from_a = *reinterpret_cast<const Part<In, kPart>*>(a + d);
      if (reads_b) from_b = *reinterpret_cast<const Part<In, kPart>*>(b_part + d);
      Part<Out, kPart> to;
#pragma unroll
      for (int e = 0; e < kPart; ++e) {
        const float x = reads_a ? weighed(of_a, widen(from_a.x[e])) : 0.0f;
        const float y = reads_b ? weighed(of_b, widen(from_b.x[e])) : 0.0f;
        narrow(__fadd_rn(x, y), to.x[e]);
      }
      *reinterpret_cast<Part<Out, kPart>*>(o + d) = to;
    }
    if (t.lse != nullptr && lane == 0) t.lse[row] = static_cast<float>(lse);
  }
}

template <class In, class Out>
void launch(const MergeProblem& p, const MergeTensors& t, cudaStream_t stream) {
  constexpr int kPart = 4;
  const auto in_parts = [&](const void* data, const Layout& layout, std::size_t size) {
    const std::array shape{p.batch, p.heads, p.seq, p.head_dim};
    return core::rows_aligned(data, layout, shape, size, kPart * size);
  };
  const std::int64_t rows = p.batch * p.heads * p.seq;
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>(ceil_div(rows, kWarps), 1 << 20));
  if (p.head_dim % kPart == 0 && in_parts(t.a, p.a, sizeof(In)) && in_parts(t.b, p.b, sizeof(In)) &&
      in_parts(t.o, p.o, sizeof(Out)))
    merge_kernel<In, Out, kPart><<<blocks, 32 * kWarps, 0, stream>>>(p, t, rows);
  else
    merge_kernel<In, Out, 1><<<blocks, 32 * kWarps, 0, stream>>>(p, t, rows);
}
template <class In>
void launch_to(const MergeProblem& p, const MergeTensors& t, cudaStream_t stream) {
  if (p.out_dtype == DType::f32) {
    launch<In, float>(p, t, stream);
  } else if (p.out_dtype == DType::f16) {
    launch<In, __half>(p, t, stream);
  } else {
    launch<In, __nv_bfloat16>(p, t, stream);
  }
}

}  // namespace

Status merge(const MergeProblem& p, const MergeTensors& t, const core::Context& context) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  if (p.dtype == DType::f32) {
    launch_to<float>(p, t, stream);
  } else if (p.dtype == DType::f16) {
    launch_to<__half>(p, t, stream);
  } else {
    launch_to<__nv_bfloat16>(p, t, stream);
  }
  return launched("cuda merge");
}

}  // namespace greenfast::cuda
