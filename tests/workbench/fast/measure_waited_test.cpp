// A busy machine: sides that wait for a CPU while they are timed, one of them more than the other.
#include <gtest/gtest.h>

#include <sched.h>
#include <atomic>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "workbench/base/host.hpp"
#include "workbench/fast/samples.hpp"
#include "workbench/fast/statistics.hpp"
#include "workbench/verdict/decide.hpp"

namespace greenfast::workbench::test {
namespace {

/// Blocks of two sides, as the clock takes them; of each sample a share may be waiting.
Samples busy(double speedup, double often_base, double often_cand, int blocks,
             std::mt19937_64& random) {
  Samples samples;
  samples.name = "busy";
  samples.tick_seconds = 1e-9;
  samples.sides.resize(2);
  samples.sides[0].id = "baseline";
  samples.sides[1].id = "candidate";
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  for (int i = 0; i < blocks; ++i) {
    Block& block = samples.blocks.emplace_back();
    const int first = static_cast<int>(random() & 1);
    for (const int side : {first, 1 - first, 1 - first, first}) {
      const double own = 2e-3 * (side == 0 ? speedup : 1.0) * std::exp(0.02 * normal(random));
      // A time slice of somebody else's, of 1 to 5 ms.
      const bool waits = uniform(random) < (side == 0 ? often_base : often_cand);
      const double waited = waits ? 1e-3 + 4e-3 * uniform(random) : 0;
      block.samples.push_back({side, own + waited, waited});
    }
  }
  return samples;
}

ShapeEvidence evidence(const Samples& samples) {
  ShapeEvidence shape;
  shape.name = samples.name;
  shape.primary = true;
  BootstrapOptions options;
  options.resamples = 500;
  shape.p50 = *paired_log_ratio(samples, 0, 1, Statistic::p50, options);
  shape.p90 = *paired_log_ratio(samples, 0, 1, Statistic::p90, options);
  return shape;
}

TEST(Waited, NobodyIsFasterForHavingWaitedLess) {
  std::mt19937_64 random(5);
  int promoted_unseen = 0, rejected_unseen = 0;
  for (int trial = 0; trial < 200; ++trial) {
    for (const auto& [base, cand] : {std::pair(0.7, 0.05), std::pair(0.05, 0.7)}) {
      Samples samples = busy(1.0, base, cand, 15, random);
      const Decision seen = decide(std::vector{evidence(samples)}, {});
      EXPECT_EQ(seen.outcome, Outcome::defer) << seen.reasons.front().detail;
      // The same times, as a system shows them that does not tell who waited.
      for (Block& block : samples.blocks)
        for (Sample& sample : block.samples) sample.waited = 0;
      const Outcome blind = decide(std::vector{evidence(samples)}, {}).outcome;
      promoted_unseen += blind == Outcome::promote;
      rejected_unseen += blind == Outcome::reject;
    }
  }
  EXPECT_GT(promoted_unseen, 100) << "this machine would not have misled anybody";
  EXPECT_GT(rejected_unseen, 100);
}

TEST(Waited, IntervalsHoldTheTruth) {
  std::mt19937_64 random(6);
  for (const double truth : {1.0, 1.1, 2.0}) {
    int covered = 0;
    for (int trial = 0; trial < 200; ++trial) {
      const ShapeEvidence shape = evidence(busy(truth, 0.6, 0.3, 12, random));
      const Interval p50 = speedup(shape.p50);
      covered += p50.lo <= truth && truth <= p50.hi;
    }
    EXPECT_GE(covered, 190) << truth;
  }
}

TEST(Waited, ChangesNothingWhereNobodyWaited) {
  std::mt19937_64 random(7);
  const ShapeEvidence quiet = evidence(busy(1.3, 0, 0, 12, random));
  EXPECT_EQ(quiet.p50.waited_below, 0);
  EXPECT_EQ(quiet.p90.waited_above, 0);
  EXPECT_EQ(decide(std::vector{quiet}, {}).outcome, Outcome::promote);
}

TEST(Waited, FewerThanSixBlocksDecideNothing) {
  std::mt19937_64 random(8);
  for (const double truth : {0.2, 5.0}) {
    const Decision few = decide(std::vector{evidence(busy(truth, 0, 0, 5, random))}, {});
    EXPECT_EQ(few.outcome, Outcome::defer);
    EXPECT_NE(few.reasons[0].detail.find("of 5 blocks"), std::string::npos);
    EXPECT_NE(decide(std::vector{evidence(busy(truth, 0, 0, 6, random))}, {}).outcome,
              Outcome::defer);
  }
}

TEST(Waited, ReturnsFromJsonAndCannotBeMoreThanTheSample) {
  std::mt19937_64 random(9);
  const Samples samples = busy(1.0, 0.5, 0.5, 4, random);
  nlohmann::json words = to_json(std::vector{samples});
  const auto read = samples_from_json(words);
  ASSERT_TRUE(read) << read.status().message();
  for (std::size_t b = 0; b < samples.blocks.size(); ++b)
    for (std::size_t i = 0; i < samples.blocks[b].samples.size(); ++i)
      EXPECT_EQ(read->front().blocks[b].samples[i].waited, samples.blocks[b].samples[i].waited);
  for (auto& block : words["shapes"][0]["blocks"])
    if (block.contains("waited")) block["waited"][0] = block["seconds"][0];
  EXPECT_FALSE(samples_from_json(words));
}

double sum_of_delays(int process) {
  double sum = 0;
  for (const auto& [thread, seconds] : run_delays(process)) sum += seconds;
  return sum;
}

TEST(Waited, TheSystemTellsWhoWaited) {
  if (first_line("/proc/self/schedstat").empty()) GTEST_SKIP() << "this system does not tell";
  // Two threads on one CPU: each waits for the other.
  cpu_set_t allowed, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed)) {
      CPU_SET(cpu, &one);
      break;
    }
  const double before = sum_of_delays(0);
  std::atomic<bool> stop{false};
  std::atomic<int> began{0};
  const auto spin = [&] {
    sched_setaffinity(0, sizeof one, &one);
    ++began;
    while (!stop) {
    }
  };
  std::thread first(spin), second(spin);
  while (began < 2) std::this_thread::yield();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (sum_of_delays(0) - before < 0.01 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_GE(sum_of_delays(0) - before, 0.01);
  stop = true;
  first.join();
  second.join();
  EXPECT_EQ(sum_of_delays(-1), 0) << "a process that is not there";
}

}  // namespace
}  // namespace greenfast::workbench::test
