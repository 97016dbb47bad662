// The gate against planted kernels: every fault RED by name in every precision, honest ones GREEN.
#include "workbench/green/selftest.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "workbench/subjects/mutants/mutants.hpp"

namespace greenfast::workbench::test {
namespace {

TEST(Selftest, StrictCatchesEveryFaultAndNoHonestKernel) {
  const auto policy = load_policy("strict");
  ASSERT_TRUE(policy);
  int reported = 0;
  const auto result = selftest(*policy, [&](const SelftestRow&, int, int) { ++reported; });
  ASSERT_TRUE(result) << result.status().message();
  for (const SelftestRow& row : result->rows) {
    EXPECT_EQ(row.caught, !row.honest) << row.subject << ": " << row.reason;
    EXPECT_GT(row.cases, 0) << row.subject << " was never exercised: " << row.reason;
    EXPECT_EQ(row.caught, !row.metric.empty()) << row.subject;
  }
  EXPECT_TRUE(result->ok);
  EXPECT_GE(result->mutants, 20);
  EXPECT_GE(result->honest, 3);
  EXPECT_EQ(reported, result->mutants + result->honest);
}

TEST(Selftest, StageCGateWouldHavePassedItsOwnZeroPoint) {
  const auto policy = load_policy("legacy.stage_c");
  ASSERT_TRUE(policy);
  const auto result = selftest(*policy);
  ASSERT_TRUE(result) << result.status().message();
  EXPECT_FALSE(result->ok);
  std::map<std::string, bool> caught;
  for (const SelftestRow& row : result->rows) caught[row.subject] = row.caught;
  EXPECT_FALSE(caught.at("mutant.zero_point"));
  EXPECT_FALSE(caught.at("mutant.one_element"));
  EXPECT_FALSE(caught.at("mutant.modifies_input"));
  EXPECT_TRUE(caught.at("mutant.zeros"));
  EXPECT_TRUE(caught.at("mutant.stale_o"));
  EXPECT_EQ(result->honest_green, result->honest) << "at mission the originals passed honest ones";
}

TEST(Selftest, V2cGateRuns) {
  const auto policy = load_policy("legacy.v2c");
  ASSERT_TRUE(policy);
  const auto result = selftest(*policy);
  ASSERT_TRUE(result) << result.status().message();
  EXPECT_EQ(result->honest_green, result->honest);
  EXPECT_LT(result->mutants_caught, result->mutants);
}

// A fault must not hide behind the rounding of a coarse type: one problem of each kind in each
// precision. The parameter is the precision.
class EveryPrecision : public testing::TestWithParam<DType> {};

TEST_P(EveryPrecision, EveryFaultThatCanShowIsRed) {
  const auto policy = load_policy("strict");
  ASSERT_TRUE(policy);
  const auto device = open_device(DeviceKind::cpu);
  ASSERT_TRUE(device);
  struct Probe {
    const char* shape;
    LayoutKind layout;
    Mask mask;
    float softcap;
  };
  const Probe probes[] = {
      {"1x4/2x97/517x64", LayoutKind::bhsd, Mask::none(), 0},
      {"2x4/2x127x64", LayoutKind::padded, Mask::causal(Alignment::bottom_right), 0},
      {"2x4/2x65/150x64", LayoutKind::bshd, Mask::causal(Alignment::top_left), 0},
      {"1x2x127/300x64", LayoutKind::packed, Mask::window(40, 0, Alignment::bottom_right), 0},
      {"1x4/2x90/63x32", LayoutKind::bhsd, Mask::causal(Alignment::bottom_right), 10},
  };
  std::vector<CaseData> data;
  std::set<std::string> seen;  // probes share the problems of the ends of the range
  for (const Probe& probe : probes) {
    ProblemDefaults defaults;
    defaults.dtype = GetParam();
    defaults.layout = probe.layout;
    defaults.mask = probe.mask;
    defaults.softcap = probe.softcap;
    auto parsed = parse_shapes(probe.shape, defaults);
    ASSERT_TRUE(parsed) << parsed.status().message();
    parsed->front().name.clear();
    const std::uint64_t seed = 11;
    for (const Case& c : make_cases(*parsed, *policy, {&seed, 1}))
      if (seen.insert(to_string(c)).second) data.push_back(*prepare_case(c, *policy));
  }
  for (const PlantedRow& row : planted_table()) {
    bool exercised = false, red = false;
    for (const CaseData& one : data) {
      const CaseResult result = validate(*make_planted(planted_id(row)), **device, one, *policy);
      if (result.verdict == Verdict::skipped) continue;
      exercised = true;
      red = result.verdict == Verdict::red;
      if (row.honest) {
        EXPECT_FALSE(red) << planted_id(row) << ' ' << to_string(one.test) << ": " << result.reason;
        continue;
      }
      if (red) break;
    }
    if (!row.honest) {
      EXPECT_EQ(red, exercised) << planted_id(row) << " survived every case";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, EveryPrecision,
                         testing::Values(DType::f32, DType::f16, DType::bf16, DType::e4m3),
                         [](const auto& parameter) {
                           return std::string(name_of(parameter.param));
                         });

}  // namespace
}  // namespace greenfast::workbench::test
