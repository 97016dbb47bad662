// Whole files in, folders that go away again, and files that exist whole or not at all.
#include "workbench/base/files.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>

namespace greenfast::workbench::test {
namespace {

namespace fs = std::filesystem;

TEST(Files, EveryByteIsRead) {
  const std::string bytes("a\0b\r\n\xff", 6);
  std::ofstream("bytes", std::ios::binary) << bytes;
  const auto read = read_file("bytes");
  ASSERT_TRUE(read) << read.status().message();
  EXPECT_EQ(*read, bytes);
}

TEST(Files, APipeHasNoSizeAndIsReadToItsEnd) {
  fs::remove("pipe");
  ASSERT_EQ(::mkfifo("pipe", 0600), 0);
  const std::string much(300'000, 'x');  // more than a pipe holds
  const pid_t writer = ::fork();
  ASSERT_GE(writer, 0);
  if (writer == 0) {
    std::ofstream("pipe") << much;
    ::_exit(0);
  }
  const auto read = read_file("pipe");
  ::waitpid(writer, nullptr, 0);
  ASSERT_TRUE(read) << read.status().message();
  EXPECT_EQ(*read, much);
}

TEST(Files, WhatCannotBeReadIsNamedWithTheReason) {
  const Status missing = read_file("no/such.json").status();
  EXPECT_EQ(missing.code(), StatusCode::invalid_argument);
  EXPECT_EQ(missing.message(), "no/such.json: cannot be read: No such file or directory");
  EXPECT_EQ(read_file(".").status().message(), ".: cannot be read: Is a directory");
}

TEST(ScratchFolder, GoesWithItsObjectAndNotWithAForkedChild) {
  fs::path path;
  {
    auto folder = ScratchFolder::make("test");
    ASSERT_TRUE(folder) << folder.status().message();
    path = folder->path();
    EXPECT_EQ(path.filename().string().rfind("greenfast-test-", 0), 0u);
    std::ofstream(path / "kept") << "by the parent";
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      { ScratchFolder mine = std::move(*folder); }
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
    EXPECT_TRUE(fs::exists(path / "kept"));
    ScratchFolder moved = std::move(*folder);
    EXPECT_EQ(moved.path(), path);
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(ScratchFolder, OfAKilledProcessIsSweptAndOfALivingOneIsNot) {
  const auto age = [](const fs::path& folder) {
    fs::last_write_time(folder, fs::file_time_type::clock::now() - std::chrono::hours(1));
  };
  const auto mine = ScratchFolder::make("test");
  ASSERT_TRUE(mine.ok());
  age(mine->path());
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto folder = ScratchFolder::make("test");
    const std::string path = folder.ok() ? folder->path().string() : "";
    std::ofstream(folder->path() / "left") << "behind";
    if (write(pipe_ends[1], path.data(), path.size()) < 0) _exit(1);
    raise(SIGKILL);
  }
  close(pipe_ends[1]);
  int ended = 0;
  ASSERT_EQ(waitpid(child, &ended, 0), child);
  std::string path(4096, 0);
  const ssize_t got = read(pipe_ends[0], path.data(), path.size());
  close(pipe_ends[0]);
  ASSERT_GT(got, 0);
  path.resize(static_cast<std::size_t>(got));
  ASSERT_TRUE(fs::exists(path));
  ScratchFolder::sweep();
  EXPECT_TRUE(fs::exists(path)) << "a new folder may have no lock yet";
  age(path);
  ScratchFolder::sweep();
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::exists(mine->path()));
}

TEST(ScratchFolder, SaysWhatToChangeWhereNoneCanBeMade) {
  const char* before = std::getenv("TMPDIR");
  const std::string kept = before != nullptr ? before : "";
  ::setenv("TMPDIR", "/no/such/folder", 1);
  const Status status = ScratchFolder::make("test").status();
  before != nullptr ? ::setenv("TMPDIR", kept.c_str(), 1) : ::unsetenv("TMPDIR");
  EXPECT_EQ(status.code(), StatusCode::internal);
  EXPECT_NE(status.message().find("set TMPDIR"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace greenfast::workbench::test
