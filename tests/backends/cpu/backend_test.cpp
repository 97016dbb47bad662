// The CPU through the public API: several callers, forks, and the environment.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <greenfast/quantize.hpp>

#include "backends/cpu/isa.hpp"
#include "tests/kernels/cpu/case.hpp"

#if defined(__x86_64__)
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <xmmintrin.h>
#endif

#if defined(__SANITIZE_THREAD__)
#define GREENFAST_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GREENFAST_TSAN 1
#endif
#endif

namespace greenfast {
namespace {

Options flash() {
  Options options;
  options.variant = "cpu.flash";
  return options;
}

int threads_of_this_process() {
  int threads = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    threads += task.path().empty() ? 0 : 1;
  }
  return threads;
}

Problem causal_problem() {
  Problem problem = make_problem(2, 4, 2, 150, 200, 64, DType::bf16);
  problem.mask = Mask::causal(Alignment::bottom_right);
  return problem;
}

TEST(CpuCalls, FromSeveralThreadsGiveTheSameBits) {
  test::Case reference(causal_problem(), 1);
  ASSERT_TRUE(attention(reference.problem, reference.tensors, flash()).ok());
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      test::Case mine(causal_problem(), 1);
      for (int round = 0; round < 20; ++round) {
        mine.poison_output();
        const Status status = attention(mine.problem, mine.tensors, flash());
        if (!status.ok() || mine.o != reference.o) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

#if defined(__x86_64__)
struct HostMode {
  explicit HostMode(unsigned bits) : before_(_mm_getcsr()) { _mm_setcsr(0x1f80u | bits); }
  HostMode(const HostMode&) = delete;
  HostMode& operator=(const HostMode&) = delete;
  ~HostMode() { _mm_setcsr(before_); }
  static unsigned now() { return _mm_getcsr() & ~0x1fbfu; }  // without flags and their masks

 private:
  unsigned before_;
};
// Subnormals flushed and taken for 0; to zero; down; up; the last and the first together.
constexpr unsigned kHostModes[] = {0x8040u, 0x6000u, 0x2000u, 0x4000u, 0xc040u};

// Whatever a call computes outside its kernel, too: its plan and scale, and how values are quantised.
TEST(CpuCalls, GiveTheSameBitsWhateverFloatModeTheHostHasSet) {
  for (const std::int64_t head_dim : {40, 80, 64}) {
    Problem problem = make_problem(1, 4, 2, 40, 300, head_dim, DType::f16);
    problem.lse = true;
    test::Case call(problem, 3, 2.0e-5);  // many subnormals
    QuantizeProblem quantize;
    quantize.heads = 4;
    quantize.seq = 40;
    quantize.head_dim = head_dim;
    quantize.dtype = DType::f16;
    quantize.from = quantize.to = dense_layout(Order::bhsd, 1, 4, 40, head_dim);
    const auto elements = static_cast<std::size_t>(4 * 40 * head_dim);
    std::vector<std::uint16_t> halves(elements);  // subnormals for the most part
    for (std::size_t i = 0; i < elements; ++i) halves[i] = static_cast<std::uint16_t>(i * 7 % 1500);
    std::vector<std::uint8_t> codes(elements);
    std::vector<float> scales(4);
    const auto run = [&] {
      call.poison_output();
      call.problem.scale = default_scale(head_dim);
      return attention(call.problem, call.tensors, flash()).ok() &&
             quantize_e4m3(quantize, {halves.data(), codes.data(), scales.data()}).ok();
    };
    ASSERT_TRUE(run());
    const auto expected_o = call.o;
    const auto expected_lse = call.lse;
    const auto expected_codes = codes;
    const auto expected_scales = scales;
    for (const unsigned bits : kHostModes) {
      bool ran = false;
      unsigned after = 0;
      {
        const HostMode mode(bits);
        ran = run();
        after = HostMode::now();
      }
      EXPECT_TRUE(ran);
      EXPECT_EQ(after, bits) << "the host's mode is not what it was";
      EXPECT_TRUE(call.o == expected_o) << head_dim << " mode " << bits;
      EXPECT_TRUE(call.lse == expected_lse) << head_dim << " mode " << bits;
      EXPECT_TRUE(codes == expected_codes) << head_dim << " mode " << bits;
      EXPECT_EQ(scales, expected_scales) << head_dim << " mode " << bits;
    }
  }
}

TEST(CpuCalls, TheDefaultScaleIsTheNearestFloatInEveryRoundingMode) {
  for (std::int64_t head_dim = 1; head_dim <= 4096; ++head_dim) {
    const auto nearest = static_cast<float>(1.0L / std::sqrt(static_cast<long double>(head_dim)));
    ASSERT_EQ(default_scale(head_dim), nearest) << head_dim;
    for (const unsigned bits : kHostModes) {
      float scale = 0;
      {
        const HostMode mode(bits);
        scale = default_scale(head_dim);
      }
      ASSERT_EQ(scale, nearest) << head_dim << " mode " << bits;
    }
  }
}
#endif

#if !defined(GREENFAST_TSAN)  // which supports no threads in the child of a threaded process
// With workers of its own, as the exit code 2 denies.
TEST(CpuCalls, WorkInTheChildOfAFork) {
  test::Case call(causal_problem(), 1);
  ASSERT_TRUE(attention(call.problem, call.tensors, flash()).ok());
  const auto expected = call.o;
  const bool parallel = device_facts(DeviceKind::cpu)->multiprocessors > 1;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    call.poison_output();
    const bool same = attention(call.problem, call.tensors, flash()).ok() && call.o == expected;
    const bool alone = threads_of_this_process() == 1;
    _exit(!same ? 1 : alone && parallel ? 2 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}
#endif

// The environment is read once, so each value needs a process of its own: this program again, with
// one of the tests below that do not run by themselves.
// Its exit code is kPassed, which no run without that test gives.
constexpr int kPassed = 42;
[[noreturn]] void end_child() { std::exit(testing::Test::HasFailure() ? 1 : kPassed); }

// What a child says that this system does not let it be as the test wants it.
constexpr int kNotHere = 43;

int run_again(
    const char* test, const char* variable, const std::string& value,
    const std::function<bool()>& prepare = [] { return true; }) {
  const pid_t child = fork();
  if (child == 0) {
    if (!prepare()) _exit(kNotHere);
    setenv(variable, value.c_str(), 1);
    unsetenv("GTEST_OUTPUT");
    unsetenv("GTEST_TOTAL_SHARDS");
    const std::string filter = std::string("--gtest_filter=CpuCallsChild.DISABLED_") + test;
    execl("/proc/self/exe", "test_cpu_calls", filter.c_str(), "--gtest_also_run_disabled_tests",
          "--gtest_brief=1", static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(CpuCalls, UseTheInstructionSetThatIsForced) {
  for (int isa = 0; isa <= static_cast<int>(cpu::detect_isa()); ++isa) {
    const std::string name{cpu::name_of(static_cast<cpu::Isa>(isa))};
    EXPECT_EQ(run_again("UsesForcedIsa", "GREENFAST_ISA", name), kPassed) << name;
  }
}
TEST(CpuCallsChild, DISABLED_UsesForcedIsa) {
  const char* const wanted = std::getenv("GREENFAST_ISA");
  ASSERT_NE(wanted, nullptr);
  const Result<DeviceFacts> facts = device_facts(DeviceKind::cpu);
  ASSERT_TRUE(facts.ok()) << facts.status().message();
  EXPECT_EQ(facts->isa, wanted);
  test::Case call(causal_problem(), 1);
  const test::Expected expected(call);
  ASSERT_TRUE(attention(call.problem, call.tensors, flash()).ok());
  EXPECT_EQ(expected.compare(call, 0.004, 4.0e-6), "");
  end_child();
}

#if defined(__x86_64__) && !defined(GREENFAST_TSAN) && !defined(__SANITIZE_ADDRESS__)
// Linux gives tiles to no process with a signal stack too small for them, as it gives them to none
// in a container that forbids arch_prctl.
bool takes_amx_away() {
  static char stack[8192];
  stack_t small{};
  small.ss_sp = stack;
  small.ss_size = sizeof stack;
  return sigaltstack(&small, nullptr) == 0 && !cpu::why_no_amx().empty();
}

TEST(CpuCalls, DoWithoutAmxWhereItIsForbidden) {
  if (cpu::detect_isa() < cpu::Isa::avx512amx) GTEST_SKIP() << cpu::why_no_amx();
  EXPECT_EQ(run_again("DoesWithoutAmx", "GREENFAST_PIN", "0"), kPassed);
  EXPECT_EQ(run_again("NamesWhatForbidsAmx", "GREENFAST_ISA", "avx512amx"), kPassed);
}
TEST(CpuCallsChild, DISABLED_DoesWithoutAmx) {
  ASSERT_TRUE(takes_amx_away());
  const Result<DeviceFacts> facts = device_facts(DeviceKind::cpu);
  ASSERT_TRUE(facts.ok()) << facts.status().message();
  EXPECT_NE(facts->isa, "avx512amx");
  test::Case call(causal_problem(), 1);
  const test::Expected expected(call);
  ASSERT_TRUE(attention(call.problem, call.tensors, flash()).ok());
  EXPECT_EQ(expected.compare(call, 0.004, 4.0e-6), "");
  end_child();
}
TEST(CpuCallsChild, DISABLED_NamesWhatForbidsAmx) {
  ASSERT_TRUE(takes_amx_away());
  test::Case call(causal_problem(), 1);
  const Status status = attention(call.problem, call.tensors, flash());
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("no AMX: the system refuses"), std::string::npos)
      << status.message();
  end_child();
}
#endif

#if defined(__x86_64__)
// As a container's runtime does: the system call that asks for tiles ends with EPERM.
bool forbids_tiles() {
  constexpr std::uint32_t kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kRequestPermission, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{static_cast<unsigned short>(std::size(program)), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(CpuCalls, DoWithoutAmxInAContainerThatForbidsIt) {
  const int without = run_again("NeverUsesTiles", "GREENFAST_PIN", "0", forbids_tiles);
  if (without == kNotHere) GTEST_SKIP() << "this system lets no process install a seccomp filter";
  EXPECT_EQ(without, kPassed);
  if (cpu::detect_isa() < cpu::Isa::avx512amx) return;  // where nothing is there to be forbidden
  EXPECT_EQ(run_again("IsRefusedTiles", "GREENFAST_ISA", "avx512amx", forbids_tiles), kPassed);
}
TEST(CpuCallsChild, DISABLED_NeverUsesTiles) {
  const Result<DeviceFacts> facts = device_facts(DeviceKind::cpu);
  ASSERT_TRUE(facts.ok()) << facts.status().message();
  EXPECT_NE(facts->isa, "avx512amx");
  test::Case call(causal_problem(), 1);
  const test::Expected expected(call);
  ASSERT_TRUE(attention(call.problem, call.tensors, flash()).ok());
  EXPECT_EQ(expected.compare(call, 0.004, 4.0e-6), "");
  end_child();
}
TEST(CpuCallsChild, DISABLED_IsRefusedTiles) {
  test::Case call(causal_problem(), 1);
  const Status status = attention(call.problem, call.tensors, flash());
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("no AMX: the system refuses"), std::string::npos)
      << status.message();
  end_child();
}
#endif

// A quota as a container sees it: cpu.max at the root of the file system of cgroups.
TEST(CpuCalls, StartNoMoreThreadsThanACgroupAllows) {
  const std::string folder = testing::TempDir() + "greenfast_quota_" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/cpu.max") << "100000 100000\n";
  const int ended = run_again("UsesOneThread", "GREENFAST_PIN", "1", [&] {
    unsetenv("GREENFAST_THREADS");
    return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 &&
           mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           mount(folder.c_str(), "/sys/fs/cgroup", nullptr, MS_BIND, nullptr) == 0;
  });
  std::filesystem::remove_all(folder);
  if (ended == kNotHere)
    GTEST_SKIP() << "this system lets no process mount in a namespace of its own";
  EXPECT_EQ(ended, kPassed);
}
TEST(CpuCallsChild, DISABLED_UsesOneThread) {
  EXPECT_EQ(device_facts(DeviceKind::cpu)->multiprocessors, 1);
  test::Case call(causal_problem(), 1);
  const int before = threads_of_this_process();
  ASSERT_TRUE(attention(call.problem, call.tensors, flash()).ok());
  EXPECT_EQ(threads_of_this_process(), before);
  end_child();
}

// A host that binds the thread it calls from, and not the others: that thread stays where it is,
// and a worker starts elsewhere.
TEST(CpuCalls, LeaveACallerWhereTheHostHasBoundIt) {
  if (device_facts(DeviceKind::cpu)->multiprocessors < 2) GTEST_SKIP() << "one processor";
  unsetenv("GREENFAST_THREADS");
  for (const char* const pin : {"0", "1"}) {
    // A pool that fills its mask leaves the first processor to the caller; where the caller is on
    // another, that one's worker has to make way.
    for (const char* const which : {"first", "last"}) {
      EXPECT_EQ(run_again("StaysBound", "GREENFAST_PIN", pin,
                          [&] { return setenv("BIND_TO", which, 1) == 0; }),
                kPassed)
          << "pin " << pin << ", bound to the " << which;
    }
  }
}
TEST(CpuCallsChild, DISABLED_StaysBound) {
  std::thread([] {
    cpu_set_t all, one, now;
    ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    const bool first = std::string(std::getenv("BIND_TO")) == "first";
    std::size_t cpu = first ? 0 : CPU_SETSIZE - 1;
    while (!CPU_ISSET(cpu, &all)) cpu += first ? 1u : ~std::size_t{0};
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    const int before = threads_of_this_process();
    test::Case call(causal_problem(), 1);
    const test::Expected expected(call);
    ASSERT_TRUE(attention(call.problem, call.tensors, flash()).ok());
    EXPECT_EQ(expected.compare(call, 0.004, 4.0e-6), "");
    ASSERT_EQ(sched_getaffinity(0, sizeof now, &now), 0);
    EXPECT_TRUE(CPU_EQUAL(&one, &now));
    EXPECT_EQ(device_facts(DeviceKind::cpu)->multiprocessors, CPU_COUNT(&all));
    EXPECT_EQ(threads_of_this_process() - before, CPU_COUNT(&all) - 1);
    // Nobody else may be bound to the caller's processor alone.
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      const pid_t thread = std::stoi(task.path().filename());
      if (thread == gettid()) continue;
      ASSERT_EQ(sched_getaffinity(thread, sizeof now, &now), 0);
      EXPECT_FALSE(CPU_EQUAL(&one, &now)) << thread;
    }
  }).join();
  end_child();
}

TEST(CpuCalls, RefuseVariablesThatMakeNoSense) {
  EXPECT_EQ(run_again("Refuses", "GREENFAST_ISA", "mmx"), kPassed);
  EXPECT_EQ(run_again("Refuses", "GREENFAST_THREADS", "many"), kPassed);
  EXPECT_EQ(run_again("Refuses", "GREENFAST_PIN", "2"), kPassed);
}
TEST(CpuCallsChild, DISABLED_Refuses) {
  test::Case call(causal_problem(), 1);
  const Status status = attention(call.problem, call.tensors, flash());
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("GREENFAST_"), std::string::npos) << status.message();
  end_child();
}

}  // namespace
}  // namespace greenfast
