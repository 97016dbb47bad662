// In which order a persistent kernel deals tiles of unequal work, as a triangle has them. Host only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>

#include <greenfast/arithmetic.hpp>

#include "kernels/cuda/device/tile_schedule.hpp"

namespace greenfast::cuda {

/// At least the work of the busiest CTA over the mean where tiles go head after head, and no more
/// than a tile above it. `work` is that of a head's tiles, by rank.
inline double busiest_by_head(std::span<const std::int32_t> work, std::int64_t heads,
                              std::int32_t ctas) {
  const auto tiles = static_cast<std::int32_t>(work.size());
  const std::int64_t rounds = ceil_div(heads * tiles, ctas);
  // From round to round a CTA's rank grows by this. Where it does not go through all of them, some
  // CTAs would have nothing but long tiles.
  const std::int32_t stride = (ctas + 1) % tiles;
  if (std::gcd(stride, tiles) != 1) return std::numeric_limits<double>::infinity();
  const std::int64_t head = std::accumulate(work.begin(), work.end(), std::int64_t{0});
  const auto run = [&](std::int64_t rank, std::int64_t count) {
    std::int64_t sum = count / tiles * head;
    for (std::int64_t left = count % tiles; left > 0; --left, rank = (rank + stride) % tiles)
      sum += work[static_cast<std::size_t>(rank)];
    return sum;
  };
  std::int64_t most = 0;
  for (std::int32_t rank = 0; rank < tiles; ++rank) most = std::max(most, run(rank, rounds));
  // From a round's last place a CTA comes to the next one's first, and goes on from its rank.
  for (std::int64_t before = 1; before <= std::min<std::int64_t>(rounds, ctas); ++before) {
    std::int64_t sum = run((ctas - before) % tiles, before);
    for (std::int64_t done = before; done < rounds; done += ctas)
      sum += run(done * ctas % tiles, std::min<std::int64_t>(ctas, rounds - done));
    most = std::max(most, sum);
  }
  return static_cast<double>(most) * ctas / static_cast<double>(heads * head);
}

/// Tiles of 128 rows that one launch counts; its tiles may have 64.
inline constexpr std::int64_t kMostTilesOf128 = std::numeric_limits<std::int32_t>::max() / 2;

/// What a launch tells of its tiles.
struct TilesToDeal {
  std::int32_t tiles = 0;       // of a head
  bool even = true;             // of about the same work
  bool longest_is_last = true;  // of a head's tiles
  std::int64_t heads = 0;       // of the batch
  std::int32_t ctas = 0;
  std::int64_t kv_bytes = 0, l2_bytes = 0;
  std::int64_t head_dim = 0;
  bool by_head = true;  // whether few of unequal work may go head after head
};

struct Dealing {
  TileOrder order = TileOrder::by_head;
  std::int32_t paired_rounds = 0;
  const char* note = "tiles of equal work, head after head";  // for Plan
};

/// Where more tiles a head are, their pairs are many, and little is left after them.
inline constexpr std::int32_t kMostByHead = 8;

/// `blocks_of`: of a head's i-th tile.
///
/// Longest first balances best, but visits all heads at once. Where their K and V do not fit L2,
/// most of the work is done in pairs, which keep to a few heads; and where much is left after the
/// pairs, or pairs have all CTAs compute at once and then load at once, head after head is faster,
/// as far as it balances. H100, 2026-11-25, causal, head after head over pairs: 1.37x at
/// 16,16,384,128, 1.28x at 16,16,512,256, 1.15x at 16,16,512,128, 1.03x at 32,32,512,64 and
/// 8,16,1024,128; 0.96x at 8,32,1024,64, where the busiest CTA has 1.08 of the mean.
template <class BlocksOf>
Dealing deal_tiles(const TilesToDeal& of, BlocksOf&& blocks_of) {
  if (of.even) return {};
  if (of.kv_bytes <= of.l2_bytes / 2)
    return {TileOrder::balanced, 0, "longest tiles first: K and V of all heads fit half of L2"};
  const std::int64_t rounds = std::max<std::int64_t>(0, of.heads * (of.tiles / 2) / of.ctas - 1);
  if (of.by_head && of.tiles <= kMostByHead) {
    std::array<std::int32_t, kMostByHead> room;
    const std::span work = std::span(room).first(static_cast<std::size_t>(of.tiles));
    for (std::int32_t rank = 0; rank < of.tiles; ++rank) {
      const std::int32_t tile = of.longest_is_last ? of.tiles - 1 - rank : rank;
      // What a tile costs beside its blocks is about a block.
      work[static_cast<std::size_t>(rank)] = 5 * blocks_of(tile) + 4;
    }
    const double rest =
        1.0 - static_cast<double>(2 * rounds * of.ctas) / static_cast<double>(of.heads * of.tiles);
    const double allowed = 1.035 + (of.head_dim > 64 ? 0.21 * rest : 0.0);
    if (busiest_by_head(work, of.heads, of.ctas) <= allowed)
      return {TileOrder::by_head, 0, "head after head, which balances tiles as few as these"};
  }
  return {TileOrder::balanced, static_cast<std::int32_t>(rounds),
          rounds == 0
              ? "longest tiles first"
              : "a long and a short tile together, head after head, the rest longest first"};
}

}  // namespace greenfast::cuda
