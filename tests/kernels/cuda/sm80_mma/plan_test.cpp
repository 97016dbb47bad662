// When cuda.sm80.mma gives parts of a tile's keys to blocks of their own.
#include <gtest/gtest.h>

#include "dispatch/registry.hpp"
#include "dispatch/select.hpp"
#include "tests/kernels/cuda/plan_fixture.hpp"

namespace greenfast {
namespace {

class MmaPlan : public VariantPlan {
 protected:
  MmaPlan() : VariantPlan("cuda.sm80.mma") {}
  static Problem problem(std::int64_t heads, std::int64_t seq_q, std::int64_t seq_kv,
                         std::int64_t head_dim) {
    return make_problem(1, heads, heads, seq_q, seq_kv, head_dim, DType::f16);
  }
};

TEST_F(MmaPlan, FewTilesHaveTheirKeysInParts) {
  const Plan plan = plan_of(problem(8, 512, 512, 128));  // 64 tiles of 132 SMs
  EXPECT_EQ(plan.splits, 4);
  EXPECT_EQ(plan.grid[0], 64);
  EXPECT_EQ(plan.grid[2], 4);
  // Means of V in fp32, and of each row's sum two floats.
  EXPECT_EQ(plan.workspace_bytes, 4 * 8 * 512 * (128 * 4 + 8));
  EXPECT_NE(plan.note.find("keys in 4 parts"), std::string::npos) << plan.note;
}

TEST_F(MmaPlan, OthersHaveNone) {
  for (const Problem& p : {problem(8, 512, 256, 128),      // few keys
                           problem(16, 512, 512, 128),     // a tile for each SM, and not many keys
                           problem(32, 4096, 4096, 128)})  // tiles enough
    EXPECT_EQ(plan_of(p).splits, 1) << to_string(p);
  EXPECT_EQ(plan_of(problem(4, 2048, 2048, 64)).splits, 3);  // a tile for each SM, and many keys
  EXPECT_EQ(plan_of(problem(4, 2048, 2048, 64)).workspace_bytes, 3 * 4 * 2048 * (64 * 4 + 8));
}

// A call without scratch is not passed over, and has no parts.
TEST_F(MmaPlan, WithoutScratchThereAreNoParts) {
  const core::Variant* const row = dispatch::find(dispatch::registry(), "cuda.sm80.mma");
  const Problem p = problem(8, 512, 512, 128);
  const core::Choice without{.scratch = 0};
  EXPECT_EQ(row->kernel->workspace(p, facts_, {}), plan_of(p).workspace_bytes);
  EXPECT_EQ(row->kernel->workspace(p, facts_, without), 0);
  EXPECT_EQ(row->kernel->plan(p, facts_, without).splits, 1);
  EXPECT_EQ(row->kernel->plan(p, facts_, without).grid[2], 1);
  // Nor with too little.
  const std::int64_t wanted = plan_of(p).workspace_bytes;
  EXPECT_EQ(row->kernel->plan(p, facts_, {.scratch = wanted}).splits, 4);
  EXPECT_EQ(row->kernel->plan(p, facts_, {.scratch = wanted - 1}).splits, 1);
  EXPECT_EQ(row->kernel->workspace(p, facts_, {.scratch = wanted - 1}), 0);
  DeviceFacts ampere = *model_facts("a100");
  EXPECT_EQ(dispatch::select(dispatch::registry(), {p, ampere, without, {}}, nullptr), row);
}

TEST_F(MmaPlan, TheCallerSaysHowMany) {
  const Problem p = problem(8, 512, 512, 128);
  options_.max_splits = 2;
  EXPECT_EQ(plan_of(p).splits, 2);
  options_.max_splits = 1;
  EXPECT_EQ(plan_of(p).splits, 1);
  EXPECT_EQ(plan_of(p).workspace_bytes, 0);
  options_.max_splits = 0;
  options_.batch_invariant = true;
  EXPECT_EQ(plan_of(p).splits, 1);
}

// Under a mask parts are of the longest tile: no block of a part is behind its last key.
TEST_F(MmaPlan, PartsOfMasksAreOfTheLongestTile) {
  Problem p = problem(2, 64, 8192, 64);
  EXPECT_EQ(plan_of(p).splits, 4);
  p.mask = Mask::window(255, 0, Alignment::bottom_right);  // 319 keys of the tile, in 5 blocks
  EXPECT_EQ(plan_of(p).splits, 2);
  p.mask = Mask::window(100, 0, Alignment::bottom_right);
  EXPECT_EQ(plan_of(p).splits, 1);
}

}  // namespace
}  // namespace greenfast
