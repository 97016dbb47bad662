// Which 16-bit CUDA kernel takes which problem on an H200. Selection and plans need no GPU.
#include <greenfast/arithmetic.hpp>
#include <greenfast/attention.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>
#include <tuple>
#include <utility>

namespace greenfast {
namespace {

constexpr const char* kSmall = "cuda.sm90.small";
constexpr const char* kMma = "cuda.sm80.mma";
constexpr const char* kPrefill = "cuda.sm90.prefill";
constexpr const char* kPacked = "cuda.sm90.packed";
constexpr const char* kDecode = "cuda.sm90.decode";

class CudaSelection : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* id : {kSmall, kMma, kPrefill, kDecode, kPacked, "cuda.sm80.serving",
                           "cuda.sm80.decode", "cuda.sm90.grouped", "cuda.sm90.fp8_serving"}) {
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

TEST_F(CudaSelection, FewQueriesGoWhereTheyWereFastest) {
  // The second table of dispatch/prefer.cpp.
  const auto chosen = [&](std::int64_t batch, std::int64_t heads_q, std::int64_t heads_kv,
                          std::int64_t queries, std::int64_t keys, std::int64_t dim) {
    return explain(make_problem(batch, heads_q, heads_kv, queries, keys, dim, DType::bf16), facts_,
                   options_)
        .chosen;
  };
  EXPECT_EQ(chosen(1, 32, 8, 1, 512, 128), kDecode);
  EXPECT_EQ(chosen(2, 32, 8, 1, 512, 128), kDecode);
  EXPECT_EQ(chosen(2, 32, 8, 1, 1024, 64), kDecode);
  EXPECT_EQ(chosen(8, 32, 8, 4, 512, 128), kDecode);
  EXPECT_EQ(chosen(16, 8, 4, 1, 512, 256), kDecode);
  EXPECT_EQ(chosen(1, 32, 8, 1, 2048, 128), kDecode);
  EXPECT_EQ(chosen(1, 8, 8, 1, 8192, 64), kDecode);
  EXPECT_EQ(chosen(8, 8, 8, 1, 512, 128), kSmall);
  EXPECT_EQ(chosen(32, 32, 8, 1, 128, 128), kDecode);
  EXPECT_EQ(chosen(64, 64, 8, 1, 1024, 128), kDecode);
  EXPECT_EQ(chosen(1, 32, 8, 16, 512, 128), kSmall);
  EXPECT_EQ(chosen(64, 32, 8, 16, 1024, 64), kPrefill);
  EXPECT_EQ(chosen(1, 32, 8, 1, 128, 128), kPrefill);
  // The choice for an entry of a batch is that for the entry alone.
  options_.batch_invariant = true;
  EXPECT_EQ(chosen(64, 8, 8, 1, 2048, 128), chosen(1, 8, 8, 1, 2048, 128));
}

TEST_F(CudaSelection, WhatServingAsksForIsTakenByDecodePackedOrServing) {
  Problem problem = make_problem(4, 32, 8, 1, 4096, 128, DType::bf16);
  problem.sequences.used_kv = true;
  EXPECT_EQ(explain(problem, facts_, options_).chosen, kDecode);
  problem = make_problem(4, 32, 8, 512, 4096, 128, DType::bf16);
  problem.sequences.used_kv = true;
  EXPECT_EQ(explain(problem, facts_, options_).chosen, "cuda.sm90.packed");
  problem.sinks = true;
  EXPECT_EQ(explain(problem, facts_, options_).chosen, "cuda.sm90.packed");
  problem.alibi = Alibi::per_head;
  EXPECT_EQ(explain(problem, facts_, options_).chosen, "cuda.sm80.serving");
  // One query over pages: prefill's loop reads them slower than decode does.
  Problem paged = make_problem(32, 8, 4, 1, 8192, 256, DType::bf16);
  paged.sequences.used_kv = true;
  paged.pages = {.size = 16, .count = 6479, .row_stride = 513};
  EXPECT_EQ(explain(paged, facts_, options_).chosen, kDecode);
  paged.pages = {};
  EXPECT_EQ(explain(paged, facts_, options_).chosen, kDecode);
  // Some queries over pages of one key: the fastest of the table, few keys in one tile of a head.
  const auto over_rows = [](DType dtype, std::int64_t batch, std::int64_t heads_q,
                            std::int64_t heads_kv, std::int64_t queries, std::int64_t keys,
                            std::int64_t dim = 128) {
    Problem p = make_problem(batch, heads_q, heads_kv, queries, keys, dim, dtype);
    p.sequences.used_kv = true;
    p.pages = {.size = 1, .count = batch * keys, .row_stride = keys};
    p.k = p.v = dense_layout(Order::bhsd, p.pages.count, heads_kv, 1, dim);
    return p;
  };
  const auto apart = [&](auto... sizes) {
    return explain(over_rows(sizes...), facts_, options_).chosen;
  };
  constexpr const char* kGrouped = "cuda.sm90.grouped";
  constexpr const char* kBytes = "cuda.sm90.fp8_serving";
  EXPECT_EQ(apart(DType::bf16, 16, 32, 8, 16, 8192), kGrouped);
  EXPECT_EQ(apart(DType::bf16, 16, 32, 8, 8, 8192), kDecode);
  EXPECT_EQ(apart(DType::bf16, 1, 32, 8, 8, 32768), kDecode);
  EXPECT_EQ(apart(DType::bf16, 1, 32, 8, 8, 1024), kPacked);
  EXPECT_EQ(apart(DType::bf16, 4, 32, 8, 8, 512), kPacked);
  EXPECT_EQ(apart(DType::bf16, 64, 32, 8, 16, 1024), kGrouped);
  EXPECT_EQ(apart(DType::bf16, 1, 32, 8, 128, 32768), kGrouped);
  EXPECT_EQ(apart(DType::e4m3, 16, 32, 8, 16, 8192), kGrouped);
  EXPECT_EQ(apart(DType::e4m3, 16, 32, 8, 6, 8192), kGrouped);
  EXPECT_EQ(apart(DType::e4m3, 1, 32, 8, 8, 1024), kBytes);
  EXPECT_EQ(apart(DType::e4m3, 4, 32, 8, 8, 512), kBytes);
  EXPECT_EQ(apart(DType::e4m3, 8, 32, 8, 64, 8192), kGrouped);
  EXPECT_EQ(apart(DType::e4m3, 16, 32, 8, 2, 8192), kDecode);
  // Heads without a group, whose rows a tile reads once, and more queries.
  EXPECT_EQ(apart(DType::e4m3, 16, 32, 32, 64, 8192), kBytes);
  EXPECT_EQ(apart(DType::bf16, 8, 32, 8, 256, 8192), kPacked);
  EXPECT_EQ(apart(DType::bf16, 16, 64, 8, 8, 8192, 64), kGrouped);
  EXPECT_EQ(apart(DType::bf16, 1, 32, 8, 8, 1536, 64), kDecode);
  EXPECT_EQ(apart(DType::bf16, 4, 16, 8, 1024, 4096, 256), kPacked);
  // What the others refuse stays with decode: a softcap there; and few keys go to them only where they may be known to be faster.
  Problem capped = over_rows(DType::bf16, 64, 32, 8, 16, 256);
  capped.softcap = 30.0f;
  EXPECT_EQ(explain(capped, facts_, options_).chosen, kDecode);
  options_.batch_invariant = true;
  EXPECT_EQ(apart(DType::bf16, 64, 32, 8, 8, 512), kDecode);
  options_.batch_invariant = false;
  // An output of another type is grouped's or decode's, whoever is fast.
  Problem wide = make_problem(4, 32, 8, 8, 512, 128, DType::bf16);
  wide.sequences.used_kv = true;
  wide.pages = {.size = 16, .count = 128, .row_stride = 32};
  wide.k = wide.v = dense_layout(Order::bhsd, 128, 8, 16, 128);
  EXPECT_EQ(explain(wide, facts_, options_).chosen, kPacked);
  wide.out_dtype = DType::f32;
  EXPECT_EQ(explain(wide, facts_, options_).chosen, kGrouped);
  // Where dense ones go to the small kernel, which takes no lengths.
  for (const std::int64_t batch : {1, 8}) {
    Problem few = make_problem(batch, 32, 8, 1, 512, 128, DType::bf16);
    few.sequences.used_kv = true;
    few.pages = {.size = 64, .count = 100, .row_stride = 8};
    EXPECT_EQ(explain(few, facts_, options_).chosen, kDecode);
  }
  // On Ampere and Ada as well.
  const DeviceFacts l4 = *model_facts("l4");
  EXPECT_EQ(explain(problem, l4, options_).chosen, "cuda.sm80.serving");
  // What serving does not ask for stays where it was.
  EXPECT_EQ(explain(make_problem(4, 32, 8, 512, 4096, 128, DType::bf16), l4, options_).chosen,
            kMma);
}

TEST_F(CudaSelection, BeforeHopperFewQueriesGoToDecodeWhereItWasFastest) {
  // The third table of dispatch/prefer.cpp, on the number of multiprocessors that it was measured on.
  DeviceFacts facts = *model_facts("a100");
  facts.multiprocessors = 132;
  const auto chosen = [&](std::int64_t batch, std::int64_t heads_q, std::int64_t heads_kv,
                          std::int64_t queries, std::int64_t keys) {
    return explain(make_problem(batch, heads_q, heads_kv, queries, keys, 128, DType::bf16), facts,
                   options_)
        .chosen;
  };
  constexpr const char* kDecode80 = "cuda.sm80.decode";
  EXPECT_EQ(chosen(1, 32, 8, 1, 128), kDecode80);
  EXPECT_EQ(chosen(1, 32, 8, 1, 8192), kDecode80);
  EXPECT_EQ(chosen(64, 32, 8, 1, 2048), kDecode80);
  EXPECT_EQ(chosen(64, 8, 8, 1, 512), kDecode80);
  EXPECT_EQ(chosen(1, 8, 8, 64, 4096), kDecode80);
  EXPECT_EQ(chosen(8, 8, 8, 64, 4096), kDecode80);
  EXPECT_EQ(chosen(64, 32, 8, 16, 4096), kDecode80);
  EXPECT_EQ(chosen(1, 8, 8, 32, 512), kDecode80);
  EXPECT_EQ(chosen(8, 8, 8, 32, 512), kMma);
  EXPECT_EQ(chosen(8, 32, 8, 16, 512), kMma);
  EXPECT_EQ(chosen(64, 8, 8, 64, 512), kMma);
  EXPECT_EQ(chosen(64, 8, 8, 64, 4096), kMma);
  // Lengths, pages and sinks too, and what it does not take is served as before.
  Problem problem = make_problem(4, 32, 8, 1, 4096, 128, DType::bf16);
  problem.sequences.used_kv = true;
  problem.pages = {.size = 16, .count = 1025, .row_stride = 256};
  for (const char* model : {"a100", "l4"})
    EXPECT_EQ(explain(problem, *model_facts(model), options_).chosen, kDecode80) << model;
  problem.alibi = Alibi::per_head;
  EXPECT_EQ(explain(problem, facts, options_).chosen, "cuda.sm80.serving");
  // On Hopper it stands behind its twin.
  const Candidate behind = answer(make_problem(1, 32, 8, 1, 2048, 128, DType::f16), kDecode80);
  EXPECT_TRUE(behind.accepted);
  EXPECT_NE(behind.reason.find("behind cuda.sm90.decode"), std::string::npos) << behind.reason;
}

TEST_F(CudaSelection, NarrowWindowsTakeTallTilesWhereThereAreEnoughOfThem) {
  const auto windowed = [](std::int64_t batch, std::int64_t head_dim, std::int64_t left) {
    Problem problem = make_problem(batch, 32, 32, 2048, 2048, head_dim, DType::bf16);
    problem.mask.left = left;
    problem.mask.right = 0;
    return problem;
  };
  const auto chosen = [&](const Problem& problem) {
    return explain(problem, facts_, options_).chosen;
  };
  EXPECT_EQ(chosen(windowed(8, 64, 127)), "cuda.sm90.packed");
  EXPECT_EQ(chosen(windowed(1, 64, 127)), kPrefill);
  EXPECT_EQ(chosen(windowed(8, 128, 127)), kPrefill);
  EXPECT_EQ(chosen(windowed(8, 64, 1500)), kPrefill);
  // Nor does one window's bound overflow beside the other's.
  Problem unbounded = windowed(8, 64, 127);
  unbounded.mask.right = 1 << 20;
  EXPECT_EQ(chosen(unbounded), kPrefill);
  // The choice for an entry of a batch is that for the entry alone.
  options_.batch_invariant = true;
  EXPECT_EQ(chosen(windowed(8, 64, 127)), chosen(windowed(1, 64, 127)));

  options_.variant = "cuda.sm90.packed";
  const auto tile = [&](const Problem& problem) {
    const Result<Plan> result = plan(problem, facts_, options_);
    return result.ok() ? std::pair{result->tile_q, result->tile_kv} : std::pair{0, 0};
  };
  // Of sequences too, whatever else is in the batch.
  for (const std::int64_t batch : {1, 64})
    EXPECT_EQ(tile(windowed(batch, 64, 127)), std::pair(192, 64)) << batch;
  options_.batch_invariant = false;
  EXPECT_EQ(tile(windowed(1, 64, 127)).first, 128);
  // With sinks in every mask; chunks are no shorter than a tile; pages keep larger blocks.
  Problem sinks = make_problem(4, 32, 8, 512, 4096, 128, DType::bf16);
  sinks.sinks = true;
  EXPECT_EQ(tile(sinks), std::pair(192, 64));
  sinks.mask.right = 0;
  sinks.chunk = 150;
  EXPECT_EQ(tile(sinks), std::pair(128, 128));
  sinks.chunk = 192;
  EXPECT_EQ(tile(sinks), std::pair(192, 64));
  sinks.sequences.used_kv = true;
  sinks.pages = {.size = 64, .count = 300, .row_stride = 64};
  EXPECT_EQ(tile(sinks), std::pair(128, 128));
}

// docs/kernels/sm90-packed.md, "Masks by array".
TEST_F(CudaSelection, MasksByArrayTakeTensorCoresWhereTheirTilesAreFull) {
  const auto masked = [](std::int64_t batch, std::int64_t heads, std::int64_t heads_kv,
                         std::int64_t rows, std::int64_t keys, std::int64_t dim, MaskKind kind) {
    Problem p = make_problem(batch, heads, heads_kv, rows, keys, dim, DType::bf16);
    p.array_mask = {.kind = kind, .dtype = DType::bf16, .stride = {rows * keys, 0, keys, 1}};
    return p;
  };
  const auto chosen = [&](const Problem& problem) {
    return explain(problem, facts_, options_).chosen;
  };
  const std::string packed = "cuda.sm90.packed", serving = "cuda.sm80.serving";
  EXPECT_EQ(chosen(masked(8, 16, 16, 1024, 1024, 64, MaskKind::boolean)), packed);
  EXPECT_EQ(chosen(masked(4, 16, 16, 2048, 2048, 128, MaskKind::additive)), packed);
  EXPECT_EQ(chosen(masked(1, 32, 8, 16, 4096, 128, MaskKind::boolean)), packed);
  EXPECT_EQ(chosen(masked(16, 32, 8, 1, 2048, 128, MaskKind::boolean)), kDecode);
  EXPECT_EQ(chosen(masked(16, 8, 8, 16, 2048, 64, MaskKind::additive)), kDecode);
  EXPECT_EQ(chosen(masked(16, 8, 8, 32, 2048, 64, MaskKind::additive)), packed);
  EXPECT_EQ(chosen(masked(16, 32, 8, 16, 2048, 128, MaskKind::boolean)), serving);
  EXPECT_EQ(chosen(masked(64, 12, 12, 197, 197, 64, MaskKind::additive)), packed);
  EXPECT_EQ(chosen(masked(256, 8, 8, 49, 49, 32, MaskKind::additive)), packed);
  // What it does not take.
  EXPECT_EQ(chosen(masked(4, 16, 16, 2048, 2048, 256, MaskKind::boolean)), serving);
  Problem wide = masked(4, 16, 16, 2048, 2048, 128, MaskKind::additive);
  wide.array_mask.dtype = DType::f32;
  EXPECT_EQ(chosen(wide), serving);
  EXPECT_NE(answer(wide, packed).reason.find("an array mask of fp32"), std::string::npos);
  Problem one = masked(4, 16, 16, 2048, 2048, 128, MaskKind::boolean);
  one.array_mask.stride = {2048, 0, 1, 0};
  EXPECT_EQ(chosen(one), serving);
  // Each kind has a build for D 64 and one for 128, with the features of serving.
  options_.variant = packed;
  for (const auto& [problem, name] :
       {std::pair{masked(8, 16, 16, 1024, 1024, 40, MaskKind::boolean),
                  "Masked<__nv_bfloat16, 0, 1>"},
        {masked(8, 16, 16, 1024, 1024, 128, MaskKind::additive), "Masked<__nv_bfloat16, 1, 2>"}}) {
    const Result<Plan> result = plan(problem, facts_, options_);
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_NE(result->kernel.find(name), std::string::npos) << result->kernel;
    EXPECT_EQ(std::pair(result->tile_q, result->tile_kv), std::pair(192, 64));
    EXPECT_LE(result->shared_bytes, facts_.shared_per_block);
  }
}

TEST_F(CudaSelection, WhereSmallIsSlowerItCanStillBeAskedFor) {
  const Problem problem = make_problem(8, 16, 16, 64, 64, 128, DType::f16);
  const Candidate small = answer(problem, kSmall);
  EXPECT_TRUE(small.accepted);
  EXPECT_NE(small.reason.find("behind cuda.sm90.prefill"), std::string::npos) << small.reason;
  options_.variant = kSmall;
  EXPECT_TRUE(plan(problem, facts_, options_).ok());
}

// It names kernels that may take the problem, and counts parts as people do.
TEST_F(CudaSelection, DecodeSaysWhatItWouldDoAndWhoIsBeforeIt) {
  Problem p = make_problem(1, 32, 8, 64, 128, 128, DType::bf16);
  EXPECT_EQ(answer(p, kDecode).reason,
            "seq_q 64 times 4 query heads to a KV head makes 256 rows; takes up to 64: leave the "
            "choice of the variant to the library, which has others for more");
  p = make_problem(1, 8, 8, 1, 128, 64, DType::f16);
  const std::string alone = answer(p, kDecode).reason;
  EXPECT_EQ(alone.find("the keys in one part: its block writes the output"), 0u) << alone;
  EXPECT_NE(alone.find("behind cuda.sm90.prefill and cuda.sm90.small"), std::string::npos) << alone;
  p = make_problem(8, 16, 2, 4, 128, 64, DType::bf16);
  p.sequences.used_kv = true;
  const std::string lengths = answer(p, kDecode).reason;
  EXPECT_EQ(lengths.find("cuda.sm90.prefill"), std::string::npos) << lengths;
  EXPECT_NE(lengths.find("behind cuda.sm90.packed"), std::string::npos) << lengths;
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
      EXPECT_EQ(result->grid[0], ceil_div(300, result->tile_q) * 2 * 4);
    }
  }
}

