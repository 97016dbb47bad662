// Every CPU kernel with every instruction set against an fp64 evaluation.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "subject.hpp"

namespace greenfast {
namespace {

using test::launch;
using test::Subject;
using test::subjects;

/// Runs a case with every subject.
void check_all(test::Case& call) {
  const test::Expected expected(call);
  for (const Subject& subject : subjects()) {
    call.poison_output();
    const Status status = launch(subject, call);
    ASSERT_TRUE(status.ok()) << status.message();
    const DType dtype = call.problem.dtype;
    EXPECT_EQ(expected.compare(call, subject.weight_error(dtype), subject.exp_error(dtype)), "")
        << subject.label << ", " << to_string(call.problem);
  }
}

class RandomProblems : public testing::TestWithParam<std::uint64_t> {};

TEST_P(RandomProblems, AgreeWithFp64) {
  constexpr std::uint64_t kProblems = (GREENFAST_TEST_PERCENT + 1) / 2;
  for (std::uint64_t seed = GetParam() * kProblems; seed < (GetParam() + 1) * kProblems; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Problem problem = test::random_problem(seed);
    const Status legal = check(problem);
    ASSERT_TRUE(legal.ok()) << legal.message();
    test::Case call(problem, seed);
    check_all(call);
    if (HasFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(CpuKernels, RandomProblems, testing::Range<std::uint64_t>(0, 10));

TEST(CpuKernels, KeepLargeLogitsApart) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Problem problem = make_problem(1, 2, 2, 70, 400, 64, dtype);
    problem.lse = true;
    test::Case call(problem, 7, 6.0);
    check_all(call);
  }
}

TEST(CpuKernels, ReachLongRows) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3}) {
    for (const std::int64_t seq_q : {1, 5}) {
      Problem problem = make_problem(1, 4, 1, seq_q, 5003, 128, dtype);
      problem.lse = true;
      problem.mask = Mask::causal(Alignment::bottom_right);
      test::Case call(problem, 11);
      check_all(call);
    }
  }
}

TEST(CpuKernels, TakeEveryHeadDim) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::e4m3}) {
    for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
      Problem problem = make_problem(1, 1, 1, 67, 101, head_dim, dtype);
      problem.mask = Mask::causal(Alignment::bottom_right);
      test::Case call(problem, static_cast<std::uint64_t>(head_dim));
      check_all(call);
    }
  }
}

TEST(CpuKernels, GiveTheSameBitsWhateverTheSchedule) {
  for (const Subject& subject : subjects()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Problem problem = make_problem(2, 3, 3, 200, 333, 64, dtype);
      problem.mask = Mask::causal(Alignment::bottom_right);
      test::Case call(problem, 5);
      ASSERT_TRUE(launch(subject, call, 4).ok());
      const auto first = call.o;
      for (int repeat = 0; repeat < 5; ++repeat) {
        call.poison_output();
        ASSERT_TRUE(launch(subject, call, 4).ok());
        EXPECT_EQ(first, call.o) << subject.label;
      }
    }
  }
}

// One item of a batch alone on one thread, against the whole batch on many.
TEST(CpuKernels, AreBatchInvariantWhenAsked) {
  for (const Subject& subject : subjects()) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3}) {
      for (const std::int64_t seq_q : {1, 17}) {
        Problem all = make_problem(3, 4, 2, seq_q, 1500, 64, dtype);
        all.mask = Mask::causal(Alignment::bottom_right);
        const test::Case batch(all, 3);
        ASSERT_TRUE(launch(subject, batch, 4, true).ok());

        Problem one = all;
        one.batch = 1;
        test::Case alone(one, 99);
        const std::size_t in = static_cast<std::size_t>(all.q.stride[0]) * size_of(dtype);
        const std::size_t kv = static_cast<std::size_t>(all.k.stride[0]) * size_of(dtype);
        const auto out = all.o.stride[0] * static_cast<std::int64_t>(size_of(all.out_dtype));
        constexpr int kItem = 2;
        alone.tensors.q = batch.q.data() + kItem * in;
        alone.tensors.k = batch.k.data() + kItem * kv;
        alone.tensors.v = batch.v.data() + kItem * kv;
        ASSERT_TRUE(launch(subject, alone, 1, true).ok());
        const std::vector<std::byte> expected(batch.o.begin() + kItem * out,
                                              batch.o.begin() + (kItem + 1) * out);
        EXPECT_EQ(alone.o, expected) << subject.label << ", " << to_string(all);
      }
    }
  }
}

TEST(CpuKernels, SpreadANanToEveryRowThatSeesIt) {
  for (const Subject& subject : subjects()) {
    Problem problem = make_problem(1, 1, 1, 40, 40, 32, DType::f32);
    problem.mask = Mask::window(3, 0, Alignment::top_left);
    test::Case call(problem, 1);
    const float nan = std::nanf("");
    constexpr int kKey = 20, kColumn = 7;
    std::memcpy(call.v.data() + (kKey * 32 + kColumn) * sizeof(float), &nan, sizeof nan);
    ASSERT_TRUE(launch(subject, call).ok());
    for (int i = kKey; i <= kKey + 3; ++i) {
      EXPECT_TRUE(std::isnan(test::decode(
          DType::f32, call.o.data() + static_cast<std::size_t>(i * 32 + kColumn) * sizeof(float))))
          << subject.label << " row " << i;
    }
  }
}

}  // namespace
}  // namespace greenfast
