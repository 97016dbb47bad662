// A gate's record against what its own steps and samples say: every edit of what is derived is seen.
#include "workbench/evidence/recheck_gate.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "tests/workbench/fast/simulated_timer.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/evidence/recheck_facts.hpp"
#include "workbench/green/policy.hpp"
#include "workbench/verdict/gate.hpp"
#include "workbench/verdict/gate_judge.hpp"
#include "workbench/verdict/gate_policy.hpp"

namespace greenfast::workbench::test {
namespace {

using nlohmann::json;

GatePolicy rules() { return *parse_gate_policy("policies/gate.toml", builtin_gate_policy()); }

GateOptions asked() {
  GateOptions options;
  options.baseline = "cpu.naive";
  options.candidate = "cpu.flash";
  options.seeds = {0};
  return options;
}

/// Two processes; where it is the primary, the baseline once more.
Samples timed(const std::string& name, double speedup, bool primary) {
  Samples samples = SimulatedMachine::processes({}, speedup, 2, 12, 0.002, 3);
  samples.name = name;
  samples.sides[0].id = "cpu.naive";
  samples.sides[1].id = "cpu.flash";
  if (!primary) return samples;
  Side again = samples.sides[0];
  again.id = "cpu.naive (again)";
  samples.sides.push_back(again);
  for (Block& block : samples.blocks) {
    std::vector<Sample> more;
    for (const Sample& sample : block.samples)
      if (sample.side == 0) more.insert(more.begin(), {2, sample.seconds});
    block.samples.insert(block.samples.end(), more.begin(), more.end());
  }
  return samples;
}

GateGreen green_at(const std::string& shape) {
  GreenTally tally;
  tally.cases = tally.green = 7;
  tally.rows_checked = tally.rows_total = 64;
  tally.worst = {{"rel_fro", 1e-6}};
  return {shape, tally, tally};
}

/// As the gate makes it, of samples whose true speedup is known.
class Recorded {
 public:
  explicit Recorded(double speedup, ProcessSpread spread = ProcessSpread::student,
                    std::optional<double> at_guard = {})
      : policy_(*load_policy("strict")) {
    begin();
    const double gate = rules().rule("cpu.flash").gate.value_or(policy_.gate);
    const Thresholds thresholds{.gate = gate, .guard = policy_.guard, .noise = rules().noise_floor};
    record_.green = {green_at("mission"), green_at("small")};
    take(judge_green(asked(), policy_.name, *record_.green, none()));
    const GreenTally tally = green_at("").candidate;
    record_.steps.push_back({{.kind = StepKind::claims}, "what else it takes", {}, false, 0.5});
    record_.claims =
        ClaimsStep{{{"odd lengths", "1x1x7x64", "", tally}, {"pages", "1x1x8x64", "no", {}}}};
    record_.green->push_back({"odd lengths: 1x1x7x64", GreenTally(), tally});
    take(judge_claims(
        asked(), *record_.claims, [](const std::string&) { return std::string(); }, none()));
    record_.resources = {{.name = "arena_bytes_per_thread",
                          .status = CheckStatus::pass,
                          .value = 242176,
                          .limit = rules().cpu_arena_bytes,
                          .workspace_bytes = 0}};
    record_.checklist.push_back({CheckKind::resources, "resources: arena of a thread",
                                 "<= " + std::to_string(rules().cpu_arena_bytes / 1024) + " KB",
                                 "236 KB", CheckStatus::pass});
    std::vector<ShapeEvidence> evidence;
    std::vector<LogRatio> overall;
    record_.fast.emplace();
    record_.samples.emplace();
    for (const bool primary : {true, false}) {
      const Samples samples = timed(primary ? "mission" : "small",
                                    primary ? speedup : at_guard.value_or(speedup), primary);
      evidence.push_back(*evidence_of(samples, primary, spread));
      GateTimes times =
          times_of(samples, evidence.back(), {2, "iters", {1e12, 1e11, "loops"}, 1e-7}, thresholds);
      times.process_spread = spread;
      record_.fast->push_back(times);
      record_.samples->push_back(samples);
      overall.push_back(evidence.back().p50);
    }
    record_.overall = workbench::speedup(geometric_mean(overall));
    take(judge_times(evidence, thresholds, "", "", reasons_.empty()));
    finish(thresholds, record_.fast->front().deciding());
  }
  /// A candidate that is RED on its first case.
  explicit Recorded(Fault fault) : policy_(*load_policy("strict")) {
    begin();
    GateGreen row = green_at("mission");
    row.candidate.cases = 1;
    row.candidate.green = 0;
    row.candidate.first_red =
        RedCase{"normal", 0, "rel_fro", fault, "rel_fro 0.388 > 1.1e-05 (worst at b 0 h 7)"};
    record_.green = {row};
    take(judge_green(asked(), policy_.name, *record_.green, none()));
    finish({.gate = rules().rule("cpu.flash").gate.value_or(policy_.gate),
            .guard = policy_.guard,
            .noise = rules().noise_floor},
           std::nullopt);
  }

