// The machine code of a record's kernels, out of a binary made to measure.
#include "workbench/record/code_json.hpp"

#include <gtest/gtest.h>

namespace greenfast::workbench::test {
namespace {

using nlohmann::json;

DeviceCode binary() {
  DeviceCode code;
  const auto kernel = [&](const char* name, const char* arch, const char* sha256) {
    KernelCode one;
    one.name = name;
    one.arch = arch;
    one.sha256 = sha256;
    one.registers = 80;
    code.kernels.push_back(one);
  };
  kernel("a", "sm_80", "80a");
  kernel("a", "sm_90a", "90a");
  kernel("b", "sm_80", "80b");
  return code;
}

TEST(CodeJson, EachKernelOnceByWhatTheDeviceLoads) {
  const std::vector<std::string> launched = {"a", "b", "a", ""};
  const json code = code_json(launched, 90, binary());
  ASSERT_EQ(code.size(), 2u) << code;
  EXPECT_EQ(code[0]["kernel"], "a");
  EXPECT_EQ(code[0]["sha256"], "90a") << "the device's own before an older architecture's";
  EXPECT_EQ(code[0]["registers"], 80);
  EXPECT_TRUE(code[1].contains("reason")) << "sm_80 is another generation: the driver compiles";
  EXPECT_EQ(code_json(launched, 80, binary())[1]["sha256"], "80b");
}

TEST(CodeJson, WhatHasNoMachineCodeSaysSo) {
  const json code = code_json(std::vector<std::string>{"elsewhere"}, 90, binary());
  ASSERT_EQ(code.size(), 1u);
  EXPECT_FALSE(code[0].contains("sha256"));
  EXPECT_NE(code[0]["reason"].get<std::string>().find("compute capability 9.0"), std::string::npos);
}

TEST(CodeJson, ACpuRunHasNone) {
  Plan plan;
  plan.variant = "cpu.flash";
  plan.kernel = "avx2";
  EXPECT_EQ(code_json(std::vector<Plan>{plan}, *model_facts("cpu")), json::array());
}

}  // namespace
}  // namespace greenfast::workbench::test
