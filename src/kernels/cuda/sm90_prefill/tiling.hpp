// Which tile of cuda.sm90.prefill a problem takes. Host only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/arithmetic.hpp"
#include "core/variant.hpp"
#include "kernels/cuda/device/shared_buffers.hpp"
#include "kernels/cuda/sm90_prefill/config.hpp"

namespace greenfast::cuda::prefill {

/// A tile for a problem: how many there are, and the blocks of a head's first, middle and last one,
/// which is what the schedule needs to know of the mask.
struct Tiling {
  std::size_t tile = kTiles.size();
  std::int32_t tiles = 0;  // of a head
  std::int32_t first = 0, last = 0, mean = 0;

  std::int32_t longest() const { return std::max({first, last, mean}); }
  bool even() const { return 4 * std::min(first, last) >= 3 * longest(); }
};

/// Sizes are constants here, because eight divisions by numbers that the compiler does not know
/// would cost a call 0.05 us.
template <std::int32_t kRows, std::int32_t kKeys>
Tiling tiling_by(const Band& band, std::int32_t seq_q) {
  Tiling t;
  t.tiles = (seq_q - 1) / kRows + 1;
  const auto blocks = [&](std::int32_t tile) {
    const std::int32_t row = tile * kRows;
    const std::int32_t rows = std::min(kRows, seq_q - row);
    const BlockRange range = blocks_of(band, kKeys, row, row + rows - 1);
    return range.end - range.begin;
  };
  t.first = blocks(0);
  t.last = blocks(t.tiles - 1);
  t.mean = (t.first + 4 * blocks(t.tiles / 2) + t.last) / 6;
  return t;
}
template <std::size_t kTile>
Tiling tiling_of(const Band& band, std::int32_t seq_q) {
  Tiling t = tiling_by<kTiles[kTile].rows(), kTiles[kTile].keys>(band, seq_q);
  t.tile = kTile;
  return t;
}

/// Relative times of a block and of a tile beside its blocks, from measurement at D 64 (H200,
/// 2026-11-21): tall tiles keep the tensor cores busier, short ones fill the machine better, and a
/// split tile pays for its merge.
constexpr std::int64_t block_cost(const Config& config) {
  return config.split ? 117 : config.warpgroups == 3 ? 260 : 234;
}
constexpr std::int64_t tile_cost(const Config& config) { return config.split ? 200 : 0; }

template <std::size_t... kTile>
Tiling choose_tile(std::index_sequence<kTile...>, const Problem& problem, const Band& band,
                   Features features, const DeviceFacts& facts, core::Choice choice) {
  Tiling best;
  std::int64_t best_time = 0;
  const auto seq_q = static_cast<std::int32_t>(problem.seq_q);
  const std::int64_t heads = (choice.batch_invariant ? 1 : problem.batch) * problem.heads_q;
  const auto consider = [&]<std::size_t kThis>() {
    constexpr Config kConfig = kTiles[kThis];
    if (kConfig.head_dim < problem.head_dim || !kConfig.takes(features)) return;
    if (best.tile != kTiles.size() && kConfig.head_dim != kTiles[best.tile].head_dim) return;
    const Tiling t = tiling_of<kThis>(band, seq_q);
    const std::int64_t tiles = heads * t.tiles;
    const auto cost = [&](std::int64_t blocks) {
      return blocks * block_cost(kConfig) + tile_cost(kConfig);
    };
    const std::int64_t machine = facts.multiprocessors;
    const std::int64_t time = t.even()
                                  ? cost(t.longest()) * core::ceil_div(tiles, machine) * machine
                                  : std::max(cost(t.longest()) * machine, cost(t.mean) * tiles);
    if (best.tile == kTiles.size() || time < best_time) {
      best = t;
      best_time = time;
    }
  };
  (consider.template operator()<kTile>(), ...);
  return best;
}

/// For deal_tiles.
inline auto blocks_of_tile(const Config& config, const Band& band, std::int64_t seq_q) {
  return [rows = config.rows(), keys = config.keys, band,
          last = static_cast<std::int32_t>(seq_q) - 1](std::int32_t tile) {
    const std::int32_t first = tile * rows;
    const BlockRange range = blocks_of(band, keys, first, std::min(first + rows - 1, last));
    return range.end - range.begin;
  };
}

/// For Plan::shared.
inline std::vector<SharedBuffer> buffers_of(const Config& config) {
  return shared_buffers(config.shared_bytes(),
                        {{config.o_over_q() ? "Q, then O" : "Q",
                          config.q_stages * config.warpgroups * config.q_bytes()},
                         {"K", config.k_stages * config.k_bytes()},
                         {"V", config.v_stages * config.v_bytes()},
                         {"ones", config.ones_bytes()},
                         {"O", config.o_bytes()},
                         {"results of the second warpgroup", config.exchange_bytes()},
                         {"mask", config.mask_stages * config.mask_bytes()},
                         {"V as it came", config.raw_stages * config.raw_bytes()}});
}

/// What a plan says of a build; its kernel's name, scratch and note are the caller's.
inline Plan plan_of_build(const Config& config, int ctas) {
  Plan plan;
  plan.grid = {ctas, 1, 1};
  plan.block = {config.threads(), 1, 1};
  plan.shared_bytes = config.shared_bytes();
  plan.shared = buffers_of(config);
  plan.tile_q = config.rows();
  plan.tile_kv = config.keys;
  plan.stages = config.k_stages;
  return plan;
}

}  // namespace greenfast::cuda::prefill
