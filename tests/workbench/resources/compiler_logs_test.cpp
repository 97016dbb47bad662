// A build's compiler logs: what counts as a warning, and when nobody knows.
#include "workbench/resources/compiler_logs.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <string>
#include <vector>

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

/// What ptxas says of one kernel without arguments.
std::string log_of(const std::string& symbol, const std::string& complaint = "") {
  return "ptxas info    : Compiling entry function '" + symbol + "' for 'sm_90a'\n" + complaint +
         "ptxas info    : Used 64 registers\n";
}

class CompilerLogFiles : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(build);
    fs::create_directories(build);
  }
  void TearDown() override { fs::remove_all(build); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(build / name) << text;
  }
  /// Lists these, whether they have logs or not.
  void list(const std::vector<std::string>& objects) const {
    std::string text;
    for (const std::string& object : objects) text += (build / object).string() + "\n";
    write("ptxas_objects.txt", text);
  }
  std::optional<CompilerLogs> read(std::vector<std::string> kernels) const {
    return read_compiler_logs(build, kernels);
  }

  const fs::path build = fs::path(testing::TempDir()) / "compiler_logs";
};

TEST_F(CompilerLogFiles, WhatIsNotThereIsNotKnown) {
  EXPECT_FALSE(read({"alpha"})) << "no list of objects";
  list({"a.o", "b.o"});
  EXPECT_FALSE(read({"alpha"})) << "no log";
  write("a.o.ptxas", "");
  EXPECT_FALSE(read({"alpha"})) << "ptxas said nothing: compiled without -v, or cached";
  write("a.o.ptxas", log_of("_Z5alphav"));
  EXPECT_FALSE(read({})) << "nobody was asked for";
  EXPECT_FALSE(read({"alpha", "beta"})) << "the object of beta has no log";
  write("b.o.ptxas", log_of("_Z4betav", "ptxas warning : spilled\n"));
  const auto logs = read({"alpha", "beta"});
  ASSERT_TRUE(logs);
  EXPECT_EQ(logs->logs, 2);
  EXPECT_EQ(logs->complaints, std::vector<std::string>{"b.o: ptxas warning : spilled"});
}

// Spills that policies/spills.toml allows are complaints of whoever spills, and of nobody else.
TEST_F(CompilerLogFiles, WhatOtherKernelsWereToldIsNoMatterOfTheirs) {
  list({"a.o", "b.o", "twin.o", "c.o"});
  write("a.o.ptxas", log_of("_Z5alphav"));
  write("b.o.ptxas", log_of("_Z4betav", "ptxas warning : spilled\n") + log_of("_Z5gammav"));
  write("twin.o.ptxas", log_of("_Z5alphav"));
  const auto quiet = read({"alpha"});
  ASSERT_TRUE(quiet) << "c.o has no log, and is of none of them";
  EXPECT_EQ(quiet->logs, 2) << "a kernel may be in several objects";
  EXPECT_TRUE(quiet->complaints.empty());
  const auto loud = read({"gamma"});
  ASSERT_TRUE(loud);
  EXPECT_EQ(loud->complaints.size(), 1u)
      << "the object is the side's, whichever kernel is to blame";
}

}  // namespace
}  // namespace greenfast::workbench::test
