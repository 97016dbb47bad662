#include "workbench/evidence/recheck_gate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "workbench/base/exit_code.hpp"
#include "workbench/evidence/contents.hpp"
#include "workbench/evidence/recheck_facts.hpp"
#include "workbench/green/policy.hpp"
#include "workbench/verdict/compare.hpp"
#include "workbench/verdict/gate.hpp"
#include "workbench/verdict/gate_judge.hpp"
#include "workbench/verdict/gate_policy.hpp"

namespace greenfast::workbench {
namespace {

using nlohmann::json;

/// Before 2026-11-25 the line of a shape alone said that a candidate was below its floor, and a reason
/// that a baseline was.
void impossible_of_old(json& record) {
  if (!record.contains("fast")) return;
  for (json& row : record["fast"]) {
    if (!row.contains("speedup") || row.contains("impossible")) continue;
    const std::string shape = row.at("shape");
    bool baseline = false, candidate = false;
    for (const json& line : record.at("checklist"))
      candidate = candidate || (line.at("gate") == fmt::format("speed of light {}", shape) &&
                                line.at("status") == name_of(CheckStatus::fail));
    const std::string words =
        fmt::format("the baseline {} at {}: p50 ",
                    record.at("options").at("baseline").get<std::string>(), shape);
    for (const json& reason : record.at("verdict").at("reasons"))
      baseline = baseline || reason.at("detail").get<std::string>().starts_with(words);
    row["impossible"] = {{"baseline", baseline}, {"candidate", candidate}};
  }
}

/// What a gate from before 2026-11-25 kept of claims: those that were tried in their rows, how many
/// were refused in its line alone.
void claims_of_old(json& record) {
  if (record.contains("claims") || !record.contains("green") || !record.contains("shapes")) return;
  std::set<std::string> shapes;
  for (const json& shape : record.at("shapes")) shapes.insert(shape.value("name", ""));
  json claims = json::array();
  for (const json& row : record.at("green")) {
    const std::string shape = row.at("shape").get<std::string>();
    const auto colon = shape.find(": ");
    if (shapes.contains(shape)) continue;
    claims.push_back({{"kind", shape.substr(0, colon)},
                      {"problem", colon == std::string::npos ? "" : shape.substr(colon + 2)},
                      {"candidate", row.at("candidate")}});
  }
  bool asked = false;
  for (const json& row : record.at("checklist")) {
    if (kind_of_check(row) != CheckKind::green_claims) continue;
    asked = true;
    const std::string actual = row.at("actual").get<std::string>();
    const auto comma = actual.rfind(", ");
    int refused = 0;
    if (comma != std::string::npos && actual.ends_with(" refused"))
      refused = std::atoi(actual.c_str() + comma + 2);
    for (int i = 0; i < std::min(refused, 1000); ++i)
      claims.push_back({{"kind", ""}, {"problem", ""}, {"refused", "refused"}});
  }
  if (asked || !claims.empty()) record["claims"] = std::move(claims);
}

/// The one place that knows what records from before a member was kept would have said under it.
json gate_of_today(json record) {
  for (json& row : record.at("checklist"))  // 2026-11-25
    if (const auto kind = kind_of_check(row)) row["kind"] = name_of(*kind);
  if (record.contains("fast"))
    for (json& row : record["fast"])  // 2026-11-23: the first method was the only one
      if (row.contains("speedup") && !row.contains("process_spread"))
        row["process_spread"] = name_of(ProcessSpread::resampled);
  impossible_of_old(record);
  if (record.contains("green"))
    for (json& row : record["green"])
      for (const char* side : {"baseline", "candidate"}) {
        json& tally = row.at(side);
        if (!tally.contains("refused")) tally["refused"] = json::object();  // 2026-11-23
        json& red = tally.at("first_red");
        if (red.is_object() && !red.contains("fault"))  // 2026-11-22: wrong, or no honest call
          red["fault"] =
              name_of(red.at("integrity").get<bool>() ? Fault::integrity : Fault::numerics);
      }
  claims_of_old(record);
  json& verdict = record.at("verdict");
  if (!verdict.contains("noise")) verdict["noise"] = nullptr;    // 2026-11-25
  if (!verdict.contains("levels")) verdict["levels"] = nullptr;  // 2026-11-22
  return record;
}

std::string text(const json& object, const char* key) { return object.at(key).get<std::string>(); }

Interval interval_of(const json& object) {
  return {object.at("value").get<double>(), object.at("lo").get<double>(),
          object.at("hi").get<double>()};
}

/// The decision is what its reasons come to, whatever led to them.
class VerdictCheck {
 public:
  VerdictCheck(std::string subject, const json& record, std::vector<Disagreement>& out)
      : subject_(std::move(subject)), record_(record), verdict_(record.at("verdict")), out_(out) {}

  void add(std::string detail) { out_.push_back({subject_, std::move(detail)}); }

  /// Nothing where a code is none, which is told.
  std::optional<Decision> decision() {
    std::vector<Reason> reasons;
    for (const json& reason : verdict_.at("reasons")) {
      const auto code = parse_reason_code(text(reason, "code"));
      if (!code) {
        add(fmt::format("{} is no reason of a verdict", reason.at("code").dump()));
        return std::nullopt;
      }
      reasons.push_back({*code, text(reason, "detail"), text(reason, "settle")});
    }
    const std::size_t said = reasons.size();
    Decision is = from_reasons(std::move(reasons));
    if (verdict_.at("decision") != name_of(is.outcome) || verdict_.at("exit_code") != is.exit_code)
      add(fmt::format("says {} with exit code {}, its reasons say {} with {}",
                      text(verdict_, "decision"), verdict_.at("exit_code").dump(),
                      name_of(is.outcome), is.exit_code));
    if (is.reasons.size() != said) add("says reasons that only defer beside one that rejects");
    return is;
  }

