// The list of known gaps, which verify admits.
#include "workbench/evidence/verify.hpp"

#include <gtest/gtest.h>

namespace greenfast::workbench::test {
namespace {

TEST(KnownGaps, AreOfThatFormAlone) {
  const auto good =
      parse_known_gaps("e.toml", "[[known]]\nvariant = \"cuda.x\"\nreason = \"new\"\n");
  ASSERT_TRUE(good) << good.status().message();
  ASSERT_EQ(good->size(), 1u);
  EXPECT_EQ(good->front().subject, "cuda.x");
  EXPECT_EQ(good->front().file, "");
  const auto in_file = parse_known_gaps(
      "e.toml", "[[known]]\nvariant = \"cuda.x\"\nfile = \"a.json\"\nreason = \"new\"\n");
  ASSERT_TRUE(in_file) << in_file.status().message();
  EXPECT_EQ(in_file->front().file, "a.json");
  for (const char* bad : {"[[known]]\nvariant = \"x\"\n", "[[gap]]\n", "known = 1\n", "[[known]\n",
                          "[[known]]\nvariant = \"x\"\nreason = \"y\"\nuntil = 3\n",
                          "[[known]]\nvariant = \"x\"\nreason = \"y\"\nfile = \"\"\n",
                          "[[known]]\nvariant = \"x\"\nreason = \"y\"\nfile = 3\n"}) {
    const Status status = parse_known_gaps("e.toml", bad).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << bad;
    EXPECT_EQ(status.message().rfind("e.toml: ", 0), 0u) << status.message();
  }
}

}  // namespace
}  // namespace greenfast::workbench::test
