#include "backends/cpu/pool.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
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

// Tasks that wait for each other end only if a thread is found for each; each says how many
// processors its thread may use.
struct Meeting {
  explicit Meeting(int count) : tasks(count), may_use(static_cast<std::size_t>(count)) {}
  const int tasks;
  std::vector<int> may_use;
  std::atomic<int> arrived{0};

  static void task(void* context, std::int64_t index, int) {
    auto& meeting = *static_cast<Meeting*>(context);
    cpu_set_t set;
    CPU_ZERO(&set);
    (void)pthread_getaffinity_np(pthread_self(), sizeof set, &set);
    meeting.may_use[static_cast<std::size_t>(index)] = CPU_COUNT(&set);
    ++meeting.arrived;
    while (meeting.arrived < meeting.tasks) std::this_thread::yield();
  }
};

std::vector<int> own_cpus() { return pool_config({})->cpus; }

void bind_caller(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<std::size_t>(cpu), &set);
  ASSERT_EQ(pthread_setaffinity_np(pthread_self(), sizeof set, &set), 0);
}

// Two processors of this machine are a node; four that no machine has are another, so workers that
// are sent there may still use every processor, and are known by that.
PoolConfig two_nodes(const std::vector<int>& here) {
  PoolConfig config{.threads = 6, .cpus = {here[0], here[1], 1000, 1001, 1002, 1003}, .pin = true};
  config.nodes = {{{here[0], here[1]}, {10, 21}}, {{1000, 1001, 1002, 1003}, {21, 10}}};
  return config;
}

TEST(ThreadPool, ARunTakesWorkersOfItsCallersNodeFirst) {
  const std::vector<int> here = own_cpus();
  if (here.size() < 2) GTEST_SKIP() << "one processor";
  ThreadPool pool(two_nodes(here));
  pool.start();
  for (int round = 0; round < 100; ++round) {
    if (round % 2 == 0) {
      Meeting everybody(6);  // so that all look for work
      pool.run(6, Meeting::task, &everybody);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // so that all sleep
    }
    Meeting meeting(2);
    pool.run(2, Meeting::task, &meeting);
    std::vector<int> mine = meeting.may_use;
    std::sort(mine.begin(), mine.end());
    ASSERT_EQ(mine.front(), 1) << "round " << round;  // the worker; the caller may use more
  }
}

TEST(ThreadPool, ARunTakesWorkersOfOtherNodesWhereItsOwnHasTooFew) {
  const std::vector<int> here = own_cpus();
  if (here.size() < 2) GTEST_SKIP() << "one processor";
  ThreadPool pool(two_nodes(here));
  for (int round = 0; round < 20; ++round) {
    Meeting meeting(6);
    pool.run(6, Meeting::task, &meeting);
    EXPECT_EQ(meeting.arrived, 6);
  }
  // The only near worker is taken by one caller; the other's run must not wait for it.
  struct Held {
    std::atomic<int> inside{0};
    std::atomic<bool> go{false};
  } held;
  std::thread first([&] {
    pool.run(
        2,
        [](void* context, std::int64_t, int) {
          auto& h = *static_cast<Held*>(context);
          ++h.inside;
          while (!h.go) std::this_thread::yield();
        },
        &held);
  });
  while (held.inside < 2) std::this_thread::yield();
  Meeting second(2);
  pool.run(2, Meeting::task, &second);
  EXPECT_EQ(second.arrived, 2);
  held.go = true;
  first.join();
}

