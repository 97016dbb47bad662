#include "workbench/verdict/gate_steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>

#include "workbench/cases/problem_codec.hpp"
#include "workbench/fast/measure.hpp"
#include "workbench/fast/timed_judge.hpp"
#include "workbench/green/validate.hpp"
#include "workbench/subjects/mutants/mutants.hpp"
#include "workbench/verdict/peer.hpp"

namespace greenfast::workbench::gate_steps {

using nlohmann::json;

namespace {

constexpr std::string_view kAgain = " (again)";
/// Between the seeds of two processes' inputs: larger than the number of contents in a ring.
constexpr std::uint64_t kProcessSeeds = 1009;

json status_json(const Status& status) {
  return {{"failed", {{"code", static_cast<int>(status.code())}, {"message", status.message()}}}};
}

}  // namespace

std::optional<Status> failure_of(const json& result) {
  if (!result.contains("failed")) return std::nullopt;
  return Status(static_cast<StatusCode>(result["failed"]["code"].get<int>()),
                result["failed"]["message"].get<std::string>());
}

namespace {

[[noreturn]] void not_a_step(const std::string& why) {
  throw json::other_error::create(600, why, nullptr);
}
void numbers(const json& object, std::initializer_list<const char*> names) {
  for (const char* name : names) (void)object.at(name).get<double>();
}
void texts(const json& object, std::initializer_list<const char*> names) {
  for (const char* name : names) (void)object.at(name).get_ref<const std::string&>();
}
const json& list(const json& object, const char* name, bool may_be_empty = false) {
  const json& found = object.at(name);
  if (!found.is_array() || (!may_be_empty && found.empty()))
    not_a_step(fmt::format("{} is no list with entries", name));
  return found;
}

void check_build(const json& build) {
  texts(build, {"dtype"});
  texts(build.at("device"), {"kind", "name", "isa"});
  numbers(build.at("device"), {"arch"});
  if (build.contains("no_op")) texts(build, {"no_op"});
  for (const json& shape : list(build, "shapes")) {
    texts(shape, {"name", "problem"});
    (void)shape.at("primary").get<bool>();
    if (shape.contains("refused")) texts(shape, {"refused"});
    for (const json& plan : shape.at("plans")) {
      texts(plan, {"variant", "kernel", "note"});
      numbers(plan, {"shared_bytes", "workspace_bytes"});
      for (const char* triple : {"grid", "block", "cluster"})
        if (list(plan, triple).size() != 3) not_a_step("a plan has three dimensions");
    }
  }
}

void check_green(const json& green) {
  (void)green.at("limits").get<Limits>();
  for (const char* side : {"candidate", "baseline"}) {
    const json& tally = green.at(side);
    numbers(tally, {"cases", "green", "skipped", "rows_checked", "rows_total"});
    (void)tally.at("worst").get<Limits>();
    if (!tally.at("digests").is_object()) not_a_step("digests are no object");
    const json& red = tally.at("first_red");
    if (red.is_null()) continue;
    texts(red, {"distribution", "metric", "reason"});
    (void)red.at("seed").get<std::uint64_t>();
    (void)red.at("integrity").get<bool>();
  }
}

void check_fast(const json& fast) {
  texts(fast, {"stopped"});
  numbers(fast.at("peak"), {"flops", "bytes_per_second"});
  texts(fast.at("peak"), {"method"});
  const auto samples = samples_from_json(fast.at("samples"));
  if (!samples) not_a_step(samples.status().message());
  if (samples->size() != 1) not_a_step("one shape is timed in a step");
  const std::size_t sides = samples->front().sides.size();
  if (sides < 2 || sides > 3) not_a_step("two or three sides are timed");
  if (list(fast, "checks").size() != sides) not_a_step("each side has a check");
  bool failed = false;
  for (const json& seen : fast.at("checks")) {
    texts(seen, {"failure", "fault"});
    if (!parse_fault(seen.at("fault").get<std::string>())) not_a_step("an unknown fault");
    (void)seen.at("impossible").get<bool>();
    numbers(seen, {"floor_seconds"});
    failed = failed || !seen.at("failure").get_ref<const std::string&>().empty();
  }
  if (!failed && samples->front().blocks.empty()) not_a_step("no block was timed");
}

void check_peers(const json& peers) {
  if (peers.contains("skipped")) texts(peers, {"skipped"});
  if (!peers.contains("sides")) {
    texts(peers, {"skipped"});
    return;
  }
  texts(peers, {"shape"});
  for (const json& side : list(peers, "sides", true)) {
    texts(side, {"id", "verdict"});
    if (!side.contains("refused")) numbers(side, {"p50", "p90", "samples"});
    if (side.contains("speedup")) numbers(side.at("speedup"), {"value", "lo", "hi"});
  }
}

}  // namespace

void check(const std::string& step, const json& result) {
  if (result.contains("failed")) {
    numbers(result.at("failed"), {"code"});
    texts(result.at("failed"), {"message"});
    return;
  }
  const std::string kind = step.substr(0, step.find('.'));
  if (kind == "build") check_build(result);
  if (kind == "green") check_green(result);
  if (kind == "fast") check_fast(result);
  if (kind == "peers") check_peers(result);
}

Result<std::unique_ptr<Subject>> one_subject(const std::string& id, std::string_view option) {
  auto found = find_subjects(id);
  if (!found) return found.status();
  if (found->size() != 1) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{} {}: names {} subjects; the gate compares one with one", option,
                              id, found->size()));
  }
  return std::move(found->front());
}