  json made() const {
    json out = json_of(record_);
    out["headline"] = gate_headline(out);
    return out;
  }

  GateRecord record_;

 private:
  static CheckAgain none() {
    return [](const std::string&, std::uint64_t) { return std::string(); };
  }
  void begin() {
    record_.head = {{"options", to_json(asked())},
                    {"build",
                     {{"policy", {{"name", "strict"}, {"sha256", policy_.sha256}}},
                      {"gate_policy_sha256", rules().sha256}}}};
    BuildStep build;
    build.dtype = "fp32";
    for (const char* name : {"mission", "small"}) {
      PlannedShape& shape = build.shapes.emplace_back();
      shape.name = name;
      shape.problem = "simulated";
      shape.primary = build.shapes.size() == 1;
      shape.baseline.emplace();
      shape.baseline->variant = "cpu.naive";
      shape.candidate.emplace();
      shape.candidate->variant = "cpu.flash";
      shape.candidate->shared_bytes = 242176;
    }
    record_.build = build;
    record_.steps.push_back({{.kind = StepKind::build}, "plans and refusals", {}, false, 0.5});
    record_.checklist.push_back(
        {CheckKind::build, "build", "both sides built", "0123456789", CheckStatus::pass});
  }
  void take(GatePart part) {
    record_.checklist.insert(record_.checklist.end(), part.checklist.begin(), part.checklist.end());
    reasons_.insert(reasons_.end(), part.reasons.begin(), part.reasons.end());
  }
  void finish(const Thresholds& thresholds, const std::optional<Interval>& primary) {
    GateVerdict& verdict = record_.verdict;
    verdict.decision = from_reasons(reasons_);
    verdict.gate = thresholds.gate;
    verdict.guard = thresholds.guard;
    verdict.noise = thresholds.noise;
    verdict.advice = advise(verdict.decision, rules().tree(rules().rule("cpu.flash").tree),
                            {"cpu.naive", "cpu.flash"}, primary, thresholds.gate, {});
  }

