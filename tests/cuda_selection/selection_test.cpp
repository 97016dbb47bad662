// Which 16-bit CUDA kernel takes which problem on an H200. Selection and plans need no GPU.
#include <greenfast/attention.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace greenfast {
namespace {

constexpr const char* kSmall = "cuda.sm90.small";
constexpr const char* kMma = "cuda.sm80.mma";
constexpr const char* kPrefill = "cuda.sm90.prefill";

class CudaSelection : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* id : {kSmall, kMma, kPrefill}) {
      const auto all = variants();
      const auto row = std::find_if(all.begin(), all.end(),
                                    [&](const VariantInfo& info) { return info.id == id; });
      ASSERT_NE(row, all.end()) << id;
      if (!row->built) GTEST_SKIP() << id << " is not built";
    }
    facts_ = *model_facts("h200");
    options_.device = DeviceKind::cuda;
  }

  Candidate answer(const Problem& problem, const std::string& variant) const {
    for (const Candidate& candidate : explain(problem, facts_, options_).candidates) {
      if (candidate.variant == variant) return candidate;
    }
    ADD_FAILURE() << variant << " did not answer";
    return {};
  }

  DeviceFacts facts_;
  Options options_;
};

TEST_F(CudaSelection, SmallTakesWhatTwoBlocksPerMultiprocessorHold) {
  // 8 heads of 8 tiles, two blocks each: 128 blocks a batch entry.
  EXPECT_TRUE(answer(make_problem(1, 8, 8, 512, 512, 64, DType::f16), kSmall).accepted);
  EXPECT_TRUE(answer(make_problem(2, 8, 8, 512, 512, 64, DType::bf16), kSmall).accepted);
  const Candidate refused = answer(make_problem(3, 8, 8, 512, 512, 64, DType::f16), kSmall);
  EXPECT_FALSE(refused.accepted);
  EXPECT_NE(refused.reason.find("384 blocks"), std::string::npos) << refused.reason;
}

TEST_F(CudaSelection, PrefillTakesWhatSmallLeaves) {
  // The measured table of docs/kernels/sm90.md.
  const auto chosen = [&](const Problem& problem) {
    return explain(problem, facts_, options_).chosen;
  };
  EXPECT_EQ(chosen(make_problem(1, 8, 8, 1024, 1024, 64, DType::f16)), kSmall);
  EXPECT_EQ(chosen(make_problem(2, 8, 8, 512, 512, 128, DType::f16)), kSmall);
  EXPECT_EQ(chosen(make_problem(4, 8, 8, 128, 128, 64, DType::f16)), kSmall);
  EXPECT_EQ(chosen(make_problem(1, 4, 4, 2048, 2048, 128, DType::f16)), kSmall);
  EXPECT_EQ(chosen(make_problem(1, 64, 64, 128, 4096, 128, DType::f16)), kSmall);
  EXPECT_EQ(chosen(make_problem(4, 32, 32, 16, 4096, 128, DType::f16)), kPrefill);
  EXPECT_EQ(chosen(make_problem(1, 4, 4, 2048, 2048, 64, DType::f16)), kPrefill);
  EXPECT_EQ(chosen(make_problem(3, 32, 32, 64, 64, 64, DType::f16)), kSmall);
  EXPECT_EQ(chosen(make_problem(3, 32, 32, 64, 64, 128, DType::f16)), kPrefill);
  EXPECT_EQ(chosen(make_problem(4, 8, 8, 256, 256, 64, DType::f16)), kPrefill);
  EXPECT_EQ(chosen(make_problem(8, 16, 16, 64, 64, 128, DType::f16)), kPrefill);
  EXPECT_EQ(chosen(make_problem(1, 8, 8, 2048, 2048, 64, DType::f16)), kPrefill);
  EXPECT_EQ(chosen(make_problem(1, 8, 8, 512, 512, 256, DType::bf16)), kPrefill);
  EXPECT_EQ(chosen(make_problem(32, 32, 32, 64, 64, 64, DType::bf16)), kPrefill);
}

TEST_F(CudaSelection, WhereSmallIsSlowerItCanStillBeAskedFor) {
  const Problem problem = make_problem(8, 16, 16, 64, 64, 128, DType::f16);
  const Candidate small = answer(problem, kSmall);
  EXPECT_TRUE(small.accepted);
  EXPECT_NE(small.reason.find("behind the prefill kernel"), std::string::npos) << small.reason;
  options_.variant = kSmall;
  EXPECT_TRUE(plan(problem, facts_, options_).ok());
}