namespace {

Result<ProblemDefaults> defaults_of(const GateOptions& options, const std::string& dtype) {
  ProblemDefaults defaults;
  const auto parsed = parse_dtype(dtype);
  if (!parsed) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("--dtype {}: possible are fp32, fp16, bf16, e4m3", dtype));
  }
  defaults.dtype = *parsed;
  if (options.causal == "top-left") {
    defaults.mask = Mask::causal(Alignment::top_left);
  } else if (options.causal == "bottom-right") {
    defaults.mask = Mask::causal(Alignment::bottom_right);
  } else if (!options.causal.empty()) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("--causal {}: possible are top-left, bottom-right", options.causal));
  }
  return defaults;
}

}  // namespace

Result<std::vector<NamedProblem>> shapes_of(const GateOptions& options, const Policy& policy,
                                            const std::string& dtype) {
  const auto defaults = defaults_of(options, dtype);
  if (!defaults) return defaults.status();
  const std::string& primary = options.primary.empty() ? policy.primary : options.primary;
  auto shapes = parse_shapes(primary, *defaults);
  if (!shapes) return shapes.status();
  if (shapes->size() != 1) {
    return Status(
        StatusCode::invalid_argument,
        fmt::format("--primary {}: names {} shapes; one decides", primary, shapes->size()));
  }
  const std::string& guards = options.guards.empty() ? policy.guards : options.guards;
  if (guards == "none") return shapes;
  const auto more = parse_shapes(guards, *defaults);
  if (!more) return more.status();
  for (const NamedProblem& guard : *more) {
    const bool known = std::any_of(shapes->begin(), shapes->end(), [&](const NamedProblem& shape) {
      return shape.problem == guard.problem;
    });
    if (!known) shapes->push_back(guard);
  }
  return shapes;
}

namespace {

/// Both subjects, their device and their shapes: what every step starts from.
struct Stage {
  std::unique_ptr<Subject> baseline, candidate;
  std::unique_ptr<Device> device;
  Subject& of(bool is_candidate) const { return is_candidate ? *candidate : *baseline; }
};

Result<Stage> open_stage(const GateOptions& options) {
  Stage stage;
  auto baseline = one_subject(options.baseline, "--baseline");
  if (!baseline) return baseline.status();
  auto candidate = one_subject(options.candidate, "--candidate");
  if (!candidate) return candidate.status();
  const Status apart(StatusCode::invalid_argument,
                     fmt::format("{} runs on {}, {} on {}; the gate compares on one device",
                                 options.baseline, name_of((*baseline)->device()),
                                 options.candidate, name_of((*candidate)->device())));
  // A planted kernel goes where the other side is.
  const DeviceKind kind = (names_planted(options.candidate) ? *baseline : *candidate)->device();
  for (auto* side : {&*baseline, &*candidate})
    if ((*side)->device() != kind && !names_planted((*side)->id())) return apart;
  auto device = open_device(kind);
  if (!device) return device.status();
  for (auto* side : {&*baseline, &*candidate}) {
    if ((*side)->device() == kind) continue;
    *side = make_planted_on((*side)->id(), **device);
    if (!*side) return apart;
  }
  stage.baseline = std::move(*baseline);
  stage.candidate = std::move(*candidate);
  stage.device = std::move(*device);
  return stage;
}

}  // namespace

