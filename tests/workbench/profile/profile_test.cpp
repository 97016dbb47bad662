// Readers of ncu and perf, the words for what they say, predictions, and the programs themselves as
// far as shims on PATH can stand for them. The CSV follows the layout of ncu's raw page; its
// numbers are made up.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "workbench/profile/profile.hpp"

namespace greenfast::workbench::test {
namespace {

namespace fs = std::filesystem;

struct Column {
  std::string name, unit;
  std::vector<std::string> values;  // one for each launch
};

std::string csv(const std::vector<Column>& columns,
                const std::string& kernel = "void stage_c::kernel<64>(Params)") {
  std::string header =
      "\"ID\",\"Process ID\",\"Process Name\",\"Host Name\",\"Kernel Name\",\"Block Size\"";
  std::string units = "\"\",\"\",\"\",\"\",\"\",\"\"";
  for (const Column& c : columns) {
    header += ",\"" + c.name + "\"";
    units += ",\"" + c.unit + "\"";
  }
  std::string out = "==PROF== Connected to process 1\n" + header + "\n" + units + "\n";
  for (std::size_t launch = 0; launch < columns[0].values.size(); ++launch) {
    out += fmt::format(R"row("{}","1","greenfast","host","{}","(128, 1, 1)")row", launch, kernel);
    for (const Column& c : columns) out += ",\"" + c.values[launch] + "\"";
    out += "\n";
  }
  return out;
}

SideProfile side_of(const std::vector<Column>& columns, const std::string& variant = "cuda.x") {
  const auto kernels = parse_ncu_csv(csv(columns));
  EXPECT_TRUE(kernels.ok()) << kernels.status().message();
  return side_of_counters(variant, *kernels, gpu_metrics());
}

bool any_holds(const std::vector<std::string>& lines, const std::string& words) {
  for (const std::string& line : lines)
    if (line.find(words) != std::string::npos) return true;
  return false;
}

const Peak kPeak{800e12, 4e12, "made up"};

TEST(NcuCsv, ReadsNumbersWithSeparatorsAndScalesUnits) {
  const auto kernels = parse_ncu_csv(csv({{"gpu__time_duration.sum", "usecond", {"1,234.5"}},
                                          {"dram__bytes_read.sum", "Mbyte", {"2"}},
                                          {"device__attribute_name", "", {"NVIDIA H200"}},
                                          {"lts__t_sector_hit_rate.pct", "%", {"n/a"}}}));
  ASSERT_TRUE(kernels.ok()) << kernels.status().message();
  ASSERT_EQ(kernels->size(), 1u);
  EXPECT_EQ((*kernels)[0].kernel, "void stage_c::kernel<64>(Params)");
  EXPECT_DOUBLE_EQ((*kernels)[0].values.at("gpu__time_duration.sum"), 1234.5e3);
  EXPECT_DOUBLE_EQ((*kernels)[0].values.at("dram__bytes_read.sum"), 2e6);
  EXPECT_FALSE((*kernels)[0].values.contains("device__attribute_name"));
  EXPECT_FALSE((*kernels)[0].values.contains("lts__t_sector_hit_rate.pct"));
}

TEST(NcuCsv, RefusesWhatIsNoRawPageAndWhatIsHalfOfOne) {
  const auto refused = [](const std::string& text, const std::string& words) {
    const auto kernels = parse_ncu_csv(text);
    ASSERT_FALSE(kernels.ok());
    EXPECT_NE(kernels.status().message().find(words), std::string::npos)
        << kernels.status().message();
  };
  refused("", "no line begins with \"ID\"");
  refused("==ERROR== permission denied\n", "no line begins with \"ID\"");
  const std::string whole = csv({{"gpu__time_duration.sum", "ns", {"1", "2"}}});
  refused(whole.substr(0, whole.size() - 40), "truncated");
  refused("\"ID\",\"Name\"\n\"\",\"\"\n", "Kernel Name");
  refused("\"ID\",\"Kernel Name\"\n\"\",\"\"\n", "no kernel was profiled");
}

TEST(Side, AddsSumsWeightsPartsByTimeAndTakesTheFirstNameThatIsGiven) {
  const SideProfile side = side_of(
      {{"gpu__time_duration.sum", "ns", {"3000", "1000"}},
       {"dram__bytes_read.sum", "byte", {"10", "30"}},
       {"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", "%", {"40", "80"}},
       {"launch__registers_per_thread", "register/thread", {"84", "32"}}});
  EXPECT_DOUBLE_EQ(*side.get("time"), 4000);
  EXPECT_DOUBLE_EQ(*side.get("dram_read"), 40);
  EXPECT_DOUBLE_EQ(*side.get("tensor_active"), 50);
  EXPECT_DOUBLE_EQ(*side.get("registers"), 84);  // the longest launch's
  EXPECT_EQ(side.kernels.size(), 2u);
  EXPECT_NE(std::find(side.missing.begin(), side.missing.end(), "l2_hit"), side.missing.end());
}

TEST(Words, ABusyPipeIsTheBoundAndTheRooflineIsThatOfTheMeasuredCeilings) {
  SideProfile side =
      side_of({{"gpu__time_duration.sum", "ns", {"1000"}},
               {"sm__pipe_tensor_active.avg.pct_of_peak_sustained_active", "%", {"83.2"}},
               {"smsp__issue_active.avg.pct_of_peak_sustained_active", "%", {"61"}},
               {"launch__grid_size", "", {"256"}}});
  explain_gpu(side, 400e6, 1e6, kPeak,
              132);  // 400 TFLOP/s at 400 FLOP per byte: arithmetic's ceiling is 800
  EXPECT_TRUE(any_holds(side.findings, "bound by the tensor pipe: 83.2% of its peak"));
  EXPECT_TRUE(any_holds(side.findings, "50.0% of the 800.000 TFLOP/s")) << side.findings[0];
  EXPECT_TRUE(any_holds(side.findings, "measured arithmetic is the ceiling"));
  EXPECT_FALSE(any_holds(side.findings, "nothing to do"));
  ASSERT_EQ(side.advice.size(), 1u);
}

TEST(Words, LatencyNamesWhatWarpsWaitForAndWhatFollows) {
  SideProfile side =
      side_of({{"gpu__time_duration.sum", "ns", {"17950"}},
               {"sm__pipe_tensor_active.avg.pct_of_peak_sustained_active", "%", {"7.5"}},
               {"smsp__issue_active.avg.pct_of_peak_sustained_active", "%", {"31"}},
               {"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio", "inst", {"3"}},
               {"smsp__average_warps_issue_stalled_wait_per_issue_active.ratio", "inst", {"2"}},
               {"smsp__average_warps_issue_stalled_selected_per_issue_active.ratio", "inst", {"1"}},
               {"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "", {"300"}},
               {"l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", "", {"1000"}},
               {"launch__grid_size", "", {"33"}},
               {"launch__occupancy_limit_registers", "block", {"5"}},
               {"launch__occupancy_limit_shared_mem", "block", {"4"}}});
  explain_gpu(side, 0, 0, {}, 132);
  EXPECT_TRUE(
      any_holds(side.findings, "bound by latency: no unit is busy (tensor 7.5%, issue 31.0%"));
  EXPECT_TRUE(any_holds(side.findings,
                        "33 blocks for 132 multiprocessors: 75% of the GPU has nothing to do"));
  EXPECT_TRUE(any_holds(
      side.findings,
      "warps wait 50% of their time for other warps at a block barrier; 17% they are ready"));
  EXPECT_TRUE(any_holds(side.findings, "30% of the shared-memory wavefronts are bank conflicts"));
  EXPECT_TRUE(any_holds(side.findings, "shared memory allow 4 blocks"));
  EXPECT_TRUE(any_holds(side.advice, "fewer barriers"));
  EXPECT_TRUE(any_holds(side.advice, "more blocks at this shape"));
  EXPECT_TRUE(any_holds(side.advice, "swizzle"));
  ASSERT_EQ(side.stalls.size(), 3u);
  EXPECT_EQ(side.stalls[0].first, "barrier");
  EXPECT_DOUBLE_EQ(side.stalls[0].second, 0.5);
}

TEST(Words, NoCeilingNoPercentage) {
  SideProfile side = side_of({{"gpu__time_duration.sum", "ns", {"1000"}}});
  explain_gpu(side, 1e6, 1e6, {}, 132);
  EXPECT_TRUE(any_holds(side.findings, "no ceiling was measured"));
}

TEST(Moves, AreSetBesideThePrediction) {
  const SideProfile a = side_of({{"gpu__time_duration.sum", "ns", {"57000"}},
                                 {"smsp__inst_executed_pipe_tensor.sum", "inst", {"1000"}},
                                 {"dram__bytes_read.sum", "byte", {"1000000"}},
                                 {"smsp__inst_executed.sum", "inst", {"100"}}},
                                "cuda.stage_c.stage1");
  const SideProfile b = side_of({{"gpu__time_duration.sum", "ns", {"18000"}},
                                 {"smsp__inst_executed_pipe_tensor.sum", "inst", {"2000"}},
                                 {"dram__bytes_read.sum", "byte", {"1010000"}},
                                 {"smsp__inst_executed.sum", "inst", {"120"}}},
                                "cuda.stage_c.stage2");
  const auto predictions = parse_predictions("built in", builtin_predictions());
  ASSERT_TRUE(predictions.ok()) << predictions.status().message();
  const Prediction* plan = nullptr;
  for (const Prediction& p : *predictions)
    if (p.candidate == "cuda.stage_c.stage2" && p.baseline == "cuda.stage_c.stage1") plan = &p;
  ASSERT_NE(plan, nullptr);
  std::map<std::string, MetricMove> by_id;
  for (const MetricMove& m : moves(a, b, gpu_metrics(), plan)) by_id[m.id] = m;
  EXPECT_EQ(by_id["time"].status, "as predicted");
  EXPECT_EQ(by_id["time"].candidate, "18.00 µs");
  EXPECT_EQ(by_id["tensor_inst"].seen, "up");
  EXPECT_EQ(by_id["dram_read"].seen, "equal");  // 1% is not a difference
  EXPECT_EQ(by_id["instructions"].status, "against the prediction");
  EXPECT_EQ(by_id["tensor_active"].status, "missing");
  EXPECT_FALSE(by_id.contains("registers"));  // neither measured nor predicted
}

TEST(Predictions, NameMetricsThatAProfileHas) {
  const auto read =
      parse_predictions("policies/predictions.toml", builtin_predictions(), is_profile_metric);
  EXPECT_TRUE(read.ok()) << read.status().message();
  EXPECT_FALSE(is_profile_metric("tensors"));
}

TEST(PerfCsv, KeepsWhatTheMachineCounts) {
  const auto events = parse_perf_csv(
      "1000,,cycles:u,5000,100.00,,\n<not "
      "supported>,,cache-misses,0,100.00,,\n2500,,instructions,5000,100.00,2.5,insn per cycle\n");
  EXPECT_EQ(events.size(), 2u);
  EXPECT_DOUBLE_EQ(events.at("cycles"), 1000);
  EXPECT_DOUBLE_EQ(events.at("instructions"), 2500);
}

// A folder at the front of PATH, for programs that stand for others.
class Tools : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("greenfast-tools-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    path_ = std::getenv("PATH");
    job_ = {"cuda.x", {"launch", "{calls}"}, false, folder_ / "raw.ncu-rep"};
  }
  void TearDown() override {
    ::setenv("PATH", path_.c_str(), 1);
    fs::remove_all(folder_);
  }
  void add(const std::string& name, const std::string& script) {
    const fs::path file = folder_ / name;
    std::ofstream(file) << "#!/bin/sh\n" << script;
    ::chmod(file.c_str(), 0755);
    ::setenv("PATH", (folder_.string() + ":" + path_).c_str(), 1);
  }
  void only_ours() { ::setenv("PATH", folder_.c_str(), 1); }

  fs::path folder_;
  std::string path_;
  ProfileJob job_;
};

TEST_F(Tools, WithoutNcuOrPerfTheReasonIsSaid) {
  only_ours();
  const auto gpu = collect_ncu(job_), cpu = collect_perf(job_);
  ASSERT_TRUE(gpu.ok() && cpu.ok());
  EXPECT_NE(gpu->skipped->find("ncu is not installed"), std::string::npos);
  EXPECT_NE(cpu->skipped->find("perf is not installed"), std::string::npos);
}

TEST_F(Tools, WithoutPermissionTheReasonIsSaid) {
  add("ncu", "echo '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission' ; exit 1\n");
  const auto collected = collect_ncu(job_);
  ASSERT_TRUE(collected.ok()) << collected.status().message();
  ASSERT_TRUE(collected->skipped);
  EXPECT_NE(collected->skipped->find("no permission"), std::string::npos);
}

TEST_F(Tools, NcuIsAskedAgainWithoutTheMetricsItDoesNotKnow) {
  std::ofstream(folder_ / "answer.csv") << csv({{"gpu__time_duration.sum", "ns", {"9", "8", "7"}}});
  add("ncu",
      "here=$(dirname \"$0\")\n"
      "case \"$*\" in *--version*) echo 'Version 2025.3.1.0'; exit 0 ;; *--import*) cat "
      "\"$here/answer.csv\"; exit 0 ;; esac\n"
      "echo \"$*\" >> \"$here/asked\"\n"
      "case \"$*\" in *dram__bytes_read.sum*) echo '==ERROR== Failed to access the following "
      "metrics: dram__bytes_read.sum'; exit 1 ;; esac\n"
      "while [ \"$1\" != --export ]; do shift; done; echo raw > \"$2\"\n");
  const auto collected = collect_ncu(job_);
  ASSERT_TRUE(collected.ok()) << collected.status().message();
  EXPECT_FALSE(collected->skipped);
  EXPECT_EQ(collected->tool, "ncu 2025.3.1.0");
  ASSERT_EQ(collected->call.size(), 1u);
  EXPECT_DOUBLE_EQ(collected->call[0].values.at("gpu__time_duration.sum"),
                   7);  // the last of three calls
  EXPECT_TRUE(fs::exists(job_.raw));
  std::ifstream asked(folder_ / "asked");
  std::string first, second;
  std::getline(asked, first);
  std::getline(asked, second);
  EXPECT_NE(first.find("--clock-control none"), std::string::npos);
  EXPECT_NE(first.find("launch 3"), std::string::npos);
  EXPECT_EQ(second.find("dram__bytes_read.sum"), std::string::npos);
}

TEST_F(Tools, AFailureOfNcuIsAnErrorWithItsWords) {
  add("ncu", "echo '==ERROR== the target crashed' >&2; exit 9\n");
  const auto collected = collect_ncu(job_);
  ASSERT_FALSE(collected.ok());
  EXPECT_NE(collected.status().message().find("the target crashed"), std::string::npos);
}

TEST_F(Tools, PerfCountsTheCallsAndNotTheSettingUp) {
  // 1000 cycles to set up, 50 a call.
  add("perf",
      "for last; do :; done; echo \"$((1000 + 50 * last)),,cycles,1,100,,\" >&2; echo \"$((4000 + "
      "200 * last)),,instructions,1,100,,\" >&2\n");
  const auto collected = collect_perf(job_);
  ASSERT_TRUE(collected.ok()) << collected.status().message();
  ASSERT_FALSE(collected->skipped) << *collected->skipped;
  SideProfile side = side_of_counters("cpu.x", collected->call, cpu_metrics());
  EXPECT_DOUBLE_EQ(*side.get("cycles"), 50);
  EXPECT_DOUBLE_EQ(*side.get("instructions"), 200);
  explain_cpu(side, 6400, 100, {});
  EXPECT_TRUE(any_holds(side.findings, "4.00 instructions a cycle, 32.00 FLOP an instruction"));
}

TEST_F(Tools, AMachineWithoutCountersSaysSo) {
  add("perf", "echo '<not supported>,,cycles,0,100.00,,' >&2\n");
  const auto collected = collect_perf(job_);
  ASSERT_TRUE(collected.ok());
  EXPECT_NE(collected->skipped->find("counts no cycles"), std::string::npos);
}

}  // namespace
}  // namespace greenfast::workbench::test
