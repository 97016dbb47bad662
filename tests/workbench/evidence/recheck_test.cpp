// Figures of a gate against its samples, by the method that the record names.
#include "workbench/evidence/recheck.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/workbench/fast/simulated_timer.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/fast/statistics.hpp"
#include "workbench/green/policy.hpp"
#include "workbench/verdict/compare.hpp"
#include "workbench/verdict/compare_best.hpp"

namespace greenfast::workbench::test {
namespace {

using nlohmann::json;

/// A deferred gate of two processes whose intervals were made by `method`.
json recorded_gate(ProcessSpread method) {
  const Samples samples = SimulatedMachine::processes({}, 1.05, 2, 10, 0.02, 3);
  json fast = {{"shape", samples.name},
               {"primary", true},
               {"process_spread", name_of(method)},
               {"baseline", json::object()},
               {"candidate", json::object()}};
  for (const Statistic statistic : {Statistic::p50, Statistic::p90})
    fast[statistic == Statistic::p50 ? "speedup" : "speedup_p90"] =
        interval_json(speedup(*paired_log_ratio(samples, 0, 1, statistic, {.processes = method})));
  return {{"schema", kGateSchema},
          {"verdict",
           {{"decision", "DEFER"},
            {"exit_code", 10},
            {"reasons", {{{"code", "INCONCLUSIVE"}, {"detail", ""}, {"settle", ""}}}}}},
          {"samples", to_json(std::vector<Samples>{samples})},
          {"fast", {fast}}};
}

TEST(RecheckGate, TakesTheMethodThatTheRecordNames) {
  const json now = recorded_gate(ProcessSpread::student);
  EXPECT_TRUE(recheck(now).empty());
  json before = recorded_gate(ProcessSpread::resampled);
  EXPECT_TRUE(recheck(before).empty());
  // Records from before the method had a name.
  before["fast"][0].erase("process_spread");
  EXPECT_TRUE(recheck(before).empty());
  EXPECT_LT(now["fast"][0]["speedup"]["lo"], before["fast"][0]["speedup"]["lo"]);
}

TEST(RecheckGate, AnotherMethodThanTheRecordsIsSeen) {
  json record = recorded_gate(ProcessSpread::resampled);
  record["fast"][0]["process_spread"] = "student";
  ASSERT_FALSE(recheck(record).empty());
  EXPECT_NE(recheck(record).front().detail.find("but its samples say"), std::string::npos);
  record["fast"][0]["process_spread"] = "wishful";
  ASSERT_FALSE(recheck(record).empty());
  EXPECT_NE(recheck(record).front().detail.find("process_spread \"wishful\" is no method"),
            std::string::npos);
}

/// A live comparison of two shapes, of which `long` was measured and is not shown.
json recorded_comparison() {
  Comparison c;
  Recording recording;
  for (const char* name : {"mission", "long"}) {
    Samples s = SimulatedMachine({}, 1, 100).paired(1.2, 8, 1, 4);
    s.name = name;
    recording.shapes.push_back(std::move(s));
  }
  const Samples both = recording.shapes.back();
  recording.shapes.back().sides[0].refused = "noise";
  c = *compare_sides(recording, "baseline", "candidate");
  c.skipped[0] = {"long", "baseline", SkipReason::noise, "the neighbours' own spread hides it"};
  c.samples = {recording.shapes.front(), both};
  return to_json(c);
}

TEST(RecheckCompare, AShapeThatIsNotShownIsAccountedForByItsNameAndNoSentence) {
  const auto found = [](const json& record) {
    const auto all = recheck(record);
    return all.empty() ? std::string() : all.front().detail;
  };
  json record = recorded_comparison();
  EXPECT_EQ(found(record), "");
  record["skipped"][0]["detail"] = "in other words";
  EXPECT_EQ(found(record), "");
  const std::string tampered = "long: was measured, and is not shown";
  record["skipped"][0]["shape"] = "longer";
  record["skipped"][0]["detail"] = "long: too slow";
  EXPECT_EQ(found(record), tampered);
  record["skipped"].clear();
  EXPECT_EQ(found(record), tampered);
  // As records have it from before an entry had members.
  record["skipped"] = {"long: cpu.flash: noise"};
  EXPECT_EQ(found(record), "");
  record["skipped"] = {"long:hot: cpu.flash: noise"};
  EXPECT_EQ(found(record), tampered) << "another shape, whose name begins alike";
}

/// A record of the harness for peers: back to back, and behind a neighbour that takes 5 us alone.
json recorded_ways() {
  std::vector<Samples> shapes;
  for (const bool between : {false, true}) {
    Samples s = SimulatedMachine({}, between ? 2u : 1u, 100).paired(between ? 1.2 : 1.5, 8, 1, 4);
    s.name = between ? "mission, elementwise:hot" : "mission";
    s.problem = "1x8x512x64 fp16";
    s.way = between ? "elementwise:hot" : "back-to-back:hot";
    if (between) s.neighbour = "elementwise: x += 1";
    s.sides[0].id = "peer:fa3";
    s.sides[1].id = "greenfast";
    for (Side& side : s.sides) side.errors = {{"rel_fro", 3e-4}};
    for (Block& block : s.blocks)
      for (Sample& sample : block.samples) sample.neighbour_alone = between ? 5e-6 : 0;
    shapes.push_back(std::move(s));
  }
  json record = to_json(shapes);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    json engines = json::object();
    for (const int side : {0, 1}) {
      json us = json::array(), with = json::array(), alone = json::array();
      for (const Block& block : shapes[i].blocks)
        for (const Sample& sample : block.samples) {
          if (sample.side != side) continue;
          us.push_back(1e6 * sample.seconds);
          with.push_back(1e6 * (sample.seconds + sample.neighbour_alone));
          alone.push_back(1e6 * sample.neighbour_alone);
        }
      json& engine = engines[side == 0 ? "fa3" : "greenfast"];
      engine = {{"us", us}, {"p50_us", 1e6 * summarize(shapes[i], side).p50}};
      if (i == 1) engine.update({{"with_us", with}, {"alone_us", alone}});
    }
    record["shapes"][i]["ab"] = {{"flops", shapes[i].flops}, {"engines", engines}};
  }
  return record;
}

TEST(RecheckSamples, ADifferenceIsComputedAgainFromItsReadings) {
  const json record = recorded_ways();
  EXPECT_TRUE(recheck(record).empty());
  const auto found = [](const json& changed) {
    const auto all = recheck(changed);
    return all.empty() ? std::string() : all.front().detail;
  };
  json edited = record;
  json& engine = edited["shapes"][1]["ab"]["engines"]["greenfast"];
  engine["alone_us"][3] = engine["alone_us"][3].get<double>() + 1;
  EXPECT_NE(found(edited).find("but its readings say"), std::string::npos) << found(edited);
  engine["alone_us"].erase(3);
  EXPECT_NE(found(edited).find("readings"), std::string::npos);
  // In the block: the sample itself no longer follows.
  edited = record;
  edited["shapes"][1]["blocks"][0]["neighbour_alone"][0] = 4e-6;
  EXPECT_NE(found(edited).find("less the neighbours alone"), std::string::npos) << found(edited);
}

TEST(RecheckPeers, EveryWayOfARunIsHeldToItsSamplesAndNoneIsLeftOut) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "greenfast_recheck_peers";
  std::filesystem::create_directories(folder);
  const std::string text = json_text(recorded_ways(), 1);
  std::ofstream(folder / "samples.json") << text;
  const auto recording = read_recording(folder / "samples.json");
  ASSERT_TRUE(recording) << recording.status().message();
  const auto part = [&](const std::string& way) {
    Recording kept = *recording;
    EXPECT_TRUE(keep_way(kept, way));
    judge_errors(kept, *load_policy("strict"));
    const BestComparison best = *compare_best(kept, {"peer:fa3"}, "greenfast");
    const Comparison& c = best.beside.at(0);
    const auto side = [](const Summary& s) {
      return json{{"p50_seconds", s.p50},
                  {"p50_ci_seconds", {s.ci_lo, s.ci_hi}},
                  {"p90_seconds", s.p90},
                  {"samples", s.n},
                  {"green", "GREEN"}};
    };
    const ShapeComparison& shape = c.shapes.at(0);
    json peer = side(shape.a);
    peer["speedup_p50"] = interval_json(shape.p50);
    peer["speedup_p90"] = interval_json(shape.p90);
    return json{{"way", way},
                {"overall_p50", {{"peer:fa3", interval_json(*c.overall_p50)}}},
                {"standings", standings_json(best)},
                {"shapes",
                 {{{"name", shape.name},
                   {"problem", shape.problem},
                   {"best", "peer:fa3"},
                   {"greenfast", side(shape.b)},
                   {"peers", {{"peer:fa3", peer}}}}}}};
  };
  json table = part("back-to-back:hot");
  table.update({{"source", "samples.json"},
                {"source_sha256", sha256_hex(text)},
                {"peers", {"peer:fa3"}},
                {"ways", {part("elementwise:hot")}}});
  const auto found = [&] {
    const auto all = recheck_peers(table, folder);
    return all.empty() ? std::string() : all.front().detail;
  };
  EXPECT_EQ(found(), "");
  // Which peer was the best, and the mean over the shapes, are figures as well.
  const json whole = table;
  table["shapes"][0]["best"] = "peer:slow";
  EXPECT_NE(found().find("/best: \"peer:slow\", but its samples say \"peer:fa3\""),
            std::string::npos)
      << found();
  table["shapes"][0].erase("best");
  EXPECT_NE(found().find("/best"), std::string::npos) << found();
  table = whole;
  table["ways"][0]["standings"]["all"]["mean_p50"]["lo"] = 9.0;
  EXPECT_NE(found().find("elementwise:hot: standings/all/mean_p50/lo"), std::string::npos)
      << found();
  table["ways"][0].erase("standings");
  EXPECT_NE(found().find("standings"), std::string::npos) << found();
  table = whole;
  json& value = table["ways"][0]["shapes"][0]["peers"]["peer:fa3"]["speedup_p50"]["value"];
  value = value.get<double>() * 1.1;
  EXPECT_NE(found().find("elementwise:hot: 1x8x512x64 fp16/speedup_p50/value"), std::string::npos)
      << found();
  table.erase("ways");
  EXPECT_EQ(found(), "shows 1 of 2 ways");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace greenfast::workbench::test
