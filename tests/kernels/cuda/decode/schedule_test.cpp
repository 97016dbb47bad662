// What cuda.sm90.decode and cuda.sm80.decode decide before and beside its arithmetic: parts, places, plans, refusals.
#include <greenfast/attention.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/device/band.hpp"
#include "kernels/cuda/decode/shape.hpp"

namespace greenfast::cuda::decode {
namespace {

std::vector<SplitRule> rules() {
  std::vector<SplitRule> all;
  for (const int bound : {0, 1, 3, 64}) {
    all.push_back({.by_length = true, .bound = bound});
    for (const int parts : {1, 2, 8, 29, 64})
      for (const int least : {64, 256, 512})
        for (const int most : {1024, 2048, kMostKeys})
          all.push_back({.parts = parts, .least = least, .most = most, .bound = bound});
  }
  return all;
}

TEST(DecodeSchedule, EveryKeyIsInExactlyOnePart) {
  std::vector<int> lengths;
  for (int n = 0; n <= 1300; ++n) lengths.push_back(n);
  for (const int n : {2047, 2048, 2049, 4095, 4096, 4097, 16384, 16385, 65535, 65536, 65537, 131072,
                      131073, 1000003, 1 << 30})
    lengths.push_back(n);
  for (const SplitRule& rule : rules()) {
    for (const int keys : lengths) {
      const KeyRange seen{7, 7 + std::min(keys, (1 << 30) - 7)};
      const Parts all = parts_for(rule, seen.count());
      const int parts = all.count;
      int next = seen.begin;
      for (int part = 0; part < parts; ++part) {
        const KeyRange range = keys_of_part(all, seen, part);
        ASSERT_EQ(range.begin, next) << keys;
        ASSERT_TRUE(range.end > range.begin || keys == 0) << keys;
        ASSERT_LE(range.count(), kMostKeys);
        ASSERT_TRUE(range.count() % kUnit == 0 || part + 1 == parts) << keys;
        next = range.end;
      }
      ASSERT_EQ(next, seen.end) << keys;
      // A block of a cluster that has no part.
      ASSERT_EQ(keys_of_part(all, seen, parts).count(), 0) << keys;
    }
  }
}

/// The workspace is as large as the longest sequence's bound says: no shorter one has more parts.
TEST(DecodeSchedule, NoLengthHasMorePartsThanTheWorkspaceHolds) {
  for (const SplitRule& rule : rules()) {
    int most = 1;
    for (int keys = 0; keys <= 20000; ++keys) {
      most = std::max(most, parts_for(rule, keys).count);
      ASSERT_LE(most, most_parts(rule, keys)) << keys;
    }
    for (int keys = 20000; keys < (1 << 30) - 100000; keys += keys / 7 + 61) {
      most = std::max(most, parts_for(rule, keys).count);
      ASSERT_LE(most, most_parts(rule, keys)) << keys;
    }
    if (rule.bound > 0) {
      EXPECT_LE(most_parts(rule, 60000), std::max(rule.bound, 1));
    }
    if (rule.by_length) {
      EXPECT_LE(most_parts(rule, kClusterKeys), kCluster);
    }
  }
}

TEST(DecodeSchedule, DividesLikeTheProcessor) {
  std::mt19937 random(1);
  for (std::uint32_t by = 1; by <= 4096; ++by) {
    const FastDivide divide = FastDivide::by(by);
    for (const std::int32_t x : {0, 1, 2147483647, 1 << 30, static_cast<std::int32_t>(by) - 1,
                                 static_cast<std::int32_t>(by)})
      ASSERT_EQ(divide(x), x / static_cast<std::int32_t>(by)) << by;
    for (int i = 0; i < 50; ++i) {
      const auto x = static_cast<std::int32_t>(random() >> 1);
      const std::int32_t edge = x - x % static_cast<std::int32_t>(by);
      ASSERT_EQ(divide(x), x / static_cast<std::int32_t>(by)) << x << " by " << by;
      ASSERT_EQ(divide(edge), edge / static_cast<std::int32_t>(by)) << edge << " by " << by;
      const std::int32_t below = std::max(edge - 1, 0);
      ASSERT_EQ(divide(below), below / static_cast<std::int32_t>(by)) << below << " by " << by;
    }
  }
  for (const std::uint32_t by : {(1u << 30) - 1, 1u << 30, 1000003u})
    for (const std::int32_t x : {0, 999999, 1000003, (1 << 30) - 1, 1 << 30, 2147483647})
      ASSERT_EQ(FastDivide::by(by)(x), x / static_cast<std::int32_t>(by)) << x << " by " << by;
}

/// Rows see what those of cpu.flash see.
TEST(DecodeSchedule, RowsSeeWhatTheCpuShows) {
  std::mt19937 random(2);
  const auto in = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int i = 0; i < 20000; ++i) {
    const Lengths s{in(1, 9), in(0, 40), in(0, 12)};
    const int left = in(0, 3) ? in(0, 20) : -1, right = in(0, 3) ? in(0, 6) : -1;
    const int chunk = in(0, 2) ? 0 : in(1, 30);
    const Sight sight = make_sight(left, right, chunk, in(0, 1) == 1);
    const int shift = sight.bottom_right ? s.seq_kv - s.seq_q : 0;
    const auto band = kernels::make_band(sight.left, sight.right, shift, s.seq_q, s.seq_kv,
                                         s.kv_start, sight.chunk);
    std::vector<bool> seen(static_cast<std::size_t>(s.seq_kv));
    for (int row = 0; row < s.seq_q; ++row) {
      const kernels::Interval want = kernels::keys_of(band, row);
      const KeyRange got = keys_of_row(sight, s, row);
      ASSERT_EQ(got.count(), want.end - want.begin);
      if (got.count() > 0) {
        ASSERT_EQ(got.begin, want.begin);
      }
      ASSERT_TRUE(got.begin >= 0 && got.begin <= s.seq_kv && got.end >= 0 && got.end <= s.seq_kv);
      for (int key = got.begin; key < got.end; ++key) seen[static_cast<std::size_t>(key)] = true;
    }
    const KeyRange all = keys_of_sequence(sight, s);
    for (int key = 0; key < s.seq_kv; ++key)
      ASSERT_EQ(seen[static_cast<std::size_t>(key)], key >= all.begin && key < all.end);
    // The bound that workspaces are made from.
    Problem p = make_problem(1, 1, 1, s.seq_q, s.seq_kv, 64, DType::f16);
    p.mask = {sight.left, sight.right,
              sight.bottom_right ? Alignment::bottom_right : Alignment::top_left};
    p.chunk = sight.chunk;
    p.sequences.kv_start = s.kv_start > 0;
    ASSERT_LE(all.count(), most_keys_of(p));
  }
}

TEST(DecodeSchedule, PartsAreFoundAgain) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<int> before{0};
    const int batch = 1 + static_cast<int>(random() % 40);
    for (int b = 0; b < batch; ++b)
      before.push_back(before.back() + static_cast<int>(random() % 3 == 0 ? 0 : random() % 5));
    for (int number = 0; number < before.back(); ++number) {
      const int b = sequence_of_part(before, batch, number);
      ASSERT_TRUE(before[static_cast<std::size_t>(b)] <= number &&
                  number < before[static_cast<std::size_t>(b) + 1]);
    }
  }
}

