// What cuda.sm90.grouped plans and refuses, and where selection gives it a problem. Needs no GPU; skipped
// where the kernel is not built.
#include <greenfast/attention.hpp>

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "kernels/cuda/sm90_prefill/config.hpp"
#include "tests/kernels/cuda/plan_fixture.hpp"

namespace greenfast {
namespace {

constexpr std::string_view kGrouped = "cuda.sm90.grouped";

class GroupedPlan : public VariantPlan {
 protected:
  GroupedPlan() : VariantPlan(kGrouped) { facts_.multiprocessors = 132; }
  static Problem paged(std::int64_t batch, std::int64_t seq_q, std::int64_t keys, DType dtype,
                       std::int64_t heads_q = 32, std::int64_t page = 16) {
    return make_paged(batch, heads_q, seq_q, keys, page, dtype);
  }
};

TEST_F(GroupedPlan, OneCtaAMultiprocessorAndSlotsForItsTwoEnds) {
  const Plan plan = plan_of(paged(16, 16, 8192, DType::bf16));
  EXPECT_EQ(plan.kernel,
            "prefill::prefill_kernel<__nv_bfloat16, Grouped<__nv_bfloat16, 1, false>>");
  EXPECT_EQ(plan.grid[0], 132);
  EXPECT_EQ(plan.tile_q, 128);
  // Two slots of 128 rows: 128 columns, and 16 bytes of sums and bases; and 48 bytes that say whose.
  EXPECT_EQ(plan.workspace_bytes, 2 * 132 * (128 * (128 * 4 + 16) + 48));
  EXPECT_EQ(plan_of(paged(1, 16, 1048576, DType::bf16)).workspace_bytes, plan.workspace_bytes);
  EXPECT_EQ(plan_of(paged(16, 16, 8192, DType::e4m3)).kernel,
            "prefill::prefill_kernel<__half, Grouped<__half, 1, true>>");
}

TEST_F(GroupedPlan, OnePartNeedsNoScratch) {
  EXPECT_EQ(plan_of(paged(4, 16, 256, DType::bf16)).workspace_bytes, 0);
  options_.max_splits = 1;
  const Plan plan = plan_of(paged(4, 16, 8192, DType::bf16));
  EXPECT_EQ(plan.workspace_bytes, 0);
  EXPECT_EQ(plan.grid[0], 32);
  options_.max_splits = 5;
  EXPECT_EQ(plan_of(paged(4, 16, 8192, DType::bf16)).splits, 5);
}

TEST_F(GroupedPlan, PagesThatNoBoxDividesAreCopiedRowByRow) {
  for (const std::int64_t page : {1, 7, 12, 100})
    EXPECT_EQ(plan_of(paged(4, 16, 8400, DType::bf16, 32, page)).kernel,
              "prefill::prefill_kernel<__nv_bfloat16, GroupedRowByRow<__nv_bfloat16, 1, false>>");
  EXPECT_EQ(plan_of(paged(4, 16, 8400, DType::e4m3, 32, 1)).kernel,
            "prefill::prefill_kernel<__half, GroupedRowByRow<__half, 1, true>>");
  EXPECT_EQ(plan_of(paged(4, 16, 8192, DType::f16, 32, 8)).kernel,
            "prefill::prefill_kernel<__half, Grouped<__half, 1, false>>");
}

TEST_F(GroupedPlan, EveryTileFitsItsMachine) {
  for (const bool bytes : {false, true})
    for (std::size_t tile = 0; tile < cuda::prefill::kGroupedTiles; ++tile)
      EXPECT_LE(cuda::prefill::grouped_config_of(tile, bytes).shared_bytes() + 1024, 232448);
}

TEST_F(GroupedPlan, RefusesByName) {
  Problem p = paged(4, 16, 8192, DType::bf16);
  EXPECT_EQ(refusal(p), "accepted");
  p.softcap = 30.0f;
  EXPECT_NE(refusal(p).find("softcap"), std::string::npos) << refusal(p);
  // Pieces of 16 bytes from the first page to the last are counted in 32 bits.
  p = paged(4, 16, 8184, DType::bf16, 32, 12);
  p.k.stride[0] = std::int64_t{1} << 33;
  EXPECT_NE(refusal(p).find("64 GiB"), std::string::npos) << refusal(p);
  p = make_problem(2, 8, 2, 16, 300, 256, DType::bf16);
  EXPECT_NE(refusal(p).find("head dim 256"), std::string::npos) << refusal(p);
  p = make_problem(2, 8, 2, 200, 300, 128, DType::bf16);
  p.mask = Mask::causal(Alignment::top_left);
  p.chunk = 100;
  EXPECT_NE(refusal(p).find("chunks of 100"), std::string::npos) << refusal(p);
  p.chunk = 0;
  p.alibi = Alibi::per_head;
  EXPECT_NE(refusal(p).find("ALiBi"), std::string::npos) << refusal(p);
  options_.batch_invariant = true;
  EXPECT_NE(refusal(paged(4, 16, 8192, DType::bf16)).find("batch_invariant"), std::string::npos);
}

// The table of dispatch/prefer.cpp.
TEST_F(GroupedPlan, SelectionGivesItWhatItIsFastestAt) {
  EXPECT_EQ(chosen(paged(16, 16, 8192, DType::bf16)), kGrouped);
  EXPECT_EQ(chosen(paged(1, 16, 8192, DType::bf16)), kGrouped);
  EXPECT_EQ(chosen(paged(32, 4, 8192, DType::bf16, 96)), kGrouped);
  EXPECT_EQ(chosen(paged(16, 8, 8192, DType::bf16)), kGrouped);
  EXPECT_EQ(chosen(paged(4, 8, 512, DType::bf16)), "cuda.sm90.packed");  // few keys
  EXPECT_EQ(chosen(paged(4, 8, 512, DType::e4m3)), "cuda.sm90.fp8_serving");
  EXPECT_EQ(chosen(paged(1, 8, 4096, DType::bf16)), kGrouped);
  EXPECT_EQ(chosen(paged(1, 8, 2048, DType::bf16)), kGrouped);
  EXPECT_EQ(chosen(paged(1, 8, 2048, DType::e4m3)), kGrouped);
  EXPECT_EQ(chosen(paged(16, 4, 8192, DType::bf16)), "cuda.sm90.decode");
  EXPECT_EQ(chosen(paged(16, 1, 8192, DType::bf16)), "cuda.sm90.decode");
  EXPECT_EQ(chosen(paged(16, 8, 8192, DType::e4m3)), kGrouped);
  EXPECT_EQ(chosen(paged(16, 4, 8192, DType::e4m3)), "cuda.sm90.decode");
  EXPECT_EQ(chosen(paged(8, 64, 8192, DType::bf16)), "cuda.sm90.packed");
  EXPECT_EQ(chosen(paged(8, 64, 8192, DType::e4m3)), "cuda.sm90.fp8_serving");
  EXPECT_EQ(chosen(paged(1, 128, 32768, DType::bf16)), kGrouped);
  EXPECT_EQ(chosen(paged(64, 16, 256, DType::bf16)), "cuda.sm90.packed");  // few keys
  options_.batch_invariant = true;
  EXPECT_NE(chosen(paged(16, 16, 8192, DType::bf16)), kGrouped);
}

TEST_F(GroupedPlan, DenseProblemsOfFewTilesAndManyKeys) {
  const auto dense = [](std::int64_t seq_q, std::int64_t keys) {
    return make_problem(1, 32, 8, seq_q, keys, 128, DType::bf16);
  };
  EXPECT_EQ(chosen(dense(128, 32768)), kGrouped);
  EXPECT_EQ(chosen(dense(2048, 32768)), "cuda.sm90.prefill");
  EXPECT_EQ(chosen(dense(16, 512)), "cuda.sm90.small");
  EXPECT_EQ(chosen(dense(1, 32768)), "cuda.sm90.decode");
}

}  // namespace
}  // namespace greenfast
