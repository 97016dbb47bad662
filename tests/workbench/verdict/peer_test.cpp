// Peers without their packages: what is refused, what is missing, and a harness that is a shell
// script.
#include "workbench/verdict/peer.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace greenfast::workbench::test {
namespace {

namespace fs = std::filesystem;

std::vector<NamedProblem> problems(const std::string& shapes, ProblemDefaults defaults = {}) {
  defaults.dtype = defaults.dtype == DType::f16 ? DType::f32 : defaults.dtype;
  auto parsed = parse_shapes(shapes, defaults);
  EXPECT_TRUE(parsed) << parsed.status().message();
  return *parsed;
}

PeerOptions asking(std::vector<std::string> sides, const std::string& shapes = "1x2x33x16") {
  PeerOptions options;
  options.sides = std::move(sides);
  options.problems = problems(shapes);
  return options;
}

void expect_refused(const PeerOptions& options, StatusCode code,
                    std::initializer_list<const char*> words) {
  const Status status = check_peers(options);
  EXPECT_EQ(status.code(), code) << status.message();
  for (const char* word : words) {
    EXPECT_NE(status.message().find(word), std::string::npos) << word << ": " << status.message();
  }
}

TEST(Peers, WhatHasNoPeerIsRefusedWithWhatIsPossible) {
  EXPECT_TRUE(check_peers(asking({"cpu.flash", "peer:torch-cpu"})));
  expect_refused(asking({"cpu.flash", "peer:tensorflow"}), StatusCode::invalid_argument,
                 {"peer:tensorflow", "peer:torch-cpu (cpu)", "peer:fa3 (cuda)"});
  expect_refused(asking({"cpu.flash", "peer:torch-cudnn"}), StatusCode::invalid_argument,
                 {"cpu.flash runs on cpu", "peer:torch-cudnn on cuda"});
  expect_refused(asking({"mutant.gain", "peer:torch-cpu"}), StatusCode::invalid_argument,
                 {"mutant.gain", "no variant of the library", "peers are peer:torch-cpu (cpu)"});
}

TEST(Peers, ProblemsThatTheHarnessCannotExpressAreRefused) {
  for (const auto& change : std::vector<std::function<void(Problem&)>>{
           [](Problem& p) { p.mask = Mask::causal(Alignment::bottom_right); },
           [](Problem& p) { p.softcap = 30; }, [](Problem& p) { p.lse = true; },
           [](Problem& p) { p.scale = 0.5f; }, [](Problem& p) { p.out_dtype = DType::f16; }}) {
    PeerOptions options = asking({"cpu.flash", "peer:torch-cpu"});
    change(options.problems[0].problem);
    expect_refused(options, StatusCode::unsupported, {"1x2x33x16", "--causal=top-left"});
  }
  PeerOptions causal = asking({"cpu.flash", "peer:torch-cpu"});
  causal.problems[0].problem.mask = Mask::causal(Alignment::top_left);
  EXPECT_TRUE(check_peers(causal)) << check_peers(causal).message();
}

class Harness : public ::testing::Test {
 protected:
  Harness() {
    directory = fs::temp_directory_path() / ("greenfast-harness-" + std::to_string(getpid()));
    fs::create_directories(directory);
    if (const char* old = std::getenv("GREENFAST_PYTHON")) before = old;
  }
  ~Harness() override {
    fs::remove_all(directory);
    if (before.empty()) {
      unsetenv("GREENFAST_PYTHON");
    } else {
      setenv("GREENFAST_PYTHON", before.c_str(), 1);
    }
  }
  /// Makes a script the interpreter; $file is where the harness shall write. `has_harness`: the
  /// answer to who asks whether it has greenfast_bench.
  void python_is(const std::string& body, bool has_harness = true) {
    const fs::path script = directory / "python";
    std::ofstream(script) << "#!/bin/sh\n[ \"$1\" = -c ] && exit " << (has_harness ? 0 : 3)
                          << "\nwhile [ $# -gt 0 ]; do [ \"$1\" = --json ] && file=$2; "
                             "[ \"$1\" = --outputs ] && outputs=$2; shift; done\n"
                          << body << "\n";
    fs::permissions(script, fs::perms::owner_all);
    setenv("GREENFAST_PYTHON", script.c_str(), 1);
  }
  static std::string record(const std::string& problem, const std::string& peer) {
    std::string blocks;
    for (int i = 0; i < 8; ++i) {
      blocks +=
          std::string(i ? "," : "") + R"({"order":[0,1,1,0],"seconds":[1e-3,2e-3,2e-3,1e-3]})";
    }
    return R"({"schema":"greenfast.samples/1","notes":["one process"],"shapes":[{"name":"x","problem":")" +
           problem + R"(","device":{"kind":"cpu","name":"here"},"timer":"t","tick_seconds":1e-8,)" +
           R"("cache":"cold","sides":[{"id":"cpu.flash","batch":1,"verdict":"GREEN"},{"id":")" +
           peer + R"(","batch":1,"verdict":"GREEN"}],"blocks":[)" + blocks + "]}]}";
  }

  fs::path directory;
  std::string before;
};

