// What other people's programs and code print, and how they end with whoever started them.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "workbench/base/files.hpp"
#include "workbench/base/isolate.hpp"
#include "workbench/base/stdout_aside.hpp"
#include "workbench/base/subprocess.hpp"
#include "workbench/base/terminal.hpp"

namespace greenfast::workbench::test {
namespace {

namespace fs = std::filesystem;

TEST(StdoutAside, NothingOfWhatIsPrintedMeanwhileIsTheResult) {
  const auto end = run_in_child(
      [](Activity&) {
        if (freopen("aside.out", "w", stdout) == nullptr ||
            freopen("aside.err", "w", stderr) == nullptr)
          throw std::runtime_error("no files");
        std::printf("before;");
        {
          const StdoutAside aside;
          std::printf("buffered by the kernel;");  // stays in the buffer until aside ends
          if (write(STDOUT_FILENO, "written by the kernel;", 22) != 22)
            throw std::runtime_error("no write");
        }
        std::printf("result");
      },
      30);
  ASSERT_TRUE(end);
  ASSERT_EQ(end->how, ChildEnd::How::finished) << end->detail;
  EXPECT_EQ(*read_file("aside.out"), "before;result");
  EXPECT_EQ(*read_file("aside.err"), "written by the kernel;buffered by the kernel;");
}

/// Whether a process is there and does something.
bool alive(pid_t process) {
  std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
  std::string id, name, state;
  return stat >> id >> name >> state && state != "Z";
}

template <class Condition>
bool becomes(const Condition& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

/// A program whose own child is deaf to SIGTERM and writes its id; it leaves half a file.
const std::vector<std::string> kDeaf = {
    "/bin/sh", "-c",
    "printf half > unfinished; (trap '' TERM; sh -c 'echo $PPID' > id.tmp; mv id.tmp id; sleep "
    "600; sleep 600) & wait"};

TEST(Programs, EndWithWhoeverStartedThem) {
  fs::remove("id");
  const pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    RunLimits limits;
    limits.unfinished = fs::absolute("unfinished");
    (void)run_program(kDeaf, limits);
    _exit(0);
  }
  ASSERT_TRUE(becomes([] { return fs::exists("id"); }));
  const pid_t deaf = std::stoi(*read_file("id"));
  ASSERT_TRUE(alive(deaf));
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  EXPECT_TRUE(becomes([&] { return !alive(deaf); })) << "a child of the program is still at work";
  EXPECT_TRUE(becomes([] { return !fs::exists("unfinished"); }));
}

TEST(Programs, AreStoppedAndTimedOutWithAllTheyStarted) {
  for (const bool stopped : {true, false}) {
    fs::remove("id");
    RunLimits limits;
    limits.unfinished = fs::absolute("unfinished");
    if (stopped)
      limits.stop = [] { return fs::exists("id"); };
    else
      limits.seconds = 2;
    const auto end = run_program(kDeaf, limits);
    ASSERT_TRUE(end);
    EXPECT_EQ(end->stopped, stopped);
    EXPECT_EQ(end->timed_out, !stopped);
    ASSERT_TRUE(fs::exists("id"));
    const pid_t deaf = std::stoi(*read_file("id"));
    EXPECT_TRUE(becomes([&] { return !alive(deaf); }));
    EXPECT_FALSE(fs::exists("unfinished"));
  }
}

TEST(Programs, TellTheirCodeTheirSignalAndWhatTheyPrint) {
  const auto run = [](const char* script) {
    return *run_program(std::vector<std::string>{"/bin/sh", "-c", script}, 30);
  };
  EXPECT_EQ(run("echo out; echo err >&2; exit 3").exit_code, 3);
  EXPECT_EQ(run("echo out; echo err >&2").out, "out\n");
  EXPECT_EQ(run("echo out; echo err >&2").err, "err\n");
  EXPECT_EQ(run("kill -SEGV $$").exit_code, 128 + SIGSEGV);
  EXPECT_EQ(run_program(std::vector<std::string>{"/nowhere/program"}, 30)->exit_code, 127);
}

TEST(ShellWord, IsWhatAShellReads) {
  for (const std::string word :
       {"plain-1.0/x", "two words", "it's", "$HOME", "", "a\nb", "\"q\""}) {
    const std::string line = "printf %s " + shell_word(word);
    EXPECT_EQ(run_program(std::vector<std::string>{"/bin/sh", "-c", line}, 30)->out, word) << line;
  }
}

}  // namespace
}  // namespace greenfast::workbench::test
