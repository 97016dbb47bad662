// The measuring engine against a device whose clock is a variable.
#include "workbench/fast/measure.hpp"

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "tests/workbench/fast/fake_device.hpp"
#include "workbench/base/seconds_since.hpp"

namespace greenfast::workbench::test {
namespace {

Case small_case() {
  Case c;
  c.name = "tiny";
  c.problem = make_problem(1, 2, 2, 16, 16, 32, DType::f32);
  c.seed = 5;
  return c;
}

/// Inputs whose bytes differ by seed.
Inputs fake_inputs(const Case& c) {
  const auto bytes =
      static_cast<std::size_t>(c.problem.heads_q * c.problem.seq_q * c.problem.head_dim) * 4;
  Inputs inputs;
  inputs.q.assign(bytes, static_cast<std::byte>(c.seed));
  inputs.k = inputs.v = inputs.q;
  return inputs;
}

Ring::Options fake_ring() {
  Ring::Options options;
  options.generate = fake_inputs;
  return options;
}

class MeasureTest : public ::testing::Test {
 protected:
  Result<Measurement> run(std::vector<Timed> timed, MeasureOptions options = {}) {
    auto ring = Ring::make(device, small_case(), fake_ring());
    EXPECT_TRUE(ring) << ring.status().message();
    slots = (*ring)->slots();
    return measure(device, **ring, timed, options);
  }
  FakeDevice device;
  FakeSubject slow{device, "slow", 200e-6}, fast{device, "fast", 100e-6};
  int slots = 0;
};

TEST_F(MeasureTest, BlocksArePalindromesInRandomOrder) {
  MeasureOptions options;
  options.iters = 40;
  const auto m = run({{.subject = &slow}, {.subject = &fast}}, options);
  ASSERT_TRUE(m) << m.status().message();
  ASSERT_EQ(m->samples.blocks.size(), 20u);
  std::set<int> firsts;
  for (const Block& block : m->samples.blocks) {
    ASSERT_EQ(block.samples.size(), 4u);
    EXPECT_EQ(block.samples[0].side, block.samples[3].side);
    EXPECT_EQ(block.samples[1].side, block.samples[2].side);
    EXPECT_NE(block.samples[0].side, block.samples[1].side);
    firsts.insert(block.samples[0].side);
    EXPECT_EQ(block.telemetry.sm_mhz, 1234);
  }
  EXPECT_EQ(firsts.size(), 2u) << "both sides must come first now and then";
  EXPECT_EQ(m->stopped, "iters");
  const auto ratio = paired_log_ratio(m->samples, 0, 1, Statistic::p50);
  ASSERT_TRUE(ratio);
  EXPECT_NEAR(speedup(*ratio).value, 2.0, 0.01);
  EXPECT_NEAR(summarize(m->samples, 0).p50, 200e-6, 1e-6);
}

TEST_F(MeasureTest, ASideHasNoMoreCpusThanItsBudget) {
  // 1.143 went unseen, and was 1.149 times as fast.
  for (const auto& [threads, fault] : {std::pair(2.0, Fault::none), std::pair(1.99, Fault::none),
                                       std::pair(2.1, Fault::integrity)}) {
    FakeDevice two;
    two.has_threads(2);
    FakeSubject honest{two, "honest", 5e-3}, asked{two, "asked", 5e-3};
    asked.foreign = true;
    asked.threads = threads;
    auto ring = Ring::make(two, small_case(), fake_ring());
    ASSERT_TRUE(ring);
    MeasureOptions options;
    options.iters = 40;
    const std::vector<Timed> timed = {{.subject = &honest}, {.subject = &asked}};
    const auto m = measure(two, **ring, timed, options);
    ASSERT_TRUE(m);
    EXPECT_EQ(m->checks[1].fault, fault) << threads << ": " << m->checks[1].failure;
    EXPECT_NEAR(m->samples.sides[1].threads_used, threads, 0.01);
  }
}

TEST_F(MeasureTest, BehindANeighbourACallTakesWhatItMakesTheSequenceLonger) {
  device.beside = [] { return 5e-3; };
  // What a call costs behind somebody else, and not behind its own kind.
  fast.after = [&](const Problem&, const Tensors&) { device.now += 30e-6; };
  MeasureOptions options;
  options.iters = 20;
  options.between = true;
  const auto m = run({{.subject = &slow}, {.subject = &fast}}, options);
  ASSERT_TRUE(m) << m.status().message();
  EXPECT_NEAR(summarize(m->samples, 0).p50, 200e-6, 2e-6);
  EXPECT_NEAR(summarize(m->samples, 1).p50, 130e-6, 2e-6);
  EXPECT_EQ(m->samples.neighbour, "fake: adds to a clock");
  EXPECT_DOUBLE_EQ(m->samples.tick_seconds, 2 * device.resolution);
  for (const Block& block : m->samples.blocks)
    for (const Sample& sample : block.samples) EXPECT_NEAR(sample.neighbour_alone, 5e-3, 1e-5);
  EXPECT_TRUE(samples_from_json(to_json(std::vector<Samples>{m->samples})));
}

TEST_F(MeasureTest, ADifferenceThatIsNotAboveZeroIsNoiseAndNoTime) {
  int launched = 0;
  device.beside = [&] { return launched++ % 7 == 0 ? 9e-3 : 1e-3; };
  MeasureOptions options;
  options.iters = 40;
  options.between = true;
  FakeSubject longer{device, "longer", 80e-3};
  const auto m = run({{.subject = &fast}, {.subject = &longer}}, options);
  ASSERT_TRUE(m) << m.status().message();
  EXPECT_EQ(m->checks[0].noise.rfind("noise: ", 0), 0u) << m->checks[0].noise;
  EXPECT_EQ(m->samples.sides[0].refused, m->checks[0].noise);
  EXPECT_EQ(summarize(m->samples, 0).n, 0);
  EXPECT_TRUE(m->checks[0].failure.empty());
  // It is the other's business no more than a refusal is.
  EXPECT_TRUE(m->checks[1].noise.empty());
  EXPECT_NEAR(summarize(m->samples, 1).p50, 80e-3, 10e-3);
}

TEST_F(MeasureTest, WhereThereIsNoNeighbourNothingIsTimedBehindOne) {
  MeasureOptions options;
  options.between = true;
  const auto m = run({{.subject = &slow}}, options);
  ASSERT_FALSE(m);
  EXPECT_NE(m.status().message().find("time them back to back"), std::string::npos);
}

TEST_F(MeasureTest, TheOrderFollowsFromTheSeed) {
  MeasureOptions options;
  options.iters = 60;
  const auto order = [&](std::uint64_t seed) {
    options.seed = seed;
    std::vector<int> sides;
    const auto m = run({{.subject = &slow}, {.subject = &fast}}, options);
    for (const Block& block : m->samples.blocks) sides.push_back(block.samples[0].side);
    return sides;
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

TEST_F(MeasureTest, SamplesAreAtLeastSoManyTicksLong) {
  device.resolution = 1e-3;  // ten calls of the fast subject
  MeasureOptions options;
  options.iters = 4;
  const auto m = run({{.subject = &slow}, {.subject = &fast}}, options);
  ASSERT_TRUE(m);
  EXPECT_GE(m->samples.sides[0].batch, 1000);
  EXPECT_GE(m->samples.sides[1].batch, 2000);
  EXPECT_NEAR(summarize(m->samples, 1).p50, 100e-6, 1e-6);
}

TEST_F(MeasureTest, ColdCallsNeverMeetRecentInputs) {
  const auto m = run({{.subject = &slow}, {.subject = &fast}});
  ASSERT_TRUE(m);
  // 64 KiB of cache and 16 KiB a slot: more than four other slots lie between two uses of one.
  EXPECT_GE(slots, 8);
  for (std::size_t i = fast.inputs.size() / 2; i < fast.inputs.size(); ++i) {
    // Within a sample the order is drawn; between samples caches are emptied.
    EXPECT_NE(fast.inputs[i], fast.inputs[i - 1]);
  }
}

TEST_F(MeasureTest, HotCallsMeetTheSameInputs) {
  MeasureOptions options;
  options.mode = CacheState::hot;
  const auto m = run({{.subject = &fast}}, options);
  ASSERT_TRUE(m);
  EXPECT_EQ(std::set<const void*>(fast.inputs.end() - 20, fast.inputs.end()).size(), 1u);
  EXPECT_EQ(m->samples.cache, CacheState::hot);
}

TEST_F(MeasureTest, ColdSamplesBeginWithEmptyCachesHotOnesDoNot) {
  MeasureOptions options;
  options.iters = 20;
  const auto cold = run({{.subject = &slow}, {.subject = &fast}}, options);
  ASSERT_TRUE(cold);
  EXPECT_GE(device.timings, 40);
  EXPECT_EQ(device.flushes, device.timings)
      << "once before every sample, and every look at its length";
  device.flushes = 0;
  options.mode = CacheState::hot;
  ASSERT_TRUE(run({{.subject = &slow}, {.subject = &fast}}, options));
  EXPECT_EQ(device.flushes, 0);
}

TEST_F(MeasureTest, ClocksAreReadForEveryBlockAndSlowOnesLeftOut) {
  // A device that has no probe, as a GPU: its clock falls for three blocks of ten.
  int reads = 0;
  device.speed = [] { return 0.0; };
  device.clock = [&] { return reads++ % 10 < 3 ? 1500.0 : 1980.0; };
  MeasureOptions options;
  options.iters = 40;
  const auto m = run({{.subject = &slow}, {.subject = &fast}}, options);
  ASSERT_TRUE(m);
  ASSERT_EQ(m->samples.blocks.size(), 20u);
  EXPECT_EQ(reads, 20);
  int dropped = 0;
  for (const Block& block : m->samples.blocks) {
    dropped += block.dropped.empty() ? 0 : 1;
    EXPECT_EQ(block.dropped.empty(), block.telemetry.sm_mhz == 1980.0);
  }
  EXPECT_EQ(dropped, 6);
  EXPECT_EQ(summarize(m->samples, 0).discarded, 12);
}

TEST_F(MeasureTest, ACallThatSkipsItsWorkWhileTimedIsCaught) {
  // Right before timing, later it leaves whatever an earlier call wrote.
  fast.forget = [](int call) { return call > 40; };
  const auto m = run({{.subject = &slow}, {.subject = &fast}});
  ASSERT_TRUE(m);
  EXPECT_TRUE(m->checks[0].failure.empty());
  EXPECT_EQ(m->checks[1].fault, Fault::integrity);
  EXPECT_NE(m->checks[1].failure.find("a timed call went wrong"), std::string::npos)
      << m->checks[1].failure;
  EXPECT_FALSE(m->samples.sides[1].refused.empty());
}

/// The fake kernel's answer is its Q.
std::optional<std::string> copies_q(const TimedOutput& seen) {
  if (std::equal(seen.output.begin(), seen.output.end(), seen.inputs.q.begin(),
                 seen.inputs.q.end()))
    return std::nullopt;
  return "is not the answer to these inputs";
}

TEST_F(MeasureTest, EveryTimedSampleIsJudgedByItsOwnInputs) {
  std::set<std::string> inputs;
  int before = 0;
  Timed timed{.subject = &fast};
  timed.judge = [&](const TimedOutput& seen) {
    if (!seen.timed)
      ++before;
    else
      EXPECT_TRUE(inputs.insert(digest(seen.inputs)).second) << "inputs came a second time";
    return copies_q(seen);
  };
  MeasureOptions options;
  options.iters = 40;
  const auto m = run({timed}, options);
  ASSERT_TRUE(m);
  EXPECT_EQ(m->checks[0].failure, "");
  EXPECT_EQ(before, 3) << "each content once before timing";
  EXPECT_GT(inputs.size(), 40u) << "looks at the length of a sample are judged as samples are";
  EXPECT_EQ(m->checks[0].judged, static_cast<int>(inputs.size()));
}

TEST_F(MeasureTest, WhatWasKeptIsOfNoUse) {
  for (const bool by_content : {true, false}) {
    std::map<std::string, std::vector<std::byte>> kept;
    int taken = 0;
    fast.replay = [&](const Problem&, const Tensors& t, std::size_t bytes) {
      const std::string key = by_content ? std::string(static_cast<const char*>(t.q), bytes)
                                         : std::to_string(reinterpret_cast<std::uintptr_t>(t.o));
      const auto found = kept.find(key);
      if (found == kept.end()) {
        const auto* q = static_cast<const std::byte*>(t.q);
        kept[key].assign(q, q + bytes);
        return false;
      }
      ++taken;
      std::memcpy(t.o, found->second.data(), bytes);
      return true;
    };
    const auto m =
        run({{.subject = &slow, .judge = copies_q}, {.subject = &fast, .judge = copies_q}});
    ASSERT_TRUE(m);
    if (by_content) {
      // In warm-up, and in the calls that only wake a pool, the same contents may come again.
      EXPECT_EQ(m->checks[1].failure, "");
      EXPECT_LT(taken, fast.calls / 2);
    } else {
      EXPECT_EQ(m->checks[1].fault, Fault::integrity);
    }
    fast.replay = nullptr;
  }
}

// Whoever finds its answer where it shall write it need not compute; a longer sample of somebody
// else's kernel has more slots, or is no longer.
TEST_F(MeasureTest, NoSampleOfSomebodyElsesKernelMeetsASlotTwice) {
  for (const CacheState mode : {CacheState::cold, CacheState::hot}) {
    fast.foreign = true;
    fast.requests.clear();
    fast.counts.clear();
    int kept = 0;
    fast.replay = [&](const Problem&, const Tensors& t, std::size_t bytes) {
      const auto* o = static_cast<const unsigned char*>(t.o);
      const bool there = std::any_of(o, o + bytes, [](unsigned char c) { return c != 0xff; });
      kept += there;
      if (!there) std::memcpy(t.o, t.q, bytes);
      return true;
    };
    device.resolution = 1e-3;  // so that samples want 2,000 calls
    MeasureOptions options;
    options.iters = 20;
    options.mode = mode;
    const auto m = run(
        {{.subject = &slow, .judge = copies_q}, {.subject = &fast, .judge = copies_q}}, options);
    ASSERT_TRUE(m);
    EXPECT_EQ(m->checks[1].failure, "");
    ASSERT_FALSE(fast.requests.empty());
    for (std::size_t i = 0; i < fast.requests.size(); ++i) {
      std::set<const void*> outputs;
      for (const Tensors& set : fast.requests[i]) outputs.insert(set.o);
      EXPECT_EQ(outputs.size(), fast.requests[i].size());
      EXPECT_LE(fast.counts[i], static_cast<int>(outputs.size()));
    }
    // The warm-up's calls may find what they like.
    EXPECT_LE(kept, options.warmup + 3);
    fast.replay = nullptr;
  }
}

// The looks that choose how many calls a sample has are samples to the subject: who is wrong in them
// alone, to have a shorter or longer sample, is wrong.
TEST_F(MeasureTest, LooksAtTheLengthOfASampleAreJudged) {
  MeasureOptions options;
  options.iters = 4;
  options.warmup = 0;
  fast.foreign = true;
  // Three contents are shown before; the next call is a look.
  fast.replay = [&](const Problem&, const Tensors& t, std::size_t bytes) {
    if (fast.calls != 4) return false;
    std::memset(t.o, 0, bytes);
    return true;
  };
  const auto m = run({{.subject = &fast, .judge = copies_q}}, options);
  ASSERT_TRUE(m);
  EXPECT_EQ(m->checks[0].fault, Fault::integrity);
  EXPECT_NE(m->checks[0].failure.find("a timed call went wrong"), std::string::npos)
      << m->checks[0].failure;
}

TEST_F(MeasureTest, SaysWhoseCallsCome) {
  std::vector<int> sides;
  int during = -2;
  fast.after = [&](const Problem&, const Tensors&) { during = sides.empty() ? -2 : sides.back(); };
  MeasureOptions options;
  options.iters = 8;
  options.at_work = [&](int side) {
    EXPECT_TRUE(sides.empty() || side == -1 || sides.back() == -1);
    sides.push_back(side);
  };
  ASSERT_TRUE(run({{.subject = &slow}, {.subject = &fast}}, options));
  EXPECT_EQ(during, 1);
  EXPECT_EQ(sides.back(), -1);
  EXPECT_EQ(std::count(sides.begin(), sides.end(), 0), std::count(sides.begin(), sides.end(), 1));
}

TEST_F(MeasureTest, AnInputThatIsChangedWhileTimedIsSeen) {
  fast.after = [](const Problem&, const Tensors& t) {
    static int calls = 0;
    if (++calls > 60) const_cast<char*>(static_cast<const char*>(t.k))[5] ^= 1;
  };
  const auto m = run({{.subject = &fast}});
  ASSERT_TRUE(m);
  EXPECT_EQ(m->checks[0].fault, Fault::integrity);
  EXPECT_NE(m->checks[0].failure.find("input K was modified at byte 5"), std::string::npos)
      << m->checks[0].failure;
}

TEST_F(MeasureTest, TheSystemDrawsUnlessToldOtherwise) {
  MeasureOptions options;
  options.iters = 4;
  const auto draw = [&] {
    const auto m = run({{.subject = &fast}}, options);
    return m->samples.draw;
  };
  EXPECT_NE(draw(), draw());
  options.draw = 7;
  EXPECT_EQ(draw(), 7u);
}

TEST_F(MeasureTest, AWrongFirstOutputEndsTheSide) {
  Timed timed{.subject = &fast};
  timed.judge = [](const TimedOutput& seen) {
    return seen.content.seed == 6 ? std::optional<std::string>("seed 6 is wrong") : std::nullopt;
  };
  const auto m = run({timed});
  ASSERT_TRUE(m);
  EXPECT_EQ(m->checks[0].failure, "before timing: seed 6 is wrong");
  EXPECT_EQ(m->checks[0].fault, Fault::numerics) << "wrong is not crashed";
  EXPECT_TRUE(m->samples.blocks.empty());
}

TEST_F(MeasureTest, AFailingLaunchIsReportedWithItsOwnWords) {
  fast.fail_at = 25;
  const auto m = run({{.subject = &slow}, {.subject = &fast}});
  ASSERT_TRUE(m);
  EXPECT_EQ(m->checks[1].failure, "the fake kernel failed");
  EXPECT_EQ(m->checks[1].fault, Fault::launch);
}

TEST_F(MeasureTest, ATimeBelowTheSpeedOfLightIsImpossible) {
  const double honest = 0.95 * flop_count(small_case().problem) / device.ceiling.flops;
  FakeSubject cheat(device, "cheat", 1e-9);
  device.resolution = 1e-12;
  ASSERT_LT(1e-9, honest);
  const auto m = run({{.subject = &slow}, {.subject = &cheat}});
  ASSERT_TRUE(m);
  EXPECT_FALSE(m->checks[0].impossible);
  EXPECT_TRUE(m->checks[1].impossible);
  EXPECT_GT(m->checks[1].floor_seconds, 1e-9);
}

TEST_F(MeasureTest, SlowRoundsAreLeftOutAndCounted) {
  int look = 0;
  // Three looks a probe; every fifth probe sees a device at half its speed.
  device.speed = [&] { return (look++ / 3) % 5 == 3 ? 0.5e12 : 1e12; };
  MeasureOptions options;
  options.iters = 60;
  options.round_seconds = 0;  // a probe after every block
  const auto m = run({{.subject = &slow}, {.subject = &fast}}, options);
  ASSERT_TRUE(m);
  const Summary s = summarize(m->samples, 0);
  // A slow probe spoils the round before it and the one after.
  EXPECT_EQ(s.discarded, 2 * 12);
  EXPECT_EQ(s.n + s.discarded, 60);
  EXPECT_NE(m->samples.blocks[2].dropped.find("50% below"), std::string::npos)
      << m->samples.blocks[2].dropped;
}

TEST_F(MeasureTest, ADeviceThatIsMostlySlowDropsNothing) {
  int look = 0;
  device.speed = [&] { return (look++ / 3) % 2 == 0 ? 0.5e12 : 1e12; };
  MeasureOptions options;
  options.round_seconds = 0;
  const auto m = run({{.subject = &fast}}, options);
  ASSERT_TRUE(m);
  EXPECT_EQ(summarize(m->samples, 0).discarded, 0);
}

TEST_F(MeasureTest, OtherWorkOnTheCoresReachesTheInterval) {
  const auto begin = std::chrono::steady_clock::now();
  device.others = [&] { return 7 + 0.25 * seconds_since(begin); };
  MeasureOptions options;
  options.iters = 40;
  // Long enough for the share of a round to be believed.
  options.progress = [](int, double) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  };
  const auto m = run({{.subject = &fast}}, options);
  ASSERT_TRUE(m);
  const Summary s = summarize(m->samples, 0);
  EXPECT_NEAR(s.other_work, 0.25, 0.02);
  EXPECT_LT(s.ci_lo, 0.8 * s.p50);
  EXPECT_GT(s.ci_lo, 0.7 * s.p50);
}

TEST(SignFlips, AreUndoneByTheSameDrawAndChangeSignsAlone) {
  for (const std::uint64_t signs :
       {0x8080808080808080u, 0x8000800080008000u, 0x8000000080000000u}) {
    std::vector<std::byte> data(8 * 1000 + 3);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 7);
    const std::vector<std::byte> before = data;
    flip_signs(data.data(), data.size(), {.sign_bits = signs, .from = 0, .to = 5});
    std::size_t flipped = 0;
    for (std::size_t word = 0; word < 1000; ++word) {
      std::uint64_t was = 0, is = 0;
      std::memcpy(&was, before.data() + 8 * word, 8);
      std::memcpy(&is, data.data() + 8 * word, 8);
      EXPECT_EQ((was ^ is) & ~signs, 0u);
      flipped += static_cast<std::size_t>(std::popcount(was ^ is));
    }
    const double elements = 1000.0 * std::popcount(signs);
    EXPECT_NEAR(static_cast<double>(flipped) / elements, 0.5, 0.05);
    flip_signs(data.data(), data.size(), {.sign_bits = signs, .from = 5, .to = 9});
    EXPECT_NE(data, before);
    flip_signs(data.data(), data.size(), {.sign_bits = signs, .from = 9, .to = 0});
    EXPECT_EQ(data, before);
    // By rows: every row alike.
    flip_signs(data.data(), data.size(), {.sign_bits = signs, .from = 0, .to = 5, .period = 4});
    for (std::size_t i = 0; i + 32 < 8000; ++i)
      EXPECT_EQ(data[i] ^ before[i], data[i + 32] ^ before[i + 32]);
  }
}

/// What 64 elements show of one hash, were all of it shown, and which draw would have made it.
std::uint64_t draw_by_inversion(std::uint64_t draw, std::uint64_t signs) {
  const auto inverse = [](std::uint64_t a) {
    std::uint64_t x = a;
    for (int i = 0; i < 6; ++i) x *= 2 - a * x;
    return x;
  };
  const auto unshift = [](std::uint64_t z, int by) {
    std::uint64_t x = z;
    for (int i = 0; i < 64; ++i) x = z ^ (x >> by);
    return x;
  };
  std::uint64_t z = 0;
  for (std::size_t word = 0; word < 8; ++word)
    z |= signs_of(draw, word, {.sign_bits = signs}) >> word;
  z = unshift(z, 31) * inverse(0x94d049bb133111ebull);
  z = unshift(z, 27) * inverse(0xbf58476d1ce4e5b9ull);
  return unshift(z, 30) - 0x9e3779b97f4a7c15ull;
}

TEST(SignFlips, OfAFewElementsDoNotTellTheDraw) {
  constexpr std::uint64_t kSigns = 0x8080808080808080u;  // e4m3 shows most
  int found = 0;
  std::uint64_t shown = 0;
  for (std::uint64_t n = 1; n <= 200; ++n) {
    const std::uint64_t draw = n * 0x2545f4914f6cdd1dull;
    found += draw_by_inversion(draw, kSigns) == draw;
    for (std::size_t word = 0; word < 4; ++word)
      shown |= signs_of(draw, word, {.sign_bits = kSigns}) >> word;
    EXPECT_NE(signs_of(draw, 0, {.sign_bits = kSigns}) >> 0,
              signs_of(draw, 4, {.sign_bits = kSigns}) >> 0)
        << "the fifth word has a hash of its own";
  }
  EXPECT_EQ(found, 0);
  EXPECT_EQ(std::popcount(shown), 32) << "half of each hash is never shown";
}

TEST(CpuDevice, SignsAreFlippedInPlaceAsOnTheHost) {
  auto device = open_device(DeviceKind::cpu);
  ASSERT_TRUE(device) << device.status().message();
  Case c = small_case();
  c.problem.lse = true;
  auto ring = Ring::make(**device, c, {.min_bytes = 1, .min_slots = 4});
  ASSERT_TRUE(ring);
  for (const std::uint64_t draw : {3u, 0u, 4u}) {
    (*ring)->renew(3, draw);
    (*ring)->poison(3);
    EXPECT_EQ((*ring)->changed_input(3, (*ring)->inputs(3)), std::nullopt);
    EXPECT_EQ(digest((*ring)->inputs(3)) == digest(generate((*ring)->content(3))), draw == 0);
  }
  Inputs other = (*ring)->inputs(3);
  other.v[77] ^= std::byte{1};
  EXPECT_EQ((*ring)->changed_input(3, other), "input V was modified at byte 77");
}

TEST(CpuDevice, WhatSomebodyLeftInInputsIsGoneWithTheNextDraw) {
  auto device = open_device(DeviceKind::cpu);
  ASSERT_TRUE(device) << device.status().message();
  Case c = small_case();
  c.problem = make_problem(1, 4, 2, 8, 24, 32, DType::e4m3);
  c.problem.scales = ScaleKind::per_head;
  auto made = Ring::make(**device, c, {.min_bytes = 1});
  ASSERT_TRUE(made) << made.status().message();
  Ring& ring = **made;
  ring.renew(1, 9);
  for (const Operand& operand : operands_of(c.problem)) {
    if (!operand.present || operand.role != Role::input) continue;
    auto* data = static_cast<std::byte*>(const_cast<void*>(data_of(ring.tensors(1), operand.id)));
    ASSERT_NE(data, nullptr) << operand.name;
    data[1] ^= std::byte{0x10};
    EXPECT_NE(ring.changed_input(1, ring.inputs(1)), std::nullopt) << operand.name;
    ring.renew(1, 11);
    EXPECT_EQ(ring.changed_input(1, ring.inputs(1)), std::nullopt) << operand.name;
  }
}

TEST(RingOperands, EveryInputIsLookedAfterAndEveryOutputPoisoned) {
  auto device = open_device(DeviceKind::cpu);
  ASSERT_TRUE(device) << device.status().message();
  Case c = small_case();
  c.problem = make_problem(1, 4, 2, 8, 24, 32, DType::e4m3);
  c.problem.scales = ScaleKind::per_head;
  c.problem.lse = true;
  auto made = Ring::make(**device, c, {.min_bytes = 1});
  ASSERT_TRUE(made) << made.status().message();
  Ring& ring = **made;
  ring.renew(1, 9);
  const Inputs expected = ring.inputs(1);
  std::size_t outputs = 0, seen = 0;
  for (const Operand& operand : operands_of(c.problem)) {
    if (!operand.present) continue;
    ++seen;
    auto* data = static_cast<std::byte*>(const_cast<void*>(data_of(ring.tensors(1), operand.id)));
    ASSERT_NE(data, nullptr) << operand.name;
    if (operand.role == Role::output) {
      outputs += static_cast<std::size_t>(operand.bytes);
      continue;
    }
    EXPECT_EQ(ring.changed_input(1, expected), std::nullopt);
    const auto last = static_cast<std::size_t>(operand.bytes) - 1;
    data[last] ^= std::byte{4};
    EXPECT_EQ(ring.changed_input(1, expected),
              "input " + shown_name(operand) + " was modified at byte " + std::to_string(last));
    data[last] ^= std::byte{4};
  }
  EXPECT_EQ(seen, 8u) << "O, LSE, Q, K, V and a scale for each of the three";
  ring.poison(1);
  EXPECT_EQ(ring.read_output(1), std::vector<std::byte>(outputs, std::byte{0xff}));
}

TEST(RingOperands, WhatNoCaseHoldsIsNotTimed) {
  auto device = open_device(DeviceKind::cpu);
  ASSERT_TRUE(device) << device.status().message();
  Case c = small_case();
  c.problem.sinks = true;
  const Status status = Ring::make(**device, c, fake_ring()).status();  // Q, K and V alone
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("timing needs sinks"), std::string::npos) << status.message();
}

/// In a child. An empty loop may be assumed to end, and clang then runs on into the parent's code.
[[noreturn]] void compute_for_ever() {
  alarm(60);  // should the parent die first
  for (volatile unsigned n = 0;;) n = n + 1;
}

/// CPU seconds of this process and of children that have ended.
double own_cpu() {
  double total = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage use{};
    getrusage(who, &use);
    for (const timeval& part : {use.ru_utime, use.ru_stime})
      total += static_cast<double>(part.tv_sec) + 1e-6 * static_cast<double>(part.tv_usec);
  }
  return total;
}

