#include "workbench/verdict/step_results.hpp"

#include <fmt/format.h>

#include <cmath>

#include "workbench/base/json.hpp"
#include "workbench/cases/problem_codec.hpp"
#include "workbench/fast/statistics.hpp"

namespace greenfast::workbench {
namespace {

using nlohmann::json;

using field::count_of;
using field::flag;
using field::list;
using field::number;
using field::text;
using field::text_or_none;

/// JSON has no NaN: it is written as null.
std::map<std::string, double> numbers(const json& object, const char* name, bool nan = false) {
  std::map<std::string, double> out;
  for (const auto& [key, value] : field::object(object, name).items()) {
    if (!value.is_number() && !(nan && value.is_null()))
      field::wrong(fmt::format("{} of {} is no number", key, name));
    out[key] = value.is_null() ? std::nan("") : value.get<double>();
  }
  return out;
}
std::map<std::string, std::string> texts_by_name(const json& object, const char* name) {
  std::map<std::string, std::string> out;
  const json& all = field::object(object, name);
  for (const auto& [key, value] : all.items()) out[key] = text(all, key.c_str());
  return out;
}
Samples one_shape(const json& object, const char* name) {
  auto samples = samples_from_json(field::any(object, name));
  if (!samples) field::wrong(samples.status().message());
  if (samples->size() != 1) field::wrong("one shape is timed in a step");
  return std::move(samples->front());
}

json failed_case(const std::optional<RedCase>& red) {
  if (!red) return nullptr;
  return {{"distribution", red->distribution},
          {"seed", red->seed},
          {"metric", red->metric},
          {"fault", name_of(red->fault)},
          {"integrity", red->fault != Fault::numerics},
          {"reason", red->reason}};
}
RedCase failed_case(const json& object) {
  RedCase red;
  red.distribution = text(object, "distribution");
  const json& seed = field::any(object, "seed");
  if (!seed.is_number_unsigned()) field::wrong("seed is no whole number");
  red.seed = seed.get<std::uint64_t>();
  red.metric = text(object, "metric");
  red.reason = text(object, "reason");
  const std::optional<Fault> fault = parse_fault(text(object, "fault"));
  const bool integrity = flag(object, "integrity");
  if (!fault || *fault == Fault::none || (*fault != Fault::numerics) != integrity)
    field::wrong(fmt::format("a fault of {} with integrity {}", text(object, "fault"), integrity));
  red.fault = *fault;
  return red;
}

GreenTally tally_of(const json& object) {
  GreenTally tally;
  tally.cases = count_of<int>(object, "cases");
  tally.green = count_of<int>(object, "green");
  tally.skipped = count_of<int>(object, "skipped");
  tally.rows_checked = count_of<std::int64_t>(object, "rows_checked");
  tally.rows_total = count_of<std::int64_t>(object, "rows_total");
  tally.worst = numbers(object, "worst", true);
  tally.digests = texts_by_name(object, "digests");
  tally.refused = texts_by_name(object, "refused");
  if (const json& red = field::any(object, "first_red"); !red.is_null())
    tally.first_red = failed_case(red);
  if (tally.cases != tally.green + tally.skipped + (tally.first_red ? 1 : 0))
    field::wrong(fmt::format("{} cases are not {} GREEN, {} SKIPPED and {} RED", tally.cases,
                             tally.green, tally.skipped, tally.first_red ? 1 : 0));
  return tally;
}

std::optional<Plan> plan_in(const json& plans, const char* side) {
  if (!plans.contains(side)) return std::nullopt;
  auto plan = plan_of_json(plans.at(side));
  if (!plan) field::wrong(plan.status().message());
  return *plan;
}

}  // namespace

json json_of(const PlannedShape& shape) {
  json plans = json::object();
  if (shape.baseline) plans["baseline"] = plan_json(*shape.baseline);
  if (shape.candidate) plans["candidate"] = plan_json(*shape.candidate);
  json out = {{"name", shape.name},
              {"problem", shape.problem},
              {"primary", shape.primary},
              {"plans", std::move(plans)}};
  if (!shape.refused.empty()) out["refused"] = shape.refused;
  return out;
}

json json_of(const BuildStep& step) {
  json shapes = json::array();
  for (const PlannedShape& shape : step.shapes) shapes.push_back(json_of(shape));
  json out = {{"dtype", step.dtype},
              {"device",
               {{"kind", name_of(step.device.kind)},
                {"name", step.device.name},
                {"isa", step.device.isa},
                {"arch", step.device.arch},
                {"threads_or_multiprocessors", step.device.multiprocessors},
                {"driver", step.device.driver}}},
              {"shapes", std::move(shapes)}};
  if (!step.no_op.empty()) out["no_op"] = step.no_op;
  return out;
}

void from_json(const json& object, BuildStep& step) {
  step = {};
  step.dtype = text(object, "dtype");
  const json& device = field::any(object, "device");
  const std::string kind = text(device, "kind");
  if (kind != name_of(DeviceKind::cpu) && kind != name_of(DeviceKind::cuda))
    field::wrong(fmt::format("{} is no kind of device", kind));
  step.device.kind = kind == name_of(DeviceKind::cuda) ? DeviceKind::cuda : DeviceKind::cpu;
  step.device.name = text(device, "name");
  step.device.isa = text(device, "isa");
  step.device.arch = count_of<int>(device, "arch");
  step.device.multiprocessors = count_of<int>(device, "threads_or_multiprocessors");
  step.device.driver = text(device, "driver");
  step.no_op = text_or_none(object, "no_op");
  for (const json& entry : list(object, "shapes")) {
    PlannedShape& shape = step.shapes.emplace_back();
    shape.name = text(entry, "name");
    shape.problem = text(entry, "problem");
    shape.primary = flag(entry, "primary");
    shape.refused = text_or_none(entry, "refused");
    const json& plans = field::object(entry, "plans");
    shape.baseline = plan_in(plans, "baseline");
    shape.candidate = plan_in(plans, "candidate");
  }
}

json json_of(const GreenTally& tally) {
  return {{"cases", tally.cases},          {"green", tally.green},
          {"skipped", tally.skipped},      {"first_red", failed_case(tally.first_red)},
          {"worst", tally.worst},          {"digests", tally.digests},
          {"refused", tally.refused},      {"rows_checked", tally.rows_checked},
          {"rows_total", tally.rows_total}};
}

json json_of(const GreenStep& step) {
  return {{"baseline", json_of(step.baseline)},
          {"candidate", json_of(step.candidate)},
          {"limits", step.limits}};
}

void from_json(const json& object, GreenStep& step) {
  step = {};
  step.baseline = tally_of(field::any(object, "baseline"));
  step.candidate = tally_of(field::any(object, "candidate"));
  step.limits = numbers(object, "limits");
}

json json_of(const ClaimsStep& step) {
  json claims = json::array();
  for (const Claim& claim : step.claims) {
    json entry = {{"kind", claim.kind}, {"problem", claim.problem}};
    if (claim.refused.empty())
      entry["candidate"] = json_of(claim.tally);
    else
      entry["refused"] = claim.refused;
    claims.push_back(std::move(entry));
  }
  return {{"claims", std::move(claims)}};
}

void from_json(const json& object, ClaimsStep& step) {
  step = {};
  for (const json& entry : list(object, "claims")) {
    Claim& claim = step.claims.emplace_back();
    claim.kind = text(entry, "kind");
    claim.problem = text(entry, "problem");
    claim.refused = text_or_none(entry, "refused");
    if (claim.refused.empty() != entry.contains("candidate"))
      field::wrong("a claim is refused or tried");
    if (claim.refused.empty()) claim.tally = tally_of(field::any(entry, "candidate"));
  }
}

json json_of(const FastStep& step) {
  json checks = json::array();
  for (const SideCheck& check : step.checks) {
    checks.push_back({{"failure", check.failure},
                      {"fault", name_of(check.fault)},
                      {"impossible", check.impossible},
                      {"judged", check.judged},
                      {"floor_seconds", check.floor_seconds}});
  }
  return {{"samples", to_json(std::vector{step.samples})},
          {"checks", std::move(checks)},
          {"stopped", step.stopped},
          {"peak",
           {{"flops", step.peak.flops},
            {"bytes_per_second", step.peak.bytes_per_second},
            {"method", step.peak.method}}}};
}

void from_json(const json& object, FastStep& step) {
  step = {};
  step.samples = one_shape(object, "samples");
  const std::size_t sides = step.samples.sides.size();
  if (sides < 2 || sides > 3) field::wrong("two or three sides are timed");
  const json& checks = list(object, "checks");
  if (checks.size() != sides) field::wrong("each side has a check");
  bool failed = false;
  for (const json& entry : checks) {
    SideCheck& check = step.checks.emplace_back();
    check.failure = text(entry, "failure");
    const auto fault = parse_fault(text(entry, "fault"));
    if (!fault) field::wrong(fmt::format("{} is no fault", text(entry, "fault")));
    if ((*fault == Fault::none) != check.failure.empty())
      field::wrong("a failure has a fault, and a fault is a failure");
    check.fault = *fault;
    check.impossible = flag(entry, "impossible");
    check.judged = count_of<int>(entry, "judged");
    check.floor_seconds = number(entry, "floor_seconds");
    failed = failed || *fault != Fault::none;
  }
  if (!failed && step.samples.blocks.empty()) field::wrong("no block was timed");
  step.stopped = text(object, "stopped");
  const json& peak = field::any(object, "peak");
  step.peak = {number(peak, "flops"), number(peak, "bytes_per_second"), text(peak, "method")};
}

json json_of(const PeersStep& step) {
  if (step.sides.empty() && !step.samples) return {{"skipped", step.skipped}};
  json sides = json::array();
  for (const PeerSide& side : step.sides) {
    json entry = {{"id", side.id}, {"verdict", ""}, {"errors", side.errors}};
    write_correctness(entry, side.correctness);
    if (side.samples > 0) {
      entry["p50"] = side.p50;
      entry["p90"] = side.p90;
      entry["samples"] = side.samples;
    }
    if (side.speedup) entry["speedup"] = interval_json(*side.speedup);
    if (!side.refused.empty()) entry["refused"] = side.refused;
    sides.push_back(std::move(entry));
  }
  json out = {{"shape", step.shape}, {"sides", std::move(sides)}, {"notes", step.notes}};
  if (step.samples) out["samples"] = to_json(std::vector{*step.samples});
  if (!step.best.empty()) out["best"] = step.best;
  if (!step.skipped.empty()) out["skipped"] = step.skipped;
  return out;
}

void from_json(const json& object, PeersStep& step) {
  step = {};
  step.skipped = text_or_none(object, "skipped");
  if (!object.contains("sides")) {
    if (step.skipped.empty()) field::wrong("neither sides nor a reason");
    return;
  }
  step.shape = text(object, "shape");
  step.best = text_or_none(object, "best");
  for (const json& note : list(object, "notes", true)) {
    if (!note.is_string()) field::wrong("a note is no text");
    step.notes.push_back(note.get<std::string>());
  }
  for (const json& entry : list(object, "sides", true)) {
    PeerSide& side = step.sides.emplace_back();
    side.id = text(entry, "id");
    const std::string verdict = text(entry, "verdict");  // "" where nobody looked, never missing
    const auto correctness = read_correctness(entry);
    if (!correctness) field::wrong(fmt::format("{} with its reason is no verdict", verdict));
    side.correctness = *correctness;
    side.errors = numbers(entry, "errors", true);
    side.refused = text_or_none(entry, "refused");
    if (side.refused.empty() || entry.contains("p50")) {
      side.p50 = number(entry, "p50");
      side.p90 = number(entry, "p90");
      side.samples = count_of<std::int64_t>(entry, "samples");
    }
    if (entry.contains("speedup")) {
      const json& of = field::any(entry, "speedup");
      side.speedup = Interval{number(of, "value"), number(of, "lo"), number(of, "hi")};
    }
  }
  if (object.contains("samples")) step.samples = one_shape(object, "samples");
}

std::optional<Status> step_failure(const json& object) {
  if (!object.is_object() || !object.contains("failed")) return std::nullopt;
  const json& failed = field::any(object, "failed");
  const int code = count_of<int>(failed, "code");
  if (code == static_cast<int>(StatusCode::ok) || code > static_cast<int>(StatusCode::internal))
    field::wrong(fmt::format("{} is no code of a failure", code));
  return Status(static_cast<StatusCode>(code), text(failed, "message"));
}

}  // namespace greenfast::workbench
