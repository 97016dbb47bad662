// Every CPU kernel with every instruction set against an fp64 evaluation.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "backends/cpu/config.hpp"
#include "backends/cpu/pool.hpp"
#include "case.hpp"

namespace greenfast::kernels {
extern const core::Kernel cpu_naive;
extern const core::Kernel cpu_flash;
}  // namespace greenfast::kernels

namespace greenfast {
namespace {

struct Subject {
  const core::Kernel* kernel;
  std::string isa;
  std::string label;
};

std::vector<Subject> subjects() {
  std::vector<Subject> all{{&kernels::cpu_naive, "portable", "naive"}};
  for (int isa = 0; isa <= static_cast<int>(cpu::detect_isa()); ++isa) {
    const std::string name{cpu::name_of(static_cast<cpu::Isa>(isa))};
    all.push_back({&kernels::cpu_flash, name, "flash_" + name});
  }
  return all;
}

// The relative rounding of a softmax weight: bf16 products round it, all others keep fp32.
double weight_epsilon(const Subject& subject, DType dtype) {
  const bool bf16_products = subject.isa == "avx512bf16" && subject.kernel == &kernels::cpu_flash;
  return bf16_products && (dtype == DType::bf16 || dtype == DType::e4m3) ? std::ldexp(1.0, -8)
                                                                         : 0.0;
}

class Kernels : public testing::TestWithParam<Subject> {
 protected:
  Status launch(const test::Case& call, int threads = 3, bool batch_invariant = false) {
    cpu::ThreadPool pool({.threads = threads, .cpus = {}, .pin = false});
    DeviceFacts facts;
    facts.multiprocessors = threads;
    facts.isa = GetParam().isa;
    facts.l2_bytes = 1 << 20;
    core::Context context;
    context.facts = &facts;
    context.choice.batch_invariant = batch_invariant;
    context.executor = &pool;
    return GetParam().kernel->launch(call.problem, call.tensors, context);
  }
  std::string verdict(const test::Case& call) {
    const Status status = launch(call);
    if (!status.ok()) return status.message();
    return test::compare(call, weight_epsilon(GetParam(), call.problem.dtype));
  }
};

TEST_P(Kernels, AgreeWithFp64OnRandomProblems) {
  constexpr std::uint64_t kProblems = 3 * GREENFAST_TEST_PERCENT;
  for (std::uint64_t seed = 0; seed < kProblems; ++seed) {
    const Problem problem = test::random_problem(seed);
    const Status legal = check(problem);
    ASSERT_TRUE(legal.ok()) << legal.message();
    const test::Case call(problem, seed);
    ASSERT_EQ(verdict(call), "") << "seed " << seed << ": " << to_string(problem);
  }
}

TEST_P(Kernels, KeepLargeLogitsApart) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Problem problem = make_problem(1, 2, 2, 70, 400, 64, dtype);
    problem.lse = true;
    const test::Case call(problem, 7, 6.0);
    EXPECT_EQ(verdict(call), "") << to_string(problem);
  }
}

TEST_P(Kernels, ReachLongRows) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3}) {
    for (const std::int64_t seq_q : {1, 5}) {
      Problem problem = make_problem(1, 4, 1, seq_q, 5003, 128, dtype);
      problem.lse = true;
      problem.mask = Mask::causal(Alignment::bottom_right);
      const test::Case call(problem, 11);
      EXPECT_EQ(verdict(call), "") << to_string(problem);
    }
  }
}

TEST_P(Kernels, GiveTheSameBitsOnAnyThreads) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Problem problem = make_problem(2, 3, 3, 200, 333, 64, dtype);
    problem.mask = Mask::causal(Alignment::bottom_right);
    test::Case call(problem, 5);
    ASSERT_TRUE(launch(call, 4).ok());
    const auto first = call.o;
    for (int repeat = 0; repeat < 5; ++repeat) {
      call.poison_output();
      ASSERT_TRUE(launch(call, 4).ok());
      EXPECT_EQ(first, call.o);
    }
  }
}

// One row of a batch alone, with one thread, against the whole batch with many.
TEST_P(Kernels, AreBatchInvariantWhenAsked) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3}) {
    for (const std::int64_t seq_q : {1, 33}) {
      Problem all = make_problem(3, 4, 2, seq_q, 3000, 64, dtype);
      all.mask = Mask::causal(Alignment::bottom_right);
      all.lse = true;
      const test::Case batch(all, 3);
      ASSERT_TRUE(launch(batch, 8, true).ok());

      Problem one = all;
      one.batch = 1;
      test::Case alone(one, 99);
      const std::size_t in = static_cast<std::size_t>(all.q.stride[0]) * size_of(dtype);
      const std::size_t kv = static_cast<std::size_t>(all.k.stride[0]) * size_of(dtype);
      const std::size_t out = static_cast<std::size_t>(all.o.stride[0]) * size_of(all.out_dtype);
      constexpr std::size_t kItem = 2;
      alone.tensors.q = batch.q.data() + kItem * in;
      alone.tensors.k = batch.k.data() + kItem * kv;
      alone.tensors.v = batch.v.data() + kItem * kv;
      ASSERT_TRUE(launch(alone, 1, true).ok());
      const std::vector<std::byte> expected(batch.o.begin() + kItem * out,
                                            batch.o.begin() + (kItem + 1) * out);
      EXPECT_EQ(alone.o, expected) << to_string(all);
    }
  }
}

TEST_P(Kernels, SpreadNanOnlyFromWhatARowSees) {
  Problem problem = make_problem(1, 1, 1, 40, 40, 32, DType::f32);
  problem.mask = Mask::window(3, 0, Alignment::top_left);
  test::Case call(problem, 1);
  const float nan = std::nanf("");
  std::memcpy(call.v.data() + (20 * 32 + 7) * sizeof(float), &nan, sizeof nan);
  ASSERT_TRUE(launch(call).ok());
  for (std::int64_t i = 20; i < 24; ++i) {
    EXPECT_TRUE(std::isnan(test::decode(DType::f32, call.o.data() + (i * 32 + 7) * 4))) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Kernels, testing::ValuesIn(subjects()),
                         [](const auto& row) { return row.param.label; });

}  // namespace
}  // namespace greenfast