  void headline() {
    const std::vector<std::string> is = gate_headline(record_);
    const json& said = record_.at("headline");
    if (said.size() != is.size())
      return add(fmt::format("its headline has {} lines of {}", said.size(), is.size()));
    for (std::size_t i = 0; i < is.size(); ++i)
      if (!same_facts(said[i].get<std::string>(), is[i]))
        add(fmt::format("its headline says \"{}\", and its record says \"{}\"",
                        said[i].get<std::string>(), is[i]));
  }

  /// Levels by their own thresholds; which there are, where today's policy is that of the record.
  /// Records from before 2026-11-26 say that a level is reached where the lower bound is above it,
  /// whatever the verdict.
  void levels(const Decision& decision, const std::optional<Interval>& primary) {
    const bool promoted = decision.outcome == Outcome::promote;
    bool old = !promoted && !verdict_.at("levels").is_array();
    if (verdict_.at("levels").is_array()) {
      std::string reached;
      for (const json& level : verdict_.at("levels")) {
        const bool above = primary && primary->lo >= level.at("at_least").get<double>();
        const bool said = level.at("reached").get<bool>();
        if (said ? !above : above && promoted)
          add(fmt::format("level {}: says reached {}, and its interval and verdict say {}",
                          level.at("name").dump(), said, !said));
        old = old || (said && !promoted);
        if (said) reached = text(level, "name");
      }
      if (text(verdict_, "level") != reached)
        add(fmt::format("says level \"{}\", and its levels say \"{}\"", text(verdict_, "level"),
                        reached));
    }
    const auto rules = rules_of_record();
    if (!rules) return;
    const std::string candidate = text(record_.at("options"), "candidate");
    const Advice is = advise(decision, rules->tree(rules->rule(candidate).tree),
                             {text(record_.at("options"), "baseline"), candidate}, primary,
                             verdict_.at("gate").get<double>(), {});
    if (!old && text(verdict_, "level") != is.level)
      add(fmt::format("says level \"{}\", and its policy says \"{}\"", text(verdict_, "level"),
                      is.level));
    const json& levels = verdict_.at("levels");
    bool same = levels.is_array() && levels.size() == is.levels.size();
    for (std::size_t i = 0; same && i < levels.size(); ++i)
      same = text(levels[i], "name") == is.levels[i].name &&
             same_figure(levels[i].at("at_least").get<double>(), is.levels[i].at_least);
    if (!same) add("its levels are not those of its policy");
  }

  /// What the record's gate policy says, where it is the one of this program.
  std::optional<GatePolicy> rules_of_record() const {
    const auto rules = parse_gate_policy("policies/gate.toml", builtin_gate_policy());
    const json& build = member(record_, "build");
    if (!rules || text_of(build, "gate_policy_sha256") != rules->sha256) return std::nullopt;
    return *rules;
  }
  std::optional<Policy> policy_of_record() const {
    const json& said = member(member(record_, "build"), "policy");
    for (const BuiltinPolicy& row : builtin_policies()) {
      if (row.name != text_of(said, "name")) continue;
      auto policy = load_policy(row.name);
      if (policy && policy->sha256 == text_of(said, "sha256")) return std::move(*policy);
    }
    return std::nullopt;
  }

  /// Those that the record judged by: by its options and its policies, where those are this program's.
  Thresholds thresholds() {
    Thresholds out{.gate = verdict_.at("gate").get<double>(),
                   .guard = verdict_.at("guard").get<double>()};
    const auto rules = rules_of_record();
    const auto policy = policy_of_record();
    const auto options = gate_options_from_json(record_.at("options"));
    if (!options) add(options.status().message());
    std::optional<double> gate = options ? options->gate : std::nullopt;
    // Whether a rung has a gate of its own, its gate policy says.
    if (!gate && rules && options) {
      gate = rules->rule(options->candidate).gate;
      if (!gate && policy) gate = policy->gate;
    }
    if (gate && !same_figure(out.gate, *gate))
      add(fmt::format("says gate {}, and its options and policies say {}", out.gate, *gate));
    if (policy && !same_figure(out.guard, policy->guard))
      add(fmt::format("says guard {}, and its policy says {}", out.guard, policy->guard));
    if (const json& noise = verdict_.at("noise"); noise.is_number()) {
      out.noise = noise.get<double>();
      if (rules && !same_figure(out.noise, rules->noise_floor))
        add(fmt::format("says noise {}, and its policy says {}", out.noise, rules->noise_floor));
    } else if (rules) {
      out.noise = rules->noise_floor;
    } else {
      noise_in_words(out);
    }
    return out;
  }

  /// "A/A noise floor: baseline against itself: 1 inside, within 3% of it"; before there was such a
  /// limit: "contains 1".
  void noise_in_words(Thresholds& out) const {
    constexpr std::string_view kWithin = "within ";
    for (const json& row : record_.at("checklist")) {
      if (row.value("kind", "") != name_of(CheckKind::noise)) continue;
      const std::string target = text(row, "target");
      const auto at = target.find(kWithin);
      if (at == std::string::npos) return;
      // Three digits were kept.
      out.noise = 1.001e-2 * std::strtod(target.c_str() + at + kWithin.size(), nullptr);
    }
  }