json build(const GateOptions& options, const Policy& policy) {
  auto stage = open_stage(options);
  if (!stage) return status_json(stage.status());
  const DeviceFacts& facts = stage->device->facts();

  std::vector<std::string> dtypes = {"fp16", "bf16", "e4m3"};
  if (facts.kind == DeviceKind::cpu) dtypes = {"fp32", "fp16", "bf16", "e4m3"};
  if (!options.dtype.empty()) dtypes = {options.dtype};
  std::string refusal;
  for (const std::string& dtype : dtypes) {
    const auto shapes = shapes_of(options, policy, dtype);
    if (!shapes) return status_json(shapes.status());
    std::string refused;
    for (const bool is_candidate : {false, true}) {
      Subject& subject = stage->of(is_candidate);
      if (const auto why = subject.refusal(shapes->front().problem, facts)) {
        refused = fmt::format("{} refuses the primary shape {} ({}): {}", subject.id(),
                              shapes->front().name, to_string(shapes->front().problem), *why);
      }
    }
    if (!refused.empty()) {
      // The first type's reason is the one worth reading.
      if (refusal.empty()) refusal = refused;
      continue;
    }

    json out = {{"dtype", dtype},
                {"device",
                 {{"kind", name_of(facts.kind)},
                  {"name", facts.name},
                  {"isa", facts.isa},
                  {"arch", facts.arch},
                  {"threads_or_multiprocessors", facts.multiprocessors},
                  {"driver", facts.driver}}},
                {"shapes", json::array()}};
    bool same_plans = true;
    for (const NamedProblem& shape : *shapes) {
      json entry = {{"name", shape.name},
                    {"problem", to_string(shape.problem)},
                    {"primary", &shape == &shapes->front()},
                    {"plans", json::object()}};
      std::optional<Plan> plans[2];
      for (const bool is_candidate : {false, true}) {
        Subject& subject = stage->of(is_candidate);
        if (const auto why = subject.refusal(shape.problem, facts)) {
          entry["refused"] = fmt::format("{}: {}", subject.id(), *why);
          continue;
        }
        plans[is_candidate] = subject.plan(shape.problem, facts);
        if (plans[is_candidate]) {
          entry["plans"][is_candidate ? "candidate" : "baseline"] = plan_json(*plans[is_candidate]);
        }
      }
      same_plans = same_plans && plans[0] && plans[1] && plans[0]->kernel == plans[1]->kernel &&
                   !plans[0]->kernel.empty() && plans[0]->variant == plans[1]->variant;
      out["shapes"].push_back(std::move(entry));
    }
    if (options.baseline == options.candidate) {
      out["no_op"] = "baseline and candidate are the same variant";
    } else if (same_plans) {
      out["no_op"] = "both sides run the same kernel on every shape";
    }
    return out;
  }
  return status_json({StatusCode::unsupported, refusal});
}

namespace {

Case normal_case(const NamedProblem& shape, std::uint64_t seed) {
  Case c;
  c.name = shape.name;
  c.problem = shape.problem;
  c.seed = seed;
  return c;
}

}  // namespace

