// Comparing recordings: what agrees, what is refused, and by which words.
#include "workbench/verdict/compare.hpp"
#include "workbench/base/schemas.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "tests/workbench/fast/simulated_timer.hpp"
#include "workbench/base/files.hpp"

namespace greenfast::workbench::test {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

Samples shape(const char* name, double speedup, std::uint64_t seed) {
  Weather quiet;
  quiet.wander = 0;
  quiet.tick = 20e-9;
  SimulatedMachine machine(quiet, seed, 200);
  Samples samples = machine.paired(speedup, 30, seed);
  samples.name = name;
  samples.problem = std::string(name) + " fp32";
  samples.device_name = "one machine";
  return samples;
}

Recording recording(std::vector<Samples> shapes, const char* source = "a.json") {
  Recording r;
  r.source = source;
  r.shapes = std::move(shapes);
  return r;
}

template <class T>
std::vector<std::byte> bytes(std::initializer_list<T> values) {
  std::vector<std::byte> out(values.size() * sizeof(T));
  std::memcpy(out.data(), std::data(values), out.size());
  return out;
}

TEST(OutputDifference, CountsUnitsOfTheLastPlace) {
  const float one = 1, next = std::nextafter(1.0f, 2.0f),
              nan = std::numeric_limits<float>::quiet_NaN();
  const auto d = [](const auto& a, const auto& b, DType t = DType::f32) {
    return difference(t, a, b);
  };
  EXPECT_TRUE(d(bytes({one, 0.0f, nan}), bytes({one, -0.0f, -nan})).identical());
  EXPECT_EQ(describe(d(bytes({one}), bytes({one}))), "bit for bit");
  const OutputDifference near = d(bytes({one, one, one}), bytes({one, next, one}));
  EXPECT_EQ(near.differing, 1);
  EXPECT_EQ(near.max_ulp, 1);
  EXPECT_EQ(describe(near), "1 of 3 elements differ, by at most 1 ulp (99% by at most 1)");
  std::vector<float> many(1000, one), moved = many;
  moved[7] = 1.5f;
  for (int i = 100; i < 300; ++i) moved[static_cast<std::size_t>(i)] = next;
  const OutputDifference spread =
      difference(DType::f32, std::as_bytes(std::span(many)), std::as_bytes(std::span(moved)));
  EXPECT_EQ(spread.differing, 201);
  EXPECT_EQ(spread.p99_ulp, 1);
  EXPECT_EQ(spread.max_ulp, 1 << 22);
  // Across zero: one denormal to each side.
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(d(bytes({tiny}), bytes({-tiny})).max_ulp, 2);
  EXPECT_EQ(d(bytes({nan, one}), bytes({one, one})).nan_mismatch, 1);
  EXPECT_EQ(describe(d(bytes({nan}), bytes({one}))), "1 are NaN on one side alone");
  // fp16 and bf16 know where their infinities end and their NaNs begin.
  const auto half = [](std::initializer_list<std::uint16_t> v) { return bytes(v); };
  EXPECT_EQ(d(half({0x7c00}), half({0x7bff}), DType::f16).max_ulp, 1);
  EXPECT_EQ(d(half({0x7c01}), half({0x7bff}), DType::f16).nan_mismatch, 1);
  EXPECT_EQ(d(half({0x7c01}), half({0x7bff}), DType::bf16).max_ulp, 2);
  EXPECT_EQ(d(half({0x8001}), half({0x0001}), DType::bf16).max_ulp, 2);
}

TEST(Compare, SidesOfOneRecording) {
  Recording r = recording({shape("mission", 1.5, 1), shape("long", 2.0, 2)});
  r.correctness["baseline"]["mission"] = {Verdict::green, {}};
  r.correctness["candidate"]["mission"] = {Verdict::green, {}};
  r.shapes[0].sides[0].output_sha256 = r.shapes[0].sides[1].output_sha256 = "same";
  r.shapes[1].sides[1].refused = "too long";
  r.shapes.push_back(shape("small", 1.2, 3));
  const auto c = compare_sides(r, "baseline", "candidate");
  ASSERT_TRUE(c) << c.status().message();
  ASSERT_EQ(c->shapes.size(), 2u);
  EXPECT_NEAR(c->shapes[0].p50.value, 1.5, 0.02);
  EXPECT_NEAR(c->overall_p50->value, std::sqrt(1.5 * 1.2), 0.02);
  EXPECT_EQ(c->shapes[0].outputs, "bit for bit");
  EXPECT_EQ(c->shapes[1].outputs, "no digests recorded");
  ASSERT_EQ(c->skipped.size(), 1u);
  EXPECT_EQ(c->skipped[0].shape, "long");
  EXPECT_EQ(c->skipped[0].side, "candidate");
  EXPECT_EQ(c->skipped[0].reason, SkipReason::no_samples);
  EXPECT_EQ(describe(c->skipped[0]), "long: candidate: too long");
  EXPECT_EQ(to_json(*c)["skipped"][0].dump(),
            R"({"detail":"too long","reason":"no_samples","shape":"long","side":"candidate"})");
  EXPECT_EQ(c->exit_code, 0);
  const auto back = compare_sides(r, "candidate", "baseline");
  ASSERT_TRUE(back);
  EXPECT_NEAR(back->shapes[0].p50.value, 1 / 1.5, 0.02);
  const std::string text = compare_text(*c, false);
  EXPECT_NE(text.find("candidate faster"), std::string::npos) << text;
  EXPECT_NE(text.find("SKIPPED long"), std::string::npos);
  EXPECT_NE(compare_markdown(*c).find("| geometric mean |"), std::string::npos);
  EXPECT_EQ(to_json(*c)["schema"], kCompareSchema);
}

TEST(Compare, ARedSideIsNoPass) {
  Recording r = recording({shape("mission", 1.5, 1)});
  r.correctness["candidate"]["mission"] = {Verdict::red, "max_row"};
  const auto c = compare_sides(r, "baseline", "candidate");
  ASSERT_TRUE(c);
  EXPECT_EQ(c->exit_code, 20);
  EXPECT_NE(compare_text(*c, false).find("RED"), std::string::npos);
}

TEST(Compare, UnknownSidesAreNamed) {
  const auto c = compare_sides(recording({shape("mission", 1.5, 1)}), "baseline", "cpu.flash");
  ASSERT_FALSE(c);
  EXPECT_EQ(c.status().message(), "a.json: has no side cpu.flash; it holds baseline, candidate");
}

TEST(Compare, TwoRecordingsAreComparedWithAWarning) {
  const Recording a = recording({shape("mission", 1.5, 1), shape("small", 1.0, 3)}, "a.json");
  const Recording b = recording({shape("mission", 3.0, 2), shape("long", 1.0, 4)}, "b.json");
  const auto c = compare_recordings(a, "baseline", b, "baseline");
  ASSERT_TRUE(c) << c.status().message();
  ASSERT_EQ(c->shapes.size(), 1u);
  EXPECT_NEAR(c->shapes[0].p50.value, 0.5, 0.01);
  EXPECT_FALSE(c->paired);
  EXPECT_NE(c->notes.at(0).find("not interleaved"), std::string::npos);
  ASSERT_EQ(c->skipped.size(), 2u);
  EXPECT_EQ(c->skipped[1].reason, SkipReason::other_recording);
  EXPECT_EQ(describe(c->skipped[1]), "long: is only in b.json");
  Recording known = a;
  known.shapes[0].sides[0].refused = "no room";
  const auto why = compare_recordings(known, "baseline", a, "candidate");
  ASSERT_TRUE(why) << why.status().message();
  EXPECT_EQ(describe(why->skipped.at(0)), "mission: baseline: no room");
}

TEST(Compare, ASkippedShapeIsReadAsItIsWrittenAndAsItUsedToBe) {
  const SkippedShape noise{"mission, gemm:hot", "cuda.a", SkipReason::noise, "a: b"};
  Comparison c;
  c.skipped = {noise};
  const json written = to_json(c)["skipped"][0];
  EXPECT_EQ(shape_of_skipped(written), noise.shape);
  EXPECT_EQ(words_of_skipped(written), describe(noise));
  EXPECT_EQ(shape_of_skipped("mission, gemm:hot: cuda.a: noise"), noise.shape);
  EXPECT_EQ(words_of_skipped("long: is only in a.json"), "long: is only in a.json");
  EXPECT_THROW((void)shape_of_skipped({{"shape", "long"}, {"reason", "whim"}}), json::exception);
}

TEST(Compare, AShapeWithoutRowsOrKeysIsLeftOutByName) {
  Recording recording;
  for (const char* problem : {"1x2x0/64x16 fp32", "1x2x64/0x16 fp32", "0x2x64x16 fp32"}) {
    Samples samples = SimulatedMachine({}, 1, 100).paired(1.2, 8, 1, 4);
    samples.name = samples.problem = problem;
    for (Side& side : samples.sides) side.output_sha256 = "of nothing";
    recording.shapes.push_back(samples);
  }
  const auto c = compare_sides(recording, "baseline", "candidate");
  ASSERT_TRUE(c) << c.status().message();
  EXPECT_TRUE(c->shapes.empty());
  ASSERT_EQ(c->skipped.size(), 3u);
  for (const SkippedShape& skipped : c->skipped) EXPECT_EQ(skipped.reason, SkipReason::nothing);
  EXPECT_EQ(c->exit_code, 3) << "everything was skipped";
  EXPECT_EQ(compare_text(*c, false).find("bit for bit"), std::string::npos);
  EXPECT_EQ(words_of_skipped(to_json(*c)["skipped"][0]), describe(c->skipped[0]));
}

TEST(Compare, OneWayOfTimingIsTakenAtATime) {
  Samples behind = shape("mission, gemm:hot", 1.2, 2);
  behind.way = "gemm:hot";
  behind.neighbour = "gemm: 512x512 by 512x512";
  Samples plain = shape("mission", 1.5, 1);
  plain.way = "back-to-back:hot";
  const Recording both = recording({plain, behind});
  Recording first = both;
  ASSERT_TRUE(keep_way(first, ""));
  ASSERT_EQ(first.shapes.size(), 1u);
  EXPECT_NE(first.notes.back().find("also timed gemm:hot"), std::string::npos);
  EXPECT_NEAR(compare_sides(first, "baseline", "candidate")->shapes[0].p50.value, 1.5, 0.02);
  Recording second = both;
  ASSERT_TRUE(keep_way(second, "gemm:hot"));
  const auto c = compare_sides(second, "baseline", "candidate");
  ASSERT_TRUE(c);
  EXPECT_NEAR(c->shapes.at(0).p50.value, 1.2, 0.02);
  EXPECT_EQ(to_json(*c)["neighbour"], behind.neighbour);
  EXPECT_NE(compare_text(*c, false).find("behind a neighbour (gemm)"), std::string::npos);
  Recording none = both;
  const Status refused = keep_way(none, "gemm:cold");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.message().find("its ways: back-to-back:hot, gemm:hot"), std::string::npos);
  // The same shape behind something else is another measurement.
  behind.name = plain.name;
  behind.problem = plain.problem;
  const auto mixed =
      compare_recordings(recording({plain}), "baseline", recording({behind}), "baseline");
  ASSERT_FALSE(mixed);
  EXPECT_NE(mixed.status().message().find("back to back in one, behind gemm"), std::string::npos)
      << mixed.status().message();
}

