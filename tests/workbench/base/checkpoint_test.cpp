// Steps of a job that survive its end, and files that are none of its steps.
#include "workbench/base/checkpoint.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace greenfast::workbench::test {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

TEST(CheckpointFiles, StepsSurviveAndStrangersAreRefused) {
  const fs::path dir = "checkpoint";
  fs::remove_all(dir);
  fs::create_directories(dir);
  {
    auto job = Checkpoint::begin(dir, {{"schema", "test/1"}, {"n", 3}});
    ASSERT_TRUE(job) << job.status().message();
    EXPECT_FALSE(job->finished("one"));
    ASSERT_TRUE(job->save("one", {{"x", 1}}));
  }
  auto again = Checkpoint::resume(dir, "test/1");
  ASSERT_TRUE(again);
  EXPECT_EQ(again->head()["n"], 3);
  ASSERT_TRUE(again->finished("one"));
  EXPECT_EQ((*again->load("one"))["x"], 1);

  EXPECT_NE(Checkpoint::resume(dir, "test/2")
                .status()
                .message()
                .find("schema \"test/1\"; this version resumes \"test/2\""),
            std::string::npos);
  EXPECT_NE(
      Checkpoint::resume("nowhere", "test/1").status().message().find("nowhere: no such directory"),
      std::string::npos);
  EXPECT_NE(Checkpoint::resume(dir / "steps", "test/1").status().message().find("holds no job"),
            std::string::npos);
  // What a stranger puts there while the job is at work is no step of it.
  fs::copy(dir / "steps" / "one.json", dir / "steps" / "two.json");
  EXPECT_FALSE(again->finished("two"));
  EXPECT_NE(again->load("two").status().message().find("saved something else"), std::string::npos);
  std::ofstream(dir / "steps" / "one.json") << "{\"x\":";
  EXPECT_NE(again->load("one").status().message().find("truncated"), std::string::npos);
}

TEST(CheckpointFiles, ANewJobHasNoSteps) {
  const fs::path dir = "checkpoint";
  fs::remove_all(dir);
  fs::create_directories(dir);
  const json head = {{"schema", "test/1"}};
  {
    auto first = Checkpoint::begin(dir, head);
    ASSERT_TRUE(first);
    ASSERT_TRUE(first->save("one", {{"x", 1}}));
    EXPECT_EQ(first->head(), head) << "the secret stays in the file";
  }
  auto second = Checkpoint::begin(dir, head);
  ASSERT_TRUE(second);
  EXPECT_FALSE(second->finished("one"));
  EXPECT_FALSE(fs::exists(dir / "steps" / "one.json"));
}

}  // namespace
}  // namespace greenfast::workbench::test
