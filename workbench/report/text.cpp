// The words of a report.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include <greenfast/attention.hpp>

#include "workbench/base/json.hpp"
#include "workbench/base/markdown.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/profile/profile.hpp"
#include "workbench/report/report.hpp"
#include "workbench/verdict/advise.hpp"
#include "workbench/verdict/compare.hpp"
#include "workbench/verdict/gate.hpp"
#include "workbench/verdict/gate_record.hpp"
#include "workbench/verdict/gate_status.hpp"
#include "workbench/verdict/predictions.hpp"

namespace greenfast::workbench {
namespace {

using nlohmann::json;
using Row = std::vector<std::string>;

std::string sha_of(const json& record) {
  const json& build = record.at("build");
  return build.contains("git") ? plain(build["git"].at("sha")) : plain(build.at("git_sha"));
}
bool dirty(const json& record) {
  const json& build = record.at("build");
  const json& flag = build.contains("git") ? build["git"].at("dirty") : build.at("git_dirty");
  return flag.is_boolean() && flag.get<bool>();
}

std::string rows_of(Row header, const std::vector<Row>& rows) {
  return markdown_table(header, rows);
}

// A heading less high, for a report within the report.
std::string demoted(const std::string& markdown) {
  std::string out;
  bool code = false;
  std::size_t at = 0;
  while (at < markdown.size()) {
    const std::size_t end = std::min(markdown.find('\n', at), markdown.size());
    const std::string_view line = std::string_view(markdown).substr(at, end - at);
    if (line.starts_with("```")) code = !code;
    if (!code && line.starts_with('#')) out += '#';
    out.append(line).push_back('\n');
    at = end + 1;
  }
  return out;
}

// On one line, whatever the record holds: it goes between fences of code.
std::string command_of(const json& record, std::span<const GivenPolicy> instead = {}) {
  std::string command = "greenfast", before;
  for (const json& one : record.at("argv")) {
    std::string word = plain(one);
    for (const GivenPolicy& policy : instead) {
      if (policy.name.empty()) continue;
      if (before == policy.option && word == policy.file) word = policy.name;
      if (word == policy.option + "=" + policy.file) word = policy.option + "=" + policy.name;
    }
    before = word;
    command += ' ' + shell_word(word);
  }
  std::replace_if(
      command.begin(), command.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return command;
}

const json* primary_of(const json& gate) {
  if (!gate.contains("fast")) return nullptr;
  for (const json& shape : gate["fast"])
    if (shape.at("primary").get<bool>() && shape.contains("speedup")) return &shape;
  return nullptr;
}

std::vector<std::string> run_headline(const json& record) {
  int green = 0, red = 0, skipped = 0;
  const json* fastest = nullptr;
  for (const json& row : record["rows"]) {
    const std::string verdict = plain(row.at("verdict"));
    (verdict == "GREEN" ? green : verdict == "RED" ? red : skipped) += 1;
    if (row.at("time").is_object() &&
        (fastest == nullptr ||
         row["time"].at("flops").get<double>() > (*fastest)["time"].at("flops").get<double>()))
      fastest = &row;
  }
  std::vector<std::string> lines;
  lines.push_back(
      fmt::format("{}: {} GREEN, {} RED, {} skipped, of {} pairs of variant and problem",
                  red > 0     ? "RED"
                  : green > 0 ? "GREEN"
                              : "SKIPPED",
                  green, red, skipped, record["rows"].size()));
  lines.push_back(
      fastest == nullptr
          ? std::string("nothing was timed")
          : fmt::format("highest rate: {} at {}, {:.3f} TFLOP/s, p50 {}",
                        plain((*fastest)["variant"]), plain((*fastest)["problem"]),
                        (*fastest)["time"]["flops"].get<double>() * 1e-12,
                        format_duration((*fastest)["time"]["p50_seconds"].get<double>())));
  lines.push_back(fmt::format("{}, {}, commit {}{}, exit code {}",
                              plain(record["device"].at("name")),
                              plain(record.at("utc")).substr(0, 10), sha_of(record).substr(0, 10),
                              dirty(record) ? " with changes" : "", plain(record.at("exit_code"))));
  return lines;
}

// ---- what each kind of record says

std::string run_section(const ReportSource& source) {
  const json& record = source.record;
  std::string out = fmt::format("## {}: {}\n\n", markdown_text(plain(record.at("command"))),
                                markdown_text(source.label));
  for (const std::string& line : run_headline(record))
    out += fmt::format("> {}  \n", markdown_text(line));
  std::vector<Row> rows;
  for (const json& row : record["rows"]) {
    const json& time = row.at("time");
    const std::string why = row.at("reason").is_string() ? plain(row["reason"]) : std::string();
    rows.push_back(
        {plain(row.at("variant")), plain(row.at("problem")), plain(row.at("verdict")),
         plain(row.at("cases")),
         time.is_object() ? format_duration(time.at("p50_seconds").get<double>()) : "-",
         time.is_object() ? format_duration(time.at("p90_seconds").get<double>()) : "-",
         time.is_object() && time.at("std_seconds").is_number()
             ? format_duration(time["std_seconds"].get<double>())
             : "-",
         time.is_object() ? fmt::format("{:.2f}", time.at("times_fastest").get<double>()) : "-",
         why});
  }
  out += "\n### Verdicts and times\n\n" + rows_of({"variant", "shape", "verdict", "cases", "p50",
                                                   "p90", "std", "×fastest", "reason"},
                                                  rows);

  // Correctness by shape and seed, over the distributions.
  struct Worst {
    int cases = 0, green = 0;
    double max_err = 0, mean_err = 0, bad = 0;
  };
  std::map<std::tuple<std::string, std::string, long long>, Worst> by_seed;
  for (const json& c : record["cases"]) {
    if (!c.contains("metrics")) continue;
    Worst& w =
        by_seed[{plain(c.at("variant")), plain(c.at("problem")), c.at("seed").get<long long>()}];
    ++w.cases;
    w.green += plain(c.at("verdict")) == "GREEN" ? 1 : 0;
    const auto worse = [&](double& value, const char* metric) {
      const json& m = c["metrics"].at(metric);
      value = std::max(value,
                       m.is_number() ? m.get<double>() : std::numeric_limits<double>::infinity());
    };
    worse(w.max_err, "max_err");
    worse(w.mean_err, "mean_err");
    worse(w.bad, "percent_bad");
  }
  rows.clear();
  for (const auto& [key, w] : by_seed)
    rows.push_back({std::get<0>(key), std::get<1>(key), fmt::format("{}", std::get<2>(key)),
                    fmt::format("{} of {}", w.green, w.cases), fmt::format("{:.2e}", w.max_err),
                    fmt::format("{:.2e}", w.mean_err), fmt::format("{:.3g}", w.bad)});
  if (!rows.empty())
    out += "\n### Correctness by shape and seed\n\nThe worst over the distributions.\n\n" +
           rows_of({"variant", "shape", "seed", "GREEN", "max_err", "mean_err", "%bad"}, rows);
  return out;
}

std::string selftest_section(const ReportSource& source) {
  const json& r = source.record;
  std::vector<Row> rows;
  for (const json& row : r["rows"]) {
    const bool honest = row.at("honest").get<bool>();
    const bool right = honest ? row.at("red_cases") == 0 : row.at("caught").get<bool>();
    if (!right)
      rows.push_back({plain(row.at("subject")), plain(row.at("models")),
                      honest ? "RED, but honest" : "GREEN, but wrong"});
  }
  std::string out = fmt::format(
      "## Selftest of the gate: {}\n\n{} of {} wrong kernels caught, {} of {} honest ones passed, "
      "policy {}.\n",
      markdown_text(source.label), plain(r.at("mutants_caught")), plain(r.at("mutants")),
      plain(r.at("honest_green")), plain(r.at("honest")),
      markdown_text(plain(r["policy"].at("name"))));
  if (!rows.empty()) out += "\n" + rows_of({"planted kernel", "what it models", "result"}, rows);
  return out;
}

std::string ladder_section(const ReportSource& source) {
  std::vector<Row> rows;
  for (const json& s : source.record["steps"])
    rows.push_back({plain(s.at("candidate")), plain(s.at("baseline")), plain(s.at("verdict")),
                    plain(s.at("reason"))});
  return fmt::format("## Walk of the ladder: {}\n\n", markdown_text(source.label)) +
         rows_of({"candidate", "baseline", "verdict", "headline or reason"}, rows);
}

// A comparison's own report wants its whole struct; a record's tables are enough here.
std::string compare_section(const ReportSource& source) {
  const json& r = source.record;
  std::vector<Row> rows;
  for (const json& s : r["shapes"]) {
    const auto ratio = [&](const char* key) {
      const json& i = s.at(key);
      return fmt::format("{:.3f}× [{:.3f}, {:.3f}]", i.at("value").get<double>(),
                         i.at("lo").get<double>(), i.at("hi").get<double>());
    };
    rows.push_back({plain(s.at("name")), ratio("ratio_p50"), ratio("ratio_p90"),
                    plain(s.at("a").at("green")), plain(s.at("b").at("green")),
                    plain(s.at("outputs"))});
  }
  std::string out = fmt::format("## {} against {}: {}\n\n{} caches, {}.\n\n",
                                markdown_text(plain(r.at("b"))), markdown_text(plain(r.at("a"))),
                                markdown_text(source.label), plain(r.at("cache")),
                                r.at("paired").get<bool>() ? "interleaved" : "NOT interleaved");
  out += rows_of({"shape", "speedup p50", "speedup p90", "GREEN of the first",
                  "GREEN of the second", "outputs"},
                 rows);
  for (const json& note : r.at("notes")) out += fmt::format("- {}\n", markdown_text(plain(note)));
  for (const json& skipped : r.at("skipped"))
    out += fmt::format("- SKIPPED {}\n", markdown_text(words_of_skipped(skipped)));
  return out;
}

// ---- gates

/// Why a profile is none of what a gate judged; empty where it is.
std::string foreign(const json& profile, const json& gate) {
  const auto other = [](const char* what, const std::string& its, const std::string& gates) {
    return fmt::format("{} {}, and the gate's is {}", what, its.empty() ? "unknown" : its,
                       gates.empty() ? "unknown" : gates);
  };
  const auto device_of = [](const json& record) {
    return record.contains("device") ? plain(record["device"].at("name")) : std::string();
  };
  const std::string device = device_of(profile), gates_device = device_of(gate);
  if (device != gates_device || device.empty()) return other("GPU or CPU", device, gates_device);
  const std::string commit = sha_of(profile), gates_commit = sha_of(gate);
  if (!commit.empty() && !gates_commit.empty() && commit != gates_commit)
    return other("commit", commit.substr(0, 10), gates_commit.substr(0, 10));
  std::string asked;  // at the primary shape
  for (const char* rows : {"shapes", "fast"})
    if (asked.empty() && gate.contains(rows))
      for (const json& shape : gate[rows])
        if (shape.value("primary", false) && shape.contains("problem"))
          asked = plain(shape["problem"]);
  const std::string problem = plain(profile.at("problem"));
  if (problem != asked || problem.empty()) return other("problem", problem, asked);
  return {};
}

/// The last profile of that side of a gate; where there is none but what is foreign, why that is.
const ReportSource* profile_for(const ReportSources& sources, const json& gate,
                                const std::string& variant, std::string* why = nullptr) {
  const ReportSource* found = nullptr;
  for (const ReportSource& s : sources.records) {
    if (s.kind != "profile") continue;
    for (const json& side : s.record["sides"]) {
      if (plain(side.at("variant")) != variant) continue;
      const std::string other = foreign(s.record, gate);
      if (other.empty())
        found = &s;
      else if (why != nullptr)
        *why = other;
    }
  }
  return found;
}

/// Raw profiles that the records of both sides name and that do not lie beside them.
int raw_elsewhere(const ReportSources& sources, const json& gate) {
  int out = 0;
  std::set<const ReportSource*> seen;
  for (const char* side : {"baseline", "candidate"}) {
    const ReportSource* profile = profile_for(sources, gate, plain(gate["options"].at(side)));
    if (profile == nullptr || !seen.insert(profile).second ||
        !profile->record.contains("artifacts"))
      continue;
    for (const json& artifact : profile->record["artifacts"])
      if (!std::filesystem::exists(profile->file.parent_path() / plain(artifact.at("file")))) ++out;
  }
  return out;
}

/// The originals' third class of gates: profiles of both sides, kept.
struct KeptProfiles {
  bool both = false;               ///< metrics of both sides are there
  int elsewhere = 0;               ///< raw files that are not beside their records
  std::vector<std::string> words;  ///< of each side, then of what is elsewhere

  Row row() const {
    return {"Evidence: profiles", "metrics of both sides, raw profiles named",
            fmt::format("{}", fmt::join(words, "; ")), both ? "PASS" : "deferred"};
  }
};
KeptProfiles kept_profiles(const ReportSources& sources, const json& gate) {
  KeptProfiles out;
  out.both = true;
  for (const char* side : {"baseline", "candidate"}) {
    const std::string variant = plain(gate["options"].at(side));
    std::string why;
    const ReportSource* profile = profile_for(sources, gate, variant, &why);
    std::string status =
        why.empty() ? "no profile in this folder" : "its profile here is another's: " + why;
    bool measured = false;
    if (profile != nullptr)
      for (const json& s : profile->record["sides"]) {
        if (plain(s.at("variant")) != variant) continue;
        measured = !s.at("skipped").is_string();
        status = measured ? fmt::format("{} metrics", s.at("metrics").size())
                          : "SKIPPED: " + plain(s["skipped"]);
      }
    out.both = out.both && measured;
    out.words.push_back(fmt::format("{}: {}", variant, status));
  }
  out.elsewhere = raw_elsewhere(sources, gate);
  if (out.elsewhere > 0)
    out.words.push_back(
        fmt::format("{} raw profiles are elsewhere, known by their SHA-256", out.elsewhere));
  return out;
}

/// Whether what a profile of both sides saw is what was predicted of it.
struct Directions {
  bool profiled = false;
  int as_predicted = 0;
  std::vector<std::string> against, unseen;  ///< metrics, in words
  bool kept() const { return as_predicted > 0 && against.empty() && unseen.empty(); }
  std::string words() const {
    if (!profiled) return "no profile of both sides";
    const auto predicted = static_cast<std::size_t>(as_predicted) + against.size() + unseen.size();
    if (predicted == 0) return "nothing was predicted";
    std::string out = fmt::format("{} of {}", as_predicted, predicted);
    if (!against.empty()) out += fmt::format("; against: {}", fmt::join(against, ", "));
    if (!unseen.empty()) out += fmt::format("; not seen: {}", fmt::join(unseen, ", "));
    return out;
  }
};
Directions directions_of(const ReportSources& sources, const json& gate) {
  Directions out;
  for (const ReportSource& s : sources.records) {
    if (s.kind != "profile" || !s.record.contains("directions")) continue;
    const json& sides = s.record["sides"];
    if (sides.size() != 2 ||
        plain(sides[0].at("variant")) != plain(gate["options"].at("baseline")) ||
        plain(sides[1].at("variant")) != plain(gate["options"].at("candidate")) ||
        s.record["directions"].empty() || !foreign(s.record, gate).empty())
      continue;
    out = Directions();
    out.profiled = true;
    for (const json& d : s.record["directions"]) {
      if (d.at("predicted") == "-") continue;
      if (d.at("status") == "as predicted")
        ++out.as_predicted;
      else
        (d.at("status") == "against the prediction" ? out.against : out.unseen)
            .push_back(plain(d.at("label")));
    }
  }
  return out;
}

struct Step {
  std::string what, gain, effort, risk;
};
// Why an idea is not to be tried: it is a control experiment, or a profile of the candidate speaks
// against it. Empty where nothing does, or where there is no profile.
std::string denied_by(const ReportSource* profile, const std::string& candidate,
                      const std::string& line, const std::vector<Prediction>& predictions) {
  if (const std::string why = control_in_line(line, predictions); !why.empty())
    return "none to expect, a control experiment: " + why;
  const Symptom* symptom = symptom_in_line(line, predictions);
  if (symptom == nullptr || profile == nullptr) return {};
  for (const json& side : profile->record["sides"]) {
    if (plain(side.at("variant")) != candidate || !side.contains("metrics")) continue;
    double metric = -1, of = -1;
    for (const json& row : side["metrics"]) {
      if (!row.at("value").is_number()) continue;
      if (row.at("name") == symptom->metric) metric = row["value"].get<double>();
      if (row.at("name") == symptom->of) of = row["value"].get<double>();
    }
    if (metric < 0 || !(of > 0) || metric > symptom->above * of) continue;
    return fmt::format("none to expect: {} are {:.0f}% of {}, and it is for more than {:.0f}%",
                       symptom->metric, 100 * metric / of, symptom->of, 100 * symptom->above);
  }
  return {};
}
// What the records say can still be gained, nothing else.
std::vector<Step> next_steps(const ReportSources& sources, const ReportModel& model,
                             const json& gate) {
  std::vector<Step> steps;
  const std::string candidate = plain(gate["options"].at("candidate"));
  for (const json& reason : gate["verdict"].at("reasons"))
    if (!plain(reason.at("settle")).empty() && reason["settle"].is_string())
      steps.push_back({plain(reason["settle"]), "the verdict", "one run", "none"});
  const std::string baseline = plain(gate["options"].at("baseline"));
  const auto read = parse_predictions("policies/predictions.toml", builtin_predictions());
  const std::vector<Prediction> predictions = read ? *read : std::vector<Prediction>();
  const ReportSource* profile = profile_for(sources, gate, candidate);
  for (const json& next : gate["verdict"].at("next")) {
    const std::string line = plain(next);
    // Gates from before 2026-11-26 proposed what they had gated against.
    if (names_variant(line, baseline) || names_variant(line, candidate)) continue;
    if (const std::string why = denied_by(profile, candidate, line, predictions); !why.empty())
      steps.push_back({"not: " + line, why, "-", "-"});
    else
      steps.push_back({line, "not measured", "one gate each", "none: by name only"});
  }
  for (const VariantInfo& v : variants()) {
    if (v.predecessor != candidate) continue;
    std::string gain = "not measured here";
    for (const Timing& after : model.timings)
      for (const Timing& before : model.timings)
        if (after.variant == v.id && before.variant == candidate && comparable(after, before) &&
            after.shape.starts_with("mission"))
          gain =
              fmt::format("{:.2f}× at {} in {}", before.p50 / after.p50, after.shape, after.source);
    // What was measured of it says more than what its idea is for; a control experiment has none.
    if (const std::string why = denied_by(profile, candidate, v.id, predictions);
        !why.empty() &&
        (gain == "not measured here" || !control_in_line(v.id, predictions).empty())) {
      steps.push_back({fmt::format("not: {}: {}", v.id, v.idea), why, "-", "-"});
      continue;
    }
    steps.push_back({fmt::format("gate {} against {}: {}", v.id, candidate, v.idea), gain,
                     v.built ? "one run" : "a build with it, one run",
                     "none: built beside the others"});
  }
  if (profile != nullptr) {
    for (const json& side : profile->record["sides"])
      if (plain(side.at("variant")) == candidate && side.contains("advice"))
        for (const json& line : side["advice"])
          steps.push_back({plain(line), "to be predicted before it is written",
                           "a change of the kernel", "GREEN decides"});
  } else {
    steps.push_back(
        {fmt::format("greenfast profile {} {}", plain(gate["options"].at("baseline")), candidate),
         "the bottleneck by name", "seconds", "none"});
  }
  if (const json* shape = primary_of(gate); shape != nullptr) {
    const double floor = shape->at("floor_seconds").get<double>();
    const double p50 = (*shape)["candidate"].at("p50").get<double>();
    if (floor > 0)
      steps.push_back(
          {fmt::format("what is left to the speed of light at {}", plain(shape->at("shape"))),
           fmt::format("at most {:.1f}×", p50 / floor), "unknown", "-"});
  }
  return steps;
}

std::string next_steps_table(const std::vector<Step>& steps) {
  std::vector<Row> rows;
  for (const Step& s : steps) rows.push_back({s.what, s.gain, s.effort, s.risk});
  return rows_of({"step", "expected gain", "effort", "risk"}, rows);
}

std::vector<std::string> lessons(const json& gate) {
  std::vector<std::string> out;
  const json& verdict = gate.at("verdict");
  const json* shape = primary_of(gate);
  const std::string expected = plain(verdict.at("expected"));
  if (shape != nullptr) {
    const json& s = (*shape)["speedup"];
    const double value = s.at("value").get<double>(), lo = s.at("lo").get<double>(),
                 hi = s.at("hi").get<double>();
    out.push_back(fmt::format("expected: {}; found {:.3f}× [{:.3f}, {:.3f}] at {}",
                              expected.empty() ? "nothing was written down" : expected, value, lo,
                              hi, plain(shape->at("shape"))));
    if (lo <= 1 && hi >= 1)
      out.push_back(
          "a change that shows no difference is a result: its idea was not where the time goes");
    if (shape->contains("noise_floor"))
      out.push_back(fmt::format("differences below {:.1f}% are noise on this machine at that time",
                                100 * (*shape)["noise_floor"].get<double>()));
    const double peak = shape->at("candidate_percent_of_peak").get<double>();
    if (peak > 0)
      out.push_back(fmt::format("the candidate runs at {:.1f}% of the measured peak", peak));
  }
  if (verdict.contains("predicted") && verdict["predicted"].at("outcome").is_string())
    out.push_back(fmt::format(
        "{}: {} to {}x at {}, because {}", plain(verdict["predicted"]["outcome"]),
        plain(verdict["predicted"].at("speedup").at(0)),
        plain(verdict["predicted"]["speedup"].at(1)), plain(verdict["predicted"].at("shape")),
        plain(verdict["predicted"].at("because"))));
  if (!plain(verdict.at("original")).empty())
    out.push_back(fmt::format("the original, on an L4: {}", plain(verdict["original"])));
  return out;
}

std::string toggles_of(const std::string& id) {
  for (const VariantInfo& v : variants()) {
    if (v.id != id) continue;
    std::string out;
    for (const Toggle& t : v.toggles)
      out += fmt::format("{}{}={}", out.empty() ? "" : " ", t.name, t.value);
    return out;
  }
  return {};
}

/// Each ticked by what a record shows, and with the reason where it is not.
std::vector<std::pair<std::string, bool>> merge_checklist(const ReportSources& sources,
                                                          const json& gate) {
  const auto passed = [&](std::initializer_list<CheckKind> kinds) {
    bool any = false;
    for (const json& row : gate["checklist"]) {
      const auto kind = kind_of_check(row);
      if (!kind || std::find(kinds.begin(), kinds.end(), *kind) == kinds.end()) continue;
      any = true;
      if (row.at("status") != "PASS" && row.at("status") != "WAIVED") return false;
    }
    return any;
  };
  std::vector<std::string> waived;
  for (const json& row : gate["checklist"])
    if (row.at("status") == "WAIVED") waived.push_back(plain(row.at("gate")));
  const json& build = gate.at("build");
  const json* logs = build.contains("compiler_logs") ? &build["compiler_logs"] : nullptr;
  const bool quiet = logs != nullptr && logs->at("complaints").empty();
  const std::string heard = logs == nullptr ? "the record holds no compiler log"
                            : quiet ? fmt::format("{} compiler logs", plain(logs->at("logs")))
                                    : fmt::format("{} warnings", logs->at("complaints").size());
  const KeptProfiles profiles = kept_profiles(sources, gate);
  const Directions directions = directions_of(sources, gate);
  return {
      {fmt::format("both sides build, with no warning ({})", heard),
       passed({CheckKind::build}) && quiet},
      {"GREEN on every distribution, shape and seed",
       passed({CheckKind::green, CheckKind::green_baseline, CheckKind::green_claims})},
      {fmt::format("resources inside their limits{}, no spills",
                   waived.empty() ? "" : fmt::format(" or waived ({})", fmt::join(waived, ", "))),
       passed({CheckKind::resources})},
      {"FAST: p50 and p90 at the primary shape at or above the gate", passed({CheckKind::fast})},
      {"no guard shape slower", passed({CheckKind::guard})},
      {fmt::format("profiles of both sides kept{}",
                   !profiles.both ? " (deferred)"
                   : profiles.elsewhere > 0
                       ? fmt::format(" ({} raw files are elsewhere)", profiles.elsewhere)
                       : ""),
       profiles.both && profiles.elsewhere == 0},
      {fmt::format("directions as predicted ({})", directions.words()), directions.kept()},
      {"built from a clean commit", !dirty(gate)},
      {"evidence, tables and changelog in the same change", false}};
}

std::string tag_of(const json& gate) {
  std::string name = plain(gate["options"].at("candidate"));
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '_') c = '-';
  return fmt::format("{}-{}", name, plain(gate.at("utc")).substr(0, 10));
}

std::string commit_message(const json& gate) {
  const std::vector<std::string> head = gate_headline(gate);
  return fmt::format("{}\n\n{}\n{}\n\nMeasured on {}, commit {}.\n", head[0], head[1], head[2],
                     gate.contains("device") ? plain(gate["device"].at("name")) : "?",
                     sha_of(gate).substr(0, 10));
}

std::string pr_of(const ReportSources& sources, const ReportModel& model,
                  const ReportSource& source) {
  const json& gate = source.record;
  const std::string candidate = plain(gate["options"].at("candidate"));
  const std::string baseline = plain(gate["options"].at("baseline"));
  const std::vector<std::string> head = gate_headline(gate);
  std::string out = fmt::format("# {}\n\n## Summary\n\n", markdown_text(head[0]));
  for (const VariantInfo& v : variants())
    if (v.id == candidate)
      out += fmt::format("{}: {}.\n\n", markdown_text(candidate), markdown_text(v.idea));
  out += fmt::format("{}  \n{}\n\n## Results\n\n", markdown_text(head[1]), markdown_text(head[2]));
  std::vector<Row> rows;
  for (const json& row : gate["checklist"])
    rows.push_back({plain(row.at("gate")), plain(row.at("target")), plain(row.at("actual")),
                    plain(row.at("status"))});
  rows.push_back(kept_profiles(sources, gate).row());
  out += rows_of({"gate", "target", "actual", "status"}, rows);

  out += "\n## Artifacts\n\n";
  for (const ReportSource& s : sources.records) {
    out += fmt::format("- {} ({})\n", markdown_text(s.label), s.kind);
    if (s.kind == "profile" && s.record.contains("artifacts"))
      for (const json& a : s.record["artifacts"])
        out += fmt::format("- {}, SHA-256 {}\n", markdown_text(plain(a.at("file"))),
                           plain(a.at("sha256")).substr(0, 12));
  }
  const std::string on = toggles_of(candidate), off = toggles_of(baseline);
  out += "\n## Toggle and rollback\n\n";
  out +=
      on.empty()
          ? fmt::format(
                "No toggle: `GREENFAST_VARIANT={}` forces it, `GREENFAST_VARIANT={}` goes back.\n",
                markdown_text(candidate), markdown_text(baseline))
          : fmt::format("`{}`; back: `{}`, or `GREENFAST_VARIANT={}`.\n", on,
                        off.empty() ? "none" : off, markdown_text(baseline));
  out += "\n## Risk\n\n";
  const std::string decision = plain(gate["verdict"].at("decision"));
  out += decision == "PROMOTE"
             ? "GREEN on every case that the policy asks for; performance is known for the shapes "
               "above, on this device.\n"
             : fmt::format("The gate says {}: nothing that users call may change.\n", decision);
  for (const json& row : gate["checklist"])
    if (row.at("status") != "PASS")
      out += fmt::format("- {}: {} ({})\n", markdown_text(plain(row.at("gate"))),
                         plain(row["status"]), markdown_text(plain(row.at("actual"))));
  out += "\n## Next steps\n\n" + next_steps_table(next_steps(sources, model, gate));
  out += "\n## Merge checklist\n\n";
  for (const auto& [what, done] : merge_checklist(sources, gate))
    out += fmt::format("- [{}] {}\n", done ? "x" : " ", what);
  return out;
}

std::string gate_section(const ReportSources& sources, const ReportModel& model,
                         const ReportSource& source) {
  const json& gate = source.record;
  std::string out = demoted(gate_markdown(gate));
  const std::vector<Row> evidence{kept_profiles(sources, gate).row()};
  out += "\n### Evidence\n\n" + rows_of({"gate", "target", "actual", "status"}, evidence);
  out += "\n### Recommended next steps\n\n" + next_steps_table(next_steps(sources, model, gate));
  out += "\n### Lessons\n\n";
  for (const std::string& line : lessons(gate)) out += fmt::format("- {}\n", markdown_text(line));
  out += "\n### Merge checklist\n\n";
  for (const auto& [what, done] : merge_checklist(sources, gate))
    out += fmt::format("- [{}] {}\n", done ? "x" : " ", what);
  out += fmt::format("\n### Commit message and tag\n\n```\n{}```\n\nTag: `{}`\n",
                     commit_message(gate), tag_of(gate));
  return out;
}

// ---- artifacts and how to get them again

std::string artifacts_section(const ReportSources& sources) {
  std::vector<Row> rows;
  for (const ReportSource& s : sources.records) {
    const json& r = s.record;
    if (!r.contains("build")) {
      rows.push_back({s.label, s.kind, r.contains("utc") ? plain(r["utc"]) : "-", "-", "-"});
      continue;
    }
    const json& build = r["build"];
    const std::string cuda =
        build.contains("cuda") && build["cuda"].is_object()   ? plain(build["cuda"].at("compiler"))
        : build.contains("cuda") && build["cuda"].is_string() ? plain(build["cuda"])
                                                              : std::string();
    rows.push_back({s.label, s.kind, plain(r.at("utc")),
                    fmt::format("{}{}", sha_of(r).substr(0, 10), dirty(r) ? " with changes" : ""),
                    fmt::format("{} {}{}{}", plain(build.at("compiler")), plain(build.at("flags")),
                                cuda.empty() ? "" : ", ", cuda)});
  }
  std::string out =
      "## Artifacts\n\n" + rows_of({"record", "kind", "begun", "commit", "build"}, rows);
  for (const std::string& line : sources.left_out)
    out += fmt::format("\n- left out: {}\n", markdown_text(line));
  return out;
}

}  // namespace

std::vector<GivenPolicy> given_policies(const json& gate) {
  std::vector<GivenPolicy> out;
  const json& options = gate.at("options");
  const json texts = gate.value("policies", json::object());
  for (const auto& [key, option] :
       {std::pair("gate_policy", "--gate-policy"), std::pair("policy", "--policy")}) {
    const std::string file = plain(options.at(key));
    const bool kept = texts.contains(key);
    // A numerics policy of this version goes by its name, as does one of a version that kept no texts.
    if (!kept && (std::string_view(key) == "policy" || file.empty())) continue;
    GivenPolicy& policy = out.emplace_back(GivenPolicy{option, file, "", ""});
    if (!kept) continue;
    policy.text = plain(texts.at(key).at("text"));
    std::string name = std::filesystem::path(file).filename().string();
    for (char& c : name)
      if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '_') c = '-';
    policy.name = fmt::format("policies/given/{}-{}", sha256_hex(policy.text).substr(0, 12), name);
  }
  return out;
}