TEST_F(CudaSelection, MmaTakesTheTallTileWhenItFillsTheDevice) {
  options_.variant = kMma;
  const auto rows = [&](std::int64_t batch, Mask mask, std::int64_t head_dim) {
    Problem problem = make_problem(batch, 8, 8, 2048, 2048, head_dim, DType::f16);
    problem.mask = mask;
    return plan(problem, facts_, options_)->tile_q;
  };
  const Mask causal = Mask::causal(Alignment::top_left);
  EXPECT_EQ(rows(1, Mask::none(), 64), 64);
  EXPECT_EQ(rows(2, Mask::none(), 64), 128);
  EXPECT_EQ(rows(2, causal, 64), 64);
  EXPECT_EQ(rows(4, causal, 64), 128);
  // Pairs are as fast as tall tiles up to four of them a multiprocessor.
  EXPECT_EQ(rows(2, Mask::none(), 128), 128);
  EXPECT_EQ(rows(4, causal, 128), 64);
  EXPECT_EQ(rows(5, causal, 128), 128);
}

// Tiles of 64 rows are for two blocks a multiprocessor; where one has no room for them, 8 warps share
// 128 rows, of fewer keys if need be.
TEST_F(CudaSelection, MmaFillsAMultiprocessorWithWhatItHasRoomFor) {
  options_.variant = kMma;
  const auto tile = [&](const char* model, std::int64_t head_dim) {
    const Problem problem = make_problem(1, 8, 8, 2048, 2048, head_dim, DType::f16);
    const Plan found = *plan(problem, *model_facts(model), options_);
    return std::tuple(found.tile_q, found.tile_kv, found.block[0]);
  };
  for (const std::int64_t head_dim : {136, 160, 192, 256})
    EXPECT_EQ(tile("h200", head_dim), std::tuple(64, 64, 128)) << head_dim;
  EXPECT_EQ(tile("a100", 160), std::tuple(64, 64, 128));
  EXPECT_EQ(tile("a100", 192), std::tuple(128, 64, 256));
  EXPECT_EQ(tile("a100", 256), std::tuple(128, 64, 256));
  for (const std::int64_t head_dim : {136, 160, 192})
    EXPECT_EQ(tile("l4", head_dim), std::tuple(128, 32, 256)) << head_dim;
  EXPECT_EQ(tile("l4", 256), std::tuple(64, 32, 128));
}