json green(const GateOptions& options, const Policy& policy, const NamedProblem& shape,
           Activity& activity) {
  auto stage = open_stage(options);
  if (!stage) return status_json(stage.status());
  json out = json::object();
  struct Tally {
    int cases = 0, green = 0, skipped = 0;
    json first_red;
    std::map<std::string, double> worst;
    json digests = json::object();
    std::int64_t rows_checked = 0, rows_total = 0;
  } tallies[2];
  Limits limits;  // of what is timed later
  for (const Case& c : make_cases({shape}, policy, options.seeds)) {
    std::optional<CaseData> data;
    for (const bool is_candidate : {true, false}) {
      Tally& tally = tallies[is_candidate];
      if (!tally.first_red.is_null()) continue;
      if (!is_candidate && c.seed != options.seeds.front()) continue;
      const std::string distribution(
          std::find_if(distribution_table().begin(), distribution_table().end(),
                       [&](const DistributionRow& row) { return row.id == c.distribution; })
              ->name);
      if (!data) {
        activity.set(fmt::format("oracle on {} {} seed {}", c.name, distribution, c.seed));
        auto prepared = prepare_case(c, policy);
        if (!prepared) return status_json(prepared.status());
        data = std::move(*prepared);
      }
      if (c.distribution == Distribution::normal) keep_larger(limits, data->limits);
      Subject& subject = stage->of(is_candidate);
      activity.set(fmt::format("{} on {} {} seed {}", subject.id(), c.name, distribution, c.seed),
                   is_candidate ? Actor::candidate : Actor::baseline);
      const CaseResult result = validate(subject, *stage->device, *data, policy);
      // A kernel for one shape may refuse the problems that the ends of the range bring.
      if (result.verdict == Verdict::skipped && has_own_problem(c.distribution)) continue;
      ++tally.cases;
      tally.rows_checked += result.rows_checked;
      tally.rows_total += result.rows_total;
      if (result.verdict == Verdict::skipped) {
        ++tally.skipped;
      } else if (result.verdict == Verdict::green) {
        ++tally.green;
      } else {
        tally.first_red = {{"distribution", distribution},
                           {"seed", c.seed},
                           {"metric", result.failed_metric},
                           {"integrity", result.integrity},
                           {"reason", result.reason}};
      }
      for (const MetricRow& row : metric_table()) {
        if (has_own_problem(c.distribution)) break;
        double& worst = tally.worst[std::string(row.name)];
        worst = std::max(worst, row.value(result.metrics));
      }
      if (c.distribution == Distribution::normal) {
        tally.digests[std::to_string(c.seed)] = result.output_sha256;
      }
    }
  }
  for (const bool is_candidate : {false, true}) {
    const Tally& tally = tallies[is_candidate];
    out[is_candidate ? "candidate" : "baseline"] = {{"cases", tally.cases},
                                                    {"green", tally.green},
                                                    {"skipped", tally.skipped},
                                                    {"first_red", tally.first_red},
                                                    {"worst", tally.worst},
                                                    {"digests", tally.digests},
                                                    {"rows_checked", tally.rows_checked},
                                                    {"rows_total", tally.rows_total}};
  }
  out["limits"] = limits;
  return out;
}

