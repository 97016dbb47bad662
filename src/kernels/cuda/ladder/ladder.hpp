// The parameters of the ladder's kernels, and their grid.
#pragma once

#include <cstddef>
#include <cstdint>

#include <greenfast/types.hpp>

#include "core/alignment.hpp"
#include "core/arithmetic.hpp"
#include "core/check.hpp"
#include "kernels/cuda/device/strided_tensor.hpp"

namespace greenfast::cuda::ladder {

struct Params {
  StridedTensor q, k, v, o;
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

inline Params make_params(const Problem& p, const Tensors& t, int block_m) {
  const std::size_t element = size_of(p.dtype);
  Params params;
  params.q = strided(t.q, p.q);
  params.k = strided(t.k, p.k);
  params.v = strided(t.v, p.v);
  params.o = strided(t.o, p.o);
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

}  // namespace greenfast::cuda::ladder