TEST_F(CudaSelection, SmallIgnoresTheBatchWhenAsked) {
  const Problem one = make_problem(1, 8, 8, 512, 512, 64, DType::f16);
  const Problem many = make_problem(16, 8, 8, 512, 512, 64, DType::f16);
  options_.batch_invariant = true;
  EXPECT_EQ(explain(one, facts_, options_).chosen, explain(many, facts_, options_).chosen);
  // Where the batch would decide which kernel is faster.
  for (const std::int64_t batch : {1, 4, 64}) {
    EXPECT_EQ(explain(make_problem(batch, 8, 8, 256, 256, 64, DType::f16), facts_, options_).chosen,
              kSmall)
        << batch;
  }
}

TEST_F(CudaSelection, SmallLoopsOnlyAboveFourPartsOfKeys) {
  options_.variant = kSmall;
  const auto keys = [&](std::int64_t seq_kv, Mask mask) {
    Problem problem = make_problem(1, 8, 8, 64, seq_kv, 64, DType::f16);
    problem.mask = mask;
    const Result<Plan> result = plan(problem, facts_, options_);
    return result.ok() ? result->kernel : result.status().message();
  };
  // Configurations 0, 1 and 2: 64 and 128 keys a part, and the loop.
  EXPECT_EQ(keys(256, Mask::none()), "small::attention_kernel<__half, 0>");
  EXPECT_EQ(keys(512, Mask::none()), "small::attention_kernel<__half, 1>");
  EXPECT_EQ(keys(513, Mask::none()), "small::attention_kernel<__half, 2>");
  // A window of 449 keys seen by 64 queries spans 512, however long the sequence is.
  EXPECT_EQ(keys(100000, Mask::window(448, 0, Alignment::bottom_right)),
            "small::attention_kernel<__half, 1>");
  EXPECT_EQ(keys(100000, Mask::window(449, 0, Alignment::bottom_right)),
            "small::attention_kernel<__half, 2>");
}

TEST_F(CudaSelection, MmaTakesWhatTmaCannotAddress) {
  Problem problem = make_problem(1, 8, 8, 512, 512, 64, DType::f16);
  problem.k.stride[2] = 65;
  problem.k.stride[1] = 65 * 512;
  problem.k.stride[0] = 65 * 512 * 8;
  EXPECT_FALSE(answer(problem, kSmall).accepted);
  EXPECT_EQ(explain(problem, facts_, options_).chosen, kMma);

  problem = make_problem(1, 8, 8, 512, 512, 64, DType::f16);
  problem.v.alignment = 2;
  EXPECT_EQ(explain(problem, facts_, options_).chosen, kMma);
}

TEST_F(CudaSelection, MmaRefusesOtherTypesWithAReason) {
  const Candidate refused = answer(make_problem(1, 8, 8, 512, 512, 64, DType::f32), kMma);
  EXPECT_FALSE(refused.accepted);
  EXPECT_NE(refused.reason.find("fp32"), std::string::npos) << refused.reason;
  EXPECT_NE(refused.reason.find("bf16"), std::string::npos) << refused.reason;
}

TEST_F(CudaSelection, MmaHasATileForEveryHeadDimOnEveryKnownGpu) {
  options_.variant = kMma;
  for (const char* model : {"h200", "l4", "a100"}) {
    const DeviceFacts facts = *model_facts(model);
    for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
      const Problem problem = make_problem(2, 4, 2, 300, 300, head_dim, DType::bf16);
      const Result<Plan> result = plan(problem, facts, options_);
      ASSERT_TRUE(result.ok()) << model << " " << head_dim << " " << result.status().message();
      EXPECT_LE(result->shared_bytes, facts.shared_per_block) << model << " " << head_dim;
      EXPECT_EQ(result->grid[0], (300 + result->tile_q - 1) / result->tile_q * 2 * 4);
    }
  }
}

TEST_F(CudaSelection, MmaTakesTheTallTileWhenItFillsTheDevice) {
  options_.variant = kMma;
  const auto rows = [&](std::int64_t batch, Mask mask) {
    Problem problem = make_problem(batch, 8, 8, 2048, 2048, 64, DType::f16);
    problem.mask = mask;
    return plan(problem, facts_, options_)->tile_q;
  };
  EXPECT_EQ(rows(1, Mask::none()), 64);
  EXPECT_EQ(rows(2, Mask::none()), 128);
  EXPECT_EQ(rows(2, Mask::causal(Alignment::top_left)), 64);
  EXPECT_EQ(rows(4, Mask::causal(Alignment::top_left)), 128);
}

}  // namespace
}  // namespace greenfast
