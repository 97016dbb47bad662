// O = 0 and LSE = -inf for a problem without a key.
//
// Idea    Rare and tiny, so one plain kernel: a thread for each element in a grid-stride loop.
// Takes   every problem that core::check accepts, with any strides of O.
// Limits  compute capability 8.0.
// Budget  256 threads a block, no shared memory.
// Bound   three divisions of 64-bit integers an element.
#include "backends/cuda/fill_empty.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <greenfast/arithmetic.hpp>

#include "backends/cuda/launched.hpp"

namespace greenfast::cuda {
namespace {

struct Output {
  std::int64_t heads, seq, dim, elements;
  std::int64_t stride_b, stride_h, stride_s;
};

template <class Element>
__global__ void fill(Element* o, Output shape, float* lse, float no_key) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < shape.elements;
       i += step) {
    const std::int64_t d = i % shape.dim;
    const std::int64_t row = i / shape.dim;
    const std::int64_t s = row % shape.seq, h = row / shape.seq % shape.heads,
                       b = row / shape.seq / shape.heads;
    o[b * shape.stride_b + h * shape.stride_h + s * shape.stride_s + d] = Element{};
    if (lse != nullptr && d == 0) lse[row] = no_key;
  }
}

}  // namespace

Status fill_empty(const Problem& problem, const Tensors& tensors, const core::Context& context) {
  const Output shape{.heads = problem.heads_q,
                     .seq = problem.seq_q,
                     .dim = problem.head_dim,
                     .elements = problem.batch * problem.heads_q * problem.seq_q * problem.head_dim,
                     .stride_b = problem.o.stride[0],
                     .stride_h = problem.o.stride[1],
                     .stride_s = problem.o.stride[2]};
  if (shape.elements == 0) return {};
  constexpr int kThreads = 256;
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>(ceil_div(shape.elements, kThreads), 4096));
  float* lse = problem.lse ? tensors.lse : nullptr;
  const auto stream = static_cast<cudaStream_t>(context.stream);
  // Zero has the same bits in every output type of one size.
  if (size_of(problem.out_dtype) == 2) {
    fill<<<blocks, kThreads, 0, stream>>>(static_cast<std::uint16_t*>(tensors.o), shape, lse,
                                          -INFINITY);
  } else {
    fill<<<blocks, kThreads, 0, stream>>>(static_cast<float*>(tensors.o), shape, lse, -INFINITY);
  }
  return launched("cuda fill of an empty problem");
}

}  // namespace greenfast::cuda
