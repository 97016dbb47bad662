// The CPU through the public API: several callers, forks, and the environment.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "backends/cpu/isa.hpp"
#include "case.hpp"

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

#if !defined(GREENFAST_TSAN)  // which supports no threads in the child of a threaded process
TEST(CpuCalls, WorkInTheChildOfAFork) {
  test::Case call(causal_problem(), 1);
  ASSERT_TRUE(attention(call.problem, call.tensors, flash()).ok());
  const auto expected = call.o;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    call.poison_output();
    const bool same = attention(call.problem, call.tensors, flash()).ok() && call.o == expected;
    _exit(same ? 0 : 1);
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

int run_again(const char* test, const char* variable, const std::string& value) {
  const pid_t child = fork();
  if (child == 0) {
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
