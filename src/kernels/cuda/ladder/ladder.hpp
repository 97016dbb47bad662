// What the ladder's kernels share on the host: which problems they take, and their parameters. The
// rungs differ in their kernels, not in what they accept.
#pragma once

#include <cstdint>
#include <string>

#include "core/alignment.hpp"
#include "core/arithmetic.hpp"
#include "core/check.hpp"
#include "core/text.hpp"
#include "core/variant.hpp"
#include "kernels/cuda/device/launch.hpp"
#include "kernels/cuda/device/shared_buffers.hpp"

namespace greenfast::cuda::ladder {

/// A [B, H, S, D] tensor; strides in elements.
struct View {
  const void* base = nullptr;
  std::int64_t stride_b = 0, stride_h = 0, stride_s = 0;
};

struct Params {
  View q, k, v, o;
  const float *q_scale = nullptr, *k_scale = nullptr, *v_scale = nullptr;  // stage-C
  std::int64_t scale_step = 0;  // 0: one scale a tensor, 1: one a head
  int heads_q = 1, group = 1;   // query heads, query heads a KV head
  int seq_q = 0, seq_kv = 0;
  int q_tiles = 0;
  float scale_log2 = 0;  // softmax scale * log2(e)
  bool causal = false;
  int shift = 0;              // query i sees keys up to i + shift
  bool vector_loads = false;  // Q, K and V allow 16-byte accesses
};

/// The CTA's place, from a one-dimensional grid: heads and batch would not fit into 65,535.
struct Place {
  int tile, head, batch;
};

inline View view(const void* base, const Layout& layout) {
  return {base, layout.stride[0], layout.stride[1], layout.stride[2]};
}

inline Params make_params(const Problem& p, const Tensors& t, int block_m) {
  const std::size_t element = size_of(p.dtype);
  Params params;
  params.q = view(t.q, p.q);
  params.k = view(t.k, p.k);
  params.v = view(t.v, p.v);
  params.o = view(t.o, p.o);
  params.q_scale = t.q_scale;
  params.k_scale = t.k_scale;
  params.v_scale = t.v_scale;
  params.scale_step = p.scales == ScaleKind::per_head ? 1 : 0;
  params.heads_q = static_cast<int>(p.heads_q);
  params.group = static_cast<int>(p.heads_q / p.heads_kv);
  params.seq_q = static_cast<int>(p.seq_q);
  params.seq_kv = static_cast<int>(p.seq_kv);
  params.q_tiles = static_cast<int>(core::ceil_div(p.seq_q, block_m));
  params.scale_log2 = p.scale * core::kLog2E;
  params.causal = p.mask.is_causal();
  params.shift =
      p.mask.alignment == Alignment::bottom_right ? static_cast<int>(p.seq_kv - p.seq_q) : 0;
  const auto of_q = core::shape_of_q(p, p.head_dim), of_kv = core::shape_of_kv(p, p.head_dim);
  params.vector_loads = core::rows_aligned(t.q, p.q, of_q, element, 16) &&
                        core::rows_aligned(t.k, p.k, of_kv, element, 16) &&
                        core::rows_aligned(t.v, p.v, of_kv, element, 16);
  return params;
}

inline std::int64_t ctas(const Problem& p, int block_m) {
  return core::ceil_div(p.seq_q, block_m) * p.heads_q * p.batch;
}

/// Whether a rung of the family takes the problem's sizes; otherwise the first obstacle. `why` may
/// be null.
struct Accepts {
  bool d128 = false;  // besides 64
};
inline bool accepts(const Problem& p, Accepts can, int block_m, std::string* why) {
  using core::refuse;
  if (p.head_dim != 64 && !(can.d128 && p.head_dim == 128)) {
    return refuse(why, "takes D ", can.d128 ? "64 or 128" : "64", ", not ", p.head_dim);
  }
  // Row arithmetic inside the kernels is 32-bit.
  constexpr std::int64_t kLimit = std::int64_t{1} << 30;
  if (p.seq_q >= kLimit || p.seq_kv >= kLimit || ctas(p, block_m) >= kLimit) {
    return refuse(why, "takes lengths and tile counts below 2^30");
  }
  if (why != nullptr) *why = "runs by name";
  return true;
}

/// Raises a kernel's limit of dynamic shared memory where the default does not suffice.
template <auto kKernel>
Status allow_shared(int bytes, const core::Context& context, std::string_view variant) {
  if (bytes <= 48 * 1024) return {};
  static constinit SharedMemoryOptIn opt_in;
  return opt_in.ensure(reinterpret_cast<const void*>(kKernel), bytes, context.facts->index,
                       variant);
}

using cuda::launched;

}  // namespace greenfast::cuda::ladder
