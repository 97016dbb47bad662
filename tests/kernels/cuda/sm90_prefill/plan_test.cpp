// Which tile and which build cuda.sm90.prefill chooses. Needs no GPU.
#include <greenfast/attention.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/sm90_prefill/config.hpp"
#include "tests/kernels/cuda/plan_fixture.hpp"

namespace greenfast {
namespace {

class PrefillPlan : public VariantPlan {
 protected:
  PrefillPlan() : VariantPlan("cuda.sm90.prefill") {}
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
  EXPECT_EQ(one, "f16_d64_m64_n128_plain");
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
