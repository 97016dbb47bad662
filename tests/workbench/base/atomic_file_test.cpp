// Files that exist whole or not at all, and directories that leave nothing behind when they fail.
#include "workbench/base/atomic_file.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "workbench/base/files.hpp"

namespace greenfast::workbench::test {
namespace {

namespace fs = std::filesystem;

class AtomicFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder =
        fs::path("atomic_file") / ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  std::ptrdiff_t entries() const {
    return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
  }
  fs::path folder;
};

TEST_F(AtomicFile, ReplacesWholeAndLeavesNoOtherFile) {
  ASSERT_TRUE(write_file_atomically(folder / "a", std::string(100'000, 'x')));
  ASSERT_TRUE(write_file_atomically(folder / "a", "short"));
  EXPECT_EQ(*read_file(folder / "a"), "short");
  EXPECT_EQ(entries(), 1);
}

TEST_F(AtomicFile, WhatWasThereStaysWhereItFails) {
  fs::create_directories(folder / "taken" / "inside");
  const Status status = write_file_atomically(folder / "taken", "x");
  EXPECT_EQ(status.code(), StatusCode::internal);
  EXPECT_NE(status.message().find((folder / "taken").string()), std::string::npos)
      << status.message();
  EXPECT_TRUE(fs::exists(folder / "taken" / "inside"));
  EXPECT_EQ(entries(), 1) << "the temporary file is gone";
  EXPECT_FALSE(write_file_atomically(folder / "no" / "a", "x"));
}

TEST_F(AtomicFile, ADirectoryThatFailsTakesWithItWhatItMade) {
  auto out = OutputDirectory::open(folder / "one" / "two");
  ASSERT_TRUE(out) << out.status().message();
  ASSERT_TRUE(out->write("a", "text"));
  EXPECT_EQ(*read_file(folder / "one" / "two" / "a"), "text");
  out->discard();
  EXPECT_EQ(entries(), 0);

  auto again = OutputDirectory::open(folder / "one" / "two");
  ASSERT_TRUE(again);
  EXPECT_FALSE(again->write("no/such", "text"));
  EXPECT_EQ(entries(), 0) << "the empty directories went too";
}

TEST_F(AtomicFile, TwoRunsOfOneSecondNeverShareADirectory) {
  auto first = OutputDirectory::open_unique(folder, "20260102T030405Z");
  auto second = OutputDirectory::open_unique(folder, "20260102T030405Z");
  ASSERT_TRUE(first);
  ASSERT_TRUE(second);
  EXPECT_EQ(first->path().filename(), "20260102T030405Z");
  EXPECT_EQ(second->path().filename(), "20260102T030405Z-2");
}

TEST_F(AtomicFile, AFileIsNoDirectoryToWriteInto) {
  std::ofstream(folder / "file") << "x";
  const Status asked = check_output_directory(folder / "file" / "results");
  EXPECT_EQ(asked.code(), StatusCode::invalid_argument);
  EXPECT_NE(asked.message().find("is not a directory"), std::string::npos) << asked.message();
  EXPECT_EQ(OutputDirectory::open(folder / "file").status().code(), StatusCode::invalid_argument);
  EXPECT_TRUE(check_output_directory(folder / "not" / "yet" / "there"));
  EXPECT_FALSE(fs::exists(folder / "not")) << "asking creates nothing";
}

TEST_F(AtomicFile, StampsSortByTime) {
  EXPECT_EQ(utc_stamp().size(), std::string("20261121T105533Z").size());
  EXPECT_EQ(utc_time().size(), std::string("2026-11-21T10:55:33Z").size());
  EXPECT_GE(utc_time(), "2026");
}

}  // namespace
}  // namespace greenfast::workbench::test