TEST(DecodeConfigs, FitTheirBlocksIntoAnSm) {
  for (const Config& config : kConfigs) {
    EXPECT_TRUE(config.valid()) << config.head_dim << " " << config.rows << " " << config.warps;
    EXPECT_LE(config.shared_bytes(), 227 * 1024);
    EXPECT_EQ(config.q_offset() % 128, 0);
  }
}

DeviceFacts h200() { return *model_facts("h200"); }

TEST(DecodeShape, FillsTheDeviceAndMergesWhereThatIsCheapest) {
  const auto shape = [](const Problem& p, core::Choice choice = {}) {
    return shape_of(p, h200(), choice, kSm90);
  };
  const auto dense = [](std::int64_t batch, std::int64_t hq, std::int64_t hkv, std::int64_t keys,
                        std::int64_t dim) {
    return make_problem(batch, hq, hkv, 1, keys, dim, DType::bf16);
  };
  const Shape small = shape(dense(1, 32, 8, 2048, 128));
  EXPECT_TRUE(small.clustered);
  EXPECT_EQ(small.most_parts, 8);
  EXPECT_EQ(kConfigs[small.config].warps, 8);
  EXPECT_EQ(workspace_of(dense(1, 32, 8, 2048, 128), small).bytes, 0);
  // 64 clusters of four do not fit at once, 128 of two do; one step a block wants no eight warps.
  for (const auto& [batch, keys, blocks, warps] : {std::array{1, 8192, 8, 8},
                                                   {1, 512, 8, 4},
                                                   {4, 4096, 4, 4},
                                                   {8, 8192, 2, 4},
                                                   {16, 8192, 2, 4}}) {
    const Shape merged = shape(dense(batch, 32, 8, keys, 128));
    EXPECT_TRUE(merged.clustered) << batch << " " << keys;
    EXPECT_EQ(merged.cluster, blocks) << batch << " " << keys;
    EXPECT_EQ(kConfigs[merged.config].warps, warps) << batch << " " << keys;
  }
  EXPECT_EQ(shape(dense(1, 32, 8, 128, 128)).most_parts, 1);
  EXPECT_TRUE(shape(dense(1, 32, 8, 256, 128)).clustered);
  const Shape split = shape(dense(1, 16, 1, 131072, 128));
  EXPECT_FALSE(split.clustered);
  EXPECT_EQ(split.most_parts, 225);  // as many as fill the device
  EXPECT_EQ(workspace_of(dense(1, 16, 1, 131072, 128), split).bytes, 16 * 225 * (128 * 4 + 8));
  EXPECT_EQ(shape(dense(128, 32, 8, 2048, 128)).most_parts, 1);  // the batch fills the device
  EXPECT_EQ(shape(dense(16, 32, 8, 8192, 128)).most_parts, 2);
  Problem ragged = dense(64, 32, 8, 32768, 128);
  ragged.sequences.used_kv = true;
  const Shape counted = shape(ragged);
  EXPECT_TRUE(counted.counted);
  EXPECT_EQ(counted.grid[0], 2 * h200().multiprocessors);
  EXPECT_EQ(shape(ragged, {.max_splits = 1}).most_parts, 1);
  // The last part of a large batch parts its keys as the first, for which the workspace is.
  const Shape parts = shape(dense(65535, 32, 1, 512, 64));
  EXPECT_EQ(workspace_of(dense(65535, 32, 1, 512, 64), parts).bytes, 0);
  EXPECT_GT(shape(dense(1, 32, 1, 512, 64)).most_parts, 1);
  EXPECT_EQ(of_batch(parts, 1).most_parts, 1);
  EXPECT_EQ(of_batch(parts, 1).grid[2], 1);
  // By length alone: neither the batch nor the maximum moves a part.
  for (const std::int64_t batch : {1, 7, 64}) {
    ragged.batch = batch;
    const SplitRule rule = shape(ragged, {.batch_invariant = true}).rule;
    for (int keys = 1; keys < 33000; keys += 97)
      EXPECT_EQ(keys_of_part(rule, keys), keys_of_part(SplitRule{.by_length = true}, keys));
  }
  // Nor does a maximum move how the parts are summed.
  Problem longest = dense(1, 16, 1, 6000000, 128);
  longest.sequences.used_kv = true;
  EXPECT_GT(merge_splits(longest, shape(longest)), 1);
  const Shape invariant = shape(longest, {.batch_invariant = true});
  EXPECT_GT(invariant.most_parts, 64);
  EXPECT_EQ(merge_splits(longest, invariant), 1);
}