// ---- batch_invariant: whatever the problem and the device, B decides nothing ----

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool one_in(std::int64_t n) { return between(1, n) == 1; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[between(0, static_cast<std::int64_t>(values.size()) - 1)];
  }

 private:
  std::mt19937_64 engine_;
};

DeviceFacts random_facts(Random& random) {
  DeviceFacts facts = *model_facts(random.of({"h200", "h100", "a100", "l4"}));
  facts.multiprocessors = static_cast<int>(random.of<std::int64_t>(
      {facts.multiprocessors, random.between(1, 200), random.between(100, 150)}));
  facts.l2_bytes = random.between(1, 100) << 20;
  if (random.one_in(6)) facts.shared_per_block = random.of<std::int64_t>({99, 163, 227}) * 1024;
  return facts;
}

Layout random_layout(Random& random, std::int64_t heads, std::int64_t seq, std::int64_t dim,
                     bool may_broadcast) {
  Layout layout = dense_layout(random.of({Order::bhsd, Order::bshd}), 2, heads, seq, dim);
  // What TMA takes in every respect but one, mostly the batch stride.
  if (random.one_in(2)) layout.stride[0] += random.of<std::int64_t>({1, 2, 4, 8, 16, 7});
  if (random.one_in(12)) {
    layout.stride[2] += random.of<std::int64_t>({1, 8});
    layout.stride[1] = layout.stride[2] * seq;
    layout.stride[0] = layout.stride[1] * heads + random.of<std::int64_t>({0, 1, 8});
  }
  if (random.one_in(12)) layout.alignment = random.of({2, 4, 8, 16, 32});
  if (random.one_in(30)) layout.stride[0] = (std::int64_t{1} << 39) + 8;
  if (may_broadcast && random.one_in(10)) layout.stride[0] = 0;
  if (may_broadcast && random.one_in(10)) layout.stride[1] = 0;
  return layout;
}

