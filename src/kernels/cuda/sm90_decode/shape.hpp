// What a problem becomes before any array of the call is read: tile, parts, grid, workspace. Needs
// no CUDA header, so that tests without a GPU see what will be launched.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include <greenfast/types.hpp>

#include "core/arithmetic.hpp"
#include "core/check.hpp"
#include "core/variant.hpp"
#include "kernels/cuda/sm90_decode/config.hpp"

namespace greenfast::cuda::decode {

inline constexpr std::int64_t kGridLimit = 65535;  // of the y and z axes
/// Clusters of eight blocks that an H200 has room for at one block an SM: 15, not 16
/// (cudaOccupancyMaxActiveClusters, 2026-11-22). With more, some wait for others' end: 8 sequences
/// of 8 heads took 31 us in clusters and 20 without.
inline constexpr std::int64_t kMostClusters = 15;
/// Parts of all rows' keys that partial results are kept of, about: 64 MB at D 128 and 8 rows.
inline constexpr std::int64_t kMostPartials = 16384;

inline std::int64_t group_of(const Problem& p) { return p.heads_q / p.heads_kv; }
/// Most rows of Q that share a head of K and V.
inline std::int32_t rows_of(const Problem& p) {
  return static_cast<std::int32_t>(p.seq_q * group_of(p));
}
inline int tile_dim_of(const Problem& p) {
  const std::int64_t dim = std::max(p.head_dim, value_dim(p));
  return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}
/// The first tile that holds the rows, or the tallest of the head dim.
inline std::size_t config_of(const Problem& p) {
  std::size_t best = kConfigs.size();
  for (std::size_t i = 0; i < kConfigs.size(); ++i) {
    if (kConfigs[i].head_dim != tile_dim_of(p) || kConfigs[i].warps != 4) continue;
    best = i;
    if (kConfigs[i].rows >= rows_of(p)) break;
  }
  return best;
}
inline std::int64_t row_blocks_of(const Problem& p) {
  return core::ceil_div(rows_of(p), kConfigs[config_of(p)].rows);
}

/// Keys that a sequence sees at most.
inline std::int32_t most_keys_of(const Problem& p) {
  std::int64_t keys = p.seq_kv;
  if (p.pages.used() && p.pages.count == 0) keys = 0;
  if (p.sequences.kv_index && p.sequences.kv_rows == 0) keys = 0;
  if (p.sequences.packed_kv) keys = std::min(keys, p.sequences.total_kv);
  if (p.mask.left >= 0 && p.mask.right >= 0)
    keys = std::min(keys, p.mask.left + p.mask.right + p.seq_q);
  // The rows' positions follow each other, so they lie in so many chunks.
  if (p.chunk > 0 && p.chunk <= keys)
    keys = std::min(keys, ((p.seq_q - 1) / p.chunk + 2) * p.chunk);
  return static_cast<std::int32_t>(keys);
}

/// Whether arrays of the call say how long sequences are, or where the first key is.
inline bool lengths_differ(const Problem& p) {
  const Sequences& s = p.sequences;
  return s.packed_q || s.packed_kv || s.used_q || s.used_kv || s.kv_start;
}

struct Shape {
  std::size_t config = 0;
  SplitRule rule;
  std::int32_t most_parts = 1;
  std::int32_t row_blocks = 1;
  bool clustered = false, counted = false;
  std::array<int, 3> grid{1, 1, 1};
};

/// So many parts that the device is full, or nearly, in the fewest waves.
inline std::int32_t parts_that_fill(std::int64_t items, std::int64_t slots, std::int32_t keys,
                                    std::int32_t least) {
  std::int32_t best = 1;
  double most = 0.0;
  for (std::int32_t parts = 1; parts <= 64; ++parts) {
    if (parts > 1 && keys / parts < least) break;
    const std::int64_t blocks = items * parts, waves = core::ceil_div(blocks, slots);
    const double full = static_cast<double>(blocks) / static_cast<double>(waves * slots);
    if (full > most) {
      most = full;
      best = parts;
    }
    if (full >= 0.85) break;
  }
  return best;
}

inline Shape shape_of(const Problem& p, const DeviceFacts& facts, core::Choice choice) {
  Shape shape;
  shape.config = config_of(p);
  shape.row_blocks = static_cast<std::int32_t>(row_blocks_of(p));
  const std::int32_t keys = most_keys_of(p);
  const std::int64_t items = p.batch * p.heads_kv * shape.row_blocks;
  const std::int64_t slots =
      std::int64_t{facts.multiprocessors} * kConfigs[shape.config].blocks_per_sm();
  const bool differ = lengths_differ(p);

  const bool small =
      kConfigs[shape.config].clusters() && items <= kMostClusters && keys <= kClusterKeys;
  SplitRule& rule = shape.rule;
  rule.bound = std::max(choice.max_splits, 0);
  rule.by_length = choice.batch_invariant;
  if (!rule.by_length && small) {
    rule.parts = kCluster;
  } else if (!rule.by_length) {
    rule.least = keys > kClusterKeys ? 512 : 256;
    rule.parts = parts_that_fill(items, slots, keys, rule.least);
    if (differ) {
      // One long sequence must not keep the device waiting. The more blocks there are the larger
      // its parts may be, and must be: each is kept in the workspace.
      const std::int64_t parts =
          std::max<std::int64_t>(8, kMostPartials / std::max<std::int64_t>(items, 1));
      rule.most = std::max(items < slots ? 1024 : 2048,
                           static_cast<std::int32_t>(core::ceil_div(keys, parts)));
    }
  }
  shape.most_parts = most_parts(rule, keys);
  // A cluster has a block for each part, also where the rule goes by length: the same sums in the
  // same order.
  shape.clustered = small && shape.most_parts > 1 && shape.most_parts <= kCluster;
  if (shape.clustered && !rule.by_length && kConfigs[shape.config].rows == 8 &&
      tile_dim_of(p) <= 128) {
    // One block an SM: eight warps halve its steps.
    for (std::size_t i = 0; i < kConfigs.size(); ++i)
      if (kConfigs[i].warps == 8 && kConfigs[i].head_dim == tile_dim_of(p)) shape.config = i;
  }
  // Blocks without a part cost about a microsecond each where the longest sequence is much longer
  // than most: then blocks count the parts instead (w8x2 453 us, counted 436; H200, 2026-11-22).
  const std::int64_t blocks = items * shape.most_parts;
  shape.counted = !shape.clustered && differ && p.batch > 1 && p.batch <= kMostCounted &&
                  shape.most_parts > 1 && blocks > slots;
  if (shape.counted)
    shape.grid = {static_cast<int>(slots), 1, 1};
  else
    shape.grid = {shape.clustered ? kCluster : shape.most_parts,
                  static_cast<int>(p.heads_kv * shape.row_blocks), static_cast<int>(p.batch)};
  return shape;
}

/// Partial results, then their stats; nothing where every row has one block or a cluster.
struct Workspace {
  std::int64_t stats_offset = 0, bytes = 0;
};
inline Workspace workspace_of(const Problem& p, const Shape& shape) {
  if (shape.clustered || shape.most_parts <= 1) return {};
  const std::int64_t partials = p.batch * p.heads_kv * rows_of(p) * std::int64_t{shape.most_parts};
  const std::int64_t stats_offset = partials * tile_dim_of(p) * 4;
  return {stats_offset, stats_offset + partials * static_cast<std::int64_t>(sizeof(Stats))};
}

/// Whether every row starts at a multiple of `bytes`. batch_invariant asks of one entry what it asks
/// of a batch.
inline bool rows_aligned(const Layout& layout, const std::array<std::int64_t, 4>& shape,
                         bool batch_invariant, std::int64_t element, std::int64_t bytes) {
  if (layout.alignment % bytes != 0) return false;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const bool moves = shape[axis] > 1 || (axis == 0 && batch_invariant);
    if (moves && layout.stride[axis] * element % bytes != 0) return false;
  }
  return true;
}