TEST_F(Harness, ItsSamplesAndOutputsAreRead) {
  python_is("printf '%s' '" + record("1x2x33x16 fp32", "peer:torch-cpu") +
            "' > $file; printf abcd > $outputs/0.0.bin; printf abce > $outputs/0.1.bin");
  const auto recorded = record_peers(asking({"cpu.flash", "peer:torch-cpu"}));
  ASSERT_TRUE(recorded) << recorded.status().message();
  EXPECT_EQ(recorded->recording.notes, std::vector<std::string>{"one process"});
  ASSERT_EQ(recorded->recording.shapes.size(), 1u);
  EXPECT_EQ(recorded->recording.shapes[0].name, "1x2x33x16");
  EXPECT_EQ(recorded->outputs[0][1].size(), 4u);
  const auto compared = compare_sides(recorded->recording, "peer:torch-cpu", "cpu.flash");
  ASSERT_TRUE(compared) << compared.status().message();
  EXPECT_NEAR(compared->shapes[0].p50.value, 2.0, 1e-3);
  EXPECT_EQ(describe(compared->shapes[0].a_correct), "GREEN");
}

TEST_F(Harness, OutputsNeedNotBeKept) {
  python_is("printf '%s' '" + record("1x2x33x16 fp32", "peer:torch-cpu") + "' > $file");
  const auto recorded = record_peers(asking({"cpu.flash", "peer:torch-cpu"}));
  ASSERT_TRUE(recorded) << recorded.status().message();
  ASSERT_EQ(recorded->outputs[0].size(), 2u);
  EXPECT_TRUE(recorded->outputs[0][0].empty());
  EXPECT_TRUE(compare_sides(recorded->recording, "peer:torch-cpu", "cpu.flash"));
}

TEST_F(Harness, AnotherProblemThanAskedForIsAFault) {
  python_is("printf '%s' '" + record("1x2x33x16 fp16", "peer:torch-cpu") + "' > $file");
  const auto recorded = record_peers(asking({"cpu.flash", "peer:torch-cpu"}));
  ASSERT_FALSE(recorded);
  EXPECT_EQ(recorded.status().code(), StatusCode::internal);
  EXPECT_NE(recorded.status().message().find("1x2x33x16 fp16"), std::string::npos);
}

TEST_F(Harness, WhatIsMissingIsNamed) {
  const auto missing = [&](const std::string& word) {
    const auto recorded = record_peers(asking({"cpu.flash", "peer:torch-cpu"}));
    EXPECT_FALSE(recorded);
    EXPECT_EQ(recorded.status().code(), StatusCode::no_device) << recorded.status().message();
    EXPECT_NE(recorded.status().message().find(word), std::string::npos)
        << recorded.status().message();
  };
  setenv("GREENFAST_PYTHON", (directory / "nowhere").c_str(), 1);
  missing("GREENFAST_PYTHON");
  python_is("exit 0", false);
  missing("PYTHONPATH");
  python_is("echo 'greenfast.ab_cpu: PyTorch cannot be imported' >&2; exit 3");
  missing("PyTorch cannot be imported");
  std::string left_out = record("1x2x33x16 fp32", "other");
  left_out.insert(1, R"("missing":{"torch-cpu":"ImportError: no such thing"},)");
  python_is("printf '%s' '" + left_out + "' > $file");
  missing("ImportError: no such thing");
  // What it prints beside the record decides nothing.
  python_is("echo 'SKIPPED torch-cpu: just so' >&2; printf '%s' '" +
            record("1x2x33x16 fp32", "other") + "' > $file");
  missing("the harness left it out");
}

TEST_F(Harness, ACrashIsToldWithItsLastWords) {
  python_is("echo 'Traceback' >&2; echo 'RuntimeError: out of luck' >&2; exit 1");
  const auto recorded = record_peers(asking({"cpu.flash", "peer:torch-cpu"}));
  ASSERT_FALSE(recorded);
  EXPECT_EQ(recorded.status().code(), StatusCode::internal);
  EXPECT_NE(recorded.status().message().find("out of luck"), std::string::npos);
  PeerOptions slow = asking({"cpu.flash", "peer:torch-cpu"});
  slow.timeout_seconds = 0.2;
  python_is("sleep 30");
  const auto hung = record_peers(slow);
  ASSERT_FALSE(hung);
  EXPECT_NE(hung.status().message().find("no end after"), std::string::npos);
}

}  // namespace
}  // namespace greenfast::workbench::test