Problem random_problem(Random& random) {
  const std::int64_t heads_kv = random.of<std::int64_t>({1, 1, 2, 8});
  const std::int64_t heads_q = heads_kv * random.of<std::int64_t>({1, 1, 2, 4, 8});
  const auto length = [&] {
    return random.of<std::int64_t>(
        {random.between(1, 130), random.between(1, 3000), 64, 128, 512, 1024, 2048, 8192, 100000});
  };
  const std::int64_t seq_q = length(), seq_kv = length();
  const std::int64_t dim = random.of<std::int64_t>({64, 64, 128, 8 * random.between(1, 32)});
  Problem p =
      make_problem(1, heads_q, heads_kv, seq_q, seq_kv, dim, random.of({DType::f16, DType::bf16}));
  p.q = random_layout(random, heads_q, seq_q, dim, false);
  p.k = random_layout(random, heads_kv, seq_kv, dim, true);
  p.v = random_layout(random, heads_kv, seq_kv, dim, true);
  p.o = random_layout(random, heads_q, seq_q, dim, false);
  if (random.one_in(4)) p.out_dtype = random.of({DType::f32, DType::f16, DType::bf16});
  for (Layout* layout : {&p.q, &p.k, &p.v, &p.o})
    layout->alignment = std::max(layout->alignment, 4);
  if (random.one_in(3))
    p.mask = Mask::causal(random.of({Alignment::top_left, Alignment::bottom_right}));
  if (random.one_in(5))
    p.mask = Mask::window(random.between(0, 600), random.between(0, 100), Alignment::bottom_right);
  if (random.one_in(6)) p.softcap = 30.0f;
  if (random.one_in(8)) p.scale = random.of({-1.0f, 0.0f, 1e31f});
  p.lse = random.one_in(2);
  return p;
}

