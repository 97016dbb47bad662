// What launches of cuda.sm90.packed, of its kin for e4m3 and of cuda.sm90.grouped say of a call's sequences: where
// Q, K, V and O lie, their ragged tensor maps, and the arguments that follow from the problem. Host only.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <string>

#include "core/check.hpp"
#include "core/variant.hpp"
#include "kernels/cuda/device/launch.hpp"
#include "kernels/cuda/device/ragged_map.hpp"
#include "kernels/cuda/device/sequence_arrays.hpp"
#include "kernels/cuda/sm90_prefill/config.hpp"

namespace greenfast::cuda::packed {

inline std::int64_t larger_dim(const Problem& problem) {
  return std::max(problem.head_dim, value_dim(problem));
}

/// Where a tensor lies, for the map and the kernel.
struct Side {
  const char* name;
  const Layout& layout;
  DType dtype;
  std::int64_t entries, heads, rows, columns;
  bool broadcast;
  bool one_for_all;  // its first dimension is not the batch

  /// As entries_for_choice: batch_invariant treats one entry as one of several.
  std::int64_t entries_for(core::Choice choice) const {
    return choice.batch_invariant && !one_for_all && layout.stride[0] != 0
               ? std::max<std::int64_t>(entries, 2)
               : entries;
  }
};
inline std::array<Side, 4> sides_of(const Problem& problem) {
  const std::int64_t dim = problem.head_dim, values = value_dim(problem);
  const auto q = core::shape_of_q(problem, dim);
  const auto kv = core::shape_of_kv(problem, dim);
  const bool packed_q = problem.sequences.packed_q;
  const bool shared_kv =
      problem.sequences.packed_kv || problem.sequences.kv_index || problem.pages.used();
  const DType in = problem.dtype;
  return {Side{"Q", problem.q, in, q[0], q[1], q[2], dim, false, packed_q},
          Side{"K", problem.k, in, kv[0], kv[1], kv[2], dim, true, shared_kv},
          Side{"V", problem.v, in, kv[0], kv[1], kv[2], values, true, shared_kv},
          Side{"O", problem.o, problem.out_dtype, q[0], q[1], q[2], values, false, packed_q}};
}
inline constexpr std::size_t kQ = 0, kK = 1, kV = 2, kO = 3;  // of them

/// Whether TMA and the ragged maps can address a tensor; else why not.
inline bool is_addressable(const Side& side, core::Choice choice, std::string* why) {
  using core::refuse;
  const auto& stride = side.layout.stride;
  const std::int64_t entries = side.entries_for(choice);
  if (!tma_addressable(side.layout, side.dtype, entries, side.heads, side.rows, side.broadcast))
    return refuse_strides(why, side.name, side.layout, side.dtype);
  const RaggedRows rows = ragged_rows(side.layout, entries, side.rows);
  if (rows.rows_of_entry < 0 || 2 * rows.row_stride >= kRaggedStrideLimit) {
    return refuse(why, side.name, " has a batch stride of ", stride[0], " and a row stride of ",
                  stride[2], ": takes whole rows from entry to entry, rows less than 2^33 apart");
  }
  if ((side.entries - 1) * rows.rows_of_entry + side.rows > kRaggedMostRows) {
    return refuse(why, side.name, " is more than 2^30 rows long over the batch: split the call");
  }
  return true;
}

/// Pages whose rows no box divides: they are copied one by one.
inline bool has_rows_apart(const Problem& problem) {
  return problem.pages.used() && problem.pages.size % prefill::kLeastBox != 0;
}
/// How they lie, in pieces of 16 bytes.
inline prefill::RowFacts row_facts(const Problem& problem) {
  const auto steps =
      [of_piece = static_cast<std::int64_t>(16 / size_of(problem.dtype))](const Layout& layout) {
        return prefill::PieceSteps{static_cast<std::uint32_t>(layout.stride[0] / of_piece),
                                   static_cast<std::uint32_t>(layout.stride[2] / of_piece)};
      };
  return {steps(problem.k), steps(problem.v)};
}
/// Whether 32 bits count those from the first page to the last row; else why not.
inline bool counts_pieces(const Problem& problem, std::string* why) {
  const auto of_piece = static_cast<std::int64_t>(16 / size_of(problem.dtype));
  const auto steps = [of_piece](std::int64_t count, std::int64_t stride) {
    return static_cast<double>(std::max<std::int64_t>(count, 1) - 1) *
           static_cast<double>(stride / of_piece);
  };
  for (const Layout* layout : {&problem.k, &problem.v})
    if (!(steps(problem.pages.count, layout->stride[0]) +
              steps(problem.pages.size, layout->stride[2]) <
          0x1p32))
      return core::refuse(
          why, "pages of ", problem.pages.size,
          " keys, of which the last begins 64 GiB behind the first; takes multiples of ",
          prefill::kLeastBox, " there");
  return true;
}

/// The ragged map of one of a call's tensors, at `data`, in boxes of so many rows and columns. V of e4m3
/// lies in shared memory as it lies in a row.
inline bool make_map(KeptMap& kept, CUtensorMap* map, const std::array<Side, 4>& sides,
                     std::size_t which, const Tensors& tensors, const void* data, int box_rows,
                     int box_columns) {
  const Side& side = sides[which];
  const std::int64_t row_stride = ragged_rows(side.layout, side.entries, side.rows).row_stride;
  MapShape shape =
      ragged_map_of({row_stride, side.layout.stride[1], side.heads, side.columns, side.dtype},
                    box_rows, box_columns);
  if (which == kV && side.dtype == DType::e4m3) shape.swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
  // Without a key there may be no tensor; a map needs an address, which nothing reads.
  return kept.make(map, shape, data != nullptr ? data : tensors.q);
}

/// The arguments that follow from the problem and a build, whatever order its tiles come in.
inline prefill::Params sequence_params(const Problem& problem, const Tensors& tensors,
                                       const prefill::Config& config) {
  const auto narrow = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  prefill::Params p;
  p.k_last_head = last_coordinate(problem.heads_kv, problem.k.stride[1]);
  p.v_last_head = last_coordinate(problem.heads_kv, problem.v.stride[1]);
  p.scale_log2 = problem.scale * core::kLog2E;
  p.lse = problem.lse ? tensors.lse : nullptr;
  p.o = tensors.o;
  p.o_batch = problem.o.stride[0], p.o_head = problem.o.stride[1], p.o_row = problem.o.stride[2];
  p.head_dim = narrow(problem.head_dim);
  p.out_dtype = problem.out_dtype;
  p.q = tensors.q;
  p.k = tensors.k;
  p.v = tensors.v;
  p.q_batch = problem.q.stride[0], p.q_head = problem.q.stride[1], p.q_row = problem.q.stride[2];
  p.k_batch = problem.k.stride[0], p.k_head = problem.k.stride[1], p.k_row = problem.k.stride[2];
  p.v_batch = problem.v.stride[0], p.v_head = problem.v.stride[1], p.v_row = problem.v.stride[2];

  const auto sides = sides_of(problem);
  const auto rows_of_entry = [&](std::size_t i) {
    return narrow(ragged_rows(sides[i].layout, sides[i].entries, sides[i].rows).rows_of_entry);
  };
  p.packed.arrays = sequence_arrays(problem, tensors);
  p.packed.batch = narrow(problem.batch);
  p.packed.q_rows = rows_of_entry(kQ);
  p.packed.k_rows = rows_of_entry(kK);
  p.packed.v_rows = rows_of_entry(kV);
  p.packed.o_rows = rows_of_entry(kO);
  p.packed.lse_rows =
      narrow(problem.sequences.packed_q ? problem.sequences.total_q : problem.seq_q);
  if (problem.sinks) p.serving.sinks = tensors.sinks;
  if (problem.pages.used()) {
    p.serving.box = prefill::page_box(problem.pages.size, config.keys);
    p.serving.by_box = Divisor::of(p.serving.box);
    p.serving.by_page = Divisor::of(p.packed.arrays.page_size);
  }
  p.serving.value_dim = narrow(value_dim(problem));
  if (config.bytes) {
    p.bytes.heads_kv = narrow(problem.heads_kv);
    p.bytes.scale_log2 = static_cast<double>(problem.scale) * std::numbers::log2e;
    if (problem.scales != ScaleKind::none) {
      p.bytes.q = tensors.q_scale;
      p.bytes.k = tensors.k_scale;
      p.bytes.v = tensors.v_scale;
      p.bytes.per_head = problem.scales == ScaleKind::per_head;
    }
  }
  return p;
}

}  // namespace greenfast::cuda::packed
