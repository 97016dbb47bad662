// Other people's programs: what they print, how they end, and how they are stopped.
#include "workbench/base/subprocess.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace greenfast::workbench::test {
namespace {

Result<ProgramEnd> shell(const std::string& script, double seconds = 60,
                         const std::filesystem::path& directory = {}) {
  const std::string argv[] = {"sh", "-c", script};
  return run_program(argv, seconds, directory);
}

TEST(Subprocess, KeepsBothStreamsAndTheCode) {
  const auto end = shell("echo out; echo err >&2; exit 7");
  ASSERT_TRUE(end) << end.status().message();
  EXPECT_EQ(end->out, "out\n");
  EXPECT_EQ(end->err, "err\n");
  EXPECT_EQ(end->exit_code, 7);
  EXPECT_FALSE(end->timed_out);
  EXPECT_EQ(shell("kill -TERM $$")->exit_code, 128 + SIGTERM);
}

TEST(Subprocess, NoShellReadsTheWordsAndNothingIsOnStandardInput) {
  const std::string argv[] = {"printf", "%s", "$(echo no) * ;"};
  EXPECT_EQ(run_program(argv, 60)->out, "$(echo no) * ;");
  EXPECT_EQ(shell("cat; echo end")->out, "end\n");
}

TEST(Subprocess, RunsWhereItIsAskedTo) {
  std::filesystem::create_directories("there");
  EXPECT_EQ(shell("pwd -P", 60, "there")->out, std::filesystem::canonical("there").string() + "\n");
  EXPECT_EQ(shell("pwd", 60, "not there")->exit_code, 127);
}

TEST(Subprocess, BothStreamsMayBeLongerThanAPipe) {
  const auto end = shell("head -c 300000 /dev/zero >&2; head -c 300000 /dev/zero");
  ASSERT_TRUE(end);
  EXPECT_EQ(end->out.size(), 300'000u);
  EXPECT_EQ(end->err.size(), 300'000u);
}

TEST(Subprocess, AfterItsTimeItIsKilledWithWhatItStarted) {
  const auto end = shell("echo begun; sleep 600 & echo $! > sleeper; wait", 0.5);
  ASSERT_TRUE(end) << end.status().message();
  EXPECT_TRUE(end->timed_out);
  EXPECT_EQ(end->out, "begun\n");
  pid_t sleeper = 0;
  std::ifstream("sleeper") >> sleeper;
  ASSERT_GT(sleeper, 0);
  // Whoever inherits it reaps it, which takes a moment; a living one sleeps for ten minutes.
  const std::filesystem::path of = "/proc/" + std::to_string(sleeper) + "/stat";
  const auto alive = [&] {
    std::string pid, name, state;
    return static_cast<bool>(std::ifstream(of) >> pid >> name >> state) && state != "Z";
  };
  for (int i = 0; i < 200 && alive(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(alive());
}

TEST(Subprocess, WhatIsNotInstalledIsNamed) {
  const std::string argv[] = {"greenfast-no-such-program"};
  const Status status = run_program(argv, 60).status();
  EXPECT_EQ(status.code(), StatusCode::no_device);
  EXPECT_EQ(status.message(), "greenfast-no-such-program is not installed");
  EXPECT_FALSE(find_program("greenfast-no-such-program"));
  EXPECT_TRUE(find_program("sh"));
}

TEST(Subprocess, TheLastLineIsThatWithWords) {
  EXPECT_EQ(last_line("one\ntwo \r\n\n"), "two");
  EXPECT_EQ(last_line("alone"), "alone");
  EXPECT_EQ(last_line("\n\n"), "");
}

}  // namespace
}  // namespace greenfast::workbench::test
