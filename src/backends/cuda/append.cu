// append: new tokens into a cache on the GPU, K and Q turned on the way (rotary embedding).
//
// Idea    A warp has one head of one token, finds where it goes, and moves it in parts of 16 bytes
//         where all rows begin at such, else element by element. Angles are fp32 from the tables,
//         arithmetic fp32, rounded once, as on the CPU.
// Takes   every problem that core::check_append accepts.
// Limits  compute capability 8.0.
// Budget  8 warps a block, no shared memory.
// Bound   device memory: each new token read once and written once.
#include "backends/cuda/append.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include <greenfast/arithmetic.hpp>

#include "backends/cuda/elements.cuh"
#include "backends/cuda/launched.hpp"
#include "core/alignment.hpp"

namespace greenfast::cuda {
namespace {

constexpr int kWarps = 8;

struct Call {
  AppendProblem p;
  AppendTensors t;
  std::int64_t heads = 0;  // of a token: those of K, of V, of Q
  std::int64_t value_dim = 0;
};

template <class T, int kPart>
__device__ __forceinline__ void copy(const T* from, T* to, std::int64_t first, std::int64_t end) {
  using Words = std::conditional_t<kPart * sizeof(T) == 16, uint4, T>;
#pragma unroll 1
  for (std::int64_t d = first + threadIdx.x % 32 * kPart; d < end; d += 32 * kPart)
    *reinterpret_cast<Words*>(to + d) = *reinterpret_cast<const Words*>(from + d);
}

/// Both elements of a pair are one lane's, so that a row may be turned in place.
template <class T, int kPart>
__device__ __forceinline__ void turn(const Call& call, std::int64_t position, const T* from,
                                     T* to) {
  const AppendProblem& p = call.p;
  const std::int64_t half = p.rotary_dim / 2;
  const float* const cos = call.t.cos + position * half;
  const float* const sin = call.t.sin + position * half;
  // Products are rounded before they are added, as where no fused operation is.
  const auto turned = [](float x, float cos_x, float y, float sin_y) {
    return __fadd_rn(__fmul_rn(x, cos_x), __fmul_rn(y, sin_y));
  };
  if (p.rotary == Rotary::neox) {
    using P = Part<T, kPart>;
#pragma unroll 1
    for (std::int64_t n = threadIdx.x % 32 * kPart; n < half; n += 32 * kPart) {
      const P first = *reinterpret_cast<const P*>(from + n);
      const P second = *reinterpret_cast<const P*>(from + half + n);
      P turned_first, turned_second;
#pragma unroll
      for (int e = 0; e < kPart; ++e) {
        const float x = widen(first.x[e]), y = widen(second.x[e]), c = cos[n + e], s = sin[n + e];
        narrow(turned(x, c, -y, s), turned_first.x[e]);
        narrow(turned(y, c, x, s), turned_second.x[e]);
      }
      *reinterpret_cast<P*>(to + n) = turned_first;
      *reinterpret_cast<P*>(to + half + n) = turned_second;
    }
  } else {
#pragma unroll 1
    for (std::int64_t n = threadIdx.x % 32; n < half; n += 32) {
      const float x = widen(from[2 * n]), y = widen(from[2 * n + 1]), c = cos[n], s = sin[n];
      narrow(turned(x, c, -y, s), to[2 * n]);
      narrow(turned(y, c, x, s), to[2 * n + 1]);
    }
  }
  if (from != to) copy<T, kPart>(from, to, p.rotary_dim, p.head_dim);
}

/// One head of a token: of K, then of V, then of Q.
template <class T, int kPart>
__device__ __forceinline__ void move_head(const Call& call, const NewToken& at, std::int64_t head) {
  const AppendProblem& p = call.p;
  const AppendTensors& t = call.t;
  const auto from = [&](const void* data, const Layout& layout) {
    return static_cast<const T*>(data) + at.new_batch * layout.stride[0] + head * layout.stride[1] +
           at.new_row * layout.stride[2];
  };
  const auto cache = [&](void* data, const Layout& layout) {
    return static_cast<T*>(data) + at.image * layout.stride[0] + head * layout.stride[1] +
           at.row * layout.stride[2];
  };
  if (head < p.heads_kv) {
    const T* const source = from(t.k_new, p.k_new);
    T* const target = cache(t.k, p.k);
    if constexpr (!std::is_same_v<T, std::uint8_t>) {
      if (p.rotary != Rotary::none) {
        turn<T, kPart>(call, at.position, source, target);
        return;
      }
    }
    copy<T, kPart>(source, target, 0, p.head_dim);
    return;
  }
  head -= p.heads_kv;
  if (head < p.heads_kv) {
    copy<T, kPart>(from(t.v_new, p.v_new), cache(t.v, p.v), 0, call.value_dim);
    return;
  }
  head -= p.heads_kv;
  if constexpr (!std::is_same_v<T, std::uint8_t>) {
    T* const target = static_cast<T*>(t.q_out) + at.new_batch * p.q_out.stride[0] +
                      head * p.q_out.stride[1] + at.new_row * p.q_out.stride[2];
    turn<T, kPart>(call, at.position, from(t.q, p.q), target);
  }
}

template <class T, int kPart>
__global__ void __launch_bounds__(32 * kWarps)
    append_kernel(const __grid_constant__ Call call, std::int64_t tokens) {
  const AppendProblem& p = call.p;
  const AppendTensors& t = call.t;
  for (std::int64_t token = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; token < tokens;
       token += std::int64_t{gridDim.x} * kWarps) {
    NewToken at;
    if (!find_token(p, t, token, at)) continue;
    for (std::int64_t of_token = blockIdx.y; of_token < call.heads; of_token += gridDim.y)
      move_head<T, kPart>(call, at, of_token);
  }
}

/// Whether every row of every tensor that is used, and every part of one, begins at 16 bytes.
bool aligned(const Call& call, std::int64_t part) {
  const AppendProblem& p = call.p;
  const AppendTensors& t = call.t;
  struct Side {
    const void* data;
    const Layout& layout;
    std::array<std::int64_t, 4> shape;
  };
  const auto side_of_new = [&](const void* data, const Layout& layout, std::int64_t heads) -> Side {
    if (p.packed) return {data, layout, {1, heads, p.total_new, p.head_dim}};
    return {data, layout, {p.batch, heads, p.seq_new, p.head_dim}};
  };
  const auto side_of_cache = [&](const void* data, const Layout& layout) -> Side {
    if (p.pages.used())
      return {data, layout, {p.pages.count, p.heads_kv, p.pages.size, p.head_dim}};
    return {data, layout, {p.kv_index ? p.kv_rows : p.batch, p.heads_kv, p.seq_kv, p.head_dim}};
  };
  const std::array sides{side_of_new(t.k_new, p.k_new, p.heads_kv),
                         side_of_new(t.v_new, p.v_new, p.heads_kv),
                         side_of_cache(t.k, p.k),
                         side_of_cache(t.v, p.v),
                         side_of_new(t.q, p.q, p.heads_q),
                         side_of_new(t.q_out, p.q_out, p.heads_q)};
  const bool rows = std::all_of(sides.begin(), sides.end(), [&](const Side& side) {
    return side.shape[1] == 0 ||  // no Q
           core::rows_aligned(side.data, side.layout, side.shape, size_of(p.dtype), 16);
  });
  // Halves are turned in parts; pairs one by one, and only what is behind them is copied in parts.
  const bool turned = p.rotary == Rotary::none || p.rotary_dim % part == 0;
  const bool halves = p.rotary != Rotary::neox || p.rotary_dim / 2 % part == 0;
  return rows && p.head_dim % part == 0 && call.value_dim % part == 0 && turned && halves;
}

template <class T>
void launch(const Call& call, cudaStream_t stream) {
  constexpr int kPart = 16 / sizeof(T);
  const std::int64_t tokens = new_tokens(call.p);
  const dim3 grid(static_cast<unsigned>(std::min<std::int64_t>(ceil_div(tokens, kWarps), 1 << 20)),
                  static_cast<unsigned>(std::min<std::int64_t>(call.heads, 65535)));
  if (aligned(call, kPart))
    append_kernel<T, kPart><<<grid, 32 * kWarps, 0, stream>>>(call, tokens);
  else
    append_kernel<T, 1><<<grid, 32 * kWarps, 0, stream>>>(call, tokens);
}

}  // namespace

Status append(const AppendProblem& problem, const AppendTensors& tensors,
              const core::Context& context) {
  const Call call{problem, tensors, 2 * problem.heads_kv + problem.heads_q,
                  core::value_dim(problem)};
  const auto stream = static_cast<cudaStream_t>(context.stream);
  if (problem.dtype == DType::f32) {
    launch<float>(call, stream);
  } else if (problem.dtype == DType::f16) {
    launch<__half>(call, stream);
  } else if (problem.dtype == DType::bf16) {
    launch<__nv_bfloat16>(call, stream);
  } else {
    launch<std::uint8_t>(call, stream);
  }
  return launched("cuda append");
}

}  // namespace greenfast::cuda
