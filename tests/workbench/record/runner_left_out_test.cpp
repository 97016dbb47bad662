// What a run leaves out, and in which type it runs what: decided without a device.
#include <gtest/gtest.h>

#include <map>

#include "workbench/record/run_table.hpp"
#include "workbench/record/runner.hpp"

namespace greenfast::workbench::test {
namespace {

RunRow skipped(const char* variant, const char* problem, const char* reason) {
  RunRow row;
  row.variant = variant;
  row.problem = problem;
  row.reason = reason;
  return row;
}

TEST(LeftOutRows, ShareALineWhereTheyShareAReason) {
  std::vector<RunRow> rows;
  // As on a GPU: many rungs for two reasons, on two shapes.
  for (const char* problem : {"small", "mission"})
    for (const char* variant : {"cuda.a", "cuda.b", "cuda.c", "cuda.d"})
      rows.push_back(skipped(variant, problem,
                             std::string(variant) == "cuda.d" ? "needs sm_100" : "takes e4m3"));
  rows.push_back(skipped("cuda.a", "long", "takes up to 4096 keys"));
  rows.emplace_back().verdict = Verdict::green;
  const std::vector<LeftOut> out = left_out(rows);
  ASSERT_EQ(out.size(), 3u);
  EXPECT_EQ(out[0].reason, "takes e4m3");
  EXPECT_EQ(out[0].variants, (std::vector<std::string>{"cuda.a", "cuda.b", "cuda.c"}));
  EXPECT_EQ(out[0].problems, (std::vector<std::string>{"small", "mission"}));
  EXPECT_EQ(out[1].variants, std::vector<std::string>{"cuda.d"});
  EXPECT_EQ(out[2].problems, std::vector<std::string>{"long"});

  RunResult result;
  result.rows = rows;
  const std::string text = run_table(RunPlan(), result, false);
  EXPECT_NE(text.find("SKIPPED cuda.a, cuda.b, cuda.c on small, mission (takes e4m3)\n"),
            std::string::npos)
      << text;
}

TEST(Types, EachVariantRunsInTheFirstThatItTakes) {
  const std::vector<DType> types = {DType::f16, DType::bf16, DType::e4m3};
  const std::map<std::string, std::vector<DType>> taken = {{"prefill", {DType::f16, DType::bf16}},
                                                           {"bf16 alone", {DType::bf16}},
                                                           {"rung", {DType::e4m3}},
                                                           {"nothing", {}}};
  std::vector<std::string> ids;
  for (const auto& [id, unused] : taken) ids.push_back(id);
  const auto choices = choose_types(types, ids, [&](const std::string& id, DType dtype) {
    const auto& its = taken.at(id);
    return std::find(its.begin(), its.end(), dtype) != its.end();
  });
  ASSERT_EQ(choices.size(), 3u);
  EXPECT_EQ(choices[0].dtype, DType::f16);
  EXPECT_EQ(choices[0].variants, (std::vector<std::string>{"nothing", "prefill"}))
      << "who takes none is named where most are";
  EXPECT_EQ(choices[1].variants, std::vector<std::string>{"bf16 alone"});
  EXPECT_EQ(choices[2].variants, std::vector<std::string>{"rung"});
  EXPECT_EQ(choose_types(types, std::vector<std::string>{"prefill"},
                         [](const auto&, DType dtype) { return dtype == DType::f16; })
                .size(),
            1u);
}

}  // namespace
}  // namespace greenfast::workbench::test