  /// What reached neither GREEN nor its thresholds was not promoted.
  void promoted(const Thresholds& thresholds) {
    if (verdict_.at("decision") != name_of(Outcome::promote)) return;
    for (const json& shape : list_of(record_, "green")) {
      const json& tally = shape.at("candidate");
      if (!tally.at("first_red").is_null() || tally.at("green") != tally.at("cases"))
        add(fmt::format("says PROMOTE, and {} of {} cases are GREEN at {}",
                        tally.at("green").dump(), tally.at("cases").dump(), text(shape, "shape")));
    }
    for (const json& row : list_of(record_, "resources"))
      if (row.at("status") == "FAIL")
        add(fmt::format("says PROMOTE, and {} is over its limit", text(row, "name")));
    for (const json& fast : record_.at("fast")) {
      const double least = fast.at("primary").get<bool>() ? thresholds.gate : thresholds.guard;
      for (const char* which : {"speedup", "speedup_p90"})
        if (!fast.contains(which) || !(fast.at(which).at("lo").get<double>() >= least))
          add(fmt::format("says PROMOTE, and {} of {} is not above {:.2f}", which,
                          text(fast, "shape"), least));
    }
  }

  /// A row's status is that of its value beside its limit.
  void resources() {
    for (const json& row : list_of(record_, "resources")) {
      if (!member(row, "value").is_number() || !member(row, "limit").is_number()) continue;
      const bool inside = row.at("value").get<double>() <= row.at("limit").get<double>();
      const CheckStatus is = inside                   ? CheckStatus::pass
                             : row.contains("waiver") ? CheckStatus::waived
                                                      : CheckStatus::fail;
      if (row.at("status") != name_of(is))
        add(fmt::format("{} {} beside its limit {} is {}, not {}", text(row, "name"),
                        row.at("value").dump(), row.at("limit").dump(), name_of(is),
                        text(row, "status")));
    }
  }

  /// Digests of both sides: what the plans launch is among them, and resources know no others.
  void code() {
    if (!record_.contains("code")) return;  // of a CPU, or from before 2026-11-26
    std::map<std::string, std::set<std::string>> digests;
    for (const json& row : list_of(record_, "code"))
      digests[text_of(row, "kernel")].insert(text_of(row, "arch") + " " + text_of(row, "sha256"));
    for (const Launch& launch : launches_of(record_))
      if (launch.variant.starts_with(name_of(DeviceKind::cuda)) && !digests.contains(launch.kernel))
        add(fmt::format("code: no row of {}, which {} launches", launch.kernel, launch.variant));
    for (const json& row : list_of(record_, "resources")) {
      const auto found = digests.find(text_of(row, "kernel"));
      if (found == digests.end() || text_of(row, "sha256").empty()) continue;
      if (!found->second.contains(text_of(row, "arch") + " " + text_of(row, "sha256")))
        add(fmt::format("code: {} has another digest than its row of resources", found->first));
    }
  }

 private:
  std::string subject_;
  const json& record_;
  const json& verdict_;
  std::vector<Disagreement>& out_;
};

/// Lines of one kind of record and what they should be, in the same order.
void compare_lines(const std::vector<const json*>& said, const std::vector<GateCheck>& is,
                   const Thresholds& thresholds, VerdictCheck& check) {
  if (said.size() != is.size())
    return check.add(
        fmt::format("its checklist has {} lines of GREEN and FAST, and its steps make {}",
                    said.size(), is.size()));
  for (std::size_t i = 0; i < is.size(); ++i) {
    const json& row = *said[i];
    const GateCheck& line = is[i];
    const std::string where = fmt::format("checklist, {}", text(row, "gate"));
    if (row.at("kind") != name_of(line.kind) || row.value("shape", line.shape) != line.shape ||
        (line.statistic && row.value("statistic", std::string(name_of(*line.statistic))) !=
                               name_of(*line.statistic))) {
      check.add(fmt::format("{}: stands where {} belongs", where, line.gate));
      continue;
    }
    if (row.at("status") != name_of(line.status))
      check.add(fmt::format("{}: says {}, and its sources say {}", where, text(row, "status"),
                            name_of(line.status)));
    if (!line.actual.empty() && !same_facts(text(row, "actual"), line.actual))
      check.add(fmt::format("{}: says \"{}\", and its sources say \"{}\"", where,
                            text(row, "actual"), line.actual));
    const bool timed = line.kind == CheckKind::fast || line.kind == CheckKind::guard;
    const bool of_noise = line.kind == CheckKind::noise && std::isfinite(thresholds.noise);
    if ((timed || of_noise) && !line.target.empty() &&
        !same_facts(text(row, "target"), line.target))
      check.add(fmt::format("{}: asks for \"{}\", and its verdict for \"{}\"", where,
                            text(row, "target"), line.target));
  }
}

class GateRecheck {
 public:
  explicit GateRecheck(const json& record)
      : record_(gate_of_today(record)), check_("", record_, out_) {}

  std::vector<Disagreement> run() {
    const auto options = gate_options_from_json(record_.at("options"));
    const auto decision = check_.decision();
    if (!options || !decision) {
      if (!options) check_.add(options.status().message());
      return std::move(out_);
    }
    options_ = *options;
    said_ = *decision;
    thresholds_ = check_.thresholds();
    check_.resources();
    check_.code();
    check_.promoted(thresholds_);
    if (!read_samples()) return std::move(out_);
    names();
    walk();
    compare_reasons();
    std::vector<const json*> lines;
    for (const json& row : record_.at("checklist")) {
      const auto kind = kind_of_check(row);
      if (!kind) check_.add(fmt::format("{} is no line of a checklist", row.dump()));
      if (kind && kind != CheckKind::build && kind != CheckKind::resources) lines.push_back(&row);
    }
    compare_lines(lines, lines_, thresholds_, check_);
    resource_lines();
    check_.levels(said_, primary_);
    predicted();
    check_.headline();
    peers();
    return std::move(out_);
  }

 private:
  static const json& none() {
    static const json kNone = json::array();
    return kNone;
  }
  const json& list(const char* key) const {
    return record_.contains(key) ? record_.at(key) : none();
  }
  void members(const std::string& subject, const json& said, const json& is,
               const std::string& at) {
    std::vector<std::string> wrong;
    compare_members(said, is, at, wrong);
    for (std::string& detail : wrong) out_.push_back({subject, std::move(detail)});
  }

