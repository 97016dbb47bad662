// A build's compiler logs: what counts as a warning, and when nobody knows.
#include "workbench/resources/compiler_logs.hpp"

#include <gtest/gtest.h>

#include <fstream>

namespace greenfast::workbench::test {
namespace {

namespace fs = std::filesystem;
const char* const kQuiet =
    "ptxas info    : 0 bytes gmem\n"
    "ptxas info    : Compiling entry function '_Z7warningv' for 'sm_90a'\n"
    "ptxas info    : Used 64 registers\n";

TEST(CompilerLogs, WarningsAndSerialisedWgmmaAreComplaints) {
  EXPECT_TRUE(complaints_of(kQuiet).empty()) << "a kernel may be called warning";
  EXPECT_EQ(complaints_of("ptxas warning : Value of threads per SM is out of range\n").size(), 1u);
  EXPECT_EQ(complaints_of("ptxas info    : (C7510) Potential Performance Loss: wgmma\n").size(),
            1u);
  EXPECT_EQ(complaints_of("a.cu(3): warning #177-D: variable \"x\" was declared\n").size(), 1u);
}

TEST(CompilerLogs, WhatIsNotThereIsNotKnown) {
  const fs::path build = fs::path(testing::TempDir()) / "compiler_logs";
  fs::remove_all(build);
  fs::create_directories(build);
  EXPECT_FALSE(read_compiler_logs(build)) << "no list of objects";
  const auto write = [&](const fs::path& file, const std::string& text) {
    std::ofstream(file) << text;
  };
  write(build / "ptxas_objects.txt", (build / "a.o").string() + "\n" + (build / "b.o").string());
  write(build / "a.o.ptxas", kQuiet);
  EXPECT_FALSE(read_compiler_logs(build)) << "b.o has no log";
  write(build / "b.o.ptxas", "");
  EXPECT_FALSE(read_compiler_logs(build)) << "ptxas said nothing: compiled without -v, or cached";
  write(build / "b.o.ptxas", std::string(kQuiet) + "ptxas warning : spilled\n");
  const auto logs = read_compiler_logs(build);
  ASSERT_TRUE(logs);
  EXPECT_EQ(logs->logs, 2);
  ASSERT_EQ(logs->complaints.size(), 1u);
  EXPECT_EQ(logs->complaints[0], "b.o: ptxas warning : spilled");
  fs::remove_all(build);
}

}  // namespace
}  // namespace greenfast::workbench::test