TEST(CpuDevice, ItsOwnThreadsAndChildrenAreNoOtherWork) {
  auto device = open_device(DeviceKind::cpu);
  ASSERT_TRUE(device) << device.status().message();
  if (!(*device)->other_work()) GTEST_SKIP() << "this system does not tell";
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const int busy = 2 * cores;
  // With every core at work, what others computed is the rest beside this process, however much of
  // the machine they have. Were its own work counted as theirs, they would have all of it.
  const auto expect_rest = [&](const auto& begin, const auto& end) {
    const auto start = std::chrono::steady_clock::now();
    const double own = own_cpu(), before = (*device)->other_work().value();
    begin();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const double grown = (*device)->other_work().value() - before;
    const double took = seconds_since(start);
    end();
    EXPECT_LT(grown, took - 0.5 * (own_cpu() - own) / cores);
  };
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  expect_rest(
      [&] {
        for (int i = 0; i < busy; ++i)
          threads.emplace_back([&] {
            while (!stop.load(std::memory_order_relaxed)) continue;
          });
      },
      [&] {
        stop = true;
        for (std::thread& thread : threads) thread.join();
      });
  std::vector<pid_t> children;
  expect_rest(
      [&] {
        for (int i = 0; i < busy; ++i) {
          const pid_t child = fork();
          if (child == 0) compute_for_ever();
          if (child > 0) children.push_back(child);
        }
      },
      [&] {
        for (const pid_t child : children) {
          kill(child, 9);
          waitpid(child, nullptr, 0);
        }
      });
}