  /// A gate that ended before FAST has none, and then nothing that they would say.
  bool read_samples() {
    if (!record_.contains("samples")) return true;
    auto samples = samples_from_json(record_.at("samples"));
    if (!samples) {
      check_.add("samples: " + samples.status().message());
      return false;
    }
    samples_ = std::move(*samples);
    return true;
  }

  /// What a record calls its parts: by its options, by the order of its shapes, and by what the problems
  /// themselves say.
  void names() {
    if (record_.at("status") != "finished")
      check_.add(fmt::format("says status {}, and has a verdict", record_.at("status").dump()));
    for (const Samples& shape : samples_) {
      const std::string again = options_.baseline + " (again)";
      const std::string own = options_.baseline == options_.candidate
                                  ? options_.candidate + " (candidate)"
                                  : options_.candidate;
      const std::vector<std::string> is = {options_.baseline, own, again};
      for (std::size_t side = 0; side < shape.sides.size() && side < is.size(); ++side)
        if (shape.sides[side].id != is[side])
          check_.add(fmt::format("{}: a side is called {}, and its options say {}", shape.name,
                                 shape.sides[side].id, is[side]));
    }
    const std::string dtype = record_.value("dtype", "");
    std::size_t number = 0;
    for (const json& shape : list("shapes")) {
      const std::string name = text(shape, "name");
      if (shape.at("primary").get<bool>() != (number++ == 0))
        check_.add(fmt::format("shapes: {} says primary {}, and the first one is", name,
                               shape.at("primary").dump()));
      const auto problem = problem_of_recorded(text(shape, "problem"));
      if (problem && name_of(problem->dtype) != dtype)
        check_.add(
            fmt::format("says dtype {}, and {} is of {}", dtype, name, name_of(problem->dtype)));
    }
  }

  void take(GatePart part) {
    lines_.insert(lines_.end(), part.checklist.begin(), part.checklist.end());
    reasons_.insert(reasons_.end(), part.reasons.begin(), part.reasons.end());
    ended_ = ended_ || part.ended;
  }

  /// A step whose child died is its own source of how.
  bool died(StepKind kind, std::optional<CheckKind> line, const std::string& shape = {}) {
    for (const json& step : record_.at("steps")) {
      const auto walked = parse_walk_step(text(step, "name"));
      const std::string status = text(step, "status");
      if (!walked || walked->kind != kind || status == "done") continue;
      const auto code = parse_reason_code(status);
      if (!code) {
        check_.add(fmt::format("step {}: {} is no end", text(step, "name"), status));
        return true;
      }
      // What the child did last stands in the reason alone.
      reasons_.push_back({*code, "", ""});
      if (line)
        lines_.push_back(
            {*line, "", "", "",
             kind == StepKind::fast || rejects(*code) ? CheckStatus::fail : CheckStatus::defer,
             shape});
      ended_ = true;
      return true;
    }
    return false;
  }
  bool walked(StepKind kind) const {
    for (const json& step : record_.at("steps"))
      if (const auto walked = parse_walk_step(text(step, "name")); walked && walked->kind == kind)
        return true;
    return false;
  }

  void walk() {
    if (died(StepKind::build, std::nullopt)) return;
    from_json(record_, build_);
    green();
    if (ended_) return;
    // Records from before 2026-11-22 have no claims.
    if (walked(StepKind::claims)) claims();
    if (!ended_) resources();
    if (!ended_) fast();
  }

  const PlannedShape* planned(const std::string& name) const {
    for (const PlannedShape& shape : build_.shapes)
      if (shape.name == name) return &shape;
    return nullptr;
  }
  static GateGreen green_of(const json& row) {
    GreenStep step;
    from_json({{"baseline", row.at("baseline")},
               {"candidate", row.at("candidate")},
               {"limits", json::object()}},
              step);
    return {text(row, "shape"), step.baseline, step.candidate};
  }

  void green() {
    std::vector<GateGreen> rows;
    for (const json& row : list("green")) {
      GateGreen green = green_of(row);
      (planned(green.shape) != nullptr ? rows : claimed_).push_back(std::move(green));
    }
    if (died(StepKind::green, CheckKind::green)) return;
    take(judge_green(options_, text(record_.at("build").at("policy"), "name"), rows, kNoCommand));
    if (ended_) return;
    std::size_t next = 0;
    for (const PlannedShape& shape : build_.shapes) {
      if (!shape.refused.empty()) continue;
      if (next >= rows.size() || rows[next++].shape != shape.name)
        return check_.add(
            fmt::format("{}: no GREEN of it is shown, and the walk went on", shape.name));
    }
  }

  void claims() {
    if (died(StepKind::claims, CheckKind::green_claims)) return;
    if (!record_.contains("claims")) return;
    ClaimsStep step;
    from_json({{"claims", record_.at("claims")}}, step);
    std::size_t next = 0;
    for (const Claim& claim : step.claims) {
      if (!claim.refused.empty()) continue;
      if (next >= claimed_.size() ||
          claimed_[next].shape != fmt::format("{}: {}", claim.kind, claim.problem) ||
          !(json_of(claimed_[next].candidate) == json_of(claim.tally)))
        return check_.add(
            fmt::format("green: does not show what came of {} as its claims do", claim.kind));
      ++next;
    }
    if (next != claimed_.size())
      check_.add(fmt::format("green: shows {}, which its claims do not", claimed_[next].shape));
    take(judge_claims(
        options_, step, [](const std::string&) { return std::string(); }, kNoCommand));
  }