std::string reproduce_text(const ReportSources& sources, bool in_bundle) {
  std::string out = "## To reproduce\n\n";
  std::set<std::string> seen;
  for (const ReportSource& s : sources.records) {
    const json& r = s.record;
    if (!r.contains("build") || !r.contains("argv")) continue;
    const std::string sha = sha_of(r).empty() || !r["build"].is_object() ? "" : sha_of(r);
    const std::vector<GivenPolicy> given =
        s.kind == "gate" ? given_policies(r) : std::vector<GivenPolicy>();
    const std::string command = command_of(r, in_bundle ? given : std::span<const GivenPolicy>());
    if (!seen.insert(sha + command).second) continue;
    const std::string checkout =
        sha.size() >= 7 && sha.find_first_not_of("0123456789abcdef") == std::string::npos
            ? fmt::format("git checkout {} && make build\n", sha)
            : std::string("# built outside a repository: no commit to check out\n");
    std::string expect;
    if (s.kind == "gate") expect = gate_headline(r)[0];
    if (s.kind == "run") expect = run_headline(r)[0];
    out += fmt::format("```\n{}{}\n```\n", checkout, command);
    if (!expect.empty())
      out += fmt::format("\nExpect, within the machine's noise: {}\n", markdown_text(expect));
    for (const GivenPolicy& policy : given) {
      if (policy.name.empty())
        out += fmt::format(
            "\n{} {}: a file of whoever ran this, and the record is of a version that kept no text "
            "of it.\n",
            policy.option, markdown_text(policy.file));
      else if (in_bundle)
        out += fmt::format("\n`{}` is a file of this bundle: give the way to it.\n", policy.name);
      else
        out += fmt::format("\n{} {}: its text stands in the record, and a bundle holds it.\n",
                           policy.option, markdown_text(policy.file));
    }
    if (dirty(r))
      out += "\nThe tree had changes that no commit holds; the record names their digest alone.\n";
    out += '\n';
  }
  return out;
}