TEST(CpuDevice, SeesTheWorkOfOthers) {
  auto device = open_device(DeviceKind::cpu);
  ASSERT_TRUE(device) << device.status().message();
  const auto before = (*device)->other_work();
  if (!before) GTEST_SKIP() << "this system does not tell";
  // A grandchild whose parent has gone is nobody's child here.
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const pid_t orphan = fork();
    if (orphan == 0) compute_for_ever();
    const bool told = write(ends[1], &orphan, sizeof orphan) == sizeof orphan;
    _exit(told ? 0 : 1);
  }
  pid_t orphan = 0;
  ASSERT_EQ(read(ends[0], &orphan, sizeof orphan), static_cast<ssize_t>(sizeof orphan));
  close(ends[0]);
  close(ends[1]);
  waitpid(child, nullptr, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const double grown = (*device)->other_work().value() - *before;
  ASSERT_GT(orphan, 0);  // 0 and -1 are everybody
  kill(orphan, SIGKILL);
  // Alone it computes 0.5 s on one of the cores.
  const double cores = (*device)->facts().multiprocessors;
  EXPECT_GT(grown, 0.1 / cores);
}

TEST_F(MeasureTest, StopsWhenTheIntervalIsNarrow) {
  MeasureOptions options;
  options.iters = 1000;
  options.target_halfwidth = 0.02;
  const auto m = run({{.subject = &slow}, {.subject = &fast}}, options);
  ASSERT_TRUE(m);
  EXPECT_EQ(m->stopped, "width");
  EXPECT_LT(m->samples.blocks.size(), 30u);
}