  /// Of rows that stand before FAST, or of what a plugin's process took in it.
  void take_resources(bool of_process) {
    bool over = false, unknown = false;
    for (const json& row : list("resources")) {
      const std::string name = text(row, "name");
      if ((name == "private_bytes" || name == "grown_bytes") != of_process) continue;
      over = over || row.at("status") == name_of(CheckStatus::fail);
      unknown = unknown || row.at("status") == name_of(CheckStatus::skipped);
    }
    if (!over && !unknown) return;
    reasons_.push_back({over ? ReasonCode::resources : ReasonCode::tool_missing, "", ""});
    ended_ = ended_ || over;
  }

  void resources() {
    std::int64_t arena = 0, workspace = 0;
    for (const PlannedShape& shape : build_.shapes) {
      if (!shape.candidate) continue;
      arena = std::max<std::int64_t>(arena, shape.candidate->shared_bytes);
      workspace = std::max<std::int64_t>(workspace, shape.candidate->workspace_bytes);
    }
    const auto rules = check_.rules_of_record();
    for (const json& row : list("resources")) {
      if (row.at("name") != "arena_bytes_per_thread") continue;
      json is = {{"value", arena}, {"workspace_bytes", workspace}};
      if (rules) is["limit"] = rules->cpu_arena_bytes;
      members("", row, is, "arena_bytes_per_thread");
    }
    take_resources(false);
  }

  /// Which line of a resource belongs to which row, by its figures.
  void resource_lines() {
    std::vector<const json*> lines;
    for (const json& row : record_.at("checklist"))
      if (kind_of_check(row) == CheckKind::resources) lines.push_back(&row);
    bool over = false, unknown = false, line_over = false, line_unknown = false;
    for (const json& row : list("resources")) {
      over = over || row.at("status") == name_of(CheckStatus::fail);
      unknown = unknown || row.at("status") == name_of(CheckStatus::skipped);
      if (!row.contains("kernel") || !member(row, "limit").is_number()) continue;
      const std::string target = fmt::format("<= {}", row.at("limit").get<std::int64_t>()),
                        begin = fmt::format("{} (", row.at("value").get<std::int64_t>());
      if (std::none_of(lines.begin(), lines.end(), [&](const json* line) {
            return text(*line, "target") == target && text(*line, "actual").starts_with(begin) &&
                   line->at("status") == row.at("status");
          }))
        check_.add(fmt::format("checklist: no line says {} {} of {} {}", text(row, "name"),
                               row.at("value").dump(), row.at("limit").dump(),
                               text(row, "status")));
    }
    std::size_t limits = 0, limited = 0;
    for (const json* line : lines) {
      line_over = line_over || line->at("status") == name_of(CheckStatus::fail);
      line_unknown = line_unknown || line->at("status") == name_of(CheckStatus::skipped);
      const std::string target = text(*line, "target"), actual = text(*line, "actual");
      if (target.starts_with("<= ") && !target.ends_with(" KB")) ++limits;
      for (const json& row : list("resources")) {
        const std::string name = text(row, "name");
        if (!member(row, "limit").is_number()) continue;
        const auto kilobytes = [&](const char* of) {
          return row.at(of).get<std::int64_t>() / 1024;
        };
        if (name == "arena_bytes_per_thread")
          expect(*line, fmt::format("<= {} KB", kilobytes("limit")),
                 fmt::format("{:.0f} KB", row.at("value").get<double>() / 1024));
        if (name == "private_bytes" &&
            (!target.starts_with(fmt::format("<= {} KB,", kilobytes("limit"))) ||
             !actual.starts_with(fmt::format("{} KB,", kilobytes("value")))))
          check_.add(fmt::format("checklist, {}: is not what its row says", text(*line, "gate")));
      }
      summary_of_kernel(*line);
    }
    for (const json& row : list("resources"))
      limited += row.contains("kernel") && member(row, "limit").is_number();
    if (limits != limited)
      check_.add(fmt::format("checklist: {} lines of limits, and {} rows", limits, limited));
    if (!lines.empty() && (over != line_over || unknown != line_unknown))
      check_.add("checklist: its lines of resources do not say what their rows say");
  }
  void expect(const json& line, const std::string& target, const std::string& actual) {
    if (!same_facts(text(line, "target"), target) || !same_facts(text(line, "actual"), actual))
      check_.add(fmt::format(
          "checklist, {}: says \"{}\" of \"{}\", and its row says \"{}\" of \"{}\"",
          text(line, "gate"), text(line, "actual"), text(line, "target"), actual, target));
  }
  /// "65 registers, 51.0 KB, 0 B local (sm_90a)": of one of the kernels, where rows say so much.
  void summary_of_kernel(const json& line) {
    const std::string actual = text(line, "actual");
    if (actual.find(" registers, ") == std::string::npos) return;
    std::map<std::string, std::map<std::string, double>> kernels;
    for (const json& row : list("resources"))
      if (row.contains("kernel") && member(row, "value").is_number())
        kernels[text(row, "kernel")][text(row, "name")] = row.at("value").get<double>();
    const std::string figures = actual.substr(0, actual.find(" KB"));
    for (const auto& [kernel, is] : kernels)
      if (!is.contains("registers") || !is.contains("shared memory") ||
          same_facts(figures, fmt::format("{} registers, {:.1f}", is.at("registers"),
                                          is.at("shared memory") / 1024)))
        return;
    check_.add(
        fmt::format("checklist, {}: \"{}\" is of none of its kernels", text(line, "gate"), actual));
  }

  const Samples* samples_of(const std::string& name) const {
    for (const Samples& shape : samples_)
      if (shape.name == name && shape.sides.size() >= 2) return &shape;
    return nullptr;
  }

