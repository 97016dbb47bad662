// Tables for people: who is RED says why, who was skipped is no row of figures.
#include "workbench/record/run_table.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace greenfast::workbench::test {
namespace {

RunRow row(const char* variant, const char* problem, Verdict verdict, const char* reason = "") {
  RunRow row;
  row.variant = variant;
  row.problem = problem;
  row.verdict = verdict;
  row.reason = reason;
  row.cases = 4;
  return row;
}

TEST(RunTable, VerdictsReasonsAndWhatWasSkipped) {
  RunPlan plan;
  plan.fast = false;
  RunResult result;
  result.rows = {row("cpu.flash", "small", Verdict::green),
                 row("cpu.wrong", "small", Verdict::red, "max_err 3 > 0.1"),
                 row("cuda.x", "small", Verdict::skipped, "no GPU"),
                 row("cuda.x", "long", Verdict::skipped, "no GPU")};
  result.rows[0].worst.max_err = std::numeric_limits<double>::quiet_NaN();
  result.rows[0].rows_sampled = 2;
  result.interrupted = true;
  result.failures = {"no memory for a ring"};
  const std::string text = run_table(plan, result, false);
  EXPECT_EQ(text.find("p50"), std::string::npos) << "nothing was timed";
  EXPECT_NE(text.find("GREEN"), std::string::npos);
  EXPECT_NE(text.find("NaN"), std::string::npos);
  EXPECT_NE(text.find("RED cpu.wrong on small: max_err 3 > 0.1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("SKIPPED cuda.x on small, long (no GPU)\n"), std::string::npos) << text;
  EXPECT_NE(text.find("FAILED no memory for a ring\n"), std::string::npos);
  EXPECT_NE(text.find("In 2 of 8 cases the oracle checked a part of the rows"), std::string::npos);
  EXPECT_NE(text.find("Interrupted"), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_NE(run_table(plan, result, true).find('\x1b'), std::string::npos);
}

TEST(RunTable, TimesOfWhoWasTimedAndOfNobodyElse) {
  RunPlan plan;
  RunResult result;
  result.rows = {row("cpu.flash", "small", Verdict::green),
                 row("cpu.wrong", "small", Verdict::red, "wrong")};
  Summary time;
  time.p50 = 2e-6;
  time.p90 = 3e-6;
  result.rows[0].time = time;
  result.rows[0].flops = 1.5e12;
  result.rows[0].times_fastest = 1;
  const std::string text = run_table(plan, result, false);
  for (const char* word : {"p50", "2.000 µs", "1.500", "1.00"})
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
}

TEST(SelftestTable, AMutantThatPassesAndAnHonestKernelThatFailsStandOut) {
  SelftestResult result;
  result.policy = "strict";
  result.rows.resize(3);
  result.rows[0].subject = "mutant.caught";
  result.rows[0].caught = true;
  result.rows[0].metric = "max_err";
  result.rows[1].subject = "mutant.missed";
  result.rows[2].subject = "honest.failed";
  result.rows[2].honest = true;
  result.rows[2].red_cases = 1;
  result.mutants = 2;
  result.mutants_caught = 1;
  result.honest = 1;
  result.quantizer = {{"fp16", 65536, 0, ""}, {"bf16", 65536, 2, "0x1234"}};
  const std::string text = selftest_table(result, false);
  for (const char* words :
       {"GREEN, but wrong", "RED, but honest", "1 of 2 wrong kernels caught",
        "0 of 1 honest ones passed", "65536 exact", "2 of 65536 wrong, first: 0x1234"})
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
}

}  // namespace
}  // namespace greenfast::workbench::test
