// Occupancy, limits, and that every plan of this build names a kernel that is in it.
#include "workbench/resources/resources.hpp"

#include <gtest/gtest.h>

#include <set>

namespace greenfast::workbench::test {
namespace {

TEST(Occupancy, CountsWhatHindersMost) {
  // By hand from the CUDA programming guide's table.
  const auto registers = occupancy(90, 128, 0, 128);
  ASSERT_TRUE(registers);
  EXPECT_EQ(registers->blocks, 4);
  EXPECT_EQ(registers->warps, 16);
  EXPECT_DOUBLE_EQ(registers->percent, 25);
  EXPECT_EQ(registers->limiter, "registers");
  const auto shared = occupancy(89, 32, 48 * 1024, 128);
  ASSERT_TRUE(shared);
  EXPECT_EQ(shared->blocks, 2);  // 100 KB, and 1 KB more of each block
  EXPECT_EQ(shared->limiter, "shared memory");
  EXPECT_EQ(occupancy(89, 32, 0, 1024)->blocks, 1);  // 1536 threads
  EXPECT_EQ(occupancy(80, 16, 0, 32)->limiter, "blocks");
  EXPECT_EQ(occupancy(80, 32, 0, 256)->limiter, "threads");
  EXPECT_FALSE(occupancy(90, 255, 0, 1024));  // does not fit
  EXPECT_FALSE(occupancy(70, 32, 0, 128));    // not in the table
}

ResourceReport report_of(const std::string& toml, int registers, std::int64_t stack) {
  DeviceCode code;
  KernelCode kernel;
  kernel.name = "v2c::kernel<64>";
  kernel.arch = "sm_89";
  kernel.registers = registers;
  kernel.stack = stack;
  code.kernels.push_back(kernel);
  const auto limits = parse_resource_limits("test", toml);
  EXPECT_TRUE(limits.ok()) << limits.status().message();
  return resource_report(code, *limits, {}, {});
}

TEST(ResourceLimits, ABrokenLimitNamesItselfAndItsReason) {
  const std::string toml =
      "[[limit]]\nkernel = 'cuda::v2c::'\narch = 'sm_89'\nregisters = 71\nreason = 'because'\n";
  const ResourceReport over = report_of(toml, 72, 0);
  ASSERT_EQ(over.rows.size(), 1u);
  ASSERT_EQ(over.rows[0].broken.size(), 1u);
  EXPECT_EQ(over.rows[0].broken[0].what, "registers 72 > 71 (because)");
  EXPECT_FALSE(over.within_limits());
  EXPECT_TRUE(report_of(toml, 71, 0).within_limits());
  EXPECT_TRUE(report_of("", 255, 0).within_limits());
}

TEST(ResourceLimits, LocalMemoryNeedsARow) {
  EXPECT_FALSE(report_of("", 32, 8).within_limits());
  const std::string row = "[[limit]]\nkernel = 'v2c'\nstack = 8\nreason = 'an array'\n";
  EXPECT_TRUE(report_of(row, 32, 8).within_limits());
  EXPECT_FALSE(report_of(row, 32, 16).within_limits());
}

TEST(ResourceLimits, MisspeltRowsAreErrors) {
  const auto error = [](const std::string& toml) {
    return parse_resource_limits("test", toml).status().message();
  };
  EXPECT_NE(
      error("[[limit]]\nkernel = 'k'\nregister = 1\nreason = 'x'\n").find("register: unknown key"),
      std::string::npos);
  EXPECT_NE(
      error("[[limit]]\nkernel = 'k'\nvariant = 'v'\nshared = 1\nreason = 'x'\n").find("not both"),
      std::string::npos);
  EXPECT_NE(error("[[limit]]\nkernel = 'k'\nshared = 1\n").find("needs a reason"),
            std::string::npos);
  EXPECT_NE(error("[[limit]]\nkernel = '('\nshared = 1\nreason = 'x'\n").find("kernel '('"),
            std::string::npos);
  EXPECT_NE(error("[[limit]]\nkernel = 'k'\nshared = -1\nreason = 'x'\n").find("at least 0"),
            std::string::npos);
  EXPECT_NE(error("[[limits]]\n").find("[[limit]]"), std::string::npos);
  EXPECT_NE(error("x = [").find("line 1"), std::string::npos);
}

TEST(ResourceLimits, BuiltinOnesParse) {
  const auto limits = parse_resource_limits("policies/resources.toml", builtin_resource_limits());
  ASSERT_TRUE(limits.ok()) << limits.status().message();
  EXPECT_FALSE(limits->empty());
}

// The name a plan gives its kernel is how gate, resources and evidence find its code.
TEST(Resources, EveryPlanOfThisBuildNamesAKernelInIt) {
  const auto& code = own_device_code();
  ASSERT_TRUE(code.ok()) << code.status().message();
  if (code->kernels.empty()) GTEST_SKIP() << "this build has no CUDA kernels";
  const ResourceReport report = resource_report(*code, {}, {}, {});
  std::set<std::string> launched;
  for (const ResourceRow& row : report.rows) launched.insert(row.variant);
  for (const VariantInfo& variant : variants()) {
    const bool expected = variant.device == DeviceKind::cuda && variant.built;
    EXPECT_EQ(launched.contains(variant.id), expected) << variant.id;
  }
  std::set<std::string> built;
  for (const KernelCode& kernel : code->kernels) built.insert(kernel.arch);
  if (built.contains("sm_80") && built.contains("sm_90a")) {
    EXPECT_EQ(report.missing, std::vector<std::string>{});
  }
  // Without a plan: the backend's own for empty problems, and tiles for GPUs with less shared
  // memory.
  const auto family = [](const ResourceRow& row) {
    return row.code.name.substr(0, row.code.name.find('<'));
  };
  std::set<std::string> families = {"fill", "largest_magnitude", "finish_scales", "encode"};
  for (const ResourceRow& row : report.rows) {
    if (!row.variant.empty()) families.insert(family(row));
  }
  for (const ResourceRow& row : report.rows)
    EXPECT_TRUE(families.contains(family(row))) << row.code.name;
}

}  // namespace
}  // namespace greenfast::workbench::test
