#include "workbench/verdict/gate_record.hpp"

#include "workbench/base/schemas.hpp"

namespace greenfast::workbench {
namespace {

using nlohmann::json;

template <class T>
void put(json& object, const char* key, const std::optional<T>& value) {
  if (value) object[key] = *value;
}

json row_of(const GateCheck& check) {
  json out = {{"kind", name_of(check.kind)},
              {"gate", check.gate},
              {"target", check.target},
              {"actual", check.actual},
              {"status", name_of(check.status)}};
  if (!check.shape.empty()) out["shape"] = check.shape;
  if (check.statistic) out["statistic"] = name_of(*check.statistic);
  return out;
}

struct CheckKindRow {
  CheckKind kind;
  std::string_view name;
  std::string_view old_begin;  ///< how the line was called, or began
};
/// Of two beginnings that both fit, the longer stands first.
constexpr CheckKindRow kCheckKinds[] = {
    {CheckKind::build, "build", "build"},
    {CheckKind::green_baseline, "green_baseline", "GREEN of the baseline"},
    {CheckKind::green_claims, "green_claims", "GREEN of what else it takes"},
    {CheckKind::green, "green", "GREEN"},
    {CheckKind::resources, "resources", "resources"},
    {CheckKind::noise, "noise", "A/A noise floor"},
    {CheckKind::fast, "fast", "FAST"},
    {CheckKind::guard, "guard", "guard"},
    {CheckKind::light, "light", "speed of light"},
};

/// Records from before 2026-11-25 have no kinds: their lines are known by how their names begin.
std::optional<CheckKind> kind_of_old_check(std::string_view gate) {
  for (const CheckKindRow& row : kCheckKinds)
    if (gate.starts_with(row.old_begin)) return row.kind;
  return std::nullopt;
}

json row_of(const GateStep& step) {
  json out = {{"name", name_of(step.step)},
              {"what", step.what},
              {"status", step.ended ? name_of(*step.ended) : "done"},
              {"seconds", step.seconds}};
  if (!step.ended) out["resumed"] = step.resumed;
  return out;
}

json row_of(const GateGreen& green) {
  return {{"shape", green.shape},
          {"candidate", json_of(green.candidate)},
          {"baseline", json_of(green.baseline)}};
}

json row_of(const GateResource& row) {
  json out = {{"name", row.name}, {"status", name_of(row.status)}};
  put(out, "value", row.value);
  put(out, "limit", row.limit);
  put(out, "workspace_bytes", row.workspace_bytes);
  put(out, "kernel", row.kernel);
  put(out, "arch", row.arch);
  put(out, "sha256", row.sha256);
  put(out, "reason", row.reason);
  if (row.waiver) out["waiver"] = {{"name", row.waiver->first}, {"reason", row.waiver->second}};
  return out;
}

json summary_json(const Summary& s) {
  return {{"p50", s.p50},
          {"p90", s.p90},
          {"mean", s.mean},
          {"std", s.std},
          {"ci_lo", s.ci_lo},
          {"ci_hi", s.ci_hi},
          {"samples", s.n},
          {"discarded", s.discarded},
          {"other_work", s.other_work},
          {"batch", s.batch},
          {"tick_seconds", s.tick},
          {"timer", s.method}};
}

json clocks_json(const GateClocks& clocks) {
  json out = json::object();
  put(out, "sm_mhz", clocks.sm_mhz);
  put(out, "memory_mhz", clocks.memory_mhz);
  put(out, "watts", clocks.watts);
  put(out, "celsius", clocks.celsius);
  if (!clocks.throttled_blocks.empty()) out["throttled_blocks"] = clocks.throttled_blocks;
  return out;
}

json row_of(const GateTimes& times) {
  json out = {{"shape", times.shape}, {"primary", times.primary}};
  if (!times.skipped.empty()) {
    out["skipped"] = times.skipped;
    return out;
  }
  out["problem"] = times.problem;
  out["speedup"] = interval_json(times.speedup);
  out["speedup_p90"] = interval_json(times.speedup_p90);
  out["blocks"] = times.blocks;
  out["processes"] = times.processes;
  out["process_spread"] = name_of(times.process_spread);
  out["stopped"] = times.stopped;
  out["baseline"] = summary_json(times.baseline);
  out["candidate"] = summary_json(times.candidate);
  out["candidate_flops"] = times.candidate_flops;
  out["candidate_percent_of_peak"] = times.candidate_percent_of_peak;
  out["floor_seconds"] = times.floor_seconds;
  out["impossible"] = {{"baseline", times.baseline_impossible},
                       {"candidate", times.candidate_impossible}};
  out["peak"] = {{"flops", times.peak.flops},
                 {"bytes_per_second", times.peak.bytes_per_second},
                 {"method", times.peak.method}};
  if (json clocks = clocks_json(times.clocks); !clocks.empty()) out["clocks"] = std::move(clocks);
  if (times.same) {
    out["same_against_same"] = interval_json(times.same->same);
    out["noise_floor"] = times.same->floor;
    out["decisive"] = interval_json(times.same->decisive);
  }
  return out;
}

template <class T>
json rows_of(const std::vector<T>& values) {
  json out = json::array();
  for (const T& value : values) out.push_back(row_of(value));
  return out;
}

json verdict_json(const GateVerdict& verdict) {
  json reasons = json::array(), levels = json::array();
  for (const Reason& reason : verdict.decision.reasons)
    reasons.push_back(
        {{"code", name_of(reason.code)}, {"detail", reason.detail}, {"settle", reason.settle}});
  for (const ReachedLevel& level : verdict.advice.levels)
    levels.push_back(
        {{"name", level.name}, {"at_least", level.at_least}, {"reached", level.reached}});
  json out = {{"decision", name_of(verdict.decision.outcome)},
              {"exit_code", verdict.decision.exit_code},
              {"reasons", std::move(reasons)},
              {"level", verdict.advice.level},
              {"levels", std::move(levels)},
              {"next", verdict.advice.next},
              {"gate", verdict.gate},
              {"guard", verdict.guard},
              {"noise", verdict.noise},
              {"expected", verdict.expected},
              {"original", verdict.original},
              {"unseen", verdict.unseen}};
  if (verdict.predicted) {
    const Prediction& of = verdict.predicted->of;
    out["predicted"] = {{"speedup", {of.speedup->first, of.speedup->second}},
                        {"shape", of.shape},
                        {"because", of.because},
                        {"written", of.written},
                        {"outcome", nullptr}};
    if (verdict.predicted->outcome)
      out["predicted"]["outcome"] = name_of(*verdict.predicted->outcome);
  }
  return out;
}

}  // namespace

std::string_view name_of(CheckStatus status) noexcept {
  switch (status) {
    case CheckStatus::pass:
      return "PASS";
    case CheckStatus::fail:
      return "FAIL";
    case CheckStatus::defer:
      return "DEFER";
    case CheckStatus::skipped:
      return "SKIPPED";
    case CheckStatus::noisy:
      return "NOISY";
    case CheckStatus::waived:
      return "WAIVED";
  }
  return "";
}

std::string_view name_of(CheckKind kind) noexcept {
  for (const CheckKindRow& row : kCheckKinds)
    if (row.kind == kind) return row.name;
  return "";
}

std::optional<CheckKind> parse_check_kind(std::string_view name) {
  for (const CheckKindRow& row : kCheckKinds)
    if (row.name == name) return row.kind;
  return std::nullopt;
}

std::optional<CheckKind> kind_of_check(const json& row) {
  const auto kind = row.find("kind");
  if (kind == row.end()) return kind_of_old_check(row.at("gate").get_ref<const std::string&>());
  return parse_check_kind(kind->get_ref<const std::string&>());
}

json json_of(const GateTimes& times) { return row_of(times); }

json json_of(const GateRecord& record) {
  json out = record.head;
  out["schema"] = kGateSchema;
  if (record.compiler_logs)
    out["build"]["compiler_logs"] = {{"logs", record.compiler_logs->logs},
                                     {"complaints", record.compiler_logs->complaints}};
  if (record.build) {
    json build = json_of(*record.build);
    for (const char* part : {"device", "dtype", "shapes"}) out[part] = std::move(build[part]);
  }
  if (!record.plugins.empty()) out["plugins"] = record.plugins;
  out["steps"] = rows_of(record.steps);
  out["checklist"] = rows_of(record.checklist);
  if (record.green) out["green"] = rows_of(*record.green);
  if (record.claims) out["claims"] = json_of(*record.claims).at("claims");
  if (record.code) out["code"] = *record.code;
  if (record.resources) out["resources"] = rows_of(*record.resources);
  if (record.fast) out["fast"] = rows_of(*record.fast);
  if (record.overall) out["overall"] = interval_json(*record.overall);
  if (record.samples) out["samples"] = to_json(*record.samples);
  if (record.peers) out["peers"] = json_of(*record.peers);
  out["verdict"] = verdict_json(record.verdict);
  out["status"] = "finished";
  out["finished_utc"] = record.finished_utc;
  out["seconds"] = record.seconds;
  return out;
}

}  // namespace greenfast::workbench
