// Which builds cuda.sm90.packed has for a softcap and for pages of any size, and what it refuses beside them. Needs no
// GPU; skipped where the kernel is not built.
#include <greenfast/attention.hpp>

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "kernels/cuda/sm90_prefill/config.hpp"
#include "tests/kernels/cuda/plan_fixture.hpp"
#include "tests/kernels/cuda/sm90_prefill/tile_fits.hpp"

namespace greenfast {
namespace {

class PackedPlan : public VariantPlan {
 protected:
  PackedPlan() : VariantPlan("cuda.sm90.packed") {}
  std::string kernel(const Problem& problem) const {
    constexpr std::string_view kBefore = "prefill::prefill_kernel<";
    return plan_of(problem).kernel.substr(kBefore.size());
  }
};

class CappedPlan : public PackedPlan {
 protected:
  static Problem packed(std::int64_t head_dim, DType dtype = DType::bf16) {
    Problem p = make_problem(8, 16, 8, 1024, 1024, head_dim, dtype);
    p.sequences.used_kv = true;
    p.mask = Mask::causal(Alignment::bottom_right);
    p.softcap = 50.0f;
    return p;
  }
};

TEST_F(CappedPlan, SoftcapsHaveBuildsOfTheirOwnByHeadDims) {
  EXPECT_EQ(kernel(packed(64)), "__nv_bfloat16, Capped<__nv_bfloat16, 0>>");
  EXPECT_EQ(kernel(packed(128, DType::f16)), "__half, Capped<__half, 0>>");
  EXPECT_EQ(kernel(packed(256)), "__nv_bfloat16, Capped<__nv_bfloat16, 1>>");
  Problem wide = packed(64);
  wide.head_dim_v = 256;
  wide.v = wide.o = dense_layout(Order::bhsd, 8, 16, 1024, 256);
  EXPECT_EQ(kernel(wide), "__nv_bfloat16, Capped<__nv_bfloat16, 1>>");
  Problem plain = packed(128);
  plain.softcap = 0.0f;
  EXPECT_EQ(kernel(plain).find("Capped"), std::string::npos);
}

TEST_F(CappedPlan, PromptsWithLengthsOrPagesAreItsAndDenseOnesPrefills) {
  EXPECT_EQ(chosen(packed(256)), "cuda.sm90.packed");
  Problem paged = make_paged(8, 32, 512, 4096, 16, DType::bf16);
  paged.softcap = 30.0f;
  EXPECT_EQ(chosen(paged), "cuda.sm90.packed");
  Problem dense = make_problem(8, 32, 32, 2048, 2048, 64, DType::bf16);
  dense.softcap = 30.0f;
  EXPECT_EQ(chosen(dense), "cuda.sm90.prefill");
  dense.mask = Mask::window(127, 0, Alignment::bottom_right);  // whose uncapped twin is packed's
  EXPECT_EQ(chosen(dense), "cuda.sm90.prefill");
  dense.softcap = 0.0f;
  EXPECT_EQ(chosen(dense), "cuda.sm90.packed");
}

TEST_F(CappedPlan, RefusesAnArrayMaskBesideASoftcap) {
  Problem p = make_problem(8, 16, 16, 1024, 1024, 64, DType::bf16);
  p.array_mask = {
      .kind = MaskKind::boolean, .dtype = DType::f32, .stride = {1024 * 1024, 0, 1024, 1}};
  EXPECT_EQ(refusal(p), "accepted");
  p.softcap = 30.0f;
  EXPECT_NE(refusal(p).find("an array mask with a softcap"), std::string::npos) << refusal(p);
  EXPECT_NE(chosen(p), "cuda.sm90.packed");
  EXPECT_FALSE(chosen(p).empty());
}

TEST_F(CappedPlan, EveryTileFitsItsMachineAndItsRegisters) {
  for (std::size_t tile = 0; tile < cuda::prefill::kCappedTiles.size(); ++tile) {
    expect_tile_fits(cuda::prefill::capped_config_of(tile), tile);
  }
}

TEST_F(PackedPlan, PagesThatNoBoxDividesAreCopiedRowByRow) {
  for (const std::int64_t page : {1, 7, 12, 100}) {
    const Problem p = make_paged(8, 32, 512, 4200, page, DType::bf16);
    EXPECT_EQ(kernel(p), "__nv_bfloat16, RowByRow<__nv_bfloat16, 1>>") << page;
    EXPECT_EQ(chosen(p), "cuda.sm90.packed") << page;
  }
  EXPECT_EQ(kernel(make_paged(8, 32, 512, 4096, 8, DType::f16)), "__half, Serving<__half, 1>>");
  Problem p = make_paged(8, 32, 512, 4200, 1, DType::f16);
  p.chunk = 191;
  EXPECT_EQ(kernel(p), "__half, RowByRow<__half, 2>>");
  p.chunk = 127;
  EXPECT_NE(refusal(p).find("chunks of 127"), std::string::npos) << refusal(p);
  p.chunk = 0;
  expect_pieces_counted(p, &Problem::k, std::int64_t{1} << 23);
}

TEST_F(PackedPlan, SuchPagesWithASoftcapOrAnArrayMaskAreRefused) {
  Problem p = make_paged(8, 32, 512, 4200, 12, DType::bf16);
  p.softcap = 30.0f;
  EXPECT_NE(refusal(p).find("pages of 12 keys with a softcap"), std::string::npos) << refusal(p);
  EXPECT_EQ(chosen(p), "cuda.sm80.serving");
  p.softcap = 0.0f;
  p.array_mask = {.kind = MaskKind::boolean, .dtype = DType::f32, .stride = {0, 0, 4200, 1}};
  EXPECT_NE(refusal(p).find("pages of 12 keys with an array mask"), std::string::npos)
      << refusal(p);
  EXPECT_EQ(chosen(p), "cuda.sm80.serving");
}

TEST_F(PackedPlan, RowTilesFitTheirMachineAndTheirRegisters) {
  for (std::size_t tile = 0; tile < cuda::prefill::kRowTiles.size(); ++tile) {
    expect_tile_fits(cuda::prefill::row_config_of(tile), tile);
  }
}

}  // namespace
}  // namespace greenfast