TEST(ThreadPool, ASmallPoolStaysOnItsCallersNodeAndFollowsIt) {
  const std::vector<int> here = own_cpus();
  if (here.size() < 2) GTEST_SKIP() << "one processor";
  PoolConfig config{.threads = 2, .cpus = {here[0], here[1], 1000}, .pin = true};
  config.nodes = {{{here[0], 1000}, {10, 21}}, {{here[1], 1001}, {21, 10}}};
  ThreadPool pool(config);
  const auto worker_may_use = [&] {
    struct State {
      std::atomic<int> arrived{0};
      std::atomic<std::uint64_t> cpu{0};
    } state;
    pool.run(
        2,
        [](void* context, std::int64_t, int worker) {
          auto& s = *static_cast<State*>(context);
          if (worker == 1) {
            cpu_set_t set;
            CPU_ZERO(&set);
            (void)pthread_getaffinity_np(pthread_self(), sizeof set, &set);
            for (int cpu = 0; cpu < 64; ++cpu) {
              if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) s.cpu |= std::uint64_t{1} << cpu;
            }
          }
          ++s.arrived;
          while (s.arrived < 2) std::this_thread::yield();
        },
        &state);
    return state.cpu.load();
  };
  if (here[1] >= 64) GTEST_SKIP() << "processors beyond 64";
  std::thread([&] {
    bind_caller({here[0]});
    EXPECT_EQ(worker_may_use(), std::uint64_t{1} << here[0]);
    bind_caller({here[1]});
    EXPECT_EQ(worker_may_use(), std::uint64_t{1} << here[0]);  // a passing visit moves nobody
    for (int run = 0; run < 20; ++run) (void)worker_may_use();
    EXPECT_EQ(worker_may_use(), std::uint64_t{1} << here[1]);
  }).join();
}

// A program that has bound the thread that calls first must not have all the workers there.
TEST(ThreadPool, WorkersDoNotInheritTheProcessorThatTheirCallerIsBoundTo) {
  const std::vector<int> here = own_cpus();
  if (here.size() < 2) GTEST_SKIP() << "one processor";
  for (const bool pin : {false, true}) {
    PoolConfig config{.threads = 3, .cpus = here, .pin = pin};
    config.cpus.push_back(1000);
    config.threads = pin ? 2 : 3;  // smaller than its mask, or told not to pin
    ThreadPool pool(config);
    std::thread([&] {
      bind_caller({here[1]});
      Meeting meeting(config.threads);
      pool.run(config.threads, Meeting::task, &meeting);
      std::sort(meeting.may_use.begin(), meeting.may_use.end());
      EXPECT_EQ(meeting.may_use.front(), 1);  // the caller stays as it was
      EXPECT_EQ(meeting.may_use[1], static_cast<int>(here.size()));
    }).join();
  }
}