  void fast() {
    const json& rows = record_.at("fast");
    std::vector<ShapeEvidence> evidence;
    std::vector<LogRatio> overall;
    std::vector<Reason> baselines;
    std::string busy;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const json& row = rows[i];
      const std::string name = text(row, "shape");
      if (i >= build_.shapes.size() || build_.shapes[i].name != name ||
          row.at("primary").get<bool>() != (i == 0))
        return check_.add(fmt::format("{}: is not the shape that was planned there", name));
      const PlannedShape& shape = build_.shapes[i];
      if (row.contains("skipped") != !shape.refused.empty())
        return check_.add(
            fmt::format("{}: is timed, or refused, and its plan says the reverse", name));
      if (!shape.refused.empty()) {
        if (text(row, "skipped") != shape.refused)
          check_.add(fmt::format("{}: is skipped for another reason than its plan's", name));
        ShapeEvidence seen;
        seen.name = name;
        seen.primary = i == 0;
        seen.missing = shape.refused;
        evidence.push_back(std::move(seen));
        continue;
      }
      auto seen = times(row, i == 0, baselines, busy);
      if (!seen) return;
      overall.push_back(seen->p50);
      evidence.push_back(std::move(*seen));
    }
    if (rows.size() < build_.shapes.size()) return ended_while_timed(rows.size());
    if (!overall.empty())
      members("", record_.at("overall"), interval_json(speedup(geometric_mean(overall))),
              "overall");
    reasons_.insert(reasons_.end(), baselines.begin(), baselines.end());
    memory_of_plugin();
    if (ended_) return;
    take(judge_times(evidence, thresholds_, no_op(), busy, reasons_.empty()));
  }

  /// One row against its samples; nothing where it has none, which is told.
  std::optional<ShapeEvidence> times(const json& row, bool primary, std::vector<Reason>& baselines,
                                     std::string& busy) {
    const std::string name = text(row, "shape");
    const Samples* const samples = samples_of(name);
    const auto spread = parse_process_spread(text(row, "process_spread"));
    if (samples == nullptr) check_.add(fmt::format("{}: has a speedup, and no samples", name));
    if (!spread)
      check_.add(
          fmt::format("{}: process_spread {} is no method", name, row.at("process_spread").dump()));
    if (samples == nullptr || !spread) return std::nullopt;
    if (samples->problem != planned(name)->problem)
      check_.add(fmt::format("{}: {} was planned, and {} timed", name, planned(name)->problem,
                             samples->problem));
    auto seen = evidence_of(*samples, primary, *spread);
    if (!seen) {
      check_.add(fmt::format("{}: {}", name, seen.status().message()));
      return std::nullopt;
    }
    if (std::string wrong = wrong_flops(*samples); !wrong.empty()) check_.add(std::move(wrong));
    std::set<int> processes;
    for (const Block& block : samples->blocks) processes.insert(block.process);
    const json& peak = row.at("peak");
    const double floor = row.at("floor_seconds").get<double>();
    GateTimes is = times_of(*samples, *seen,
                            {static_cast<int>(processes.size()),
                             text(row, "stopped"),
                             {peak.at("flops").get<double>(),
                              peak.at("bytes_per_second").get<double>(), text(peak, "method")},
                             floor},
                            thresholds_);
    is.process_spread = *spread;
    members(samples->sides[1].id, row, json_of(is), name);
    const json& impossible = row.at("impossible");
    is.baseline_impossible = impossible.at("baseline").get<bool>();
    is.candidate_impossible = impossible.at("candidate").get<bool>();
    for (const auto& [said, p50] : {std::pair(is.baseline_impossible, is.baseline.p50),
                                    std::pair(is.candidate_impossible, is.candidate.p50)})
      if (said && !(p50 < floor))
        check_.add(fmt::format("{}: says IMPOSSIBLE, and p50 is above its floor", name));
    if (is.candidate_impossible) {
      seen->impossible = impossible_words(is.candidate.p50, floor);
    } else if (is.baseline_impossible) {
      baselines.push_back(impossible_baseline(options_, name, is.baseline.p50, floor));
    }
    if (!is.candidate_impossible && processes.size() == 1 && is.candidate.p50 < floor &&
        record_.contains("overall"))
      check_.add(fmt::format("{}: p50 is below its floor, and no line says so", name));
    if (const std::string words = busy_words(name, is.baseline); !words.empty()) busy = words;
    if (primary) primary_ = is.deciding();
    return std::move(*seen);
  }

  /// A child that died, or a timed call that failed, whose fault stands in the reason alone.
  void ended_while_timed(std::size_t shape) {
    const CheckKind kind = kind_of_speed(shape == 0);
    if (died(StepKind::fast, kind, build_.shapes[shape].name)) return;
    ended_ = true;
    const std::set<ReasonCode> possible = {ReasonCode::numerics, ReasonCode::integrity,
                                           ReasonCode::crash, ReasonCode::inconclusive};
    if (said_.reasons.empty() || !possible.contains(said_.reasons.back().code))
      return check_.add(
          fmt::format("{}: is not timed, and no reason says why", build_.shapes[shape].name));
    reasons_.push_back({said_.reasons.back().code, "", ""});
    lines_.push_back({kind, "", "", "", CheckStatus::fail, build_.shapes[shape].name});
  }

  void memory_of_plugin() {
    std::int64_t held = -1, grown = -1;
    for (const Samples& samples : samples_) {
      if (samples.sides.size() < 2) continue;
      held = std::max(held, samples.sides[1].held_bytes);
      grown = std::max(grown, samples.sides[1].grown_bytes);
    }
    for (const json& row : list("resources"))
      for (const auto& [name, is] :
           {std::pair("private_bytes", held), std::pair("grown_bytes", grown)})
        if (row.at("name") == name && row.contains("value"))
          members("", row, {{"value", is}}, name);
    take_resources(true);
  }