inline const char* misaligned_operand(const Problem& p, bool batch_invariant) {
  const auto aligned = [&](const Layout& layout, const std::array<std::int64_t, 4>& shape) {
    return rows_aligned(layout, shape, batch_invariant, 2, 16);
  };
  if (!aligned(p.q, core::shape_of_q(p, p.head_dim))) return "Q";
  if (!aligned(p.k, core::shape_of_kv(p, p.head_dim))) return "K";
  if (!aligned(p.v, core::shape_of_kv(p, value_dim(p)))) return "V";
  return nullptr;
}

/// Everything but the workspace's addresses.
inline Params make_params(const Problem& problem, const Tensors& tensors, const Shape& shape) {
  const auto narrow = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  const auto operand = [](const void* data, const Layout& layout) {
    return Operand{data, layout.stride[0], layout.stride[1], layout.stride[2]};
  };
  const Sequences& s = problem.sequences;
  Params p;
  p.q = operand(tensors.q, problem.q);
  p.k = operand(tensors.k, problem.k);
  p.v = operand(tensors.v, problem.v);
  p.o = tensors.o;
  p.o_batch = problem.o.stride[0];
  p.o_head = problem.o.stride[1];
  p.o_row = problem.o.stride[2];
  p.lse = problem.lse ? tensors.lse : nullptr;
  p.lse_rows = s.packed_q ? s.total_q : problem.seq_q;
  if (s.packed_q) p.cu_q = tensors.cu_q;
  if (s.packed_kv) p.cu_kv = tensors.cu_kv;
  if (s.used_q) p.used_q = tensors.used_q;
  if (s.used_kv) p.used_kv = tensors.used_kv;
  if (s.kv_start) p.kv_start = tensors.kv_start;
  if (s.kv_index) p.kv_index = tensors.kv_index;
  if (problem.sinks) p.sinks = tensors.sinks;
  p.seq_q = narrow(problem.seq_q);
  p.seq_kv = narrow(problem.seq_kv);
  p.total_q = narrow(s.total_q);
  p.total_kv = narrow(s.total_kv);
  p.kv_rows = narrow(s.kv_rows);
  if (problem.pages.used()) {
    p.page_table = tensors.page_table;
    p.table_row = problem.pages.row_stride;
    p.pages = narrow(problem.pages.count);
    // A longer page than any sequence is one page.
    p.page_size = FastDivide::by(static_cast<std::uint32_t>(
        std::min<std::int64_t>(problem.pages.size, std::int64_t{1} << 30)));
  }
  // Nothing to read from: no key.
  if ((problem.pages.used() && problem.pages.count == 0) || (s.kv_index && s.kv_rows == 0))
    p.seq_kv = 0;
  p.batch = narrow(problem.batch);
  p.heads_q = narrow(problem.heads_q);
  p.heads_kv = narrow(problem.heads_kv);
  p.group = narrow(group_of(problem));
  p.by_group = FastDivide::by(static_cast<std::uint32_t>(p.group));
  p.rows = rows_of(problem);
  p.row_blocks = shape.row_blocks;
  p.head_dim = narrow(problem.head_dim);
  p.value_dim = narrow(value_dim(problem));
  p.tile_dim = tile_dim_of(problem);
  p.sight = {problem.mask.left, problem.mask.right, problem.chunk,
             problem.mask.alignment == Alignment::bottom_right};
  p.rule = shape.rule;
  p.same.size = 0;
  if (!lengths_differ(problem)) {
    const Lengths lengths{p.seq_q, p.seq_kv, 0};
    p.same = parts_for(p.rule, keys_of_sequence(p.sight, lengths).count());
  }
  p.most_parts = shape.most_parts;
  p.clustered = shape.clustered;
  p.counted = shape.counted;
  p.transform = problem.softcap > 0.0f || !(problem.scale > 0.0f);
  const core::ScoreTransform transform = core::score_transform(problem);
  p.transform_scale = transform.scale;
  p.transform_cap = transform.cap;
  // A scale near the last finite float: differences of products below 1 still end up far apart.
  p.exponent_scale =
      p.transform ? 1.0f
                  : std::min(problem.scale * core::kLog2E, std::numeric_limits<float>::max());
  p.natural_scale = p.transform ? 0.6931471805599453f : problem.scale;
  const std::int64_t out = static_cast<std::int64_t>(size_of(problem.out_dtype));
  p.wide_store =
      rows_aligned(problem.o, core::shape_of_q(problem, value_dim(problem)), false, out, 4 * out);
  p.output = problem.out_dtype == DType::f32   ? Output::f32
             : problem.out_dtype == DType::f16 ? Output::f16
                                               : Output::bf16;
  return p;
}

}  // namespace greenfast::cuda::decode
