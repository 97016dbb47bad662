// Values to e4m3 with their scales, in up to three passes: the largest magnitude of each group, by
// atomics straight in the caller's scales (fp32 magnitudes order like integers, and a maximum does
// not depend on who comes first), the scales from it, and the codes. A thread has eight neighbours
// of a row. Bound: device memory, the values read twice.
#include "backends/cuda/quantize.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include <greenfast/arithmetic.hpp>

#include "backends/cuda/elements.cuh"
#include "core/e4m3.hpp"

namespace greenfast::cuda {
namespace {

constexpr int kThreads = 256, kPart = 8;

struct View {
  std::int64_t heads, seq, parts;  // parts of a row
  std::int64_t from_b, from_h, from_s, to_b, to_h, to_s;
  std::int64_t per_head;  // parts of a (batch, head)
  bool one_scale;
};

/// Offsets of part `i` of head `blockIdx.y + ...` in both tensors.
struct Place {
  std::int64_t from, to;
};
__device__ __forceinline__ Place place(const View& view, std::int64_t head, std::int64_t i) {
  const std::int64_t b = head / view.heads, h = head % view.heads;
  const std::int64_t s = i / view.parts, d = i % view.parts * kPart;
  return {b * view.from_b + h * view.from_h + s * view.from_s + d,
          b * view.to_b + h * view.to_h + s * view.to_s + d};
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    largest_magnitude(const T* from, unsigned* scale, const View view, std::int64_t all_heads) {
  for (std::int64_t head = blockIdx.y; head < all_heads; head += gridDim.y) {
    unsigned largest = 0;
    for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < view.per_head;
         i += std::int64_t{gridDim.x} * kThreads) {
      const T* p = from + place(view, head, i).from;
#pragma unroll
      for (int e = 0; e < kPart; ++e) {
        const unsigned magnitude = __float_as_uint(fabsf(widen(p[e])));
        if (magnitude < 0x7f800000u) largest = max(largest, magnitude);
      }
    }
    largest = __reduce_max_sync(0xffffffffu, largest);
    if (threadIdx.x % 32 == 0 && largest != 0)
      atomicMax(scale + (view.one_scale ? 0 : head), largest);
  }
}

__global__ void __launch_bounds__(kThreads) finish_scales(float* scale, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) scale[i] = core::e4m3_scale(scale[i]);
}

__device__ __forceinline__ std::uint32_t encode4(float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 890
  std::uint32_t r;
  asm("{ .reg .b16 low, high;\n"
      "  cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "  cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "  mov.b32 %0, {low, high}; }"
      : "=r"(r)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return r;
#else
  return core::to_e4m3(a) | std::uint32_t{core::to_e4m3(b)} << 8 |
         std::uint32_t{core::to_e4m3(c)} << 16 | std::uint32_t{core::to_e4m3(d)} << 24;
#endif
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    encode(const T* from, std::uint8_t* to, const float* scale, const View view,
           std::int64_t all_heads) {
  for (std::int64_t head = blockIdx.y; head < all_heads; head += gridDim.y) {
    const float divisor = scale == nullptr ? 1.0f : scale[view.one_scale ? 0 : head];
    for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < view.per_head;
         i += std::int64_t{gridDim.x} * kThreads) {
      const Place at = place(view, head, i);
      float x[kPart];
#pragma unroll
      for (int e = 0; e < kPart; ++e) x[e] = __fdiv_rn(widen(from[at.from + e]), divisor);
#pragma unroll
      for (int word = 0; word < kPart; word += 4) {
        const std::uint32_t codes = encode4(x[word], x[word + 1], x[word + 2], x[word + 3]);
        // Rows may begin at any byte.
#pragma unroll
        for (int e = 0; e < 4; ++e)
          to[at.to + word + e] = static_cast<std::uint8_t>(codes >> (8 * e));
      }
    }
  }
}

template <class T>
void launch(const QuantizeProblem& p, const QuantizeTensors& t, const View& view,
            cudaStream_t stream) {
  const std::int64_t all_heads = p.batch * p.heads;
  const std::int64_t scales = view.one_scale ? 1 : all_heads;
  const dim3 grid(
      static_cast<unsigned>(std::clamp<std::int64_t>(ceil_div(view.per_head, kThreads), 1, 1024)),
      static_cast<unsigned>(std::min<std::int64_t>(all_heads, 65535)));
  const auto* from = static_cast<const T*>(t.from);
  const bool scaled = p.scales != ScaleKind::none;
  if (scaled && p.compute_scales) {
    cudaMemsetAsync(t.scale, 0, static_cast<std::size_t>(scales) * sizeof(float), stream);
    largest_magnitude<<<grid, kThreads, 0, stream>>>(from, reinterpret_cast<unsigned*>(t.scale),
                                                     view, all_heads);
    finish_scales<<<static_cast<unsigned>(ceil_div(scales, kThreads)), kThreads, 0, stream>>>(
        t.scale, scales);
  }
  encode<<<grid, kThreads, 0, stream>>>(from, static_cast<std::uint8_t*>(t.to),
                                        scaled ? t.scale : nullptr, view, all_heads);
}

}  // namespace

Status quantize(const QuantizeProblem& p, const QuantizeTensors& t, const core::Context& context) {
  const View view{.heads = p.heads,
                  .seq = p.seq,
                  .parts = p.head_dim / kPart,
                  .from_b = p.from.stride[0],
                  .from_h = p.from.stride[1],
                  .from_s = p.from.stride[2],
                  .to_b = p.to.stride[0],
                  .to_h = p.to.stride[1],
                  .to_s = p.to.stride[2],
                  .per_head = p.seq * (p.head_dim / kPart),
                  .one_scale = p.scales != ScaleKind::per_head};
  const auto stream = static_cast<cudaStream_t>(context.stream);
  if (p.dtype == DType::f32) {
    launch<float>(p, t, view, stream);
  } else if (p.dtype == DType::f16) {
    launch<__half>(p, t, view, stream);
  } else {
    launch<__nv_bfloat16>(p, t, view, stream);
  }
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    return {StatusCode::device_error,
            std::string("cuda quantisation: ") + cudaGetErrorString(error)};
  }
  return {};
}

}  // namespace greenfast::cuda