TEST_F(MeasureTest, StopsWhenTheBudgetIsSpentButNotBeforeTheMinimum) {
  MeasureOptions options;
  options.iters = 1'000'000;
  options.budget_seconds = 0;
  const auto m = run({{.subject = &fast}}, options);
  ASSERT_TRUE(m);
  EXPECT_EQ(m->stopped, "budget");
  EXPECT_EQ(m->samples.blocks.size(), static_cast<std::size_t>(options.min_blocks));
}

TEST_F(MeasureTest, OneSubjectUnderTwoLabelsIsAnAA) {
  const auto m = run({{.subject = &fast, .label = "A"}, {.subject = &fast, .label = "A again"}});
  ASSERT_TRUE(m);
  EXPECT_EQ(m->samples.side("A again"), 1);
  EXPECT_NEAR(speedup(*paired_log_ratio(m->samples, 0, 1, Statistic::p50)).value, 1, 1e-3);
}

TEST_F(MeasureTest, WorkspaceComesFromThePlanAndGoesBack) {
  slow.workspace = 4096;
  ASSERT_TRUE(run({{.subject = &slow}}));
  EXPECT_NE(slow.last_workspace, nullptr);
  EXPECT_EQ(device.allocations, device.releases);
  slow.workspace = std::int64_t{1} << 40;
  const auto m = run({{.subject = &slow}});
  ASSERT_FALSE(m);
  EXPECT_EQ(m.status().code(), StatusCode::out_of_memory);
}

