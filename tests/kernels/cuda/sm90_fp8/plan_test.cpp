// What cuda.sm90.fp8 plans and refuses. Needs no GPU; skipped where the kernel is not built.
#include <greenfast/attention.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "tests/kernels/cuda/plan_fixture.hpp"

namespace greenfast {
namespace {

class Fp8Plan : public VariantPlan {
 protected:
  Fp8Plan() : VariantPlan("cuda.sm90.fp8") {}
  static Problem problem(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_kv,
                         std::int64_t seq_q, std::int64_t seq_kv, std::int64_t head_dim) {
    return make_problem(batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, DType::e4m3);
  }
};

TEST_F(Fp8Plan, KernelTileAndWorkspaceFollowTheProblem) {
  Problem p = problem(2, 8, 2, 2048, 2048, 128);
  Plan plan = plan_of(p);
  EXPECT_EQ(plan.kernel, "fp8::fp8_kernel<Compiled<128, false>>");
  EXPECT_EQ(plan.tile_q, 128);
  EXPECT_EQ(plan.tile_kv, 128);
  EXPECT_EQ(plan.workspace_bytes, 2 * 2 * 128 * 2048);
  EXPECT_EQ(plan.grid[0], 132);
  p.mask = Mask::causal(Alignment::bottom_right);
  EXPECT_EQ(plan_of(p).kernel, "fp8::fp8_kernel<Compiled<128, true>>");
  // Padded to the tile, in columns and keys.
  p = problem(1, 4, 4, 100, 130, 48);
  plan = plan_of(p);
  EXPECT_EQ(plan.kernel, "fp8::fp8_kernel<Compiled<64, false>>");
  EXPECT_EQ(plan.workspace_bytes, 4 * 64 * 256);
  EXPECT_EQ(plan.grid[0], 4);
}

TEST_F(Fp8Plan, KeysThatNoRowSeesAreLeftOut) {
  // The last row sees keys up to 99 (top-left): one block.
  Problem p = problem(1, 2, 2, 100, 4096, 64);
  p.mask = Mask::causal(Alignment::top_left);
  EXPECT_EQ(plan_of(p).workspace_bytes, 2 * 64 * 128);
  // One query at the end of a cache sees all: no mask.
  p = problem(1, 2, 2, 1, 4096, 64);
  p.mask = Mask::causal(Alignment::bottom_right);
  EXPECT_EQ(plan_of(p).kernel, "fp8::fp8_kernel<Compiled<64, false>>");
}

TEST_F(Fp8Plan, FactorsOfBlocksHaveBuildsOfTheirOwn) {
  Problem p = problem(2, 8, 2, 2048, 2048, 128);
  p.scales = ScaleKind::per_block;
  EXPECT_EQ(plan_of(p).kernel, "fp8::fp8_kernel<CompiledBlocks<128, false>>");
  p.mask = Mask::causal(Alignment::bottom_right);
  EXPECT_EQ(plan_of(p).kernel, "fp8::fp8_kernel<CompiledBlocks<128, true>>");
  // Keys that no row sees are left out: what is left must begin with a block.
  p = problem(1, 2, 2, 512, 4096, 64);
  p.scales = ScaleKind::per_block;
  p.mask = Mask::window(128, 0, Alignment::bottom_right);  // the first query sees keys from 3456 on
  EXPECT_EQ(plan_of(p).kernel, "fp8::fp8_kernel<CompiledBlocks<64, true>>");
  p.mask = Mask::window(100, 0, Alignment::bottom_right);
  EXPECT_NE(answer(p, facts_).find("sees one before 3484; takes multiples of 128"),
            std::string::npos)
      << answer(p, facts_);
}

TEST_F(Fp8Plan, OutputTypesMasksAndFactorsAreTaken) {
  Problem p = problem(1, 8, 4, 512, 700, 128);
  p.lse = true;
  p.scales = ScaleKind::per_head;
  p.mask = Mask::window(100, 30, Alignment::bottom_right);
  for (const DType out : {DType::f32, DType::f16, DType::bf16}) {
    p.out_dtype = out;
    EXPECT_EQ(answer(p, facts_), "accepted") << name_of(out);
  }
  p.scales = ScaleKind::tensor;
  p.scale = -0.5f;
  p.out_dtype = DType::f16;
  EXPECT_EQ(answer(p, facts_), "accepted");
  p.k.stride[1] = 0;  // one head for all
  p.v.stride[0] = 0;
  EXPECT_EQ(answer(p, facts_), "accepted");
}

// V^T is read as it lies where TMA and fours of keys allow, else reordered by a pass.
TEST_F(Fp8Plan, ATransposedVNeedsNoWorkspaceWhereItCanBeReadInPlace) {
  Problem p = problem(2, 8, 2, 300, 512, 128);
  p.v = transposed_layout(2, 2, 512, 128);
  EXPECT_EQ(plan_of(p).workspace_bytes, 0);
  EXPECT_NE(plan_of(p).note.find("as it lies"), std::string::npos);
  p.v.stride[0] = p.v.stride[1] = 0;  // one head for all
  EXPECT_EQ(plan_of(p).workspace_bytes, 0);
  // Keys that no row sees may be read with K's last four.
  p = problem(1, 2, 2, 101, 512, 64);
  p.mask = Mask::causal(Alignment::top_left);
  p.v = transposed_layout(1, 2, 512, 64);
  EXPECT_EQ(plan_of(p).workspace_bytes, 0);
  for (const std::int64_t keys : {511, 1, 197}) {  // the last four would end behind K
    p = problem(1, 2, 2, 64, keys, 64);
    p.v = transposed_layout(1, 2, keys, 64);
    EXPECT_EQ(plan_of(p).workspace_bytes, 2 * 64 * ((keys + 127) / 128 * 128)) << keys;
    EXPECT_EQ(answer(p, facts_), "accepted");
  }
  p = problem(1, 2, 2, 64, 512, 64);
  p.v = transposed_layout(1, 2, 512, 64);
  p.v.stride[3] = 513;  // no multiple of 16 bytes
  EXPECT_GT(plan_of(p).workspace_bytes, 0);
  p.v.stride[3] = 512;
  p.v.alignment = 8;
  EXPECT_GT(plan_of(p).workspace_bytes, 0);
  // The first visible key where TMA cannot begin.
  p = problem(1, 2, 2, 64, 512, 64);
  p.v = transposed_layout(1, 2, 512, 64);
  p.mask = Mask::window(100, 0, Alignment::bottom_right);
  EXPECT_GT(plan_of(p).workspace_bytes, 0);
  p.mask = Mask::window(128, 0, Alignment::bottom_right);
  EXPECT_EQ(plan_of(p).workspace_bytes, 0);
}

// Curved weights have no log-sum-exp; the choice falls on them wherever none is asked for.
TEST_F(Fp8Plan, TheLogSumExpDecidesBetweenTheExactKernels) {
  Problem p = problem(1, 8, 4, 512, 700, 64);
  EXPECT_EQ(answer(p, facts_, "cuda.sm90.fp8_curved"), "accepted");
  options_.variant = "cuda.sm90.fp8_curved";
  EXPECT_EQ(plan_of(p).kernel, "fp8::fp8_fast_kernel<CompiledCurved<64, false>>");
  EXPECT_EQ(plan_of(p).tile_q, 192);
  options_.variant = "";
  EXPECT_EQ(plan_of(p).variant, "cuda.sm90.fp8_curved");
  p.lse = true;
  EXPECT_NE(answer(p, facts_, "cuda.sm90.fp8_curved").find("LSE"), std::string::npos);
  EXPECT_EQ(plan_of(p).variant, "cuda.sm90.fp8_serving");
  p.v = transposed_layout(1, 4, 700, 64);
  EXPECT_EQ(plan_of(p).variant, "cuda.sm90.fp8");
  p.accuracy = Accuracy::fast;
  EXPECT_EQ(plan_of(p).variant, "cuda.sm90.fp8_fast");
  p = problem(1, 8, 8, 512, 512, 72);  // rows of 72 bytes: what TMA cannot address
  EXPECT_EQ(plan_of(p).variant, "cuda.sm80.serving");
  p.v = transposed_layout(1, 8, 512, 72);  // nobody's
  EXPECT_FALSE(greenfast::plan(p, facts_, options_).ok());
}

// The same problems, tiles of three warpgroups at head dim 64, and never for exact accuracy.
TEST_F(Fp8Plan, FastAccuracyHasAKernelOfItsOwn) {
  Problem p = problem(1, 8, 4, 512, 700, 64);
  EXPECT_NE(answer(p, facts_, "cuda.sm90.fp8_fast").find("ask for fast accuracy"),
            std::string::npos);
  p.accuracy = Accuracy::fast;
  EXPECT_NE(answer(p, facts_).find("fast accuracy"), std::string::npos) << answer(p, facts_);
  options_.variant = "cuda.sm90.fp8_fast";
  EXPECT_EQ(answer(p, facts_, "cuda.sm90.fp8_fast"), "accepted");
  Plan plan = plan_of(p);
  EXPECT_EQ(plan.kernel, "fp8::fp8_fast_kernel<CompiledFast<64, false>>");
  EXPECT_EQ(plan.tile_q, 192);
  EXPECT_EQ(plan.stages, 5);
  p = problem(1, 8, 4, 512, 512, 128);
  p.accuracy = Accuracy::fast;
  p.mask = Mask::causal(Alignment::top_left);
  plan = plan_of(p);
  EXPECT_EQ(plan.kernel, "fp8::fp8_fast_kernel<CompiledFast<128, true>>");
  EXPECT_EQ(plan.tile_q, 128);
  EXPECT_EQ(plan.workspace_bytes, 4 * 128 * 512);
}

// Head dims above 128 have a tile of 256 columns, of scores in halves and without a log-sum-exp.
TEST_F(Fp8Plan, WideHeadDims) {
  for (const std::int64_t head_dim : {136, 192, 256}) {
    SCOPED_TRACE(head_dim);
    Problem p = problem(2, 8, 2, 1000, 2048, head_dim);
    p.v = transposed_layout(2, 2, 2048, head_dim);
    const bool rows_of_16 = head_dim % 16 == 0;
    EXPECT_EQ(answer(p, facts_, "cuda.sm90.fp8_curved") == "accepted", rows_of_16);
    EXPECT_NE(answer(p, facts_, "cuda.sm90.fp8").find("takes up to 128"), std::string::npos);
    if (!rows_of_16) continue;
    options_.variant = "";
    Plan plan = plan_of(p);
    EXPECT_EQ(plan.variant, "cuda.sm90.fp8_curved");
    EXPECT_EQ(plan.kernel, "fp8::fp8_fast_kernel<CompiledCurved<256, false>>");
    EXPECT_EQ(plan.tile_q, 128);
    EXPECT_EQ(plan.stages, 2);
    EXPECT_EQ(plan.workspace_bytes, 0);
    p.v = problem(2, 8, 2, 1000, 2048, head_dim).v;
    p.mask = Mask::causal(Alignment::bottom_right);
    p.accuracy = Accuracy::fast;
    plan = plan_of(p);
    EXPECT_EQ(plan.kernel, "fp8::fp8_fast_kernel<CompiledFast<256, true>>");
    EXPECT_EQ(plan.workspace_bytes, 2 * 2 * 256 * 2048);
    p.lse = true;
    EXPECT_NE(answer(p, facts_, "cuda.sm90.fp8_fast").find("gives one up to head dim 128"),
              std::string::npos);
    plan = plan_of(p);
    EXPECT_TRUE(plan.variant == "cuda.sm90.fp8_serving" || plan.variant == "cuda.sm80.serving")
        << plan.variant;
  }
}

TEST_F(Fp8Plan, RefusesByName) {
  EXPECT_NE(answer(problem(1, 8, 8, 512, 512, 192), facts_).find("head dim 192"),
            std::string::npos);
  Problem p = problem(1, 8, 8, 512, 512, 128);
  p.softcap = 20.0f;
  EXPECT_NE(answer(p, facts_).find("softcap"), std::string::npos) << answer(p, facts_);
  p = problem(1, 8, 8, 512, 512, 72);  // rows of 72 bytes
  EXPECT_NE(answer(p, facts_).find("Q has strides"), std::string::npos) << answer(p, facts_);
  p = problem(1, 8, 8, 512, 512, 128);
  p.v.alignment = 8;
  EXPECT_NE(answer(p, facts_).find("V has strides"), std::string::npos) << answer(p, facts_);
  p = make_problem(1, 8, 8, 512, 512, 128, DType::f16);
  EXPECT_NE(answer(p, facts_), "accepted");
  DeviceFacts older = facts_;
  older.arch = 89;
  EXPECT_NE(answer(problem(1, 8, 8, 512, 512, 128), older), "accepted");
}

}  // namespace
}  // namespace greenfast
