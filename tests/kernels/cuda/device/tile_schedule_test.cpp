// How a persistent kernel's tiles are dealt to the CTAs.
#include "kernels/cuda/device/tile_schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <tuple>

namespace greenfast {
namespace {

using cuda::Tile;
using cuda::TileOrder;
using cuda::TileSchedule;

struct Deal {
  int tiles, heads, ctas, paired_rounds;
  TileOrder order = TileOrder::balanced;
};

/// Work of a head's tile i of a triangle: i + 1 blocks.
int triangle(int index) { return index + 1; }

/// Work of the busiest CTA over the mean.
template <class Work>
double deal_all(const Deal& deal, Work&& work_of) {
  const TileSchedule schedule = cuda::make_schedule(
      deal.order, deal.tiles, deal.heads, 2 * deal.heads, deal.ctas, deal.paired_rounds, true);
  std::set<std::tuple<int, int, int>> seen;
  double most = 0, all = 0;
  for (int cta = 0; cta < deal.ctas; ++cta) {
    double work = 0;
    Tile tile{};
    for (int step = 0; cuda::tile_of(schedule, cta, step, tile); ++step) {
      EXPECT_TRUE(tile.index >= 0 && tile.index < deal.tiles);
      EXPECT_TRUE(tile.head >= 0 && tile.head < deal.heads && tile.batch >= 0 && tile.batch < 2);
      EXPECT_TRUE(seen.emplace(tile.batch, tile.head, tile.index).second) << "dealt twice";
      work += work_of(tile.index);
    }
    most = std::max(most, work);
    all += work;
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(deal.tiles) * deal.heads * 2);
  return most * deal.ctas / all;
}
double deal_all(const Deal& deal) { return deal_all(deal, triangle); }

TEST(Schedule, DealsEveryTileOnce) {
  for (int tiles : {1, 2, 3, 5, 8, 43}) {
    for (int heads : {1, 7, 64}) {
      for (int ctas : {1, 13, 132}) {
        const int all = 2 * heads * tiles;
        if (all < ctas) continue;
        // Under a sanitizer every tenth number of rounds.
        constexpr int kStep = 100 / GREENFAST_TEST_PERCENT;
        for (int rounds = 0; rounds <= heads * 2 * (tiles / 2) / ctas - 1; rounds += kStep) {
          SCOPED_TRACE(std::to_string(tiles) + " tiles, " + std::to_string(heads) + " heads, " +
                       std::to_string(ctas) + " CTAs, " + std::to_string(rounds) + " rounds");
          deal_all({tiles, heads, ctas, rounds});
        }
        deal_all({tiles, heads, ctas, 0});
        deal_all({tiles, heads, ctas, 0, TileOrder::by_head});
      }
    }
  }
}

TEST(Schedule, BalancesTriangularWork) {
  EXPECT_LT(deal_all({64, 16, 132, 6}), 1.02);  // 2x16x8192x128
  EXPECT_LT(deal_all({43, 32, 132, 9}), 1.03);  // 2x32x8192x64 in tiles of 192 rows
  EXPECT_LT(deal_all({16, 64, 132, 6}), 1.02);  // 8x16x2048x128
  EXPECT_LT(deal_all({8, 128, 132, 6}), 1.04);  // 16x16x1024x128
  EXPECT_LT(deal_all({16, 8, 132, 0}), 1.06);   // 2x8x2048x128
}

TEST(Schedule, ShortLastTilesGoRound) {
  // 512 rows in tiles of 192: the last of a head's three is shorter, and three divides 132.
  const auto ragged = [](int tiles) { return [tiles](int i) { return i < tiles - 1 ? 10 : 7; }; };
  EXPECT_LT(deal_all({3, 512, 132, 0, TileOrder::by_head}, ragged(3)), 1.04);
  EXPECT_LT(deal_all({6, 256, 132, 0, TileOrder::by_head}, ragged(6)), 1.04);
  EXPECT_LT(deal_all({11, 128, 132, 0, TileOrder::by_head}, ragged(11)), 1.04);
  // Pairs of six tiles are of unequal work, and three pairs a head divide 132 as well.
  EXPECT_LT(deal_all({6, 256, 132, 10}, [](int i) { return i < 5 ? i + 1 : 4; }), 1.06);
}

TEST(Schedule, WorksTheRestFromShortToLong) {
  // 2x8x2048x128 causal: two tiles a CTA. The long one last took 33.0 us where it took 37.6 first.
  const TileSchedule schedule = cuda::make_schedule(TileOrder::balanced, 16, 8, 16, 132, 0, true);
  int two = 0;
  for (int cta = 0; cta < 132; ++cta) {
    Tile before{}, tile{};
    ASSERT_TRUE(cuda::tile_of(schedule, cta, 0, before));
    for (int step = 1; cuda::tile_of(schedule, cta, step, tile); ++step, before = tile) {
      EXPECT_LE(triangle(before.index), triangle(tile.index)) << "CTA " << cta;
      ++two;
    }
  }
  EXPECT_EQ(two, 256 - 132);
}

TEST(Schedule, DividesWithoutDividing) {
  for (const int d : {1, 2, 3, 5, 6, 7, 11, 43, 64, 127, 132, 641, 65535, 65537, 1 << 30,
                      std::numeric_limits<int>::max()}) {
    const auto divisor = cuda::Divisor::of(d);
    for (const std::int64_t base :
         {std::int64_t{0}, std::int64_t{1} << 20, std::int64_t{1} << 30}) {
      for (std::int64_t n = base; n < base + 100000; n += 7) {
        const auto dividend = static_cast<std::int32_t>(n);
        ASSERT_EQ(dividend / divisor, dividend / d) << dividend << " / " << d;
      }
    }
    for (const int n : {std::numeric_limits<int>::max(), std::numeric_limits<int>::max() - 1, d,
                        d - 1, std::numeric_limits<int>::max() / d * d - (d > 1 ? 1 : 0)})
      ASSERT_EQ(n / divisor, n / d) << n << " / " << d;
  }
}

}  // namespace
}  // namespace greenfast
