// In which order tiles of unequal work are dealt.
#include "kernels/cuda/device/tile_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

namespace greenfast {
namespace {

using cuda::busiest_by_head;
using cuda::deal_tiles;
using cuda::Dealing;
using cuda::Tile;
using cuda::TileOrder;
using cuda::TilesToDeal;

/// What a CTA really gets, over the mean.
double dealt(const std::vector<std::int32_t>& work, int heads, int ctas) {
  const auto schedule = cuda::make_schedule(TileOrder::by_head, static_cast<int>(work.size()),
                                            heads, heads, ctas, 0, false);
  std::int64_t most = 0, all = 0;
  for (int cta = 0; cta < ctas; ++cta) {
    std::int64_t mine = 0;
    Tile tile{};
    for (int step = 0; cuda::tile_of(schedule, cta, step, tile); ++step)
      mine += work[static_cast<std::size_t>(tile.index)];
    most = std::max(most, mine);
    all += mine;
  }
  return static_cast<double>(most) * ctas / static_cast<double>(all);
}

TEST(TileOrder, TheBusiestCtaIsThatOfTheSchedule) {
  for (const int tiles : {1, 2, 3, 4, 5, 6, 7, 8})
    for (const int heads : {40, 128, 256, 1000})
      for (const int ctas : {13, 78, 114, 132}) {
        std::vector<std::int32_t> work(static_cast<std::size_t>(tiles));
        std::iota(work.rbegin(), work.rend(), 1);
        if (heads * tiles < ctas) continue;
        SCOPED_TRACE(std::to_string(tiles) + " tiles of " + std::to_string(heads) + " heads on " +
                     std::to_string(ctas));
        const double said = busiest_by_head(work, heads, ctas), is = dealt(work, heads, ctas);
        if (std::gcd(ctas + 1, tiles) != 1) {
          EXPECT_GT(said, 1e9);
          continue;
        }
        const double mean =
            static_cast<double>(heads) * std::accumulate(work.begin(), work.end(), 0) / ctas;
        EXPECT_GE(said, is - 1e-9);
        EXPECT_LE(said, is + work.front() / mean + 1e-9);
      }
}

/// Causal, 128 queries a tile, blocks of 128 keys, on an H100.
Dealing causal(int heads, int seq, int head_dim) {
  const int tiles = (seq + 127) / 128;
  return deal_tiles({.tiles = tiles,
                     .even = false,
                     .heads = heads,
                     .ctas = std::min(132, heads * tiles),
                     .kv_bytes = std::int64_t{4} * heads * seq * head_dim,
                     .l2_bytes = 50 << 20,
                     .head_dim = head_dim},
                    [](std::int32_t tile) { return tile + 1; });
}

TEST(TileOrder, FewTilesGoHeadAfterHeadWhereKAndVDoNotFitTheCache) {
  for (const auto& [heads, seq, dim] : std::vector<std::tuple<int, int, int>>{{256, 384, 128},
                                                                              {256, 512, 128},
                                                                              {256, 640, 128},
                                                                              {256, 512, 256},
                                                                              {1024, 512, 64},
                                                                              {128, 512, 128},
                                                                              {1024, 256, 64},
                                                                              {128, 1024, 128},
                                                                              {128, 1024, 256},
                                                                              {256, 300, 128}})
    EXPECT_EQ(causal(heads, seq, dim).order, TileOrder::by_head)
        << heads << ", " << seq << ", " << dim;
}

TEST(TileOrder, ElseTheyAreBalanced) {
  // They fit; the busiest CTA would have 1.08 of the mean; seven tiles would leave some CTAs the
  // longest alone; many tiles.
  for (const auto& [heads, seq, dim] : std::vector<std::tuple<int, int, int>>{
           {64, 512, 64}, {256, 1024, 64}, {256, 896, 128}, {128, 2048, 128}})
    EXPECT_EQ(causal(heads, seq, dim).order, TileOrder::balanced)
        << heads << ", " << seq << ", " << dim;
  EXPECT_EQ(causal(64, 512, 64).paired_rounds, 0);
  EXPECT_EQ(causal(128, 2048, 128).paired_rounds, 6);
  EXPECT_EQ(deal_tiles({.tiles = 4,
                        .even = true,
                        .heads = 1024,
                        .ctas = 132,
                        .kv_bytes = 1 << 30,
                        .l2_bytes = 50 << 20,
                        .head_dim = 64},
                       [](std::int32_t) { return 4; })
                .order,
            TileOrder::by_head);
}

}  // namespace
}  // namespace greenfast
