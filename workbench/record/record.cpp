#include "workbench/record/record.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <utility>

#include "workbench/base/atomic_file.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/cases/problem_codec.hpp"
#include "workbench/record/code_json.hpp"
#include "workbench/subjects/plugin/plugins.hpp"

namespace greenfast::workbench {
namespace {

using nlohmann::json;

json number(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

json run_problem_json(const RunProblem& run_problem) {
  const Problem& p = run_problem.named.problem;
  json out = problem_json(p);
  out["name"] = run_problem.named.name;
  out["problem"] = to_string(p);
  out["source"] = run_problem.captured != nullptr ? "file" : "generated";
  out["flop"] = flop_count(p);
  if (!(p.sequences == Sequences{}) || p.pages.used())
    out["lengths"] = to_string(run_problem.named.lengths);
  return out;
}

json run_plan_json(const Plan& plan, const std::string& problem) {
  json out = plan_json(plan);
  out["problem"] = problem;
  return out;
}

json case_json(const CaseResult& r) {
  json limits = json::object();
  for (const auto& [metric, limit] : r.limits) limits[metric] = number(limit);
  json out = {{"variant", r.subject},
              {"problem", r.test.name},
              {"distribution", name_of(r.test.distribution)},
              {"seed", r.test.seed},
              {"verdict", name_of(r.verdict)},
              {"reason", text_or_null(r.reason)},
              {"failed_metric", text_or_null(r.failed_metric)},
              {"integrity", r.fault == Fault::integrity || r.fault == Fault::launch},
              {"rows_checked", r.rows_checked},
              {"rows_total", r.rows_total},
              {"output_sha256", text_or_null(r.output_sha256)}};
  if (r.verdict != Verdict::skipped) {
    out["metrics"] = metrics_json(r.metrics);
    out["emulator"] = metrics_json(r.emulator);
    out["limits"] = limits;
  }
  return out;
}

json time_json(const RunRow& row) {
  const Summary& s = *row.time;
  return {{"mode", name_of(s.mode)},
          {"timer", s.method},
          {"tick_seconds", s.tick},
          {"batch", s.batch},
          {"samples", s.n},
          {"discarded", s.discarded},
          {"p50_seconds", s.p50},
          {"p90_seconds", s.p90},
          {"mean_seconds", s.mean},
          {"std_seconds", number(s.std)},
          {"p50_ci_seconds", {number(s.ci_lo), number(s.ci_hi)}},
          {"other_work", s.other_work},
          {"flops", row.flops},
          {"percent_of_peak", row.percent_of_peak},
          {"times_fastest", row.times_fastest},
          {"floor_seconds", number(row.floor_seconds)}};
}

json row_json(const RunRow& row) {
  json out = {{"variant", row.variant},
              {"problem", row.problem},
              {"verdict", name_of(row.verdict)},
              {"reason", text_or_null(row.reason)},
              {"exit_code", row.exit_code},
              {"cases", row.cases},
              {"cases_with_sampled_rows", row.rows_sampled},
              {"worst", row.cases > 0 ? metrics_json(row.worst) : json(nullptr)},
              {"time", row.time ? time_json(row) : json(nullptr)}};
  return out;
}

}  // namespace

RecordHead begin_record(std::string command, std::vector<std::string> argv) {
  return {.command = std::move(command),
          .argv = std::move(argv),
          .run_id = fmt::format("{}-{}", utc_stamp(), ::getpid()),
          .utc = utc_time(),
          .host = host_facts()};
}

json head_json(const RecordHead& head, std::string_view schema) {
  return {{"schema", schema},        {"run_id", head.run_id},       {"utc", head.utc},
          {"seconds", head.seconds}, {"command", head.command},     {"argv", head.argv},
          {"build", build_json()},   {"host", host_json(head.host)}};
}

json metrics_json(const Metrics& m) {
  return {{"max_err", number(m.max_err)},   {"mean_err", number(m.mean_err)},
          {"p999_err", number(m.p999_err)}, {"percent_bad", number(m.percent_bad)},
          {"rel_fro", number(m.rel_fro)},   {"max_row", number(m.max_row)},
          {"bias", number(m.bias)},         {"gain", number(m.gain)},
          {"cosine", number(m.cosine)},     {"max_lse_err", number(m.max_lse_err)},
          {"nan_mismatch", m.nan_mismatch}, {"worst_row", m.worst_row},
          {"worst_col", m.worst_col}};
}

json run_json(const RecordHead& head, const RunPlan& plan, const RunResult& result) {
  json out = head_json(head, kRunSchema);
  out["status"] = result.interrupted ? "interrupted" : "complete";
  out["exit_code"] = result.exit_code;
  out["failures"] = result.failures;
  out["device"] = device_json(plan.device->facts());
  json distributions = json::array();
  for (const Distribution d : plan.policy.distributions) distributions.push_back(name_of(d));
  out["policy"] = {
      {"name", plan.policy.name}, {"sha256", plan.policy.sha256}, {"distributions", distributions}};
  out["settings"] = {{"seeds", plan.seeds},          {"iters", plan.timing.iters},
                     {"warmup", plan.timing.warmup}, {"mode", name_of(plan.timing.mode)},
                     {"timed", plan.fast},           {"quick_check", plan.quick}};
  for (const char* list : {"problems", "rows", "cases", "plans", "peaks"})
    out[list] = json::array();
  for (const RunProblem& p : plan.problems) out["problems"].push_back(run_problem_json(p));
  for (const RunRow& row : result.rows) out["rows"].push_back(row_json(row));
  for (const CaseResult& c : result.cases) out["cases"].push_back(case_json(c));
  for (std::size_t i = 0; i < result.plans.size(); ++i)
    out["plans"].push_back(run_plan_json(result.plans[i], result.plan_problems[i]));
  out["code"] = code_json(result.plans, plan.device->facts());
  for (std::size_t i = 0; i < result.peaks.size(); ++i)
    out["peaks"].push_back({{"problem", result.samples[i].name},
                            {"flops", number(result.peaks[i].flops)},
                            {"bytes_per_second", number(result.peaks[i].bytes_per_second)},
                            {"method", result.peaks[i].method}});
  out["samples"] = to_json(result.samples);
  if (result.interrupted)
    out["resume"] = {{"finished", result.finished}, {"plugins_sha256", plugins_digest()}};
  if (json plugins = plugins_json(); !plugins.empty()) out["plugins"] = std::move(plugins);
  return out;
}

json selftest_json(const RecordHead& head, const Policy& policy, const SelftestResult& result) {
  json out = head_json(head, kSelftestSchema);
  out["policy"] = {{"name", policy.name}, {"sha256", policy.sha256}};
  out["ok"] = result.ok;
  out["mutants"] = result.mutants;
  out["mutants_caught"] = result.mutants_caught;
  out["honest"] = result.honest;
  out["honest_green"] = result.honest_green;
  out["device"] = {{"kind", name_of(result.device.kind)}, {"name", result.device.name}};
  out["quantizer"] = json::array();
  for (const QuantizerRow& r : result.quantizer)
    out["quantizer"].push_back({{"what", r.what},
                                {"values", r.values},
                                {"wrong", r.wrong},
                                {"first", text_or_null(r.first)}});
  out["rows"] = json::array();
  for (const SelftestRow& r : result.rows)
    out["rows"].push_back({{"subject", r.subject},
                           {"models", r.models},
                           {"honest", r.honest},
                           {"caught", r.caught},
                           {"metric", text_or_null(r.metric)},
                           {"reason", text_or_null(r.reason)},
                           {"where", text_or_null(r.where)},
                           {"cases", r.cases},
                           {"red_cases", r.red_cases}});
  return out;
}

}  // namespace greenfast::workbench
