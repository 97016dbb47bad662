// A gate's findings as JSON: what was not reached is absent, what was has the words of gate.json.
#include "workbench/verdict/gate_record.hpp"

#include <gtest/gtest.h>

namespace greenfast::workbench {
namespace {

using nlohmann::json;

GateRecord begun() {
  GateRecord record;
  record.head = {{"status", "running"}, {"run_id", "one"}, {"build", {{"version", "1"}}}};
  record.steps.push_back({{.kind = StepKind::build}, "plans and refusals", {}, true, 0.5});
  return record;
}

TEST(GateRecord, WhatWasNotReachedIsAbsent) {
  const json out = json_of(begun());
  EXPECT_EQ(out["schema"], "greenfast.gate/1");
  EXPECT_EQ(out["status"], "finished");
  EXPECT_EQ(out["run_id"], "one");
  EXPECT_EQ(out["steps"].dump(), R"([{"name":"build","resumed":true,"seconds":0.5,"status":"done",)"
                                 R"("what":"plans and refusals"}])");
  for (const char* part :
       {"device", "shapes", "green", "code", "resources", "fast", "overall", "samples", "peers"})
    EXPECT_FALSE(out.contains(part)) << part;
  EXPECT_FALSE(out["build"].contains("compiler_logs"));
  EXPECT_FALSE(out["verdict"].contains("predicted"));
  EXPECT_EQ(out["verdict"]["decision"], "PROMOTE");
}

TEST(GateRecord, AStepThatDiedSaysHow) {
  GateRecord record = begun();
  record.steps.push_back({{.kind = StepKind::green}, "GREEN small", ReasonCode::timeout, false, 9});
  const json step = json_of(record)["steps"][1];
  EXPECT_EQ(step["name"], "green.0");
  EXPECT_EQ(step["status"], "TIMEOUT");
  EXPECT_FALSE(step.contains("resumed")) << "nothing came home that could be a checkpoint's";
}

TEST(GateRecord, AReachedPartIsThereThoughNothingIsInIt) {
  GateRecord record = begun();
  record.green.emplace();
  record.fast.emplace();
  const json out = json_of(record);
  EXPECT_EQ(out["green"], json::array());
  EXPECT_EQ(out["fast"], json::array());
}

TEST(GateRecord, ResourcesSayWhatTheyKnow) {
  GateRecord record = begun();
  record.resources = {{.name = "plan", .status = CheckStatus::skipped, .reason = "tells none"},
                      {.name = "registers",
                       .status = CheckStatus::waived,
                       .value = 140,
                       .limit = 128,
                       .kernel = "wide",
                       .arch = "sm_90a",
                       .sha256 = "de",
                       .reason = "occupancy",
                       .waiver = {{"idea", "its point"}}}};
  const json rows = json_of(record)["resources"];
  EXPECT_EQ(rows[0].dump(), R"({"name":"plan","reason":"tells none","status":"SKIPPED"})");
  EXPECT_EQ(rows[1]["value"], 140);
  EXPECT_EQ(rows[1]["limit"], 128);
  EXPECT_EQ(rows[1]["status"], "WAIVED");
  EXPECT_EQ(rows[1]["waiver"]["reason"], "its point");
}

TEST(GateRecord, TimesDecideByTheIntervalBesideTheirNoise) {
  GateTimes times{.shape = "mission", .primary = true, .speedup = {1.2, 1.1, 1.3}};
  EXPECT_EQ(times.deciding().lo, 1.1);
  EXPECT_FALSE(json_of([&] {
                 GateRecord record = begun();
                 record.fast = {times};
                 return record;
               }())["fast"][0]
                   .contains("decisive"));
  times.same = GateNoise{{1.0, 0.99, 1.01}, 0.01, {1.2, 1.05, 1.35}};
  times.clocks.watts = Range{100, 200, 300};
  EXPECT_EQ(times.deciding().lo, 1.05);
  GateRecord record = begun();
  record.fast = {times, {.shape = "long", .skipped = "refused"}};
  const json fast = json_of(record)["fast"];
  EXPECT_EQ(fast[0]["decisive"]["lo"], 1.05);
  EXPECT_EQ(fast[0]["noise_floor"], 0.01);
  EXPECT_EQ(fast[0]["clocks"].dump(), R"({"watts":[100.0,200.0,300.0]})");
  EXPECT_EQ(fast[1].dump(), R"({"primary":false,"shape":"long","skipped":"refused"})");
}

TEST(GateRecord, ACheckSaysWhatItIsAbout) {
  GateRecord record = begun();
  record.checklist = {{CheckKind::build, "build", "both sides built", "abc", CheckStatus::pass},
                      {CheckKind::guard, "any words", ">= 0.98x", "1x", CheckStatus::defer, "long",
                       Statistic::p90}};
  const json rows = json_of(record)["checklist"];
  EXPECT_EQ(rows[0].dump(), R"({"actual":"abc","gate":"build","kind":"build","status":"PASS",)"
                            R"("target":"both sides built"})");
  EXPECT_EQ(rows[1]["kind"], "guard");
  EXPECT_EQ(rows[1]["shape"], "long");
  EXPECT_EQ(rows[1]["statistic"], "p90");
  EXPECT_EQ(kind_of_check(rows[1]), CheckKind::guard);
}

TEST(GateRecord, ACheckOfAnOldRecordIsKnownByItsName) {
  const auto kind = [](const char* gate) { return kind_of_check({{"gate", gate}}); };
  EXPECT_EQ(kind("build"), CheckKind::build);
  EXPECT_EQ(kind("GREEN"), CheckKind::green);
  EXPECT_EQ(kind("GREEN of the baseline"), CheckKind::green_baseline);
  EXPECT_EQ(kind("GREEN of what else it takes"), CheckKind::green_claims);
  EXPECT_EQ(kind("resources: kernel"), CheckKind::resources);
  EXPECT_EQ(kind("A/A noise floor"), CheckKind::noise);
  EXPECT_EQ(kind("FAST mission p50"), CheckKind::fast);
  EXPECT_EQ(kind("guard long p90"), CheckKind::guard);
  EXPECT_EQ(kind("speed of light mission"), CheckKind::light);
  EXPECT_EQ(kind("something else"), std::nullopt);
  EXPECT_EQ(kind_of_check({{"gate", "GREEN"}, {"kind", "of a later version"}}), std::nullopt);
}

TEST(GateRecord, APredictionWithoutItsShapeHasNoOutcome) {
  GateRecord record = begun();
  Prediction prediction;
  prediction.speedup = {1.0, 2.0};
  record.verdict.predicted = GatePrediction{prediction, {}};
  EXPECT_TRUE(json_of(record)["verdict"]["predicted"]["outcome"].is_null());
  record.verdict.predicted->outcome = PredictionOutcome::as_predicted;
  const json predicted = json_of(record)["verdict"]["predicted"];
  EXPECT_EQ(predicted["outcome"], "as predicted");
  EXPECT_EQ(predicted["speedup"].dump(), "[1.0,2.0]");
}

}  // namespace
}  // namespace greenfast::workbench