// As OpenMP does with OMP_PROC_BIND: the first thread on one processor, its others on theirs.
TEST(Config, CountsTheProcessorsOfAllThreadsWhereTheFirstIsBoundToOne) {
  const std::vector<int> here = own_cpus();
  if (here.size() < 2) GTEST_SKIP() << "one processor";
  ASSERT_EQ(gettid(), getpid());
  std::atomic<int> bound{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> others;
  for (const int cpu : {here[0], here[1]}) {
    others.emplace_back([&, cpu] {
      bind_caller({cpu});
      ++bound;
      while (!go) std::this_thread::yield();
    });
  }
  while (bound < 2) std::this_thread::yield();
  bind_caller({here[0]});
  EXPECT_EQ(allowed_cpus(), (std::vector<int>{here[0], here[1]}));
  EXPECT_EQ(pool_config({})->threads, 2);
  go = true;
  for (std::thread& other : others) other.join();
#if !defined(GREENFAST_TSAN)  // which has a thread of its own
  EXPECT_EQ(allowed_cpus(), (std::vector<int>{here[0]}));
#endif
  bind_caller(here);
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

// A service without a namespace of its own finds its limit further down, and its slice's above it.
TEST_F(Cgroup, TakesTheLeastLimitOfTheCgroupsItIsIn) {
  std::filesystem::create_directories(root_ + "/system.slice/some.service");
  std::filesystem::create_directories(root_ + "/cpu/docker/0123");
  write("self", "0::/system.slice/some.service\n");
  EXPECT_EQ(quota_threads(root_, root_ + "/self"), 0);
  write("system.slice/some.service/cpu.max", "300000 100000\n");
  EXPECT_EQ(quota_threads(root_, root_ + "/self"), 3);
  write("system.slice/cpu.max", "200000 100000\n");
  EXPECT_EQ(quota_threads(root_, root_ + "/self"), 2);
  write("cpu.max", "400000 100000\n");
  EXPECT_EQ(quota_threads(root_, root_ + "/self"), 2);
  EXPECT_EQ(quota_threads(root_, root_ + "/nowhere"), 4);
  write("self", "no colon\n7:memory:/\n4:cpu,cpuacct:/docker/0123\n");
  EXPECT_EQ(quota_threads(root_, root_ + "/self"), 4);
  write("cpu/docker/0123/cpu.cfs_quota_us", "100000\n");
  write("cpu/docker/0123/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota_threads(root_, root_ + "/self"), 1);
  EXPECT_EQ(pool_config({.cgroup = root_, .cgroup_of = root_ + "/self"})->threads, 1);
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

// Bit numbers: Intel SDM volume 2A, CPUID; a Sapphire Rapids has them all.
Answers all_of_them() {
  Answers answers;
  answers.leaf1_ecx = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29;
  answers.leaf7_ebx = 1u << 5 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
  answers.leaf7_ecx = 1u << 1;
  answers.leaf7_edx = 1u << 22 | 1u << 24;
  answers.leaf7_1_eax = 1u << 5;
  answers.saved_state = 0x602e7;
  answers.gives_tiles = []() noexcept { return true; };
  return answers;
}

TEST(Config, TakesTheBestSetThatProcessorAndSystemHave) {
  const auto best = [](const Answers& answers) {
    return name_of(best_isa(answers, why_no_amx(answers)));
  };
  EXPECT_EQ(best(all_of_them()), "avx512amx");
  const auto without = [&](std::uint32_t Answers::*leaf, int bit) {
    Answers answers = all_of_them();
    answers.*leaf &= ~(1u << bit);
    return best(answers);
  };
  for (const int bit : {12, 27, 28, 29}) EXPECT_EQ(without(&Answers::leaf1_ecx, bit), "portable");
  EXPECT_EQ(without(&Answers::leaf7_ebx, 5), "portable");
  for (const int bit : {16, 17, 30, 31}) EXPECT_EQ(without(&Answers::leaf7_ebx, bit), "avx2");
  EXPECT_EQ(without(&Answers::leaf7_ecx, 1), "avx512");
  EXPECT_EQ(without(&Answers::leaf7_1_eax, 5), "avx512");
  for (const int bit : {22, 24}) EXPECT_EQ(without(&Answers::leaf7_edx, bit), "avx512bf16");
  const auto saving = [&](std::uint64_t state) {
    Answers answers = all_of_them();
    answers.saved_state = state;
    return best(answers);
  };
  EXPECT_EQ(saving(0x3), "portable");
  EXPECT_EQ(saving(0x7), "avx2");
  EXPECT_EQ(saving(0xe7), "avx512bf16");
  EXPECT_EQ(saving(0x202e7), "avx512bf16");  // the tiles' configuration alone
}

TEST(Config, SaysWhyThereIsNoAmx) {
  EXPECT_EQ(why_no_amx(all_of_them()), "");
  Answers answers = all_of_them();
  answers.gives_tiles = []() noexcept { return false; };  // a container, or a small signal stack
  EXPECT_NE(why_no_amx(answers).find("refuses this process its tiles"), std::string_view::npos);
  EXPECT_EQ(best_isa(answers, why_no_amx(answers)), Isa::avx512bf16);
  // Nobody asks for what is not there: the request holds for the process from then on.
  answers.gives_tiles = nullptr;
  answers.saved_state = 0xe7;
  EXPECT_NE(why_no_amx(answers).find("does not save"), std::string_view::npos);
  answers.leaf7_edx = 0;
  EXPECT_EQ(why_no_amx(answers), "the processor has none");
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
