// Figures of runs, comparisons, peers, selftests and tools' records against what they were made from.
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
  c.exit_code = 10;  // as compare_live has it of noise
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

std::string told(const json& record) {
  std::string out;
  for (const Disagreement& one : recheck(record)) out += one.subject + ": " + one.detail + "\n";
  return out;
}

/// Each edit alone; a path of a member and what it says instead.
void every_edit_is_seen(const json& record,
                        const std::vector<std::pair<std::string, json>>& edits) {
  ASSERT_EQ(told(record), "");
  for (const auto& [path, instead] : edits) {
    json changed = record;
    json& member = changed.at(json::json_pointer(path));
    EXPECT_NE(member, instead) << path;
    member = instead;
    EXPECT_NE(told(changed), "") << path;
  }
}

TEST(RecheckCompare, ReadingsErrorsAndCodesFollowFromSamples) {
  Recording recording;
  Samples s = SimulatedMachine({}, 1, 100).paired(1.2, 8, 1, 4);
  s.name = "mission";
  for (Side& side : s.sides) side.errors = {{"rel_fro", 3e-4}};
  for (Side& side : s.sides) side.output_sha256 = "ab";
  recording.shapes.push_back(s);
  Comparison c = *compare_sides(recording, "baseline", "candidate");
  c.samples = recording.shapes;
  c.shapes[0].a_percent_of_peak = 50;
  c.shapes[0].b_percent_of_peak = 50 * c.shapes[0].a.p50 / c.shapes[0].b.p50;
  c.shapes[0].outputs = "bit for bit";
  json record = to_json(c);
  record["shapes"][0]["seen"] = "faster";  // as a tool may add it
  every_edit_is_seen(record, {{"/shapes/0/seen", "slower"},
                              {"/shapes/0/a/errors/rel_fro", 1e-12},
                              {"/shapes/0/b/errors", json::object()},
                              {"/shapes/0/a/percent_of_peak", 60},
                              {"/shapes/0/b/batch", 3},
                              {"/shapes/0/b/other_work", 0.3},
                              {"/shapes/0/outputs", "3 of 9 elements differ"},
                              {"/shapes/0/a/green", "RED: rel_fro"},
                              {"/exit_code", 20},
                              {"/exit_code", 10}});
  // The member says what was IMPOSSIBLE, and no note.
  record["notes"] = {"mission: candidate is IMPOSSIBLE, below 1 us"};
  EXPECT_EQ(told(record), "");
  record["shapes"][0]["b"]["impossible"] = true;
  EXPECT_NE(told(record), "") << "its exit code is that of a comparison without a fault";
  record["exit_code"] = 21;
  record["notes"] = json::array();
  EXPECT_EQ(told(record), "");
}

TEST(RecheckSelftest, ItsCountsAreThoseOfItsRows) {
  const auto row = [](const char* subject, bool honest, bool caught) {
    return json{{"subject", subject},          {"honest", honest}, {"caught", caught}, {"cases", 3},
                {"red_cases", caught ? 1 : 0}, {"metric", nullptr}};
  };
  json record = {{"schema", kSelftestSchema},
                 {"rows", {row("honest.a", true, false), row("mutant.b", false, true)}},
                 {"quantizer", {{{"what", "all"}, {"wrong", 0}, {"first", nullptr}}}},
                 {"honest", 1},
                 {"honest_green", 1},
                 {"mutants", 1},
                 {"mutants_caught", 1},
                 {"ok", true}};
  record["rows"][1]["metric"] = "rel_fro";
  every_edit_is_seen(record, {{"/honest", 2},
                              {"/honest_green", 0},
                              {"/mutants", 2},
                              {"/mutants_caught", 0},
                              {"/ok", false},
                              {"/rows/0/caught", true},
                              {"/rows/1/red_cases", 0},
                              {"/rows/1/metric", nullptr},
                              {"/quantizer/0/wrong", 1}});
}

