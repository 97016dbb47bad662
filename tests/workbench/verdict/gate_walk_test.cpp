// A gate's steps: their order, and the names by which a job that an earlier version began goes on.
#include "workbench/verdict/gate_walk.hpp"

#include <gtest/gtest.h>

namespace greenfast::workbench {
namespace {

std::vector<std::string> names(const Walk& walk) {
  std::vector<std::string> out;
  for (const WalkStep& step : steps_of(walk)) out.push_back(name_of(step));
  return out;
}

TEST(Walk, StepsHaveTheNamesThatTheyLieUnder) {
  const Walk walk{.shapes = {{"mission"}, {"small", true}, {"long"}},
                  .processes = 2,
                  .peers = {"peer:torch-cpu"}};
  EXPECT_EQ(names(walk),
            (std::vector<std::string>{"build", "green.0", "green.2", "claims", "fast.0.0",
                                      "fast.0.1", "fast.2.0", "fast.2.1", "peers"}));
  EXPECT_EQ(names({}), std::vector<std::string>{"build"}) << "which shapes there are, it finds";
}

TEST(Walk, NamesAreReadAsTheyAreWritten) {
  for (const WalkStep& step : steps_of({.shapes = {{"a"}, {"b"}}, .processes = 12, .peers = {"p"}}))
    EXPECT_EQ(parse_walk_step(name_of(step)), step) << name_of(step);
  for (const char* other : {"", "green", "green.", "green.x", "green.-1", "green.0.1", "fast.0",
                            "fast.0.", "fast.0.1.2", "building", "peers.0", "resources"})
    EXPECT_EQ(parse_walk_step(other), std::nullopt) << other;
}

TEST(Walk, StepsSayWhatTheyDo) {
  const Walk walk{.shapes = {{"mission"}, {"long"}}, .processes = 3, .peers = {"peer:a", "peer:b"}};
  EXPECT_EQ(describe({.kind = StepKind::green, .shape = 1}, walk), "GREEN long");
  EXPECT_EQ(describe({.kind = StepKind::fast, .shape = 1, .process = 2}, walk),
            "FAST long, process 3 of 3");
  EXPECT_EQ(describe({.kind = StepKind::peers}, walk), "mission beside peer:a, peer:b");
}

}  // namespace
}  // namespace greenfast::workbench
