// What is known of a side's correctness, to JSON and back.
#include "workbench/green/correctness.hpp"

#include <gtest/gtest.h>

namespace greenfast::workbench {
namespace {

using nlohmann::json;

TEST(Correctness, ReturnsFromItsRecord) {
  for (const Correctness& known :
       {Correctness{}, Correctness{Verdict::green, ""}, Correctness{Verdict::red, "rel_fro 1 > 0"},
        Correctness{Verdict::skipped, "RED: a reason that looks like a verdict"}}) {
    json object = {{"id", "x"}};
    write_correctness(object, known);
    EXPECT_EQ(object.contains("verdict"), known.verdict.has_value());
    const auto read = read_correctness(object);
    ASSERT_TRUE(read) << object;
    EXPECT_EQ(read->verdict, known.verdict);
    EXPECT_EQ(read->why, known.why);
  }
  EXPECT_EQ(describe({Verdict::red, "late"}), "RED: late");
  EXPECT_EQ(describe(Correctness()), "not checked");
}

TEST(Correctness, RecordsThatHaveBothInOneTextAreRead) {
  const auto read = read_correctness({{"verdict", "RED: rel_fro 1 > 0"}});
  ASSERT_TRUE(read);
  EXPECT_TRUE(read->red());
  EXPECT_EQ(read->why, "rel_fro 1 > 0");
  EXPECT_FALSE(read_correctness({{"verdict", ""}})->verdict);
}

TEST(Correctness, WhatIsNoVerdictIsNone) {
  for (const json& wrong : {json("REDDISH: no"), json("fine"), json(1), json(nullptr)})
    EXPECT_FALSE(read_correctness({{"verdict", wrong}})) << wrong;
  EXPECT_FALSE(read_correctness({{"verdict", "RED"}, {"reason", 1}}));
  EXPECT_TRUE(read_correctness({{"verdict", "GREEN"}, {"reason", nullptr}}));
}

}  // namespace
}  // namespace greenfast::workbench
