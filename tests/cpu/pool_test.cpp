#include "backends/cpu/pool.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/cpu/config.hpp"

#if defined(__SANITIZE_THREAD__)
#define GREENFAST_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GREENFAST_TSAN 1
#endif
#endif

namespace greenfast::cpu {
namespace {

PoolConfig threads(int count) { return {.threads = count, .cpus = {}, .pin = false}; }

struct Tally {
  explicit Tally(std::size_t tasks) : runs(tasks) {}
  std::vector<std::atomic<int>> runs;
  std::atomic<bool> bad_worker{false};
  int workers = 0;

  static void task(void* context, std::int64_t index, int worker) {
    auto& tally = *static_cast<Tally*>(context);
    tally.runs[static_cast<std::size_t>(index)].fetch_add(1);
    if (worker < 0 || worker >= tally.workers) tally.bad_worker = true;
  }
  bool each_ran(int times) const {
    for (const auto& runs_of_one : runs) {
      if (runs_of_one != times) return false;
    }
    return !bad_worker;
  }
};

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (const int count : {1, 2, 3, 8}) {
    ThreadPool pool(threads(count));
    for (const std::size_t tasks : {0u, 1u, 2u, 7u, 1000u}) {
      Tally tally(tasks);
      tally.workers = count;
      pool.run(static_cast<std::int64_t>(tasks), Tally::task, &tally);
      EXPECT_TRUE(tally.each_ran(1)) << count << " threads, " << tasks << " tasks";
    }
  }
}

TEST(ThreadPool, UsesNoMoreThreadsThanAsked) {
  ThreadPool pool(threads(8));
  Tally tally(500);
  tally.workers = 3;
  pool.run(500, Tally::task, &tally, 3);
  EXPECT_TRUE(tally.each_ran(1));
}

TEST(ThreadPool, WorkersDoTakePart) {
  ThreadPool pool(threads(2));
  // Two tasks that wait for each other end only if two threads run them.
  std::atomic<int> arrived{0};
  pool.run(
      2,
      [](void* context, std::int64_t, int) {
        auto& count = *static_cast<std::atomic<int>*>(context);
        ++count;
        while (count < 2) std::this_thread::yield();
      },
      &arrived);
  EXPECT_EQ(arrived, 2);
}

TEST(ThreadPool, ServesSeveralCallersAtOnce) {
  ThreadPool pool(threads(3));
  constexpr int kCallers = 6, kRounds = 200;
  std::vector<std::thread> callers;
  std::atomic<int> failures{0};
  for (int c = 0; c < kCallers; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        Tally tally(17);
        tally.workers = 3;
        pool.run(17, Tally::task, &tally);
        if (!tally.each_ran(1)) ++failures;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failures, 0);
}

TEST(ThreadPool, NestedRunsStayOnTheirThreadAndKeepArenasApart) {
  ThreadPool pool(threads(3));
  struct State {
    ThreadPool& pool;
    std::atomic<int> inner{0};
    std::atomic<bool> clash{false};
  } state{pool};
  pool.run(
      20,
      [](void* context, std::int64_t, int worker) {
        auto& outer = *static_cast<State*>(context);
        void* const mine = outer.pool.arena(worker, 100);
        std::memset(mine, 1, 100);
        outer.pool.run(
            5,
            [](void* inner_context, std::int64_t, int inner_worker) {
              auto& inner = *static_cast<State*>(inner_context);
              if (inner_worker != 0) inner.clash = true;
              std::memset(inner.pool.arena(inner_worker, 200), 2, 200);
              ++inner.inner;
            },
            &outer);
        if (static_cast<char*>(mine)[99] != 1) outer.clash = true;
      },
      &state);
  EXPECT_EQ(state.inner, 100);
  EXPECT_FALSE(state.clash);
}

TEST(ThreadPool, ArenasAreAlignedAndKept) {
  ThreadPool pool(threads(1));
  struct State {
    ThreadPool& pool;
    void* seen[3];
  } state{pool, {}};
  pool.run(
      3,
      [](void* context, std::int64_t index, int worker) {
        auto& s = *static_cast<State*>(context);
        s.seen[index] = s.pool.arena(worker, index == 1 ? 10 : 5000);
      },
      &state);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(state.seen[0]) % 64, 0u);
  EXPECT_EQ(state.seen[0], state.seen[1]);
  EXPECT_EQ(state.seen[0], state.seen[2]);
}

