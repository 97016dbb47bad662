// What cuda.sm90.fp8_serving plans and refuses, and where selection gives it a problem. Needs no GPU;
// skipped where the kernel is not built.
#include <greenfast/attention.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "kernels/cuda/sm90_prefill/config.hpp"
#include "tests/kernels/cuda/plan_fixture.hpp"
#include "tests/kernels/cuda/sm90_prefill/tile_fits.hpp"

namespace greenfast {
namespace {

constexpr std::string_view kServing = "cuda.sm90.fp8_serving", kOfGroups = "cuda.sm90.grouped";

class BytePlan : public VariantPlan {
 protected:
  BytePlan() : VariantPlan(kServing) {}
  static Problem problem(std::int64_t batch, std::int64_t heads, std::int64_t seq,
                         std::int64_t head_dim) {
    return make_problem(batch, heads, heads, seq, seq, head_dim, DType::e4m3);
  }
  static Problem paged(std::int64_t batch, std::int64_t seq_q, std::int64_t keys,
                       std::int64_t page) {
    return make_paged(batch, 32, seq_q, keys, page, DType::e4m3);
  }
  std::string kernel(const Problem& problem) const {
    constexpr std::string_view kBefore = "prefill::prefill_kernel<__half, Bytes<";
    std::string name = plan_of(problem).kernel;
    EXPECT_TRUE(name.starts_with(kBefore)) << name;
    return name.substr(std::min(kBefore.size(), name.size()), name.find('>') - kBefore.size());
  }
};

TEST_F(BytePlan, TheTileFollowsHeadDimsAndWhetherTallOnesFillTheMachine) {
  EXPECT_EQ(kernel(problem(32, 32, 512, 64)), "2, false");
  EXPECT_EQ(kernel(problem(8, 16, 2048, 128)), "3, false");
  EXPECT_EQ(kernel(problem(2, 8, 2048, 256)), "5, false");
  Problem p = make_problem(4, 16, 16, 512, 512, 192, DType::e4m3);
  EXPECT_EQ(kernel(p), "5, false");  // V of 192
  // One round of tall tiles and half of another is as long as two of them.
  EXPECT_EQ(kernel(problem(2, 8, 2048, 128)), "1, false");
  EXPECT_EQ(kernel(problem(1, 8, 512, 64)), "0, false");
  // An entry's tile may not depend on its neighbours.
  options_.batch_invariant = true;
  EXPECT_EQ(kernel(problem(2, 8, 2048, 128)), "3, false");
  EXPECT_EQ(kernel(problem(64, 8, 2048, 128)), "3, false");
}

TEST_F(BytePlan, PagesShortChunksAndSoftcapsHaveTilesAndBuildsOfTheirOwn) {
  EXPECT_EQ(kernel(paged(8, 2048, 8192, 64)), "1, false");
  Problem p = problem(8, 16, 2048, 128);
  p.mask = Mask::causal(Alignment::top_left);
  p.chunk = 192;
  EXPECT_EQ(kernel(p), "3, false");
  p.chunk = 191;
  EXPECT_EQ(kernel(p), "1, false");
  Problem wide = make_problem(4, 16, 16, 512, 512, 192, DType::e4m3);
  wide.head_dim_v = 128;
  wide.v = wide.o = dense_layout(Order::bhsd, 4, 16, 512, 128);
  EXPECT_EQ(kernel(wide), "4, false");
  wide.mask = Mask::causal(Alignment::top_left);
  wide.chunk = 150;
  EXPECT_EQ(kernel(wide), "5, false");
  p.chunk = 127;
  EXPECT_NE(refusal(p).find("chunks of 127"), std::string::npos) << refusal(p);
  p.chunk = 0;
  p.softcap = 30.0f;
  EXPECT_EQ(kernel(p), "3, true");
}

TEST_F(BytePlan, EveryTileFitsItsMachineAndItsRegisters) {
  for (std::size_t tile = 0; tile < cuda::prefill::kByteTiles.size(); ++tile) {
    expect_tile_fits(cuda::prefill::byte_config_of(tile, false), tile);
  }
}

TEST_F(BytePlan, NeedsNoWorkspace) {
  EXPECT_EQ(plan_of(problem(8, 16, 2048, 128)).workspace_bytes, 0);
  EXPECT_EQ(plan_of(paged(8, 512, 8192, 16)).workspace_bytes, 0);
}

TEST_F(BytePlan, RefusesByName) {
  Problem p = problem(2, 4, 300, 256);
  EXPECT_EQ(refusal(p), "accepted");
  p.lse = true;
  EXPECT_NE(refusal(p).find("log-sum-exp with head dim 256"), std::string::npos) << refusal(p);
  for (const std::int64_t head_dim : {128, 160}) {
    p = problem(2, 4, 300, head_dim);
    p.lse = true;
    EXPECT_EQ(refusal(p), "accepted");
  }
  p = problem(2, 4, 300, 192);
  p.lse = true;
  EXPECT_NE(refusal(p).find("up to 160"), std::string::npos) << refusal(p);
  p.v = transposed_layout(2, 4, 300, 128);
  EXPECT_NE(refusal(p).find("V with contiguous keys"), std::string::npos) << refusal(p);
  p = problem(2, 4, 300, 128);
  p.alibi = Alibi::per_head;
  EXPECT_NE(refusal(p).find("ALiBi"), std::string::npos) << refusal(p);
  EXPECT_NE(refusal(problem(1, 8, 512, 72)).find("multiples of 16"), std::string::npos)
      << refusal(problem(1, 8, 512, 72));  // rows of 72 bytes
  EXPECT_EQ(refusal(paged(2, 300, 8184, 24)), "accepted");
}

TEST_F(BytePlan, PagesThatNoBoxDividesAreCopiedRowByRow) {
  const auto name = [this](const Problem& p) { return plan_of(p).kernel; };
  for (const std::int64_t page : {1, 7, 12, 100}) {
    const Problem p = paged(8, 512, 4200, page);
    EXPECT_EQ(name(p), "prefill::prefill_kernel<__half, BytesRowByRow<1>>") << page;
    EXPECT_EQ(chosen(p), kServing) << page;
  }
  Problem p = paged(8, 512, 4200, 1);
  p.chunk = 191;  // lower tiles
  EXPECT_EQ(name(p), "prefill::prefill_kernel<__half, BytesRowByRow<2>>");
  p.chunk = 127;
  EXPECT_NE(refusal(p).find("chunks of 127"), std::string::npos) << refusal(p);
  p.chunk = 0;
  p.softcap = 30.0f;
  EXPECT_NE(refusal(p).find("pages of 1 keys with a softcap"), std::string::npos) << refusal(p);
  EXPECT_EQ(chosen(p), "cuda.sm80.serving");
  p.softcap = 0.0f;
  expect_pieces_counted(p, &Problem::v, std::int64_t{1} << 24);
}

TEST_F(BytePlan, WritesAnyTypeAndAnyStridesOfO) {
  for (const DType out : {DType::f16, DType::bf16, DType::f32}) {
    Problem p = problem(2, 4, 300, 128);
    p.out_dtype = out;
    EXPECT_EQ(refusal(p), "accepted");
    p.o.stride = {4 * 300 * 129, 300 * 129, 129, 1};
    p.o.alignment = 4;
    EXPECT_EQ(refusal(p), "accepted");
  }
}

// The tables of dispatch/prefer.cpp.
TEST_F(BytePlan, SelectionGivesItWhatItIsFastestAt) {
  EXPECT_EQ(chosen(paged(8, 2048, 8192, 64)), kServing);
  EXPECT_EQ(chosen(paged(16, 64, 8192, 16)), kServing);
  EXPECT_EQ(chosen(paged(16, 16, 8192, 16)), kOfGroups);
  EXPECT_EQ(chosen(paged(16, 4, 8192, 16)), "cuda.sm90.decode");
  EXPECT_EQ(chosen(paged(16, 1, 8192, 16)), "cuda.sm90.decode");
  EXPECT_EQ(chosen(paged(1, 16, 8192, 16)), kOfGroups);  // too few tiles
  // Single tokens and a few longer sequences: most rows of a longest one's tile would not be there.
  Problem mixed = paged(64, 9, 8192, 16);
  mixed.sequences.packed_q = true;
  mixed.sequences.total_q = 64 * 3;
  mixed.q = mixed.o = dense_layout(Order::bhsd, 1, 32, 64 * 3, 128);
  EXPECT_EQ(chosen(mixed), "cuda.sm90.decode");
  mixed.sequences.total_q = 64 * 9;
  mixed.q = mixed.o = dense_layout(Order::bhsd, 1, 32, 64 * 9, 128);
  EXPECT_EQ(chosen(mixed), kOfGroups);
  // total_q may hold rows of other calls; no sequence has more than the longest.
  mixed.seq_q = 1;
  EXPECT_EQ(chosen(mixed), "cuda.sm90.decode");
  Problem wide = problem(2, 8, 4096, 256);
  EXPECT_EQ(chosen(wide), "cuda.sm90.fp8_curved");
  wide.mask = Mask::window(127, 0, Alignment::top_left);
  EXPECT_EQ(chosen(wide), kServing);
  // Dense, with what the other kernels for dense e4m3 refuse.
  Problem few = make_problem(1, 32, 8, 16, 8192, 128, DType::e4m3);
  EXPECT_EQ(chosen(few), kOfGroups);
  few.sinks = true;
  EXPECT_EQ(chosen(few), kOfGroups);
  few = make_problem(8, 32, 8, 16, 2048, 128, DType::e4m3);
  few.sinks = true;
  EXPECT_EQ(chosen(few), kServing);
  Problem windowed = problem(2, 16, 8192, 128);
  windowed.mask = Mask::window(1023, 0, Alignment::top_left);
  EXPECT_EQ(chosen(windowed), kServing);
  Problem p = problem(32, 16, 512, 128);
  EXPECT_EQ(chosen(p), "cuda.sm90.fp8_curved");
  p.mask = Mask::causal(Alignment::top_left);
  EXPECT_EQ(chosen(p), kServing);
  p = problem(2, 16, 8192, 128);
  p.mask = Mask::causal(Alignment::top_left);
  EXPECT_EQ(chosen(p), "cuda.sm90.fp8_curved");
  p.lse = true;
  EXPECT_EQ(chosen(p), kServing);
  p.mask = {};
  EXPECT_EQ(chosen(p), "cuda.sm90.fp8");
  p = problem(8, 32, 2048, 64);
  p.lse = true;
  EXPECT_EQ(chosen(p), kServing);
  p.accuracy = Accuracy::fast;
  EXPECT_EQ(chosen(p), "cuda.sm90.fp8_fast");
}

}  // namespace
}  // namespace greenfast