TEST(Compare, RecordingsThatDoNotBelongTogetherAreRefusedByName) {
  const Recording a = recording({shape("mission", 1.5, 1)}, "a.json");
  const auto words = [&](const Recording& b) {
    const auto c = compare_recordings(a, "baseline", b, "candidate");
    EXPECT_FALSE(c);
    EXPECT_EQ(c.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(c.status().message().find("a.json and b.json cannot be compared"), std::string::npos);
    return c.status().message();
  };
  Recording b = recording({shape("mission", 1.5, 1)}, "b.json");
  b.shapes[0].device_name = "another machine";
  EXPECT_NE(words(b).find("one is of one machine (cpu), the other of another machine (cpu)"),
            std::string::npos);
  b = recording({shape("mission", 1.5, 1)}, "b.json");
  b.shapes[0].problem = "mission bf16";
  EXPECT_NE(words(b).find("shape mission is mission fp32 in one, mission bf16 in the other"),
            std::string::npos);
  b = recording({shape("mission", 1.5, 1)}, "b.json");
  b.shapes[0].cache = CacheState::hot;
  EXPECT_NE(words(b).find("cold in one, hot in the other"), std::string::npos);
  b = recording({shape("long", 1.5, 1)}, "b.json");
  EXPECT_NE(words(b).find("no shape in common"), std::string::npos);
}

class RecordingFile : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return (folder->path() / name).string(); }
  std::string refused(const std::string& name, const std::string& text) const {
    std::ofstream(at(name)) << text;
    const auto r = read_recording(at(name));
    EXPECT_FALSE(r);
    EXPECT_EQ(r.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(r.status().message().find(at(name)), std::string::npos) << r.status().message();
    return r.status().message();
  }

  const Result<ScratchFolder> folder = ScratchFolder::make("recordings");
};

