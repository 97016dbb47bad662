// What a problem becomes before any array of the call is read: tile, parts, grid, workspace. Needs
// no CUDA header, so that tests without a GPU see what will be launched.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <numbers>
#include <numeric>
#include <optional>
#include <string>

#include <greenfast/types.hpp>

#include "core/alignment.hpp"
#include "core/arithmetic.hpp"
#include "core/check.hpp"
#include "core/variant.hpp"
#include "core/window.hpp"
#include "kernels/cuda/decode/config.hpp"
#include "kernels/cuda/decode/forced.hpp"

namespace greenfast::cuda::decode {

inline constexpr std::int64_t kGridLimit = 65535;  // of the y and z axes
/// Clusters of eight blocks that an H200 has room for at one block an SM: 15, not 16
/// (cudaOccupancyMaxActiveClusters, 2026-11-22). With more, some wait for others' end: 8 sequences
/// of 8 heads took 31 us in clusters and 20 without.
inline constexpr std::int64_t kMostClusters = 15;
/// Parts of all rows' keys that partial results are kept of, about: 64 MB at D 128 and 8 rows.
inline constexpr std::int64_t kMostPartials = 16384;
/// Shares of a block, each of two places in the scratch: 33 MB at D 128 and 8 rows. Where maxima allow more keys than
/// these hold, 277 million of all heads on an H200, the rule parts them.
inline constexpr std::int64_t kMostRounds = 16;
/// Of all sequences and heads, and of their parts: int32 counts them.
inline constexpr std::int64_t kMostTiles = std::int64_t{1} << 31;

inline std::int64_t group_of(const Problem& p) { return p.heads_q / p.heads_kv; }
/// Most rows of Q that share a head of K and V.
inline std::int32_t rows_of(const Problem& p) {
  return static_cast<std::int32_t>(p.seq_q * group_of(p));
}
inline int tile_dim_of(const Problem& p) {
  const std::int64_t dim = std::max(p.head_dim, value_dim(p));
  return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}
/// The first tile of the family that holds the rows, or the tallest of the head dim; the plain one where
/// there are two.
inline std::size_t config_of(const Problem& p, Family family) {
  std::size_t best = family.end;
  for (std::size_t i = family.begin; i < family.end; ++i) {
    if (best != family.end && kConfigs[i].build != kConfigs[best].build) break;
    if (kConfigs[i].head_dim != tile_dim_of(p) || kConfigs[i].warps == 8) continue;
    best = i;
    if (kConfigs[i].rows >= rows_of(p)) break;
  }
  return best;
}
inline std::int64_t row_blocks_of(const Problem& p, Family family) {
  return core::ceil_div(rows_of(p), kConfigs[config_of(p, family)].rows);
}
/// Blocks that an SM of the device holds at once. It has a kilobyte more than a block may use, and keeps
/// one of each block.
inline std::int64_t blocks_per_sm(const Config& config, const DeviceFacts& facts) {
  const std::int64_t fit = (facts.shared_per_block + 1024) / (config.shared_bytes() + 1024);
  return std::clamp<std::int64_t>(fit, 1, config.blocks_per_sm());
}

/// Whether arrays of the call say how long sequences are, or where the first key is.
inline bool lengths_differ(const Problem& p) {
  const Sequences& s = p.sequences;
  return s.packed_q || s.packed_kv || s.used_q || s.used_kv || s.kv_start;
}

inline Sight sight_of(const Problem& p) {
  return make_sight(p.mask.left, p.mask.right, p.chunk,
                    p.mask.alignment == Alignment::bottom_right);
}

/// Keys that a sequence sees at most.
inline std::int32_t most_keys_of(const Problem& p) {
  std::int64_t keys = p.seq_kv;
  if (p.pages.used() && p.pages.count == 0) keys = 0;
  if (p.sequences.kv_index && p.sequences.kv_rows == 0) keys = 0;
  if (p.sequences.packed_kv) keys = std::min(keys, p.sequences.total_kv);
  if (!lengths_differ(p) && keys > 0 && p.seq_q > 0)
    return keys_of_sequence(sight_of(p), {.seq_q = static_cast<std::int32_t>(p.seq_q),
                                          .seq_kv = static_cast<std::int32_t>(keys)})
        .count();
  if (p.mask.left >= 0 && p.mask.right >= 0)
    keys = std::min(keys, p.mask.left + p.mask.right + p.seq_q);
  // The rows' positions follow each other, so they lie in so many chunks.
  if (p.chunk > 0 && p.chunk <= keys)
    keys = std::min(keys, ((p.seq_q - 1) / p.chunk + 2) * p.chunk);
  return static_cast<std::int32_t>(keys);
}

struct Shape {
  std::size_t config = 0;
  SplitRule rule;
  std::int32_t most_parts = 1;
  std::int32_t row_blocks = 1;
  bool clustered = false, counted = false;
  std::int32_t cluster = 1;  // blocks
  std::int32_t holders = 0;  // counted, in even shares
  std::array<int, 3> grid{1, 1, 1};
};

/// So few keys are one block's. 256 took 4.07 us at D 64 and 4.85 at D 128 in one, where 512 take 3.40 and 3.76 in
/// a cluster; 128 take 3.34 and 3.68 in one (H100, 2026-11-26).
inline constexpr std::int32_t kOnePart = 128;

/// A cluster for each item that is worth its blocks.
struct ClusterChoice {
  std::int32_t blocks = 0;  // 0: none
  int warps = 4;
};
/// The configuration of eight warps with the same rows and the same build; itself where there is none.
inline constexpr auto kEightWarps = [] {
  std::array<std::size_t, kConfigs.size()> all{};
  for (std::size_t i = 0; i < kConfigs.size(); ++i) {
    Config wide = kConfigs[i];
    wide.warps = 8;
    all[i] = i;
    for (std::size_t j = 0; j < kConfigs.size(); ++j)
      if (kConfigs[j].like(wide) && kConfigs[j].build == wide.build) all[i] = j;
  }
  return all;
}();

/// How many clusters of 8, 4 and 2 blocks an H200 has room for, with one block an SM or two. Its
/// GPCs have 16 or 18 SMs but for one that has fewer: computed from the 15 above. Measured
/// (H200, 2026-11-23): 32 of 4 blocks, two an SM, fit, 64 did not (80.0 us, where 64 of 2 blocks took
/// 62.8); 128 of 2 blocks, two an SM, fit.
constexpr std::int64_t clusters_that_fit(std::int32_t blocks, int per_sm) {
  const std::int64_t one = blocks == 8 ? kMostClusters : blocks == 4 ? 31 : 64;
  return per_sm == 1 ? one : 2 * one;
}

inline ClusterChoice cluster_of(const Problem& p, std::size_t index, std::int64_t items,
                                std::int32_t keys, const DeviceFacts& facts) {
  const Config& config = kConfigs[index];
  const bool has_eight_warps = kEightWarps[index] != index;
  // Sequences of different lengths share the device better part by part.
  if (!config.clusters() || keys <= kOnePart ||
      (lengths_differ(p) && p.batch > 1 && keys > kClusterKeys))
    return {};
  const Forced forced = Forced::get();
  for (const ClusterChoice choice :
       {ClusterChoice{8, 8}, ClusterChoice{8, 4}, ClusterChoice{4, 8}, ClusterChoice{4, 4},
        ClusterChoice{2, 8}, ClusterChoice{2, 4}}) {
    const bool asked = (forced.blocks < 0 || forced.blocks == choice.blocks) &&
                       (forced.warps < 0 || forced.warps == choice.warps);
    if (!asked) continue;
    const bool free = forced.blocks < 0 && forced.warps < 0;  // else what is asked for is tried
    if (choice.warps == 8 && !has_eight_warps) continue;
    const int per_sm = choice.warps == 8 ? 1 : config.blocks_per_sm();
    // Eight warps halve a block's steps, where it has several: a step has 64 keys with four warps.
    const bool one_step = keys <= 64 * choice.blocks;
    if (free && choice.blocks == 8 && has_eight_warps && choice.warps != (one_step ? 4 : 8))
      continue;
    if (free && choice.warps == 8 && choice.blocks == 2) continue;
    if (core::ceil_div(keys, choice.blocks) > kMostKeys) continue;
    // Those that do not fit wait for others.
    if (forced.blocks < 0 &&
        items * 132 > clusters_that_fit(choice.blocks, per_sm) * facts.multiprocessors)
      continue;
    // Four warps an SM keep memory busy; with fewer, more and shorter parts win over one launch.
    const std::int64_t warps = items * choice.blocks * choice.warps;
    if (free && keys > kClusterKeys && warps * 10 < std::int64_t{facts.multiprocessors} * 36)
      continue;
    return choice;
  }
  return {};
}

/// Parts of one sequence's keys beyond which more blocks do not pay: an H200 holds 264.
inline constexpr std::int32_t kMostFilling = 256;

/// So many parts that 85% of the device are full in the fewest waves. Up to there one wave holds
/// them all and more are better, so that the search begins there: every call asks.
inline std::int32_t parts_that_fill(std::int64_t items, std::int64_t slots, std::int32_t keys,
                                    std::int32_t least) {
  const std::int32_t limit = std::clamp(keys / least, 1, kMostFilling);
  const std::int64_t each = std::max<std::int64_t>(items, 1);
  const std::int64_t first = std::min(core::ceil_div(85 * slots, 100 * each), slots / each);
  auto best = static_cast<std::int32_t>(std::clamp<std::int64_t>(first, 1, limit));
  double most = 0.0;
  for (std::int32_t parts = best; parts <= limit; ++parts) {
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

inline Shape shape_of(const Problem& p, const DeviceFacts& facts, core::Choice choice,
                      Family family) {
  Shape shape;
  shape.config = config_of(p, family);
  shape.row_blocks = core::ceil_div(rows_of(p), kConfigs[shape.config].rows);
  const std::int32_t keys = most_keys_of(p);
  const std::int64_t items = p.batch * p.heads_kv * shape.row_blocks;
  const std::int64_t slots = facts.multiprocessors * blocks_per_sm(kConfigs[shape.config], facts);
  const bool differ = lengths_differ(p);

  SplitRule& rule = shape.rule;
  rule.bound = std::max(choice.max_splits, 0);
  rule.by_length = choice.batch_invariant;
  ClusterChoice cluster = cluster_of(p, shape.config, items, keys, facts);
  // A rule by length makes up to eight parts where the keys are few, each of blocks of four warps.
  if (rule.by_length) {
    const bool few = kConfigs[shape.config].clusters() && items <= kMostClusters;
    cluster = few && keys <= kClusterKeys ? ClusterChoice{kCluster, 4} : ClusterChoice{};
  }
  if (!rule.by_length && cluster.blocks > 0) {
    rule.parts = cluster.blocks;
  } else if (!rule.by_length) {
    // Shorter parts pay where longer ones leave multiprocessors without any.
    rule.least = keys > kClusterKeys && items * (keys / 512) >= facts.multiprocessors ? 512 : 256;
    if (Forced::get().least > 0) rule.least = Forced::get().least;
    rule.parts = parts_that_fill(items, slots, keys, rule.least);
    if (differ) {
      // One long sequence must not keep the device waiting. The more blocks there are the larger
      // its parts may be, and must be: each is kept in the workspace.
      const std::int64_t parts =
          std::max<std::int64_t>(8, kMostPartials / std::max<std::int64_t>(items, 1));
      rule.most = std::max(items < slots ? 1024 : 2048,
                           static_cast<std::int32_t>(core::ceil_div(keys, parts)));
      if (Forced::get().most > 0) rule.most = std::max(rule.most, Forced::get().most);
    }
  }
  shape.most_parts = most_parts(rule, keys);
  // A cluster has a block for each part, also where the rule goes by length: the same sums in the
  // same order.
  shape.clustered = shape.most_parts > 1 && shape.most_parts <= cluster.blocks;
  if (shape.clustered) {
    shape.cluster = cluster.blocks;
    if (cluster.warps == 8) shape.config = kEightWarps[shape.config];
  }
  // Blocks without a part cost about a microsecond each where the longest sequence is much longer
  // than most: then blocks count the parts instead (w8x2 453 us, counted 436; H200, 2026-11-22).
  const std::int64_t blocks = items * shape.most_parts;
  const bool countable = !shape.clustered && differ && p.batch > 1 && p.batch <= kMostCounted &&
                         shape.most_parts > 1 && blocks < kMostTiles;
  const Config& config = kConfigs[shape.config];
  if (const std::int64_t tiles =
          items * (config.start_tiles() + core::ceil_div(keys, config.keys()));
      countable && !rule.by_length && rule.bound == 0 && tiles < kMostTiles) {
    // No more than have a share where every sequence is as long as it may be; and a share that reached over
    // more than kMostKeys keys is shared once more.
    const std::int64_t blocks_there = std::clamp<std::int64_t>(tiles / kLeastShare, 1, slots);
    const std::int64_t longest = core::ceil_div(tiles, blocks_there) * config.keys();
    const std::int64_t rounds = core::ceil_div(longest, std::int64_t{kMostKeys});
    if (rounds <= kMostRounds) {
      shape.holders = static_cast<std::int32_t>(blocks_there * rounds);
      shape.grid = {static_cast<int>(blocks_there), 1, 1};
      shape.most_parts = shape.holders;
    }
  }
  shape.counted = shape.holders > 0 || (countable && blocks > slots);
  if (shape.holders > 0 || p.array_mask.kind != MaskKind::none)
    shape.config = build_of(shape.config, Build::general);
  else if (core::is_plain_query(p))
    shape.config = build_of(shape.config, Build::lean);
  if (shape.counted && shape.holders == 0)
    shape.grid = {static_cast<int>(slots), 1, 1};
  else if (!shape.counted)
    shape.grid = {shape.clustered ? shape.cluster : shape.most_parts,
                  static_cast<int>(p.heads_kv * shape.row_blocks), static_cast<int>(p.batch)};
  return shape;
}

/// The same for another number of sequences, of which none has lengths of its own.
inline Shape of_batch(Shape shape, std::int64_t batch) {
  if (!shape.counted) shape.grid[2] = static_cast<int>(batch);
  return shape;
}

/// Partial results, then their stats; nothing where every row has one block or a cluster.
struct Workspace {
  std::int64_t stats_offset = 0, cuts_offset = 0, bytes = 0;
};
inline Workspace workspace_of(const Problem& p, const Shape& shape) {
  if (shape.clustered || (shape.most_parts <= 1 && shape.holders == 0)) return {};
  const std::int64_t partials =
      shape.holders > 0 ? 2 * std::int64_t{shape.holders} * kConfigs[shape.config].rows
                        : p.batch * p.heads_kv * rows_of(p) * std::int64_t{shape.most_parts};
  Workspace space;
  space.stats_offset = partials * tile_dim_of(p) * 4;
  space.cuts_offset = space.stats_offset + partials * static_cast<std::int64_t>(sizeof(Stats));
  space.bytes = space.cuts_offset + shape.holders * static_cast<std::int64_t>(sizeof(Cut));
  return space;
}
/// Where they lie in the call's scratch.
inline void place_workspace(Params& p, const Workspace& space, void* scratch) {
  if (space.bytes == 0) return;
  auto* const bytes = static_cast<unsigned char*>(scratch);
  p.partial = reinterpret_cast<float*>(bytes);
  p.stats = reinterpret_cast<Stats*>(bytes + space.stats_offset);
  p.cuts = reinterpret_cast<Cut*>(bytes + space.cuts_offset);
}

/// Blocks of the second kernel that share a row's columns.
inline int merge_splits(const Problem& p, const Shape& shape) {
  // By length alone neither the batch nor the maxima may move a sum: always one.
  if (shape.rule.by_length) return 1;
  // 64 parts are one round of a block at D 128; rows enough to fill the device want no more blocks.
  if (shape.most_parts > 64 && p.batch * p.heads_kv * rows_of(p) <= 32) return 4;
  return 1;
}

/// The second kernel's grid.
inline std::array<int, 3> merge_grid(const Problem& p, const Shape& shape) {
  if (shape.holders > 0) return {shape.holders, 1, 1};
  return {rows_of(p) * static_cast<int>(p.heads_kv), static_cast<int>(p.batch),
          merge_splits(p, shape)};
}

/// Bytes that a block reads of a mask before it reads a key: 20 us, where as many keys of 8 heads take 340 [estimated].
inline constexpr std::int64_t kMostSearched = std::int64_t{1} << 18;
/// A mask whose rows of bytes are worth a search for what they show: those of a few rows, alike for all heads.
inline std::int32_t searched_rows(const Problem& p, const Shape& shape) {
  const ArrayMask& mask = p.array_mask;
  // Blocks that count would have to search for every sequence, and by length alone the batch, which says who
  // counts, may not move a part.
  if (mask.kind != MaskKind::boolean || mask.stride[3] != 1 || shape.counted ||
      shape.rule.by_length)
    return 0;
  if (mask.stride[1] != 0 && p.heads_q > 1) return 0;
  const std::int64_t rows = mask.stride[2] == 0 ? 1 : p.seq_q;
  return rows * p.seq_kv <= kMostSearched ? static_cast<std::int32_t>(rows) : 0;
}

/// batch_invariant asks of one entry what it asks of a batch.
inline const char* misaligned_operand(const Problem& p, bool batch_invariant) {
  const auto aligned = [&](const Layout& layout, std::array<std::int64_t, 4> shape) {
    if (batch_invariant) shape[0] = std::max<std::int64_t>(shape[0], 2);
    return core::rows_aligned(layout.alignment, layout, shape, size_of(p.dtype), 16);
  };
  if (!aligned(p.q, core::shape_of_q(p, p.head_dim))) return "Q";
  if (!aligned(p.k, core::shape_of_kv(p, p.head_dim))) return "K";
  if (!aligned(p.v, core::shape_of_kv(p, value_dim(p)))) return "V";
  return nullptr;
}

/// None where 32 bits do not count them: more than 2^32 steps, of 16 bytes at least.
inline std::optional<Steps> steps_of(const Layout& layout, const Problem& problem) {
  constexpr std::uint64_t kLimit = std::uint64_t{1} << 32;
  const Pages& pages = problem.pages;
  const auto bytes = [&](std::int64_t stride) {
    return static_cast<std::uint64_t>(stride) * size_of(problem.dtype);
  };
  const std::uint64_t row = bytes(layout.stride[2]);
  if (!pages.used()) {
    if (row >= kLimit) return std::nullopt;
    return Steps{static_cast<std::uint32_t>(row), 0, 1};
  }
  const std::uint64_t page = pages.count > 1 ? bytes(layout.stride[0]) : 0;
  const std::uint64_t row_in_page = pages.size > 1 ? row : 0;
  const std::uint64_t step = std::max<std::uint64_t>(std::gcd(page, row_in_page), 1);
  const auto rows = static_cast<std::uint64_t>(pages.size - 1);
  const auto before = static_cast<std::uint64_t>(std::max<std::int64_t>(pages.count, 1) - 1);
  if (step >= kLimit || page / step >= kLimit || row_in_page / step >= kLimit) return std::nullopt;
  if (before > 0 && page / step > kLimit / before) return std::nullopt;
  if (rows > 0 && row_in_page / step > kLimit / rows) return std::nullopt;
  if (before * (page / step) + rows * (row_in_page / step) >= kLimit) return std::nullopt;
  return Steps{static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(page / step),
               static_cast<std::uint32_t>(row_in_page / step)};
}

/// Everything but the workspace's addresses.
inline Params make_params(const Problem& problem, const Tensors& tensors, const Shape& shape) {
  const auto narrow = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  const Sequences& s = problem.sequences;
  Params p;
  p.q = strided(tensors.q, problem.q);
  p.k = strided(tensors.k, problem.k);
  p.v = strided(tensors.v, problem.v);
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
  p.tile_rows = kConfigs[shape.config].rows;
  p.sight = sight_of(problem);
  p.rule = shape.rule;
  p.same.size = 0;
  p.mask.searched = searched_rows(problem, shape);
  if (!lengths_differ(problem) && p.mask.searched == 0) {
    const Lengths lengths{p.seq_q, p.seq_kv, 0};
    p.same = parts_for(p.rule, keys_of_sequence(p.sight, lengths).count());
  }
  p.most_parts = shape.most_parts;
  p.clustered = shape.clustered;
  p.counted = shape.counted;
  p.holders = shape.holders;
  p.cluster_log2 =
      static_cast<std::int8_t>(std::countr_zero(static_cast<std::uint32_t>(shape.cluster)));
  if (const ArrayMask& mask = problem.array_mask; mask.kind != MaskKind::none) {
    p.mask.data = static_cast<const unsigned char*>(tensors.mask);
    p.mask.boolean = mask.kind == MaskKind::boolean;
    p.mask.type = element_type_of(mask.dtype);
    const std::int64_t bytes = p.mask.boolean ? 1 : static_cast<std::int64_t>(size_of(mask.dtype));
    p.mask.batch = mask.stride[0] * bytes;
    p.mask.head = mask.stride[1] * bytes;
    p.mask.row = mask.stride[2] * bytes;
    p.mask.key = mask.stride[3] * bytes;
  }
  if (problem.scales != ScaleKind::none) {
    p.q_scale = tensors.q_scale;
    p.k_scale = tensors.k_scale;
    p.v_scale = tensors.v_scale;
    p.scales_per_head = problem.scales == ScaleKind::per_head;
  }
  // What a mask adds is in units of log2, as transformed scores are.
  p.transform = problem.softcap > 0.0f || !(problem.scale > 0.0f) ||
                problem.array_mask.kind == MaskKind::additive;
  const core::ScoreTransform transform = core::score_transform(problem);
  p.transform_scale = transform.scale;
  p.transform_cap = transform.cap;
  // A scale near the last finite float: differences of products below 1 still end up far apart.
  p.exponent_scale =
      p.transform ? 1.0f
                  : std::min(problem.scale * core::kLog2E, std::numeric_limits<float>::max());
  p.natural_scale = p.transform ? std::numbers::ln2_v<float> : problem.scale;
  const std::size_t out = size_of(problem.out_dtype);
  p.wide_store = core::rows_aligned(problem.o.alignment, problem.o,
                                    core::shape_of_q(problem, value_dim(problem)), out, 4 * out);
  p.k_steps = steps_of(problem.k, problem).value_or(Steps{});
  p.v_steps = steps_of(problem.v, problem).value_or(Steps{});
  p.output = element_type_of(problem.out_dtype);
  return p;
}

}  // namespace greenfast::cuda::decode
