// Which instrumented twin is run at which problem, and how twins of other phases share a table.
#include "workbench/fast/phases.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include <greenfast/attention.hpp>

namespace greenfast::workbench::test {
namespace {

PhaseShape shape_of(const std::string& text) {
  PhaseShape shape;
  for (const DType dtype : {DType::e4m3, DType::f16}) {
    ProblemDefaults defaults;
    defaults.dtype = dtype;
    defaults.lse = false;
    auto parsed = parse_shapes(text, defaults);
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    if (parsed.ok()) shape.push_back(std::move(parsed->front()));
  }
  return shape;
}

DeviceFacts h200() {
  const auto facts = model_facts("h200");
  EXPECT_TRUE(facts.ok());
  return facts.ok() ? *facts : DeviceFacts{};
}

TEST(Phases, ATwinRunsOnceAShapeInATypeThatItTakes) {
  const PhaseShape shape = shape_of("mission");
  const auto runs = phase_runs({}, shape, h200());
  ASSERT_TRUE(runs.ok()) << runs.status().message();
  std::set<std::string> twins;
  for (const PhaseRun& run : *runs) {
    EXPECT_TRUE(twins.insert(run.twin).second) << run.twin;
    EXPECT_EQ(run.phases.back(), "epilogue") << run.twin;
    ASSERT_NE(run.problem, nullptr);
    if (run.skipped.empty()) {
      EXPECT_EQ(run.problem->problem.dtype,
                run.rung.starts_with("cuda.v2c.") ? DType::f16 : DType::e4m3)
          << run.twin;
    } else {
      EXPECT_NE(run.skipped.find("in e4m3: "), std::string::npos) << run.skipped;
      EXPECT_NE(run.skipped.find("; in fp16: "), std::string::npos) << run.skipped;
    }
  }
  for (const VariantInfo& variant : variants()) {
    EXPECT_EQ(twins.contains(variant.id), !variant.phases.empty()) << variant.id;
  }
}

TEST(Phases, TheRungsThatWereAskedForAlone) {
  const PhaseShape shape = shape_of("small");
  const auto runs = phase_runs({"cuda.stage_c.stage2"}, shape, h200());
  ASSERT_TRUE(runs.ok());
  ASSERT_EQ(runs->size(), 1u);
  EXPECT_EQ(runs->front().twin, "cuda.stage_c.stage2_phases");
}

TEST(Phases, StepsWhoseReasonIsToldBySharesHaveATwin) {
  std::set<std::string> rungs;
  for (const VariantInfo& variant : variants())
    if (!variant.phases.empty()) rungs.insert(variant.derived_from);
  for (const char* rung :
       {"cuda.v2c.v5", "cuda.v2c.v6", "cuda.v2c.v7", "cuda.stage_c.stage1", "cuda.stage_c.stage2",
        "cuda.stage_c.stage3a", "cuda.stage_c.stage3b", "cuda.stage_c.warp_spec",
        "cuda.stage_c.fp8_mma", "cuda.stage_c.fp8_wgmma"})
    EXPECT_TRUE(rungs.contains(rung)) << rung;
}

TEST(Phases, ListsAreMergedInAnOrderThatEachHas) {
  using List = std::vector<std::string>;
  EXPECT_EQ(merged_phases({}), List{});
  const List usual{"loads", "decode", "Q·Kᵀ", "softmax"};
  EXPECT_EQ(merged_phases({usual, {"loads", "Q·Kᵀ", "softmax"}}), usual);
  EXPECT_EQ(merged_phases({{"loads", "Q·Kᵀ", "softmax"}, usual}), usual);
  EXPECT_EQ(merged_phases({usual, {"loads", "wait", "decode", "Q·Kᵀ", "epilogue"}}),
            (List{"loads", "wait", "decode", "Q·Kᵀ", "epilogue", "softmax"}));
}

}  // namespace
}  // namespace greenfast::workbench::test