json fast(const GateOptions& options, const Policy& policy, const GatePolicy& rules,
          const NamedProblem& shape, bool primary, int process, double budget, const json& green,
          Activity& activity) {
  auto stage = open_stage(options);
  if (!stage) return status_json(stage.status());
  activity.set(fmt::format("inputs of {}", shape.name));
  // Other inputs in each process, besides the signs that each sample draws.
  auto ring =
      Ring::make(*stage->device,
                 normal_case(shape, options.seeds.front() +
                                        kProcessSeeds * (1 + static_cast<std::uint64_t>(process))));
  if (!ring) return status_json(ring.status());

  const Judge judge = timed_judge(policy, green.value("limits", Limits()));
  std::vector<Timed> timed = {{.subject = stage->baseline.get(), .label = {}, .judge = judge},
                              {.subject = stage->candidate.get(), .label = {}, .judge = judge}};
  if (options.baseline == options.candidate) timed[1].label = options.candidate + " (candidate)";
  // The baseline once more, in the same blocks: its difference from itself is the method's noise.
  if (primary) {
    timed.push_back({.subject = stage->baseline.get(),
                     .label = options.baseline + std::string(kAgain),
                     .judge = judge});
  }

  MeasureOptions timing;
  timing.iters = rules.samples;
  timing.seed = options.seeds.front() * 1000 + static_cast<std::uint64_t>(process);
  timing.mode = options.hot ? CacheState::hot : CacheState::cold;
  timing.budget_seconds = budget;
  timing.target_halfwidth = rules.halfwidth;
  timing.min_blocks = rules.min_blocks;
  timing.process = process;
  timing.progress = [&](int blocks, double seconds) {
    activity.set(fmt::format("timing {}, process {}: {} blocks, {:.0f} s", shape.name, process + 1,
                             blocks, seconds),
                 Actor::both);
  };
  activity.set(fmt::format("timing {}, process {}: warm-up", shape.name, process + 1), Actor::both);
  auto measured = measure(*stage->device, **ring, timed, timing);
  if (!measured) return status_json(measured.status());
  json checks = json::array();
  for (const SideCheck& check : measured->checks) {
    checks.push_back({{"failure", check.failure},
                      {"fault", name_of(check.fault)},
                      {"impossible", check.impossible},
                      {"judged", check.judged},
                      {"floor_seconds", check.floor_seconds}});
  }
  return {{"samples", to_json({measured->samples})},
          {"checks", checks},
          {"stopped", measured->stopped},
          {"peak",
           {{"flops", measured->peak.flops},
            {"bytes_per_second", measured->peak.bytes_per_second},
            {"method", measured->peak.method}}}};
}

json peers(const GateOptions& options, const GatePolicy& rules, const NamedProblem& shape,
           double budget, Activity& activity) {
  PeerOptions ask;
  ask.sides = {options.candidate};
  ask.sides.insert(ask.sides.end(), options.peers.begin(), options.peers.end());
  ask.problems = {shape};
  ask.seed = options.seeds.front();
  ask.iters = rules.samples;
  ask.budget_seconds = budget;
  ask.hot = options.hot;
  ask.timeout_seconds = rules.timeout_seconds;
  ask.activity = [&](const std::string& what) { activity.set(what); };
  auto recorded = record_peers(ask);
  if (!recorded) return {{"skipped", recorded.status().message()}};
  const Samples& samples = recorded->recording.shapes.front();
  const int ours = samples.side(options.candidate);
  json sides = json::array();
  std::string best;
  double fastest = 0;
  for (std::size_t i = 0; i < samples.sides.size(); ++i) {
    const Side& side = samples.sides[i];
    // The GPU harness times the library's own choice as well.
    if (std::find(ask.sides.begin(), ask.sides.end(), side.id) == ask.sides.end()) continue;
    json entry = {{"id", side.id}, {"verdict", side.verdict}, {"errors", side.errors}};
    if (!side.refused.empty()) {
      entry["refused"] = side.refused;
      sides.push_back(std::move(entry));
      continue;
    }
    const Summary times = summarize(samples, static_cast<int>(i));
    entry["p50"] = times.p50;
    entry["p90"] = times.p90;
    entry["samples"] = times.n;
    if (static_cast<int>(i) != ours && ours >= 0) {
      const auto ratio = paired_log_ratio(samples, static_cast<int>(i), ours, Statistic::p50);
      if (ratio) {
        const Interval of = speedup(*ratio);
        entry["speedup"] = {{"value", of.value}, {"lo", of.lo}, {"hi", of.hi}};
        // A wrong peer is no rival.
        if (!side.verdict.starts_with("RED") && (best.empty() || times.p50 < fastest)) {
          best = side.id;
          fastest = times.p50;
        }
      } else {
        entry["refused"] = ratio.status().message();
      }
    }
    sides.push_back(std::move(entry));
  }
  json out = {{"shape", shape.name},
              {"sides", sides},
              {"notes", recorded->recording.notes},
              {"samples", to_json({samples})}};
  if (best.empty()) {
    out["skipped"] = "no peer was timed beside the candidate";
    for (const json& side : sides) {
      if (side.contains("refused"))
        out["skipped"] = fmt::format("{}: {}", side["id"].get<std::string>(),
                                     side["refused"].get<std::string>());
    }
  } else {
    out["best"] = best;
  }
  return out;
}

}  // namespace greenfast::workbench::gate_steps
