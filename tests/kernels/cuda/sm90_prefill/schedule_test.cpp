// How cuda.sm90.prefill deals its tiles to the CTAs, and which tile it chooses. Needs no GPU.
#include <greenfast/attention.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <tuple>

#include "kernels/cuda/sm90_prefill/config.hpp"

namespace greenfast {
namespace {

using cuda::prefill::Order;
using cuda::prefill::Schedule;
using cuda::prefill::Tile;

struct Deal {
  int tiles, heads, ctas, paired_rounds;
  Order order = Order::balanced;
};

/// Work of a head's tile i of a triangle: i + 1 blocks.
int triangle(int index) { return index + 1; }

/// Work of the busiest CTA over the mean.
template <class Work>
double deal_all(const Deal& deal, Work&& work_of) {
  const Schedule schedule = cuda::prefill::make_schedule(
      deal.order, deal.tiles, deal.heads, 2 * deal.heads, deal.ctas, deal.paired_rounds, true);
  std::set<std::tuple<int, int, int>> seen;
  double most = 0, all = 0;
  for (int cta = 0; cta < deal.ctas; ++cta) {
    double work = 0;
    Tile tile{};
    for (int step = 0; cuda::prefill::tile_of(schedule, cta, step, tile); ++step) {
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

TEST(PrefillSchedule, DealsEveryTileOnce) {
  for (int tiles : {1, 2, 3, 5, 8, 43}) {
    for (int heads : {1, 7, 64}) {
      for (int ctas : {1, 13, 132}) {
        const int all = 2 * heads * tiles;
        if (all < ctas) continue;
        for (int rounds = 0; rounds <= heads * 2 * (tiles / 2) / ctas - 1; ++rounds) {
          SCOPED_TRACE(std::to_string(tiles) + " tiles, " + std::to_string(heads) + " heads, " +
                       std::to_string(ctas) + " CTAs, " + std::to_string(rounds) + " rounds");
          deal_all({tiles, heads, ctas, rounds});
        }
        deal_all({tiles, heads, ctas, 0});
        deal_all({tiles, heads, ctas, 0, Order::by_head});
      }
    }
  }
}

TEST(PrefillSchedule, BalancesTriangularWork) {
  EXPECT_LT(deal_all({64, 16, 132, 6}), 1.02);  // 2x16x8192x128
  EXPECT_LT(deal_all({43, 32, 132, 9}), 1.03);  // 2x32x8192x64 in tiles of 192 rows
  EXPECT_LT(deal_all({16, 64, 132, 6}), 1.02);  // 8x16x2048x128
  EXPECT_LT(deal_all({8, 128, 132, 6}), 1.04);  // 16x16x1024x128
  EXPECT_LT(deal_all({16, 8, 132, 0}), 1.06);   // 2x8x2048x128
}

TEST(PrefillSchedule, ShortLastTilesGoRound) {
  // 512 rows in tiles of 192: the last of a head's three is shorter, and three divides 132.
  const auto ragged = [](int tiles) { return [tiles](int i) { return i < tiles - 1 ? 10 : 7; }; };
  EXPECT_LT(deal_all({3, 512, 132, 0, Order::by_head}, ragged(3)), 1.04);
  EXPECT_LT(deal_all({6, 256, 132, 0, Order::by_head}, ragged(6)), 1.04);
  EXPECT_LT(deal_all({11, 128, 132, 0, Order::by_head}, ragged(11)), 1.04);
  // Pairs of six tiles are of unequal work, and three pairs a head divide 132 as well.
  EXPECT_LT(deal_all({6, 256, 132, 10}, [](int i) { return i < 5 ? i + 1 : 4; }), 1.06);
}

TEST(PrefillSchedule, WorksTheRestFromShortToLong) {
  // 2x8x2048x128 causal: two tiles a CTA. The long one last took 33.0 us where it took 37.6 first.
  const Schedule schedule = cuda::prefill::make_schedule(Order::balanced, 16, 8, 16, 132, 0, true);
  int two = 0;
  for (int cta = 0; cta < 132; ++cta) {
    Tile before{}, tile{};
    ASSERT_TRUE(cuda::prefill::tile_of(schedule, cta, 0, before));
    for (int step = 1; cuda::prefill::tile_of(schedule, cta, step, tile); ++step, before = tile) {
      EXPECT_LE(triangle(before.index), triangle(tile.index)) << "CTA " << cta;
      ++two;
    }
  }
  EXPECT_EQ(two, 256 - 132);
}

TEST(PrefillSchedule, DividesWithoutDividing) {
  for (const int d : {1, 2, 3, 5, 6, 7, 11, 43, 64, 127, 132, 641, 65535, 65537, 1 << 30,
                      std::numeric_limits<int>::max()}) {
    const auto divisor = cuda::prefill::Divisor::of(d);
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

class PrefillPlan : public testing::Test {
 protected:
  void SetUp() override {
    const auto all = variants();
    const auto row = std::find_if(all.begin(), all.end(), [](const VariantInfo& info) {
      return info.id == "cuda.sm90.prefill";
    });
    ASSERT_NE(row, all.end());
    if (!row->built) GTEST_SKIP() << "cuda.sm90.prefill is not built";
    facts_ = *model_facts("h200");
    options_.device = DeviceKind::cuda;
    options_.variant = "cuda.sm90.prefill";
  }
  std::string kernel(const Problem& problem) const {
    const Result<Plan> plan = greenfast::plan(problem, facts_, options_);
    if (!plan.ok()) return plan.status().message();
    // "prefill::prefill_kernel<__half, Compiled<__half, TILE, FEATURES>>"
    const std::string& name = plan->kernel;
    const std::size_t last = name.rfind(", "), before = name.rfind(", ", last - 1);
    const auto tile = std::stoul(name.substr(before + 2)),
               features = std::stoul(name.substr(last + 2));
    constexpr const char* kFeatures[] = {"plain", "causal", "window", "general"};
    return std::string(name.find("__half") != std::string::npos ? "f16" : "bf16") + "_d" +
           std::to_string(cuda::prefill::kTiles.at(tile).head_dim) + "_m" +
           std::to_string(plan->tile_q) + "_n" + std::to_string(plan->tile_kv) + "_" +
           kFeatures[features];
  }

  DeviceFacts facts_;
  Options options_;
};

TEST_F(PrefillPlan, TallTilesOnlyWhereTheyFillTheMachine) {
  Problem problem = make_problem(2, 8, 8, 2048, 2048, 64, DType::f16);
  EXPECT_EQ(kernel(problem), "f16_d64_m128_n128_plain");
  problem = make_problem(2, 32, 32, 8192, 8192, 64, DType::bf16);
  EXPECT_EQ(kernel(problem), "bf16_d64_m192_n128_plain");
  problem.mask = Mask::causal(Alignment::bottom_right);
  EXPECT_EQ(kernel(problem), "bf16_d64_m192_n128_causal");
  problem.mask = Mask::window(1024, 0, Alignment::bottom_right);
  EXPECT_EQ(kernel(problem), "bf16_d64_m128_n128_window");
  // At D 256 no build is for windows alone.
  problem = make_problem(2, 32, 32, 8192, 8192, 256, DType::bf16);
  problem.mask = Mask::window(1024, 0, Alignment::bottom_right);
  EXPECT_EQ(kernel(problem), "bf16_d256_m128_n64_general");
}

TEST_F(PrefillPlan, HalfTilesWhereTheLongestTileDecides) {
  // 128 tiles of 128 rows fill the machine, but under a causal mask the last rows take all the
  // time.
  Problem problem = make_problem(1, 8, 8, 2048, 2048, 64, DType::f16);
  EXPECT_EQ(kernel(problem), "f16_d64_m128_n128_plain");
  problem.mask = Mask::causal(Alignment::top_left);
  EXPECT_EQ(kernel(problem), "f16_d64_m64_n128_causal");
  problem = make_problem(1, 8, 8, 1000, 1000, 64, DType::bf16);
  EXPECT_EQ(kernel(problem), "bf16_d64_m64_n128_plain");
  // One block of keys has nothing to split.
  EXPECT_EQ(kernel(make_problem(1, 8, 8, 1000, 128, 64, DType::f16)), "f16_d64_m128_n128_plain");
  // It does not depend on the batch where that is promised.
  options_.batch_invariant = true;
  const std::string one = kernel(make_problem(1, 8, 8, 1000, 1000, 64, DType::f16));
  EXPECT_EQ(kernel(make_problem(64, 8, 8, 1000, 1000, 64, DType::f16)), one);
}

TEST_F(PrefillPlan, EveryTileFitsItsMachineAndItsRegisters) {
  for (std::size_t tile = 0; tile < cuda::prefill::kTiles.size(); ++tile) {
    for (int features = 0; features < cuda::prefill::kFeatures; ++features) {
      const auto config = cuda::prefill::config_of(tile, DType::f16,
                                                   static_cast<cuda::prefill::Features>(features));
      EXPECT_LE(config.shared_bytes(), facts_.shared_per_block) << tile;
      // A consumer that asks for more than the CTA was launched with waits for ever.
      EXPECT_LE(config.producer_registers() + config.warpgroups * config.consumer_registers(),
                (config.warpgroups + 1) * config.launch_registers())
          << tile;
    }
  }
}

TEST_F(PrefillPlan, HeadDimsArePaddedToTheNextTile) {
  EXPECT_EQ(kernel(make_problem(1, 8, 8, 4096, 4096, 72, DType::f16)), "f16_d96_m128_n128_plain");
  EXPECT_EQ(kernel(make_problem(1, 8, 8, 4096, 4096, 136, DType::f16)), "f16_d192_m128_n96_plain");
}

TEST_F(PrefillPlan, AMaskThatHidesNothingCostsNothing) {
  Problem problem = make_problem(4, 8, 8, 1, 4096, 128, DType::f16);
  problem.mask = Mask::causal(Alignment::bottom_right);
  EXPECT_EQ(kernel(problem), "f16_d128_m128_n128_plain");
  // Keys that no row sees are left out altogether.
  problem.mask = Mask::window(255, 0, Alignment::bottom_right);
  EXPECT_EQ(kernel(problem), "f16_d128_m128_n128_plain");
}

TEST_F(PrefillPlan, SoftcapAndOtherOutputsTakeTheGeneralKernel) {
  Problem problem = make_problem(1, 8, 8, 1024, 1024, 128, DType::f16);
  problem.softcap = 30.0f;
  EXPECT_EQ(kernel(problem), "f16_d128_m128_n128_general");
  problem.softcap = 0.0f;
  problem.out_dtype = DType::f32;
  EXPECT_EQ(kernel(problem), "f16_d128_m128_n128_general");
}

TEST_F(PrefillPlan, RefusesStridesThatTmaCannotTake) {
  Problem problem = make_problem(1, 8, 8, 1024, 1024, 64, DType::f16);
  problem.k.stride[2] = 68;
  const Selection selection = explain(problem, facts_, options_);
  const auto answer = std::find_if(
      selection.candidates.begin(), selection.candidates.end(),
      [](const Candidate& candidate) { return candidate.variant == "cuda.sm90.prefill"; });
  ASSERT_NE(answer, selection.candidates.end());
  EXPECT_FALSE(answer->accepted);
  EXPECT_NE(answer->reason.find("K has strides"), std::string::npos) << answer->reason;
}

}  // namespace
}  // namespace greenfast
