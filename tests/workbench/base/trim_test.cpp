// White space at the ends goes, in the middle it stays.
#include "workbench/base/trim.hpp"

#include <gtest/gtest.h>

namespace greenfast::workbench::test {
namespace {

TEST(Trim, LeavesWhatStandsBetweenTheEnds) {
  EXPECT_EQ(trim(" \t two  words\r\n"), "two  words");
  EXPECT_EQ(trim("word"), "word");
  EXPECT_EQ(trim(" \t\r\n"), "");
  EXPECT_EQ(trim(""), "");
}

}  // namespace
}  // namespace greenfast::workbench::test