  Policy policy_;
  std::vector<Reason> reasons_;
};

std::string told(const std::vector<Disagreement>& found) {
  std::string out;
  for (const Disagreement& one : found) out += one.subject + ": " + one.detail + "\n";
  return out;
}

json& line(json& record, CheckKind kind) {
  for (json& row : record["checklist"])
    if (row["kind"] == name_of(kind)) return row;
  return record["checklist"][0];
}

void say(json& record, Outcome decision, std::vector<ReasonCode> codes) {
  json& verdict = record["verdict"];
  verdict["decision"] = name_of(decision);
  verdict["reasons"] = json::array();
  std::vector<Reason> reasons;
  for (const ReasonCode code : codes) {
    verdict["reasons"].push_back({{"code", name_of(code)}, {"detail", "x"}, {"settle", ""}});
    reasons.push_back({code, "x", ""});
  }
  verdict["exit_code"] = from_reasons(reasons).exit_code;
  // Whoever edits makes the headline fit.
  record["headline"] = gate_headline(record);
}

struct Edit {
  const char* what;
  std::function<void(json&)> edit;
};

void every_edit_is_seen(const json& record, const std::vector<Edit>& edits) {
  ASSERT_EQ(told(recheck(record)), "");
  for (const Edit& edit : edits) {
    json changed = record;
    edit.edit(changed);
    EXPECT_NE(changed, record) << edit.what;
    EXPECT_FALSE(recheck(changed).empty()) << edit.what;
  }
}

const std::vector<Edit> kFigures = {
    {"exit code", [](json& r) { r["verdict"]["exit_code"] = 22; }},
    {"line's status", [](json& r) { line(r, CheckKind::guard)["status"] = "SKIPPED"; }},
    {"line's figure",
     [](json& r) { line(r, CheckKind::fast)["actual"] = "28.557x [17.507, 28.897]"; }},
    {"line's threshold",
     [](json& r) { line(r, CheckKind::fast)["target"] = "lower bound >= 0.90x"; }},
    {"line taken out",
     [](json& r) {
       r["checklist"].erase(r["checklist"].size() - 1);
       r["headline"] = gate_headline(r);
     }},
    {"noise's line", [](json& r) { line(r, CheckKind::noise)["actual"] = "1.5 [1.4, 1.6]"; }},
    {"GREEN's line", [](json& r) { line(r, CheckKind::green)["actual"] = "15/15 cases"; }},
    {"resource's line", [](json& r) { line(r, CheckKind::resources)["actual"] = "23 KB"; }},
    {"headline", [](json& r) { r["headline"][0] = "PROMOTE: cpu.flash against cpu.naive"; }},
    {"headline's times", [](json& r) { r["headline"][2] = "mission: p50 1 ms -> 2 ms"; }},
    {"gate", [](json& r) { r["verdict"]["gate"] = 0.01; }},
    {"guard", [](json& r) { r["verdict"]["guard"] = 0.01; }},
    {"noise", [](json& r) { r["verdict"]["noise"] = 9.0; }},
    {"level", [](json& r) { r["verdict"]["level"] = "as fast as light"; }},
    {"reached",
     [](json& r) {
       json& reached = r["verdict"]["levels"][0]["reached"];
       reached = !reached.get<bool>();
     }},
    {"decisive", [](json& r) { r["fast"][0]["decisive"]["lo"] = 0.5; }},
    {"p90", [](json& r) { r["fast"][1]["speedup_p90"]["hi"] = 9.5; }},
    {"overall", [](json& r) { r["overall"]["value"] = 9.5; }},
    {"blocks", [](json& r) { r["fast"][0]["blocks"] = 25; }},
    {"processes", [](json& r) { r["fast"][0]["processes"] = 3; }},
    {"batch", [](json& r) { r["fast"][0]["candidate"]["batch"] = 9; }},
    {"other work", [](json& r) { r["fast"][0]["baseline"]["other_work"] = 0.4; }},
    {"share of peak", [](json& r) { r["fast"][0]["candidate_percent_of_peak"] = 50; }},
    {"method", [](json& r) { r["fast"][0]["process_spread"] = "wishful"; }},
    {"impossible candidate", [](json& r) { r["fast"][1]["impossible"]["candidate"] = true; }},
    {"impossible baseline", [](json& r) { r["fast"][0]["impossible"]["baseline"] = true; }},
    {"GREEN cases",
     [](json& r) {
       r["green"][0]["candidate"]["green"] = r["green"][0]["candidate"]["cases"] = 8;
     }},
    {"GREEN of a shape taken out", [](json& r) { r["green"].erase(1); }},
    {"a claim's cases", [](json& r) { r["claims"][0]["candidate"]["green"] = 6; }},
    {"a claim taken out", [](json& r) { r["claims"].erase(0); }},
    {"a refused claim taken out", [](json& r) { r["claims"].erase(1); }},
    {"a claim's line", [](json& r) { line(r, CheckKind::green_claims)["actual"] = "8/8 cases"; }},
    {"arena", [](json& r) { r["resources"][0]["value"] = 1; }},
    {"arena's limit", [](json& r) { r["resources"][0]["limit"] = 1 << 20; }},
    {"resource's status", [](json& r) { r["resources"][0]["status"] = "FAIL"; }},
    {"a step died", [](json& r) { r["steps"][0]["status"] = "CRASH"; }},
    {"status", [](json& r) { r["status"] = "running"; }},
    {"which shape decides", [](json& r) { r["shapes"][1]["primary"] = true; }},
    {"no shape decides", [](json& r) { r["shapes"][0]["primary"] = false; }},
    {"whose times they are", [](json& r) { r["samples"]["shapes"][0]["sides"][1]["id"] = "cpu"; }},
    {"whose times they are not",
     [](json& r) { r["samples"]["shapes"][0]["sides"][2]["id"] = "cpu.flash (again)"; }},
    {"samples taken out", [](json& r) { r["samples"]["shapes"].erase(1); }},
    {"a time", [](json& r) { r["samples"]["shapes"][0]["blocks"][0]["seconds"][0] = 1e-3; }},
};

TEST(RecheckGate, EveryFigureOfAPromotedOneIsComputedAgain) {
  const json record = Recorded(1.5).made();
  ASSERT_EQ(record["verdict"]["decision"], "PROMOTE");
  every_edit_is_seen(record, kFigures);
  every_edit_is_seen(
      record, {{"DEFER", [](json& r) { say(r, Outcome::defer, {ReasonCode::below_gate}); }},
               {"REJECT", [](json& r) { say(r, Outcome::reject, {ReasonCode::numerics}); }}});
}

TEST(RecheckGate, ARejectionIsNoDeferment) {
  const json record = Recorded(0.5).made();
  ASSERT_EQ(record["verdict"]["decision"], "REJECT");
  // Under a sanitizer those of a promoted one are enough: 25 s there.
  if (GREENFAST_TEST_PERCENT == 100) every_edit_is_seen(record, kFigures);
  every_edit_is_seen(
      record,
      {{"INCONCLUSIVE", [](json& r) { say(r, Outcome::defer, {ReasonCode::inconclusive}); }},
       {"BELOW_GATE", [](json& r) { say(r, Outcome::defer, {ReasonCode::below_gate}); }},
       {"NUMERICS", [](json& r) { say(r, Outcome::reject, {ReasonCode::numerics}); }},
       {"fewer reasons", [](json& r) { say(r, Outcome::reject, {ReasonCode::regression}); }},
       {"a reason's figure",
        [](json& r) { r["verdict"]["reasons"][0]["detail"] = "mission p50 (primary) 0.9x"; }},
       {"PROMOTE at another gate", [](json& r) {
          r["verdict"]["gate"] = r["verdict"]["guard"] = 0.01;
          say(r, Outcome::promote, {});
        }}});
}

TEST(RecheckGate, ADefermentKeepsItsCode) {
  const json record = Recorded(1.05).made();
  ASSERT_EQ(record["verdict"]["decision"], "DEFER");
  every_edit_is_seen(record,
                     {{"NOISY", [](json& r) { say(r, Outcome::defer, {ReasonCode::noisy}); }},
                      {"PROMOTE", [](json& r) { say(r, Outcome::promote, {}); }},
                      {"PROMOTE at another gate", [](json& r) {
                         r["verdict"]["gate"] = 1.01;
                         for (json& row : r["checklist"])
                           if (row["kind"] == "fast") {
                             row["status"] = "PASS";
                             row["target"] = "lower bound >= 1.01x";
                           }
                         say(r, Outcome::promote, {});
                       }}});
}

TEST(RecheckGate, ARedCandidateHasTheCodeOfItsFault) {
  const json record = Recorded(Fault::numerics).made();
  ASSERT_EQ(record["verdict"]["exit_code"], 20);
  every_edit_is_seen(
      record,
      {{"REGRESSION", [](json& r) { say(r, Outcome::reject, {ReasonCode::regression}); }},
       {"INTEGRITY", [](json& r) { say(r, Outcome::reject, {ReasonCode::integrity}); }},
       {"INCONCLUSIVE", [](json& r) { say(r, Outcome::defer, {ReasonCode::inconclusive}); }},
       {"metric",
        [](json& r) {
          line(r, CheckKind::green)["actual"] = "RED at mission normal seed 0: bias";
        }},
       {"GREEN's status", [](json& r) { line(r, CheckKind::green)["status"] = "PASS"; }}});
  EXPECT_EQ(told(recheck(Recorded(Fault::launch).made())), "");
}

TEST(RecheckGate, TheTypeIsThatOfItsProblems) {
  json record = Recorded(Fault::numerics).made();
  for (json& shape : record["shapes"]) shape["problem"] = "1x2x64x32 fp32";
  every_edit_is_seen(record, {{"dtype", [](json& r) {
                                 r["dtype"] = "fp16";
                                 r["headline"] = gate_headline(r);
                               }}});
}

TEST(RecheckGate, RecordsFromBeforeAMemberWasKeptAreReadAsTheyWere) {
  json record = Recorded(1.5, ProcessSpread::resampled).made();
  for (json& row : record["checklist"])
    for (const char* member : {"kind", "shape", "statistic"}) row.erase(member);
  for (json& row : record["fast"])
    for (const char* member : {"process_spread", "impossible"}) row.erase(member);
  for (json& row : record["green"])
    for (const char* side : {"baseline", "candidate"}) row[side].erase("refused");
  record["verdict"].erase("noise");
  record.erase("claims");
  EXPECT_EQ(told(recheck(record)), "");
  json red = Recorded(Fault::integrity).made();
  red["green"][0]["candidate"]["first_red"].erase("fault");
  red["verdict"].erase("levels");
  EXPECT_NE(told(recheck(red)), "") << "its policy says that there are levels, or none";
  red["build"]["gate_policy_sha256"] = "of another day";
  EXPECT_EQ(told(recheck(red)), "");
}

// Before 2026-11-26 a level was reached by the lower bound, whatever the verdict.
TEST(RecheckGate, AnOldRejectionMayHaveReachedALevel) {
  const json today = Recorded(1.5, ProcessSpread::student, 0.8).made();
  ASSERT_EQ(today["verdict"]["decision"], "REJECT");
  EXPECT_EQ(today["verdict"]["level"], "");
  EXPECT_EQ(told(recheck(today)), "");
  json old = today;
  old["verdict"]["level"] = old["verdict"]["levels"][0]["name"];
  EXPECT_NE(told(recheck(old)), "") << "its levels do not say so";
  old["verdict"]["levels"][0]["reached"] = true;
  EXPECT_EQ(told(recheck(old)), "");
  json slower = Recorded(0.8).made();
  slower["verdict"]["level"] = slower["verdict"]["levels"][0]["name"];
  slower["verdict"]["levels"][0]["reached"] = true;
  EXPECT_NE(told(recheck(slower)), "") << "its interval does not";
}

TEST(RecheckGate, OfAnotherPolicyItsOwnLinesSayTheThresholds) {
  json record = Recorded(1.05).made();
  record["build"]["gate_policy_sha256"] = record["build"]["policy"]["sha256"] = "of another day";
  EXPECT_EQ(told(recheck(record)), "");
  record["verdict"]["gate"] = 1.01;
  EXPECT_NE(told(recheck(record)), "");
}

TEST(RecheckGate, TakesTheMethodThatTheRecordNames) {
  const json now = Recorded(1.05, ProcessSpread::student).made();
  json before = Recorded(1.05, ProcessSpread::resampled).made();
  EXPECT_EQ(told(recheck(now)), "");
  EXPECT_EQ(told(recheck(before)), "");
  EXPECT_LT(now["fast"][0]["speedup"]["lo"], before["fast"][0]["speedup"]["lo"]);
  before["fast"][0]["process_spread"] = "student";
  EXPECT_NE(told(recheck(before)).find("but its samples say"), std::string::npos);
}

TEST(RecheckGate, PeersAreComputedAgain) {
  Recorded recorded(1.5);
  PeersStep& peers = recorded.record_.peers.emplace();
  peers.shape = "mission";
  Samples samples = SimulatedMachine({}, 1, 100).paired(1.2, 8, 1, 4);
  samples.sides[0].id = "peer:torch-cpu";
  samples.sides[0].errors = {{"rel_fro", 1e-7}};
  samples.sides[1].id = "cpu.flash";
  for (Side& side : samples.sides) {
    side.correctness = {Verdict::green, {}};
    peers.sides.emplace_back().id = side.id;
    peers.sides.back().correctness = side.correctness;
  }
  judge_peers(peers, samples, "cpu.flash");
  peers.samples = samples;
  ASSERT_EQ(peers.best, "peer:torch-cpu");
  const auto fits = [](json& r) { r["headline"] = gate_headline(r); };
  every_edit_is_seen(
      recorded.made(),
      {{"speedup",
        [&](json& r) {
          r["peers"]["sides"][0]["speedup"]["value"] = 3.6;
          fits(r);
        }},
       {"p50", [](json& r) { r["peers"]["sides"][0]["p50"] = 1.0; }},
       {"p90", [](json& r) { r["peers"]["sides"][1]["p90"] = 1.0; }},
       {"samples", [](json& r) { r["peers"]["sides"][0]["samples"] = 1000; }},
       {"errors", [](json& r) { r["peers"]["sides"][0]["errors"]["rel_fro"] = 1e-3; }},
       {"shape",
        [&](json& r) {
          r["peers"]["shape"] = "small";
          fits(r);
        }},
       {"verdict",
        [](json& r) {
          r["peers"]["sides"][0]["verdict"] = "RED";
          r["peers"]["sides"][0]["reason"] = "rel_fro 0.4 is above 1e-05";
          r["peers"]["best"] = "";
          r["headline"] = gate_headline(r);
        }},
       {"best",
        [&](json& r) {
          r["peers"]["best"] = "";
          r["headline"][2] = "";
        }},
       {"samples taken out", [](json& r) { r["peers"].erase("samples"); }}});
}

TEST(RecheckLadderGates, DecisionsAndLinesAreThoseOfTheIntervals) {
  const json gate = Recorded(1.05).made();
  json step = {{"candidate", "cpu.flash"}, {"baseline", "cpu.naive"}};
  for (const char* key : {"checklist", "device", "dtype", "fast", "green", "headline", "options",
                          "resources", "verdict"})
    step[key] = gate.at(key);
  const json record = {
      {"schema", "greenfast.ladder_gates/1"}, {"build", gate.at("build")}, {"steps", {step}}};
  const auto one = [](auto edit) { return [edit](json& r) { edit(r["steps"][0]); }; };
  every_edit_is_seen(
      record,
      {{"PROMOTE", one([](json& r) { say(r, Outcome::promote, {}); })},
       {"REGRESSION", one([](json& r) { say(r, Outcome::reject, {ReasonCode::regression}); })},
       {"decision", one([](json& r) { r["verdict"]["decision"] = "REJECT"; })},
       {"line", one([](json& r) { line(r, CheckKind::fast)["status"] = "PASS"; })},
       {"figure", one([](json& r) { line(r, CheckKind::fast)["actual"] = "2x [1, 3]"; })},
       {"headline", one([](json& r) { r["headline"][0] = "PROMOTE: cpu.flash"; })}});
}

TEST(RecheckKnownFactors, ADecisionFollowsFromItsReasonsAndThoseFromItsIntervals) {
  const json record = {{"schema", "greenfast.known-factors/1"},
                       {"gate", 1.1},
                       {"build", {{"gate_policy_sha256", "of another day"}}},
                       {"gates",
                        {{{"decision", "REJECT"},
                          {"reasons", {"REGRESSION"}},
                          {"blocks", 20},
                          {"p50", {{"value", 0.95}, {"lo", 0.93}, {"hi", 0.97}}},
                          {"p90", {{"value", 1.2}, {"lo", 1.15}, {"hi", 1.3}}},
                          {"same_against_same", {{"value", 1.0}, {"lo", 0.99}, {"hi", 1.01}}}}}}};
  const auto one = [](auto edit) { return [edit](json& r) { edit(r["gates"][0]); }; };
  every_edit_is_seen(record, {{"decision", one([](json& g) { g["decision"] = "DEFER"; })},
                              {"PROMOTE", one([](json& g) {
                                 g["decision"] = "PROMOTE";
                                 g["reasons"] = json::array();
                               })},
                              {"DEFER", one([](json& g) {
                                 g["decision"] = "DEFER";
                                 g["reasons"] = {"INCONCLUSIVE"};
                               })},
                              {"interval", one([](json& g) { g["p50"]["hi"] = 1.2; })}});
}

TEST(SameFacts, NumbersCodesAndNamesCountAndOtherWordsDoNot) {
  EXPECT_TRUE(same_facts("mission p50 0.945x [0.939, 0.949]: lies below", "0.946x [0.939, 0.949]"));
  EXPECT_FALSE(same_facts("0.945x", "0.955x"));
  EXPECT_FALSE(same_facts("63/63 cases", "62/63 cases")) << "whole numbers are counts";
  EXPECT_FALSE(same_facts("REJECT(NUMERICS)", "REJECT(REGRESSION)"));
  EXPECT_FALSE(same_facts("cpu.flash is RED", "cpu.naive is RED"));
  EXPECT_FALSE(same_facts("p50 1.735 ms", "p50 1.735 us")) << "a unit";
  EXPECT_FALSE(same_facts("1.5x", "1.5x 2.5x"));
  EXPECT_TRUE(same_facts("it was so.", "it is otherwise"));
}

}  // namespace
}  // namespace greenfast::workbench::test
