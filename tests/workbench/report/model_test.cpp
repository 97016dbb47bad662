// Which times a ladder sets beside each other: those of one record, one problem and one state of the
// caches.
#include "workbench/report/model.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace greenfast::workbench::test {
namespace {

constexpr const char* kDevice = "a CPU";

Timing timed(std::size_t run, const std::string& variant, double p50,
             const std::string& shape = "mission", const std::string& mode = "cold",
             const std::string& problem = "1x8x512x64 fp32") {
  Timing t;
  t.source = "record " + std::to_string(run);
  t.device = kDevice;
  t.variant = variant;
  t.shape = shape;
  t.problem = problem;
  t.mode = mode;
  t.p50 = p50;
  t.lo = p50 * 0.99;
  t.hi = p50 * 1.01;
  t.run = run;
  return t;
}
Ladder ladder(const std::vector<Timing>& timings) { return ladder_of(timings, kDevice); }

TEST(Ladder, RatiosAreOfOneRecordAlone) {
  EXPECT_TRUE(ladder({timed(1, "cpu.naive", 34e-3), timed(2, "cpu.flash", 1.5e-3)}).rungs.empty());
  const Ladder two = ladder(
      {timed(1, "cpu.naive", 34e-3), timed(1, "cpu.flash", 2e-3), timed(2, "cpu.flash", 1.5e-3)});
  ASSERT_EQ(two.rungs.size(), 2u);
  EXPECT_DOUBLE_EQ(two.rungs[1].over_predecessor, 17);
  EXPECT_DOUBLE_EQ(two.rungs[1].over_first, 17);
  EXPECT_EQ(two.source, "record 1");
}

TEST(Ladder, CachesInAnotherStateAreAnotherLadder) {
  // A record that times hot and cold calls its hot shape so.
  const std::vector<Timing> both{timed(1, "cpu.naive", 34e-3), timed(1, "cpu.flash", 2e-3),
                                 timed(1, "cpu.flash", 1.5e-3, "mission hot", "hot")};
  EXPECT_DOUBLE_EQ(ladder(both).rungs.at(1).over_first, 17);
  EXPECT_EQ(ladder(both).shape, "mission");
  EXPECT_TRUE(
      ladder({timed(1, "cpu.naive", 34e-3), timed(1, "cpu.flash", 1.5e-3, "mission hot", "hot")})
          .rungs.empty());
  const Ladder hot = ladder({timed(1, "cpu.naive", 30e-3, "mission fp32 hot", "hot"),
                             timed(1, "cpu.flash", 1.5e-3, "mission fp32 hot", "hot")});
  EXPECT_EQ(hot.shape, "mission hot") << "the type is cut off, and nothing else";
  EXPECT_EQ(hot.mode, "hot");
}

TEST(Ladder, AnotherProblemIsAnotherLadder) {
  EXPECT_TRUE(ladder({timed(1, "cpu.naive", 34e-3, "mission fp32"),
                      timed(1, "cpu.flash", 1e-3, "mission bf16", "cold", "1x8x512x64 bf16")})
                  .rungs.empty());
  const std::string causal = "1x8x512x64 fp32 causal(top-left)";
  EXPECT_TRUE(ladder({timed(1, "cpu.naive", 34e-3, "1x8x512x64"),
                      timed(1, "cpu.flash", 1e-3, "1x8x512x64 causal", "cold", causal)})
                  .rungs.empty());
}

TEST(Ladder, FamiliesStandTogetherEachInItsOwnType) {
  const std::string half = "1x8x512x64 fp16", e4m3 = "1x8x512x64 e4m3 scales(per-head)";
  const Ladder all = ladder({timed(1, "cuda.v2c.v3", 4, "mission fp16", "cold", half),
                             timed(1, "cuda.v2c.v5", 2, "mission fp16", "cold", half),
                             timed(1, "cuda.stage_c.scalar", 9, "mission e4m3", "cold", e4m3),
                             timed(1, "cuda.stage_c.stage0", 3, "mission e4m3", "cold", e4m3)});
  ASSERT_EQ(all.rungs.size(), 4u);
  EXPECT_EQ(all.shape, "mission");
  EXPECT_DOUBLE_EQ(all.rungs[1].over_predecessor, 2);
  EXPECT_DOUBLE_EQ(all.rungs[2].over_first, 1) << "the first of its own family";
  EXPECT_DOUBLE_EQ(all.rungs[3].over_predecessor, 3);
}

TEST(Ladder, MissionGoesBeforeAndThenTheMostRungs) {
  std::vector<Timing> timings{timed(1, "cpu.naive", 2, "long", "cold", "1x8x2048x64 fp32"),
                              timed(1, "cpu.flash", 1, "long", "cold", "1x8x2048x64 fp32")};
  EXPECT_EQ(ladder(timings).shape, "long");
  timings.push_back(timed(2, "cpu.naive", 34e-3));
  EXPECT_EQ(ladder(timings).shape, "long") << "one rung is no ladder";
  timings.push_back(timed(2, "cpu.flash", 17e-3));
  EXPECT_EQ(ladder(timings).source, "record 2");
  timings.push_back(timed(3, "cpu.naive", 3));
  timings.push_back(timed(3, "cpu.flash", 1));
  EXPECT_EQ(ladder(timings).source, "record 3") << "the last given";
  EXPECT_TRUE(ladder_of(timings, "another").rungs.empty());
}

}  // namespace
}  // namespace greenfast::workbench::test
