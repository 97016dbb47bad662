// What a problem becomes before any array of the call is read: tile, grid, parameters. Needs no CUDA
// header, so that tests without a GPU see what will be launched.
#pragma once

#include <algorithm>
#include <cstdint>

#include <greenfast/arithmetic.hpp>
#include <greenfast/attention.hpp>

#include "core/alignment.hpp"
#include "core/arithmetic.hpp"
#include "core/check.hpp"
#include "core/variant.hpp"
#include "kernels/cuda/device/sequence_arrays.hpp"
#include "kernels/cuda/sm80_serving/config.hpp"

namespace greenfast::cuda::sm80_serving {

inline std::int64_t tiles(const Problem& problem, const Config& config) {
  return core::ceil_div(problem.seq_q * (problem.heads_q / problem.heads_kv), config.rows());
}
inline std::int64_t blocks(const Problem& problem, const Config& config) {
  return tiles(problem, config) * problem.batch * problem.heads_kv;
}

/// The smallest that holds both head dims and fits the device; kConfigs.size() where there is none.
inline std::size_t choose(const Problem& problem, const DeviceFacts& facts) {
  for (std::size_t i = 0; i < kConfigs.size(); ++i) {
    if (kConfigs[i].head_dim >= std::max(problem.head_dim, value_dim(problem)) &&
        config_of(i, size_of(problem.dtype)).shared_bytes() <= facts.shared_per_block) {
      return i;
    }
  }
  return kConfigs.size();
}

inline Params make_params(const Problem& problem, const Tensors& tensors, const Config& config) {
  const auto narrow = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  const auto count = [](std::int64_t x) { return static_cast<std::uint32_t>(x); };
  Params p;
  p.sequences = sequence_arrays(problem, tensors);
  p.q = strided(tensors.q, problem.q);
  p.k = strided(tensors.k, problem.k);
  p.v = strided(tensors.v, problem.v);
  p.o = tensors.o;
  p.o_batch = problem.o.stride[0];
  p.o_head = problem.o.stride[1];
  p.o_row = problem.o.stride[2];
  p.lse = problem.lse ? tensors.lse : nullptr;
  p.head_dim = narrow(problem.head_dim);
  p.value_dim = narrow(value_dim(problem));
  p.heads_q = count(problem.heads_q);
  p.heads_kv = count(problem.heads_kv);
  p.group = count(problem.heads_q / problem.heads_kv);
  p.tiles = count(tiles(problem, config));
  p.batch = count(problem.batch);
  p.scale_log2 = problem.scale * core::kLog2E;
  p.transform = problem.softcap > 0.0f || !(problem.scale > 0.0f) || problem.alibi != Alibi::none ||
                problem.array_mask.kind != MaskKind::none;
  const core::ScoreTransform transform = core::score_transform(problem);
  p.transform_scale = transform.scale;
  p.transform_cap = transform.cap;
  if (problem.scales != ScaleKind::none) {
    p.q_scale = tensors.q_scale;
    p.k_scale = tensors.k_scale;
    p.v_scale = tensors.v_scale;
    p.scales_per_head = problem.scales == ScaleKind::per_head;
  }
  if (problem.sinks) p.sinks = tensors.sinks;
  if (problem.alibi != Alibi::none) {
    p.slopes = tensors.slopes;
    p.slopes_of_entry = problem.alibi == Alibi::per_batch_head ? p.heads_q : 0;
  }
  if (const ArrayMask& mask = problem.array_mask; mask.kind != MaskKind::none) {
    p.mask = tensors.mask;
    p.bool_mask = mask.kind == MaskKind::boolean;
    p.mask_type = element_type_of(mask.dtype);
    p.mask_batch = mask.stride[0];
    p.mask_head = mask.stride[1];
    p.mask_row = mask.stride[2];
    p.mask_key = mask.stride[3];
    const std::uint64_t bytes = p.bool_mask ? 1 : size_of(mask.dtype);
    const auto in_runs_of = [&](std::int64_t run) {
      const auto whole = [&](std::int64_t stride) { return stride % run == 0; };
      return p.mask_key == 1 && whole(p.mask_batch) && whole(p.mask_head) && whole(p.mask_row) &&
             reinterpret_cast<std::uintptr_t>(p.mask) % (run * bytes) == 0;
    };
    p.mask_run = p.bool_mask && in_runs_of(16) ? 16 : in_runs_of(2) ? 2 : 1;
  }
  if (problem.pages.used())
    p.page_rows = static_cast<std::int32_t>(std::min(problem.pages.size, Band::kFar));
  p.by_page = Divisor::of(p.page_rows);
  // Of packed rows and of pages the tensor's own shape counts, not the problem's.
  const auto of_q = core::shape_of_q(problem, problem.head_dim);
  const auto of_kv = core::shape_of_kv(problem, problem.head_dim);
  const std::size_t in_bytes = size_of(problem.dtype);
  p.aligned = core::rows_aligned(tensors.q, problem.q, of_q, in_bytes, 16) &&
              core::rows_aligned(tensors.k, problem.k, of_kv, in_bytes, 16) &&
              core::rows_aligned(tensors.v, problem.v, of_kv, in_bytes, 16);
  const std::size_t out_bytes = size_of(problem.out_dtype);
  p.wide_store =
      core::rows_aligned(tensors.o, problem.o, core::shape_of_q(problem, value_dim(problem)),
                         out_bytes, out_bytes == 4 ? 8 : 16);
  p.output = element_type_of(problem.out_dtype);
  return p;
}

}  // namespace greenfast::cuda::sm80_serving
