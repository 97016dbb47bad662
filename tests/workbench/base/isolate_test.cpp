// Child processes: how each of them ended, and what it was doing.
#include "workbench/base/isolate.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <set>
#include <stdexcept>
#include <string>

namespace greenfast::workbench::test {
namespace {

TEST(Child, FinishesCrashesAndHangs) {
  auto end = run_in_child([](Activity& a) { a.set("all well"); }, 10);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, ChildEnd::How::finished);
  EXPECT_EQ(end->activity, "all well");

  end = run_in_child(
      [](Activity& a) {
        a.set("about to die");
        signal(SIGABRT, SIG_DFL);
        kill(getpid(), SIGABRT);
      },
      10);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, ChildEnd::How::crashed);
  EXPECT_EQ(end->detail, "killed by SIGABRT");
  EXPECT_EQ(end->activity, "about to die");

  end = run_in_child([](Activity&) { _exit(7); }, 10);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, ChildEnd::How::crashed);
  EXPECT_EQ(end->detail, "ended with code 7");

  // The code of a failure of ours, but not thrown: a plugin's own end.
  end = run_in_child(
      [](Activity& a) {
        a.set("calling", Actor::candidate);
        _exit(1);
      },
      10);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, ChildEnd::How::crashed);
  EXPECT_EQ(end->actor, Actor::candidate);

  end = run_in_child([](Activity&) { throw std::runtime_error("no room"); }, 10);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, ChildEnd::How::failed);
  EXPECT_EQ(end->detail, "no room");
  EXPECT_EQ(end->code, StatusCode::internal);

  end = run_in_child(
      [](Activity&) {
        throw StatusError({StatusCode::no_device, "none here"});
      },
      10);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, ChildEnd::How::failed);
  EXPECT_EQ(end->code, StatusCode::no_device);
  EXPECT_EQ(end->detail, "none here");

  int watched = 0;
  end = run_in_child(
      [](Activity& a) {
        a.set("waiting");
        for (;;) pause();
      },
      0.3, [&](const std::string& what) { watched += what == "waiting"; });
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, ChildEnd::How::timed_out);
  EXPECT_GE(watched, 1);
}

TEST(Child, IsStoppedWhenAskedAndHasAGroupOfItsOwn) {
  int asked = 0;
  ChildLimits limits;
  limits.stop = [&] { return ++asked > 1; };
  auto end = run_in_child(
      [](Activity&) {
        for (;;) pause();
      },
      limits);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, ChildEnd::How::stopped);

  const pid_t group = getpgrp();
  end = run_in_child(
      [group](Activity&) {
        if (getpgrp() == group) throw std::runtime_error("Ctrl-C would reach it");
      },
      10);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, ChildEnd::How::finished) << end->detail;
}

TEST(Child, AnActivityLongerThanItsPageIsCut) {
  const auto end = run_in_child([](Activity& a) { a.set(std::string(100'000, 'x')); }, 10);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->activity.size(), 4095u);
}

TEST(Child, WhatItPrintsIsCleaned) {
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  const auto end = run_in_child(
      [](Activity&) {
        std::printf("\033[2Jpainted\n");
        std::fprintf(stderr, "\033]0;title\a");
        for (int i = 0; i < 20'000; ++i) std::printf("more than a pipe holds, number %d\n", i);
        std::fprintf(stderr, "no end");
      },
      ChildLimits{.seconds = 30, .clean_output = true});
  const std::string out = ::testing::internal::GetCapturedStdout(),
                    err = ::testing::internal::GetCapturedStderr();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, ChildEnd::How::finished);
  EXPECT_EQ(out, "");
  EXPECT_NE(err.find("?[2Jpainted\n"), std::string::npos);
  EXPECT_NE(err.find("number 19999\n"), std::string::npos);
  EXPECT_NE(err.find("no end\n"), std::string::npos);
  EXPECT_EQ(err.find_first_of("\033\a"), std::string::npos);
}

TEST(Child, NothingThatItStartedOutlivesIt) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const auto end = run_in_child(
      [&](Activity&) {
        if (fork() != 0) return;
        sleep(60);  // holds the pipe open
        _exit(0);
      },
      20);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, ChildEnd::How::finished);
  close(ends[1]);
  pollfd waiting{ends[0], POLLIN, 0};
  EXPECT_EQ(poll(&waiting, 1, 5000), 1) << "what it started is still there after 5 s";
  close(ends[0]);
}

/// Pipes that a program which is started now would have open, beside its three streams.
std::set<std::string> inherited_pipes() {
  std::set<std::string> out;
  for (int descriptor = 3; descriptor < 256; ++descriptor) {
    char to[64] = "";
    const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
    if (readlink(path.c_str(), to, sizeof to - 1) <= 0) continue;
    if (std::string(to).starts_with("pipe:") && (fcntl(descriptor, F_GETFD) & FD_CLOEXEC) == 0)
      out.insert(to);
  }
  return out;
}

TEST(Child, WhatItStartsHoldsNothingOpenOfItsParents) {
  // A plugin's process that held the pipe's end would keep who waits for the child waiting.
  const std::set<std::string> before = inherited_pipes();
  const auto end = run_in_child(
      [&](Activity&) {
        if (inherited_pipes() != before) throw std::runtime_error("a pipe is open for others");
      },
      10);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, ChildEnd::How::finished) << end->detail;
}

}  // namespace
}  // namespace greenfast::workbench::test