  /// By names and plans; that both sides run the same machine code, the record does not show of the
  /// baseline: there the plans at least are one.
  std::string no_op() const {
    if (std::string why = no_op_of(options_, build_.shapes); !why.empty()) return why;
    for (const Reason& reason : said_.reasons) {
      if (reason.code != ReasonCode::no_op) continue;
      bool any = false;
      for (const PlannedShape& shape : build_.shapes) {
        if (!shape.baseline || !shape.candidate) continue;
        const Plan &a = *shape.baseline, &b = *shape.candidate;
        any = true;
        if (a.grid != b.grid || a.block != b.block || a.cluster != b.cluster ||
            a.shared_bytes != b.shared_bytes)
          return {};
      }
      return any ? reason.detail : "";
    }
    return {};
  }

  void compare_reasons() {
    const Decision is = from_reasons(reasons_);
    const auto words = [](const std::vector<Reason>& reasons) {
      std::string out;
      for (const Reason& reason : reasons)
        out += fmt::format("{}{}", out.empty() ? "" : ", ", name_of(reason.code));
      return out.empty() ? std::string("none") : out;
    };
    const bool same =
        std::equal(is.reasons.begin(), is.reasons.end(), said_.reasons.begin(), said_.reasons.end(),
                   [](const Reason& a, const Reason& b) { return a.code == b.code; });
    if (!same)
      return check_.add(fmt::format("its reasons are {}, and its steps and samples say {}",
                                    words(said_.reasons), words(is.reasons)));
    for (std::size_t i = 0; i < is.reasons.size(); ++i)
      if (!is.reasons[i].detail.empty() &&
          !same_facts(said_.reasons[i].detail, is.reasons[i].detail))
        check_.add(fmt::format("{}: says \"{}\", and its sources say \"{}\"",
                               name_of(is.reasons[i].code), said_.reasons[i].detail,
                               is.reasons[i].detail));
  }

  void predicted() {
    const json& said = member(record_.at("verdict"), "predicted");
    if (!said.is_object()) return;
    const std::pair<double, double> range{said.at("speedup").at(0).get<double>(),
                                          said.at("speedup").at(1).get<double>()};
    json is;
    for (const json& row : list("fast"))
      if (row.at("shape") == said.at("shape") && row.contains("speedup"))
        is = name_of(outcome_of(range, interval_of(row.at("speedup"))));
    if (said.at("outcome") != is)
      check_.add(fmt::format("predicted: outcome {}, and its interval says {}",
                             said.at("outcome").dump(), is.dump()));
  }

  void peers() {
    const json& said = member(record_, "peers");
    if (!said.is_object() || !said.contains("sides")) return;
    PeersStep step;
    from_json(said, step);
    PeersStep is = step;
    if (!step.samples) {
      if (!step.best.empty()) check_.add("peers: have times, and no samples");
      return;
    }
    if (std::string wrong = wrong_flops(*step.samples); !wrong.empty())
      check_.add("peers: " + std::move(wrong));
    if (!build_.shapes.empty() && step.shape != build_.shapes.front().name)
      check_.add(fmt::format("peers: were timed at {}, and the primary shape is {}", step.shape,
                             build_.shapes.front().name));
    // Verdicts by the errors that stand there, where the record's policy is this program's.
    Recording recorded;
    recorded.shapes = {*step.samples};
    if (const auto policy = check_.policy_of_record()) judge_errors(recorded, *policy);
    for (PeerSide& side : is.sides)
      if (recorded.shapes.front().side(side.id) >= 0)
        side.correctness = recorded.correctness_of(side.id, recorded.shapes.front());
    judge_peers(is, *step.samples, options_.candidate);
    const json was = json_of(step), now = json_of(is);
    for (std::size_t i = 0; i < step.sides.size(); ++i) {
      if (step.samples->side(step.sides[i].id) < 0)
        check_.add(fmt::format("peers: {} has no samples", step.sides[i].id));
      members(step.sides[i].id, was.at("sides")[i], now.at("sides")[i], "peers");
    }
    if (step.best != is.best)
      check_.add(
          fmt::format("peers: says {} is the best, and the samples say {}", step.best, is.best));
  }

  static std::string kNoCommand(const std::string&, std::uint64_t) { return {}; }

  std::vector<Disagreement> out_;
  json record_;
  VerdictCheck check_;
  GateOptions options_;
  Decision said_;
  Thresholds thresholds_;
  BuildStep build_;
  std::vector<Samples> samples_;
  std::vector<GateGreen> claimed_;
  std::vector<GateCheck> lines_;  // that its sources make, but for those of the build and resources
  std::vector<Reason> reasons_;   // likewise; without detail where that has no source
  std::optional<Interval> primary_;
  bool ended_ = false;
};

/// What decide makes of intervals alone: it knows no waiting for a CPU, which makes NOISY of any of
/// them.
struct IntervalsAt {
  bool primary = false;
  Interval p50, p90;
  std::optional<Interval> same;
  std::int64_t blocks = kLeastBlocks;
};

Interval widened(Interval interval, const std::optional<Interval>& same) {
  if (!same || (same->lo <= 1 && 1 <= same->hi)) return interval;
  const double bias = std::max(same->value, 1 / same->value);
  interval.lo /= bias;
  interval.hi *= bias;
  return interval;
}

CheckStatus status_of(const Interval& i, bool primary, const Thresholds& thresholds) {
  if (i.lo >= (primary ? thresholds.gate : thresholds.guard)) return CheckStatus::pass;
  return i.hi < (primary ? 1.0 : thresholds.guard) ? CheckStatus::fail : CheckStatus::defer;
}

std::vector<Reason> reasons_of(const std::vector<IntervalsAt>& shapes,
                               const Thresholds& thresholds) {
  std::vector<Reason> out;
  for (const IntervalsAt& shape : shapes) {
    if (shape.same && noise_floor(*shape.same) > thresholds.noise && shape.blocks >= kLeastBlocks) {
      out.push_back({ReasonCode::noisy, "", ""});
      continue;
    }
    for (const Interval& plain : {shape.p50, shape.p90}) {
      const Interval i = widened(plain, shape.same);
      const CheckStatus status = status_of(i, shape.primary, thresholds);
      if (shape.blocks < kLeastBlocks)
        out.push_back({ReasonCode::inconclusive, "", ""});
      else if (status == CheckStatus::fail)
        out.push_back({ReasonCode::regression, "", ""});
      else if (status == CheckStatus::defer)
        out.push_back({shape.primary && i.hi < thresholds.gate ? ReasonCode::below_gate
                                                               : ReasonCode::inconclusive,
                       "", ""});
    }
  }
  return out;
}

/// Codes beside those that the intervals say, of a gate that reached its verdict by them.
void compare_codes(const std::vector<Reason>& said, std::vector<Reason> is, VerdictCheck& check) {
  // NOISY and the bias that an A/A shows take the place of others.
  const auto noisy = [](const Reason& reason) { return reason.code == ReasonCode::noisy; };
  const auto by_intervals = [](const Reason& reason) {
    return reason.code == ReasonCode::regression || reason.code == ReasonCode::below_gate ||
           reason.code == ReasonCode::inconclusive;
  };
  if (!std::all_of(said.begin(), said.end(),
                   [&](const Reason& reason) { return noisy(reason) || by_intervals(reason); }))
    return;  // it was decided by something else
  const bool any_noisy = std::any_of(said.begin(), said.end(), noisy);
  is = from_reasons(std::move(is)).reasons;
  std::multiset<ReasonCode> left;
  for (const Reason& reason : is) left.insert(reason.code);
  std::string beyond;
  for (const Reason& reason : said) {
    if (const auto found = left.find(reason.code); found != left.end())
      left.erase(found);
    else if (!noisy(reason))
      beyond = name_of(reason.code);
  }
  if (!beyond.empty())
    check.add(fmt::format("says {}, and its intervals do not", beyond));
  else if (!left.empty() && !any_noisy)
    check.add(fmt::format("does not say {}, and its intervals do", name_of(*left.begin())));
}

}  // namespace

