// What serving asks of the CPU kernels, on every instruction set, against fp64.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/sequences.hpp"
#include "scene.hpp"
#include "subject.hpp"

namespace greenfast {
namespace {

using test::Keep;
using test::Scene;
using test::Script;
using test::Subject;
using test::subjects;

Status launch(const Subject& subject, const Scene& scene, int threads = 3,
              bool batch_invariant = false, int max_splits = 0) {
  cpu::ThreadPool pool({.threads = threads, .cpus = {}, .pin = false});
  DeviceFacts facts;
  facts.multiprocessors = threads;
  facts.isa = subject.isa;
  facts.l2_bytes = 1 << 20;
  core::Context context;
  context.facts = &facts;
  context.choice = {.batch_invariant = batch_invariant, .max_splits = max_splits};
  context.executor = &pool;
  return subject.kernel->launch(scene.problem, scene.tensors, context);
}

void check_all(Scene& scene) {
  const Status legal = check(scene.problem);
  ASSERT_TRUE(legal.ok()) << legal.message() << ", " << to_string(scene.problem);
  const Status arrays = core::check_arrays(scene.problem, scene.tensors);
  ASSERT_TRUE(arrays.ok()) << arrays.message() << ", " << to_string(scene.problem);
  for (const Subject& subject : subjects()) {
    scene.poison_output();
    const Status status = launch(subject, scene);
    ASSERT_TRUE(status.ok()) << status.message();
    const DType dtype = scene.problem.dtype;
    EXPECT_EQ(scene.compare(subject.weight_error(dtype), subject.exp_error(dtype)), "")
        << subject.label << ", " << to_string(scene.problem);
  }
}

class RandomScenes : public testing::TestWithParam<std::uint64_t> {};

TEST_P(RandomScenes, AgreeWithFp64) {
  constexpr std::uint64_t kScenes = (GREENFAST_TEST_PERCENT + 3) / 4;
  for (std::uint64_t seed = GetParam() * kScenes; seed < (GetParam() + 1) * kScenes; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Script script = test::random_script(seed);
    if (script.sequences.empty()) continue;  // without an element no kernel is asked
    Scene scene(script);
    if (scene.problem.seq_q == 0 || (script.packed_q && scene.problem.sequences.total_q == 0))
      continue;
    check_all(scene);
    if (HasFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(Serving, RandomScenes, testing::Range<std::uint64_t>(0, 10));

Script ragged(DType dtype, std::uint64_t seed) {
  Script s;
  s.seed = seed;
  s.heads_q = 6;
  s.heads_kv = 2;
  s.head_dim = s.value_dim = 32;
  s.dtype = dtype;
  s.out_dtype = default_out_dtype(dtype);
  s.mask = Mask::causal(Alignment::bottom_right);
  s.sinks = true;
  s.used_kv = s.used_q = true;
  // Few rows of many keys, whose keys are cut; few keys; many rows; nothing.
  s.sequences = {{1, 3200, 0}, {2, 130, 0}, {70, 333, 0}, {0, 50, 0}, {3, 0, 0}, {9, 1700, 0}};
  return s;
}

// A sequence's bits alone, dense, on one thread, against those wherever else it may be kept.
TEST(Serving, ARowHasTheSameBitsWhereverItsKeysAre) {
  const std::vector<Subject> all_subjects = subjects();
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3}) {
    const Script all = ragged(dtype, 5);
    std::vector<std::vector<std::vector<std::byte>>> expected(all_subjects.size());
    for (std::size_t b = 0; b < all.sequences.size(); ++b) {
      Script one = all;
      one.sequences = {all.sequences[b]};
      one.first = b;
      one.used_kv = one.used_q = false;
      Scene scene(one);
      for (std::size_t n = 0; n < all_subjects.size(); ++n) {
        scene.poison_output();
        if (one.sequences[0].seq_q > 0) {
          ASSERT_TRUE(launch(all_subjects[n], scene, 1, true).ok());
        }
        expected[n].push_back(scene.bits_of(0));
      }
    }
    const auto check = [&](const Script& script, int threads, bool invariant) {
      Scene scene(script);
      for (std::size_t n = 0; n < all_subjects.size(); ++n) {
        scene.poison_output();
        ASSERT_TRUE(launch(all_subjects[n], scene, threads, invariant).ok());
        for (std::size_t b = 0; b < all.sequences.size(); ++b)
          EXPECT_EQ(scene.bits_of(b), expected[n][b])
              << all_subjects[n].label << ", sequence " << b << " of " << to_string(scene.problem);
      }
    };
    for (const bool packed_q : {false, true}) {
      Script script = all;
      script.packed_q = packed_q;
      script.looseness = packed_q ? 17 : 0;
      script.rows_between_heads = packed_q;
      for (const Keep keep : {Keep::dense, Keep::indexed, Keep::packed}) {
        script.keep = keep;
        check(script, packed_q ? 1 : 4, true);
      }
      script.keep = Keep::paged;
      for (const std::int64_t page : {1, 4, 16, 64, 128}) {
        script.page = page;
        check(script, 4, page % 3 == 1);
      }
    }
  }
}

// Which of V's dimensions is contiguous says where its elements lie, and nothing else.
TEST(Serving, ATransposedVChangesNoBit) {
  for (const std::int64_t rows : {1, 3, 8, 9, 70}) {
    for (const Keep keep : {Keep::dense, Keep::packed, Keep::paged}) {
      Script script = ragged(DType::e4m3, 21);
      script.sequences = {{rows, 1001, 0}, {rows, 37, 0}, {1, 1, 0}};
      script.keep = keep;
      script.value_dim = 40;
      Scene plain(script);
      script.transposed_v = true;
      Scene turned(script);
      ASSERT_EQ(turned.problem.v.stride[2], 1);
      for (const Subject& subject : subjects()) {
        ASSERT_TRUE(launch(subject, plain).ok());
        ASSERT_TRUE(launch(subject, turned).ok());
        EXPECT_EQ(plain.o, turned.o) << subject.label << ", " << to_string(turned.problem);
        // By bits: rows of nobody are NaN.
        EXPECT_EQ(std::memcmp(plain.lse.data(), turned.lse.data(), 4 * plain.lse.size()), 0)
            << subject.label;
      }
    }
  }
}

TEST(Serving, ChangesNoBitFromCallToCallOrWithThreads) {
  for (const Subject& subject : subjects()) {
    Script script = ragged(DType::bf16, 8);
    script.keep = Keep::paged;
    Scene scene(script);
    ASSERT_TRUE(launch(subject, scene, 1).ok());
    const auto first = scene.o;
    for (const int threads : {1, 2, 3, 7}) {
      scene.poison_output();
      ASSERT_TRUE(launch(subject, scene, threads).ok());
      EXPECT_EQ(first, scene.o) << subject.label << " on " << threads;
    }
  }
}

TEST(Serving, CutsKeysIntoAsManyPartsAsAsked) {
  for (const int most : {0, 1, 2, 3, 100}) {
    for (const std::int64_t keys : {1500, 1537, 9000, 100000}) {
      Script script;
      script.heads_q = 2;
      script.head_dim = script.value_dim = 8;
      script.seed = 3;
      script.used_kv = true;
      script.sequences = {{1, keys, keys / 3}};
      script.kv_start = true;
      Scene scene(script);
      for (const Subject& subject : subjects()) {
        scene.poison_output();
        ASSERT_TRUE(launch(subject, scene, 2, true, most).ok());
        EXPECT_EQ(scene.compare(0.0, 0.0), "") << subject.label << " " << most << " " << keys;
        DeviceFacts facts;
        facts.multiprocessors = 2;
        facts.isa = subject.isa;
        facts.l2_bytes = 1 << 20;
        const Plan plan = subject.kernel->plan(scene.problem, facts,
                                               {.batch_invariant = true, .max_splits = most});
        if (most > 0) {
          EXPECT_LE(plan.splits, most);
        }
        if (most != 1 && keys > 2000 && subject.label != "naive") {
          EXPECT_GT(plan.splits, 1);
        }
      }
    }
  }
}

// The mean of V is what the largest finite negative bias everywhere leaves, not nothing.
TEST(Serving, KeepsRowsWhoseEveryKeyIsFarBelow) {
  for (const Subject& subject : subjects()) {
    Problem p = make_problem(1, 1, 1, 20, 40, 16, DType::f32);
    p.lse = true;
    p.array_mask = {MaskKind::additive, DType::f32, {0, 0, 0, 0}};
    test::Case call(p, 3);
    const float lowest = std::numeric_limits<float>::lowest();
    call.tensors.mask = &lowest;
    ASSERT_TRUE(launch(subject, call).ok());
    for (int d = 0; d < 16; ++d) {
      double mean = 0.0;
      for (std::size_t j = 0; j < 40; ++j)
        mean +=
            test::decode(DType::f32, call.v.data() + (j * 16 + static_cast<std::size_t>(d)) * 4);
      EXPECT_NEAR(test::decode(DType::f32, call.o.data() + static_cast<std::size_t>(d) * 4),
                  mean / 40, 1.0e-5)
          << subject.label;
    }
    EXPECT_EQ(call.lse[0], lowest) << subject.label;
  }
}

TEST(Serving, ASinkFarAboveTakesEverythingAndFarBelowNothing) {
  for (const Subject& subject : subjects()) {
    Script script;
    script.heads_q = 2;
    script.seed = 4;
    script.sinks = true;
    script.sequences = {{3, 70, 0}, {2, 0, 0}};
    script.used_kv = script.used_q = true;
    Scene scene(script);
    scene.sinks = {1.0e30f, -1.0e30f};
    ASSERT_TRUE(launch(subject, scene).ok());
    for (std::int64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(scene.lse[scene.lse_at(0, 0, i)], 1.0e30f) << subject.label;
      EXPECT_EQ(test::decode(DType::f32, scene.o.data() + scene.o_at(0, 0, i) * 4), 0.0);
      EXPECT_LT(std::fabs(scene.lse[scene.lse_at(0, 1, i)]), 100.0f) << subject.label;
      EXPECT_NE(test::decode(DType::f32, scene.o.data() + scene.o_at(0, 1, i) * 4), 0.0);
    }
    EXPECT_EQ(scene.lse[scene.lse_at(1, 0, 1)], 1.0e30f) << subject.label;  // without a key
    EXPECT_EQ(scene.lse[scene.lse_at(1, 1, 1)], -1.0e30f) << subject.label;
  }
}

}  // namespace
}  // namespace greenfast