/// What sm_86 and sm_89 have room for once, an A100 has twice; parts fill what there is.
TEST(DecodeShape, OfSm80FillsTheDeviceThatItIsOn) {
  const auto shape = [](const char* model, std::int64_t batch, std::int64_t keys, std::int64_t dim,
                        core::Choice choice = {}) {
    return shape_of(make_problem(batch, 32, 8, 1, keys, dim, DType::bf16), *model_facts(model),
                    choice, kSm80);
  };
  for (std::size_t i = kSm80.begin; i < kSm80.end; ++i) {
    EXPECT_EQ(blocks_per_sm(kConfigs[i], *model_facts("a100")), 2) << i;
    EXPECT_EQ(blocks_per_sm(kConfigs[i], *model_facts("l4")), kConfigs[i].head_dim == 64 ? 2 : 1)
        << i;
  }
  for (const std::int64_t dim : {64, 128, 256}) {
    const Shape one = shape("l4", 1, 8192, dim);
    EXPECT_FALSE(one.clustered);
    const std::int64_t slots = model_facts("l4")->multiprocessors *
                               blocks_per_sm(kConfigs[one.config], *model_facts("l4"));
    EXPECT_LE(8 * one.most_parts, slots) << dim;
    EXPECT_GE(8 * one.most_parts, slots * 3 / 4) << dim;
  }
  EXPECT_EQ(shape("a100", 128, 2048, 128).most_parts, 1);  // the batch fills the device
  EXPECT_EQ(shape("a100", 1, 8192, 128, {.max_splits = 3}).most_parts, 3);
  // By length alone neither the batch nor the device moves a part.
  const SplitRule rule = shape("l4", 1, 8192, 128, {.batch_invariant = true}).rule;
  for (int keys = 1; keys < 8192; keys += 97)
    EXPECT_EQ(keys_of_part(rule, keys), keys_of_part(SplitRule{.by_length = true}, keys));
}