TEST_F(MeasureTest, ARingThatDoesNotFitSaysHowMuchItNeeds) {
  device.memory_limit = 100'000;
  device.cache = 1 << 20;
  const auto ring = Ring::make(device, small_case(), fake_ring());
  ASSERT_FALSE(ring);
  EXPECT_EQ(ring.status().code(), StatusCode::out_of_memory);
  EXPECT_NE(ring.status().message().find("sets of inputs"), std::string::npos);
  EXPECT_EQ(device.allocations, device.releases);
}

TEST(SpeedOfLight, CountsArithmeticAndColdTraffic) {
  Problem p = make_problem(2, 8, 2, 100, 300, 64, DType::f16);
  EXPECT_DOUBLE_EQ(flop_count(p), 4.0 * 2 * 8 * 100 * 300 * 64);
  EXPECT_DOUBLE_EQ(byte_count(p), 2.0 * 64 * (2 * 8 * 100 + 2 * (2 * 2 * 300)));
  Peak peak{1e12, 1e6, ""};
  EXPECT_DOUBLE_EQ(speed_of_light(p, peak, CacheState::hot), 0.95 * flop_count(p) / 1e12);
  EXPECT_DOUBLE_EQ(speed_of_light(p, peak, CacheState::cold), 0.95 * byte_count(p) / 1e6);
  p.mask = Mask::causal(Alignment::top_left);
  // Query 99 sees key 99: two thirds of the keys are seen by nobody.
  EXPECT_DOUBLE_EQ(byte_count(p), 2.0 * 64 * 2 * 8 * 100);
  EXPECT_LT(flop_count(p), 4.0 * 2 * 8 * 100 * 300 * 64 / 2);
}

}  // namespace
}  // namespace greenfast::workbench::test
