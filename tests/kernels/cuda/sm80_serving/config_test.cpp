// What the tiles of cuda.sm80.serving ask of an SM, what it plans and what it refuses. Needs no GPU;
// plans and refusals are skipped where the kernel is not built.
#include "kernels/cuda/sm80_serving/config.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>

#include <greenfast/attention.hpp>

#include "core/check.hpp"
#include "tests/kernels/cuda/plan_fixture.hpp"

namespace greenfast {
namespace {

using cuda::sm80_serving::kConfigs;

constexpr const char* kId = "cuda.sm80.serving";

TEST(ServingConfigs, EveryHeadDimHasATileForEveryGpu) {
  // Shared memory that a block may use: sm_90, sm_80, sm_89.
  for (const int shared : {227 * 1024, 163 * 1024, 99 * 1024})
    for (int head_dim = 8; head_dim <= 256; head_dim += 8)
      EXPECT_TRUE(std::any_of(kConfigs.begin(), kConfigs.end(),
                              [&](const auto& config) {
                                return config.head_dim >= head_dim &&
                                       config.shared_bytes() <= shared;
                              }))
          << head_dim << " in " << shared;
  EXPECT_TRUE(std::is_sorted(kConfigs.begin(), kConfigs.end(),
                             [](const auto& a, const auto& b) { return a.head_dim < b.head_dim; }));
}

TEST(ServingConfigs, PlacesInSharedMemoryDoNotOverlap) {
  for (std::size_t i = 0; i < 2 * kConfigs.size(); ++i) {
    const std::size_t bytes = i % 2 + 1;
    const auto config = cuda::sm80_serving::config_of(i / 2, bytes);
    SCOPED_TRACE(std::to_string(config.head_dim) + " of " + std::to_string(bytes));
    EXPECT_TRUE(config.valid());
    EXPECT_EQ(config.pitch(), static_cast<int>(bytes) * config.head_dim);
    EXPECT_GE(config.stage_bytes(), 2 * config.keys * config.pitch());
    // Q lies behind the stages, or in the second, which is filled once Q is in registers.
    EXPECT_GE(config.q_offset(), (config.q_in_registers ? 1 : 2) * config.stage_bytes());
    EXPECT_GE(config.shared_bytes(), config.kStages * config.stage_bytes());
    EXPECT_GE(config.shared_bytes(), config.q_offset() + config.rows() * config.pitch());
    EXPECT_EQ(config.rows(), 16 * config.threads() / 32) << "a warp has 16 rows";
  }
}

class ServingPlan : public VariantPlan {
 protected:
  ServingPlan() : VariantPlan(kId, "a100") {}
  // One query a sequence over pages of 16 keys.
  static Problem paged(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_kv,
                       std::int64_t seq_q, std::int64_t head_dim, DType dtype = DType::f16) {
    Problem p = make_problem(batch, heads_q, heads_kv, seq_q, 4096, head_dim, dtype);
    p.pages = {.size = 16, .count = 1 << 16, .row_stride = 256};
    p.k = p.v = dense_layout(Order::bhsd, p.pages.count, heads_kv, p.pages.size, head_dim);
    p.sequences.used_kv = true;
    return p;
  }
};

TEST_F(ServingPlan, TheTileIsTheSmallestThatHoldsBothHeadDims) {
  for (const char* model : {"a100", "l4", "h200"}) {
    SCOPED_TRACE(model);
    for (const auto& [head_dim, value_dim, index] : {std::tuple(8, 0, 0),
                                                     {64, 0, 0},
                                                     {72, 0, 1},
                                                     {64, 80, 1},
                                                     {128, 0, 1},
                                                     {136, 64, 2},
                                                     {256, 0, 2},
                                                     {40, 256, 2}}) {
      Problem p = paged(3, 8, 2, 1, head_dim);
      p.head_dim_v = value_dim;
      if (value_dim != 0) {
        p.o = dense_layout(Order::bhsd, 3, 8, 1, value_dim);
        p.v = dense_layout(Order::bhsd, p.pages.count, 2, p.pages.size, value_dim);
      }
      const Plan plan = plan_of(p, *model_facts(model));
      const auto& config = kConfigs[static_cast<std::size_t>(index)];
      EXPECT_EQ(plan.kernel,
                "sm80_serving::attention_kernel<__half, " + std::to_string(index) + ">");
      EXPECT_EQ(plan.tile_q, 64);
      EXPECT_EQ(plan.tile_kv, config.keys);
      EXPECT_EQ(plan.block[0], config.threads());
      EXPECT_EQ(plan.shared_bytes, config.shared_bytes());
      EXPECT_LE(plan.shared_bytes, model_facts(model)->shared_per_block);
      EXPECT_EQ(
          std::accumulate(plan.shared.begin(), plan.shared.end(), std::int64_t{0},
                          [](std::int64_t sum, const SharedBuffer& b) { return sum + b.bytes; }),
          plan.shared_bytes);
      EXPECT_EQ(plan.workspace_bytes, 0);
    }
  }
  EXPECT_EQ(plan_of(paged(1, 2, 2, 1, 64, DType::bf16)).kernel,
            "sm80_serving::attention_kernel<__nv_bfloat16, 0>");
}

TEST_F(ServingPlan, RowsOfTheHeadsThatShareKAndVFillATile) {
  EXPECT_EQ(plan_of(paged(3, 64, 8, 1, 128)).grid[0], 3 * 8);  // 8 rows of a KV head
  EXPECT_EQ(plan_of(paged(3, 64, 8, 8, 128)).grid[0], 3 * 8);  // 64
  EXPECT_EQ(plan_of(paged(3, 64, 8, 9, 128)).grid[0], 3 * 8 * 2);
  EXPECT_EQ(plan_of(paged(3, 8, 8, 100, 128)).grid[0], 3 * 8 * 2);
}

TEST_F(ServingPlan, WhatItCannotTakeIsRefusedByName) {
  const DeviceFacts a100 = *model_facts("a100");
  EXPECT_EQ(answer(paged(2, 8, 2, 3, 128), a100), "accepted");
  // By its row, before it is asked.
  Problem p = paged(2, 8, 2, 3, 128, DType::f32);
  EXPECT_NE(answer(p, a100).find("fp32 inputs; takes fp16 inputs or bf16 inputs or e4m3 inputs"),
            std::string::npos)
      << answer(p, a100);
  // The only kernel for e4m3 there; with V as rows.
  p = paged(2, 8, 2, 3, 128, DType::e4m3);
  EXPECT_EQ(answer(p, a100), "accepted");
  p.v = transposed_layout(core::shape_of_kv(p, 128)[0], 2, core::shape_of_kv(p, 128)[2], 128);
  EXPECT_NE(answer(p, a100).find("V with contiguous keys"), std::string::npos) << answer(p, a100);
  DeviceFacts old = a100;
  old.arch = 75;
  EXPECT_NE(answer(paged(2, 8, 2, 3, 128), old).find("needs compute capability 8.0"),
            std::string::npos);
  // By itself.
  DeviceFacts little = a100;
  little.shared_per_block = 48 * 1024;
  EXPECT_EQ(answer(paged(2, 8, 2, 3, 64), little), "accepted");
  EXPECT_NE(answer(paged(2, 8, 2, 3, 128), little)
                .find("no tile for head dim 128 fits the 49152 bytes of shared memory"),
            std::string::npos)
      << answer(paged(2, 8, 2, 3, 128), little);
  p = make_problem(1, 512, 1, std::int64_t{1} << 30, 16, 8, DType::f16);
  EXPECT_NE(answer(p, a100).find("more than 2^31 - 1 tiles: split the batch"), std::string::npos)
      << answer(p, a100);
}

}  // namespace
}  // namespace greenfast