TEST(ThreadPool, RunsAfterClose) {
  ThreadPool pool(threads(4));
  pool.start();
  pool.close();
  Tally tally(10);
  tally.workers = 1;
  pool.run(10, Tally::task, &tally);
  EXPECT_TRUE(tally.each_ran(1));
}

#if !defined(GREENFAST_TSAN)  // which supports no threads in the child of a threaded process
TEST(ThreadPool, StartsAnewInTheChildOfAFork) {
  ThreadPool pool(threads(2));
  pool.start();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    pool.forget_workers();
    std::atomic<int> arrived{0};
    pool.run(
        2,
        [](void* context, std::int64_t, int) {
          auto& count = *static_cast<std::atomic<int>*>(context);
          ++count;
          while (count < 2) std::this_thread::yield();
        },
        &arrived);
    _exit(arrived == 2 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}
#endif

TEST(Config, TakesThreadsFromTheVariableElseFromTheMask) {
  EXPECT_EQ(pool_config({.threads = "5"})->threads, 5);
  const Result<PoolConfig> unset = pool_config({});
  EXPECT_EQ(static_cast<std::size_t>(unset->threads), unset->cpus.size());
}

class Cgroup : public testing::Test {
 protected:
  Cgroup() : root_(testing::TempDir() + "greenfast_cgroup_" + std::to_string(getpid())) {
    std::filesystem::create_directories(root_ + "/cpu");
  }
  ~Cgroup() override { std::filesystem::remove_all(root_); }
  void write(const std::string& file, const std::string& text) const {
    std::ofstream(root_ + "/" + file) << text;
  }
  const std::string root_;
};

TEST_F(Cgroup, LimitsThreadsToItsQuota) {
  EXPECT_EQ(quota_threads(root_), 0);
  for (const auto& [text, threads] : {std::pair{"max 100000", 0},
                                      {"100000 100000", 1},
                                      {"150000 100000", 2},
                                      {"1000 100000", 1},
                                      {"3200000 100000", 32},
                                      {"", 0},
                                      {"-1 100000", 0},
                                      {"many 100000", 0},
                                      {"100000 0", 0}}) {
    write("cpu.max", std::string(text) + "\n");
    EXPECT_EQ(quota_threads(root_), threads) << text;
  }
  write("cpu.max", "1000 100000\n");
  EXPECT_EQ(pool_config({.cgroup = root_})->threads, 1);
  EXPECT_EQ(pool_config({.threads = "5", .cgroup = root_})->threads, 5);
}

TEST_F(Cgroup, KnowsTheFirstVersionToo) {
  write("cpu/cpu.cfs_quota_us", "-1\n");
  write("cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota_threads(root_), 0);
  write("cpu/cpu.cfs_quota_us", "250000\n");
  EXPECT_EQ(quota_threads(root_), 3);
}

TEST(Config, NamesAVariableThatItCannotRead) {
  for (const char* bad : {"", "0", "-1", "two", "4x", " 4", "99999", "99999999999999"}) {
    const Result<PoolConfig> config = pool_config({.threads = bad});
    ASSERT_FALSE(config.ok()) << bad;
    EXPECT_EQ(config.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(config.status().message().find("GREENFAST_THREADS"), std::string::npos);
  }
  EXPECT_FALSE(pool_config({.pin = "yes"}).ok());
  EXPECT_FALSE(pool_config({.pin = "0"})->pin);
}

TEST(Config, ForcesOnlyInstructionSetsThatTheMachineHas) {
  const Isa best = detect_isa();
  EXPECT_EQ(*chosen_isa({}), preferred_isa());
  EXPECT_LE(preferred_isa(), best);
  if (best == Isa::avx512amx) {
    EXPECT_EQ(preferred_isa(), best);
  }
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::avx512amx}) {
    const std::string name{name_of(isa)};
    EXPECT_EQ(chosen_isa({.isa = name.c_str()}).ok(), isa <= best) << name;
  }
  const Result<Isa> unknown = chosen_isa({.isa = "mmx"});
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().message().find("portable"), std::string::npos);
}

}  // namespace
}  // namespace greenfast::cpu