class DecodeRefusals : public testing::Test {
 protected:
  void SetUp() override {
    const auto all = variants();
    const auto row = std::find_if(all.begin(), all.end(), [](const VariantInfo& info) {
      return info.id == "cuda.sm90.decode" && info.built;
    });
    if (row == all.end()) GTEST_SKIP() << "not built";
    options_.device = DeviceKind::cuda;
    options_.variant = "cuda.sm90.decode";
  }
  std::string refusal(const Problem& problem) {
    const auto answer = plan(problem, h200(), options_);
    return answer.ok() ? "" : answer.status().message();
  }
  Options options_;
};

TEST_F(DecodeRefusals, NameWhatWasAskedAndWhatIsPossible) {
  const Problem good = make_problem(2, 32, 8, 1, 1000, 128, DType::bf16);
  EXPECT_EQ(refusal(good), "");
  Problem p = good;
  p.seq_q = 17;
  p.q = p.o = dense_layout(Order::bhsd, 2, 32, 17, 128);
  EXPECT_NE(refusal(p).find("68 rows; takes up to 64"), std::string::npos) << refusal(p);
  p = good;
  p.k.stride[2] += 1;
  EXPECT_NE(refusal(p).find("K"), std::string::npos);
  EXPECT_NE(refusal(p).find("16-byte"), std::string::npos) << refusal(p);
  p = good;
  p.alibi = Alibi::per_head;
  EXPECT_NE(refusal(p).find("ALiBi"), std::string::npos) << refusal(p);
  p = make_problem(70000, 1, 1, 1, 8, 64, DType::f16);
  EXPECT_EQ(refusal(p), "");  // launched in parts
  p.sequences.used_kv = true;
  EXPECT_NE(refusal(p).find("70000"), std::string::npos) << refusal(p);
}

TEST_F(DecodeRefusals, PlansSayWhatTheShapeSays) {
  const Problem problem = make_problem(1, 16, 1, 1, 131072, 128, DType::bf16);
  const auto answer = plan(problem, h200(), options_);
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer->splits, 225);
  EXPECT_EQ(answer->workspace_bytes, 16 * 225 * (128 * 4 + 8));
  EXPECT_EQ(answer->kernel, "decode::attention_kernel<__nv_bfloat16, 23>");  // of 16 rows, lean
}

}  // namespace
}  // namespace greenfast::cuda::decode