TEST_F(RecordingFile, SamplesRunsAndGatesAreRead) {
  const json samples = to_json({shape("mission", 1.5, 1)});
  std::ofstream(at("samples.json")) << samples;
  std::ofstream(at("run.json")) << json{{"schema", "greenfast.run/1"},
                                        {"samples", samples},
                                        {"rows",
                                         {{{"variant", "baseline"},
                                           {"problem", "mission"},
                                           {"verdict", "RED"},
                                           {"reason", "max_row"}}}}};
  const auto bare = read_recording(at("samples.json"));
  ASSERT_TRUE(bare) << bare.status().message();
  EXPECT_EQ(bare->shapes.size(), 1u);
  const auto run = read_recording(folder->path());
  ASSERT_TRUE(run) << run.status().message();
  EXPECT_EQ(run->source, at("run.json"));
  EXPECT_EQ(describe(run->correctness_of("baseline", run->shapes.at(0))), "RED: max_row");
}

TEST_F(RecordingFile, StrangersAreRefusedByName) {
  const std::string samples = to_json({shape("mission", 1.5, 1)}).dump();
  EXPECT_NE(refused("other.json", R"({"schema":"nvbench/3"})")
                .find("schema \"nvbench/3\"; compare reads greenfast.run/1"),
            std::string::npos);
  EXPECT_NE(refused("none.json", "[]").find("schema is missing"), std::string::npos);
  EXPECT_NE(refused("short.json", samples.substr(0, samples.size() - 20)).find("truncated"),
            std::string::npos);
  EXPECT_NE(refused("untimed.json", R"({"schema":"greenfast.run/1"})").find("holds no samples"),
            std::string::npos);
  EXPECT_NE(refused("empty.json", R"({"schema":"greenfast.samples/1","shapes":[]})")
                .find("holds no samples"),
            std::string::npos);
  EXPECT_NE(read_recording(at("missing.json")).status().message().find("no such file"),
            std::string::npos);
  fs::create_directories(at("void"));
  EXPECT_NE(read_recording(at("void")).status().message().find("neither run.json nor gate.json"),
            std::string::npos);
}

}  // namespace
}  // namespace greenfast::workbench::test