constexpr const char* kTooMany = "refused: more tiles than a launch can count";

// What may decide a row's bits. decode merges parts in a cluster or by a second kernel with the same
// bits (decode/kernel_test.cpp).
std::string outline(const Problem& problem, const DeviceFacts& facts, const Options& options) {
  const Result<Plan> result = plan(problem, facts, options);
  // The text names the batch.
  if (!result)
    return result.status().message().find("split the batch") == std::string::npos ? "refused"
                                                                                  : kTooMany;
  return result->variant + " " + result->kernel + " " + std::to_string(result->tile_q) + "x" +
         std::to_string(result->tile_kv) + " splits " + std::to_string(result->splits) +
         (result->variant == kDecode ? "" : " cluster " + std::to_string(result->cluster[0])) +
         " threads " + std::to_string(result->block[0]);
}

TEST_F(CudaSelection, WithBatchInvariantNoPlanDependsOnTheBatch) {
  Random random(20260101);
  int dependent = 0;
  for (int n = 0; n < 4000; ++n) {
    const DeviceFacts facts = random_facts(random);
    Problem problem = random_problem(random);
    options_.variant = random.one_in(4) ? random.of({kSmall, kMma, kPrefill, kPacked}) : "";
    std::string alone, alone_otherwise;
    bool differs = false;
    for (const std::int64_t batch :
         {std::int64_t{1}, std::int64_t{2}, random.between(3, 40), std::int64_t{65535},
          std::int64_t{65536}, std::int64_t{100000}, random.between(1, 20'000'000)}) {
      problem.batch = batch;
      if (!check(problem)) continue;
      options_.batch_invariant = true;
      const std::string now = outline(problem, facts, options_);
      if (batch == 1) alone = now;
      // A refusal is no other result.
      if (now != kTooMany) {
        ASSERT_EQ(now, alone) << to_string(problem) << " on " << facts.multiprocessors
                              << " SMs, batch strides " << problem.q.stride[0] << " "
                              << problem.k.stride[0] << " " << problem.v.stride[0] << " "
                              << problem.o.stride[0];
      }
      options_.batch_invariant = false;
      const std::string otherwise = outline(problem, facts, options_);
      if (batch == 1) alone_otherwise = otherwise;
      differs = differs || otherwise != alone_otherwise;
    }
    dependent += differs;
  }
  // Otherwise the loop above would have shown nothing.
  EXPECT_GT(dependent, 1000);
}

