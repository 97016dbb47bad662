// Which rows of a case the oracle computes: all where they are cheap, else those where kernels break.
#include "workbench/cases/choose_rows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace greenfast::workbench::test {
namespace {

TEST(ChooseRows, AllThatExistWhereTheBudgetSuffices) {
  Case c;
  c.problem = make_problem(2, 3, 3, 5, 7, 8, DType::f16);
  std::vector<std::int64_t> all(2 * 3 * 5);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(choose_rows(c, 1e18), all);
  // Rows behind a sequence's end do not exist.
  c.problem.sequences.used_q = true;
  const Inputs inputs = generate(c);
  const Placement placement(c.problem, index_arrays(inputs));
  const auto rows = choose_rows(c, placement, 1e18);
  EXPECT_EQ(static_cast<std::int64_t>(rows.size()), placement.existing_rows());
  EXPECT_TRUE(std::all_of(rows.begin(), rows.end(),
                          [&](std::int64_t row) { return placement.exists(row); }));
}

TEST(ChooseRows, ABudgetKeepsTheRowsWhereKernelsBreak) {
  Case c;
  c.problem = make_problem(2, 8, 8, 4096 + 37, 4096, 64, DType::f16);
  const double all = 4.0 * 64 * 16 * 4133 * 4096;
  const auto rows = choose_rows(c, all / 50);
  const std::int64_t total = 16 * 4133;
  EXPECT_GT(static_cast<std::int64_t>(rows.size()), total / 60);
  EXPECT_LT(static_cast<std::int64_t>(rows.size()), total / 40);
  EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
  std::set<std::int64_t> heads, modulo;
  for (const auto row : rows) {
    ASSERT_GE(row, 0);
    ASSERT_LT(row, total);
    heads.insert(row / 4133);
    modulo.insert(row % 4133 % 64);
  }
  EXPECT_EQ(heads.size(), 16u);
  EXPECT_EQ(modulo.size(), 64u) << "every position within a tile";
  for (const std::int64_t head : {0, 15})
    for (const std::int64_t i : {std::int64_t{0}, std::int64_t{4132}, std::int64_t{4096}})
      EXPECT_TRUE(std::binary_search(rows.begin(), rows.end(), head * 4133 + i))
          << head << ' ' << i;
  Case other = c;
  other.seed = 1;
  EXPECT_NE(choose_rows(other, all / 50), rows) << "another seed checks other rows";
  EXPECT_EQ(choose_rows(c, all / 50), rows);
}

TEST(ChooseRows, AFewRowsOfALongBatchHoldEverySequencesEnds) {
  const auto problems =
      parse_shapes("32x8/2x64/4096x64 packed-q pages=16 used-kv chunk=512 causal", {});
  ASSERT_TRUE(problems.ok()) << problems.status().message();
  Case c;
  c.problem = problems->front().problem;
  const Inputs inputs = generate(c);
  const Placement placement(c.problem, index_arrays(inputs));
  const auto rows = choose_rows(c, 1e7);
  const std::set<std::int64_t> chosen(rows.begin(), rows.end());
  EXPECT_LT(chosen.size(), 2000u);
  for (std::int64_t b = 0; b < c.problem.batch; ++b) {
    const Sequence& own = placement.sequence(b);
    if (own.rows == 0) continue;
    const std::int64_t head = (b * c.problem.heads_q + b % c.problem.heads_q) * c.problem.seq_q;
    EXPECT_TRUE(chosen.contains(head)) << b;
    EXPECT_TRUE(chosen.contains(head + own.rows - 1)) << b;
  }
  for (const std::int64_t row : rows) EXPECT_TRUE(placement.exists(row)) << row;
}

}  // namespace
}  // namespace greenfast::workbench::test
