// The oracle for timed calls, against outputs that are right and that are not.
#include "workbench/fast/timed_judge.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "workbench/green/validate.hpp"
#include "workbench/reference/oracle.hpp"

namespace greenfast::workbench::test {
namespace {

class TimedJudgeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    test.name = "tiny";
    test.problem = make_problem(1, 2, 2, 64, 80, 32, DType::f32);
    test.problem.lse = true;
    inputs = generate(test);
    std::vector<std::int64_t> rows(128);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i);
    const Reference reference = compute_reference(test, inputs, rows);
    for (const double o : reference.o) right.push_back(static_cast<float>(o));
    for (const double lse : reference.lse) right.push_back(static_cast<float>(lse));
  }
  std::optional<std::string> ask(const Judge& judge, const std::vector<float>& output,
                                 std::uint64_t draw = 1) {
    const auto* bytes = reinterpret_cast<const std::byte*>(output.data());
    return judge({.content = test,
                  .inputs = inputs,
                  .output = {bytes, output.size() * sizeof(float)},
                  .draw = draw,
                  .timed = true});
  }
  Case test;
  Inputs inputs;
  std::vector<float> right;  // O, then LSE
  Policy policy = *load_policy("strict");
};

TEST_F(TimedJudgeTest, ARightOutputIsRightWhicheverRowsAreDrawn) {
  const Judge judge = timed_judge(policy);
  for (std::uint64_t draw = 1; draw < 20; ++draw) EXPECT_EQ(ask(judge, right, draw), std::nullopt);
}

TEST_F(TimedJudgeTest, AnAnswerToOtherInputsIsWrongWhicheverRowsAreDrawn) {
  const Judge judge = timed_judge(policy);
  inputs.k[3] ^= std::byte{0x80};  // one sign in K: a softmax that was kept
  for (std::size_t i = 7; i < inputs.k.size(); i += 8) inputs.k[i] ^= std::byte{0x80};
  for (std::uint64_t draw = 1; draw < 20; ++draw) EXPECT_NE(ask(judge, right, draw), std::nullopt);
}

TEST_F(TimedJudgeTest, OneRowOfEightIsFoundWithinSomeSamples) {
  const Judge judge = timed_judge(policy);
  std::vector<float> wrong = right;
  for (std::size_t row = 7; row < 128; row += 8)
    for (std::size_t d = 0; d < 32; ++d) wrong[row * 32 + d] = wrong[(row - 1) * 32 + d];
  int found = 0;
  for (std::uint64_t draw = 1; draw <= 20; ++draw) found += ask(judge, wrong, draw) ? 1 : 0;
  EXPECT_GE(found, 10) << "16 rows each: seven of eight samples";
}

TEST_F(TimedJudgeTest, NaNAnywhereAndAWrongLseAreSeen) {
  const Judge judge = timed_judge(policy);
  std::vector<float> hole = right;
  hole[1717] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(ask(judge, hole), std::nullopt) << "of all rows, not of those drawn alone";
  std::vector<float> shifted = right;
  for (std::size_t i = 128 * 32; i < shifted.size(); ++i) shifted[i] += 0.1f;
  const auto why = ask(judge, shifted);
  ASSERT_TRUE(why);
  EXPECT_NE(why->find("lse"), std::string::npos) << *why;
}

TEST_F(TimedJudgeTest, LimitsOfGreenAreTakenAsTheyAre) {
  EXPECT_NE(ask(timed_judge(policy, {{"max_row", 1e-9}}), right), std::nullopt);
  Limits limits{{"max_row", 1.0}};
  keep_larger(limits, {{"max_row", 0.5}, {"lse", 2.0}});
  EXPECT_EQ(limits, (Limits{{"max_row", 1.0}, {"lse", 2.0}}));
}

}  // namespace
}  // namespace greenfast::workbench::test