TEST_F(CudaSelection, ABatchStrideIsLookedAtForOneEntryOnlyWhenTheBatchMayNotMatter) {
  Problem problem = make_problem(1, 8, 8, 256, 256, 64, DType::f16);
  const auto chosen = [&](bool batch_invariant) {
    options_.batch_invariant = batch_invariant;
    return explain(problem, facts_, options_).chosen;
  };
  EXPECT_EQ(chosen(true), kSmall);
  problem.k.stride[0] += 1;
  EXPECT_EQ(chosen(false), kSmall);
  EXPECT_EQ(chosen(true), kMma);
  // Nothing is said of a batch: as a dense one.
  problem.k.stride[0] = 0;
  EXPECT_EQ(chosen(true), kSmall);
  problem = make_problem(1, 8, 8, 2048, 2048, 64, DType::f16);
  EXPECT_EQ(chosen(true), kPrefill);
  problem.o.stride[0] += 4;
  EXPECT_EQ(chosen(false), kPrefill);
  EXPECT_EQ(chosen(true), kPrefill);
  options_.variant = kPrefill;
  options_.batch_invariant = false;
  const Result<Plan> plain = plan(problem, facts_, options_);
  options_.batch_invariant = true;
  const Result<Plan> general = plan(problem, facts_, options_);
  problem.batch = 2;
  const Result<Plan> two = plan(problem, facts_, options_);
  ASSERT_TRUE(plain.ok() && general.ok() && two.ok());
  EXPECT_NE(plain->kernel, general->kernel);
  EXPECT_EQ(general->kernel, two->kernel);
}

TEST_F(CudaSelection, KeysThatAreAllOneRowAreRefusedByTheKernelsThatCopyRows) {
  Problem problem = make_problem(4, 8, 8, 512, 512, 128, DType::f16);
  problem.k.stride[2] = 0;
  options_.batch_invariant = true;
  options_.variant = kPacked;
  const Result<Plan> refused = plan(problem, facts_, options_);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("K"), std::string::npos);
}

TEST_F(CudaSelection, SmallKeepsItsPlaceInLargeBatches) {
  options_.batch_invariant = true;
  const Problem problem = make_problem(65536, 1, 1, 16, 16, 64, DType::f16);
  EXPECT_EQ(explain(problem, facts_, options_).chosen, kSmall);
  // One launch counts so many entries; the rest follow in further ones.
  EXPECT_EQ(plan(problem, facts_, options_)->grid[2], 65535);
}

}  // namespace
}  // namespace greenfast