std::vector<Disagreement> recheck_gate(const json& record) { return GateRecheck(record).run(); }

std::vector<Disagreement> recheck_ladder_gates(const json& record) {
  std::vector<Disagreement> out;
  for (const json& kept : record.at("steps")) {
    json step = gate_of_today(kept);
    if (!step.contains("build")) step["build"] = record.at("build");
    VerdictCheck check(text(step, "candidate"), step, out);
    const auto decision = check.decision();
    if (!decision) continue;
    const Thresholds thresholds = check.thresholds();
    check.resources();
    check.code();
    check.promoted(thresholds);
    check.headline();
    std::vector<IntervalsAt> shapes;
    std::optional<Interval> primary;
    std::vector<GateCheck> lines;
    for (const json& row : list_of(step, "fast")) {
      if (!row.contains("speedup")) continue;
      IntervalsAt at{row.at("primary").get<bool>(), interval_of(row.at("speedup")),
                     interval_of(row.at("speedup_p90")), std::nullopt,
                     row.at("blocks").get<std::int64_t>()};
      if (row.contains("same_against_same")) at.same = interval_of(row.at("same_against_same"));
      if (at.primary) primary = widened(at.p50, at.same);
      for (const Statistic statistic : {Statistic::p50, Statistic::p90}) {
        const Interval i = widened(statistic == Statistic::p50 ? at.p50 : at.p90, at.same);
        const double threshold = at.primary ? thresholds.gate : thresholds.guard;
        lines.push_back({kind_of_speed(at.primary), "", fmt::format(">= {:.2f}x", threshold),
                         ratio_words(i), status_of(i, at.primary, thresholds), text(row, "shape"),
                         statistic});
      }
      shapes.push_back(at);
    }
    std::vector<const json*> said;
    for (const json& row : step.at("checklist")) {
      const auto kind = kind_of_check(row);
      if ((kind == CheckKind::fast || kind == CheckKind::guard) &&
          text(row, "status") != name_of(CheckStatus::skipped))
        said.push_back(&row);
    }
    compare_lines(said, lines, thresholds, check);
    compare_codes(decision->reasons, reasons_of(shapes, thresholds), check);
    check.levels(*decision, primary);
  }
  return out;
}

std::vector<Disagreement> recheck_known_factors(const json& record) {
  std::vector<Disagreement> out;
  const auto rules = parse_gate_policy("policies/gate.toml", builtin_gate_policy());
  Thresholds thresholds{.gate = record.at("gate").get<double>()};
  if (rules && rules->sha256 == text(record.at("build"), "gate_policy_sha256"))
    thresholds.noise = rules->noise_floor;
  std::size_t number = 0;
  for (const json& gate : record.at("gates")) {
    ++number;
    // As a gate's record has it, whose verdict is checked alike.
    json reasons = json::array();
    for (const json& code : gate.at("reasons"))
      reasons.push_back({{"code", code}, {"detail", ""}, {"settle", ""}});
    std::vector<Reason> codes;
    for (const json& code : gate.at("reasons")) {
      const auto known = parse_reason_code(code.get<std::string>());
      if (known) codes.push_back({*known, "", ""});
    }
    const Decision is = from_reasons(codes);
    const json as_gate = {
        {"verdict",
         {{"decision", gate.at("decision")}, {"exit_code", is.exit_code}, {"reasons", reasons}}}};
    VerdictCheck check(fmt::format("gate {}", number), as_gate, out);
    if (!check.decision() || !gate.contains("p50")) continue;
    IntervalsAt at{true, interval_of(gate.at("p50")), interval_of(gate.at("p90")), std::nullopt,
                   gate.at("blocks").get<std::int64_t>()};
    if (gate.at("same_against_same").is_object())
      at.same = interval_of(gate.at("same_against_same"));
    compare_codes(codes, reasons_of({at}, thresholds), check);
  }
  return out;
}

}  // namespace greenfast::workbench