TEST(RecheckPython, MediansRatiosAndSharesFollowFromItsTimes) {
  const json model = {
      {"eager",
       {{"sdpa", {2e-3, 3e-3, 4e-3}}, {"greenfast", {1e-3, 1e-3, 2e-3}}, {"nothing", {5e-4}}}},
      {"median_ms", {{"eager", {{"sdpa", 3.0}, {"greenfast", 1.0}, {"nothing", 0.5}}}}},
      {"speedup_over_sdpa", {{"eager", {{"greenfast", 2.0}}}}},
      {"attention_share", {{"sdpa", 1 - 0.5 / 3}, {"greenfast", 0.5}}}};
  every_edit_is_seen(
      {{"schema", "greenfast.python/1"}, {"models", {{"encoder", model}, {"failed early", {}}}}},
      {{"/models/encoder/median_ms/eager/sdpa", 2.0},
       {"/models/encoder/speedup_over_sdpa/eager/greenfast", 3.0},
       {"/models/encoder/speedup_over_sdpa/eager", {{"greenfast", 2.0}, {"fa3", 1.0}}},
       {"/models/encoder/attention_share/greenfast", 0.9},
       {"/models/encoder/eager/sdpa", {2e-3, 2e-3, 4e-3}},
       {"/models/encoder/attention_share", nullptr}});
}

TEST(RecheckLoaded, WhatChangedUnderLoadIsReadFromBothParts) {
  const auto part = [](double lo, double hi) {
    const json side = {{"green", "GREEN"}, {"p50_seconds", 1e-3}};
    const json shape = {{"name", "mission"},
                        {"ratio_p50", {{"value", 1.5}, {"lo", lo}, {"hi", hi}}},
                        {"a", side},
                        {"b", side}};
    const json bench = {{"variant", "cpu.flash"},
                        {"problem", "mission"},
                        {"verdict", "GREEN"},
                        {"time", {{"p50_seconds", 1e-3}, {"p50_ci_seconds", {9e-4, 11e-4}}}}};
    return json{{"compare",
                 {{"shapes", {shape}},
                  {"skipped", json::array()},
                  {"notes", json::array()},
                  {"exit_code", 0}}},
                {"bench", {bench}}};
  };
  const json record = {{"schema", "greenfast.loaded/1"},
                       {"same", true},
                       {"missed", json::array()},
                       {"quiet", part(1.4, 1.6)},
                       {"busy", part(1.2, 1.8)}};
  every_edit_is_seen(record, {{"/same", false},
                              {"/missed", {"cpu.flash, mission"}},
                              {"/busy/compare/shapes/0/ratio_p50/lo", 0.9},
                              {"/busy/bench/0/time/p50_ci_seconds/0", 105e-5},
                              {"/busy/bench/0/verdict", "RED"},
                              {"/quiet/compare/exit_code", 10}});
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

TEST(RecheckSamples, RatiosOfTheHarnessAreMediansOfItsRounds) {
  json record = recorded_ways();
  record["shapes"].erase(1);
  json& ab = record["shapes"][0]["ab"];
  ab["best_peer"] = "fa3";
  ab["bytes"] = 1e9;
  json &ours = ab["engines"]["greenfast"], &theirs = ab["engines"]["fa3"];
  theirs["verdict"] = "GREEN";
  ours["variant"] = "cuda.sm90.prefill";
  ab["engines"]["greenfast:dense"] = theirs;
  std::vector<double> rounds;
  for (std::size_t k = 0; k < ours["us"].size(); ++k)
    rounds.push_back(theirs["us"][k].get<double>() / ours["us"][k].get<double>());
  for (const char* member : {"ratio", "over_best_peer", "over_dense"})
    ours[member] = quantile(rounds, 0.5);
  ours["tbs"] = 1e-6 * 1e9 / ours["p50_us"].get<double>();
  const std::string engine = "/shapes/0/ab/engines/greenfast/";
  every_edit_is_seen(record, {{engine + "ratio", 3},
                              {engine + "over_best_peer", 3},
                              {engine + "over_dense", 3},
                              {engine + "tbs", 3},
                              {"/shapes/0/ab/best_peer", "fa4"},
                              {"/shapes/0/ab/engines/fa3/verdict", "RED"}});
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