Result<std::vector<ReportPart>> make_report(const ReportSources& sources,
                                            std::span<const ReportPart> history) {
  std::vector<ReportPart> parts;
  std::string current;
  try {
    current = sources.records[0].label;
    const ReportModel model = model_of(sources.records);
    std::string head = "# Validation report\n";
    for (const ReportSource& s : sources.records) {
      current = s.label;
      std::vector<std::string> lines;
      if (s.kind == "gate") lines = gate_headline(s.record);
      if (s.kind == "run") lines = run_headline(s.record);
      if (lines.empty()) continue;
      head += '\n';
      for (const std::string& line : lines) head += fmt::format("> {}  \n", markdown_text(line));
    }
    parts.push_back({head, {}});
    std::vector<Chart> charts = charts_of(model, sources.records);
    if (!charts.empty()) parts.push_back({"## At a glance\n", std::move(charts)});
    for (const ReportPart& part : history) parts.push_back(part);
    for (const ReportSource& s : sources.records) {
      current = s.label;
      ReportPart part;
      if (s.kind == "run") part.markdown = run_section(s);
      if (s.kind == "gate") part.markdown = gate_section(sources, model, s);
      if (s.kind == "compare") part.markdown = compare_section(s);
      if (s.kind == "selftest") part.markdown = selftest_section(s);
      if (s.kind == "ladder") part.markdown = ladder_section(s);
      if (s.job)
        part.markdown = fmt::format("## Unfinished gate: {}\n\n", markdown_text(s.label)) +
                        gate_status_markdown(*s.job);
      if (s.kind == "profile") part.markdown = demoted(profile_markdown(s.record));
      if (!part.markdown.empty()) parts.push_back(std::move(part));
    }
    for (const ReportSource& s : sources.records) {
      current = s.label;
      if (s.kind == "gate")
        parts.push_back(
            {"## Text of the pull request\n\n" + demoted(demoted(pr_of(sources, model, s))), {}});
    }
    if (!sources.notes.empty())
      parts.push_back({"## Notes\n\n" + demoted(demoted(sources.notes)), {}});
    parts.push_back({artifacts_section(sources), {}});
    parts.push_back({reproduce_text(sources), {}});
  } catch (const json::exception& error) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: not of its schema: {}", current, reason_of(error)));
  }
  return parts;
}

std::string report_markdown(std::span<const ReportPart> parts) {
  std::string out;
  for (const ReportPart& part : parts) {
    if (!out.empty()) out += '\n';
    out += part.markdown;
    for (const Chart& chart : part.charts)
      out += fmt::format("\n### {}\n\n{}\n\n{}", markdown_text(chart.title),
                         markdown_text(chart.note), rows_of(chart.header, chart.rows));
  }
  return out;
}

Result<std::string> pull_request_text(const ReportSources& sources) {
  std::string out, current;
  try {
    const ReportModel model = model_of(sources.records);
    for (const ReportSource& s : sources.records) {
      current = s.label;
      if (s.kind == "gate") out += (out.empty() ? "" : "\n") + pr_of(sources, model, s);
    }
  } catch (const json::exception& error) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: not of its schema: {}", current, reason_of(error)));
  }
  if (out.empty())
    return Status(
        StatusCode::invalid_argument,
        "--pr: no gate.json among the records; a pull request rests on a gate (greenfast gate "
        "--baseline A --candidate B)");
  return out;
}

}  // namespace greenfast::workbench
