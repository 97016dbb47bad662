#include "workbench/verdict/gate_steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <span>

#include "workbench/cases/problem_codec.hpp"
#include "workbench/fast/measure.hpp"
#include "workbench/fast/timed_judge.hpp"
#include "workbench/green/validate.hpp"
#include "workbench/subjects/mutants/mutants.hpp"
#include "workbench/subjects/plugin/plugins.hpp"
#include "workbench/verdict/gate_judge.hpp"
#include "workbench/verdict/peer.hpp"

namespace greenfast::workbench::gate_steps {

namespace {

constexpr std::string_view kAgain = " (again)";
/// Between the seeds of two processes' inputs: larger than the number of contents in a ring.
constexpr std::uint64_t kProcessSeeds = 1009;

}  // namespace

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

Result<BuildStep> build(const GateOptions& options, const Policy& policy) {
  auto stage = open_stage(options);
  if (!stage) return stage.status();
  const DeviceFacts& facts = stage->device->facts();

  std::vector<std::string> dtypes = {"fp16", "bf16", "e4m3"};
  if (facts.kind == DeviceKind::cpu) dtypes = {"fp32", "fp16", "bf16", "e4m3"};
  if (!options.dtype.empty()) dtypes = {options.dtype};
  std::string refusal;
  for (const std::string& dtype : dtypes) {
    const auto shapes = shapes_of(options, policy, dtype);
    if (!shapes) return shapes.status();
    std::string refused;
    for (const NamedProblem& shape : *shapes) {
      const Problem& p = shape.problem;
      if (p.batch * p.heads_q * p.seq_q * p.seq_kv != 0) continue;
      return Status(
          StatusCode::invalid_argument,
          fmt::format("{} ({}) has nothing to compute: no kernel is called for it, and its "
                      "time is nobody's; give a shape with rows and keys",
                      shape.name, to_string(p)));
    }
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

    BuildStep out;
    out.dtype = dtype;
    out.device = facts;
    for (const NamedProblem& shape : *shapes) {
      PlannedShape& entry = out.shapes.emplace_back();
      entry.name = shape.name;
      entry.problem = to_string(shape.problem);
      entry.primary = &shape == &shapes->front();
      for (const bool is_candidate : {false, true}) {
        Subject& subject = stage->of(is_candidate);
        if (const auto why = subject.refusal(shape.problem, facts)) {
          entry.refused = fmt::format("{}: {}", subject.id(), *why);
          continue;
        }
        (is_candidate ? entry.candidate : entry.baseline) = subject.plan(shape.problem, facts);
      }
    }
    out.no_op = no_op_of(options, out.shapes);
    return out;
  }
  return Status(StatusCode::unsupported, refusal);
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

namespace {

/// Adds what one case showed.
void count(const CaseResult& result, std::string_view distribution, GreenTally& tally) {
  ++tally.cases;
  tally.rows_checked += result.rows_checked;
  tally.rows_total += result.rows_total;
  if (result.verdict == Verdict::skipped) {
    ++tally.skipped;
  } else if (result.verdict == Verdict::green) {
    ++tally.green;
  } else {
    tally.first_red = RedCase{std::string(distribution), result.test.seed, result.failed_metric,
                              result.fault, result.reason};
  }
  for (const MetricRow& row : metric_table()) {
    if (has_own_problem(result.test.distribution)) break;
    double& worst = tally.worst[std::string(row.name)];
    worst = std::max(worst, row.value(result.metrics));
  }
  if (result.test.distribution == Distribution::normal)
    tally.digests[std::to_string(result.test.seed)] = result.output_sha256;
}

}  // namespace

Result<GreenStep> green(const GateOptions& options, const Policy& policy, const NamedProblem& shape,
                        Activity& activity) {
  auto stage = open_stage(options);
  if (!stage) return stage.status();
  GreenStep out;
  for (const Case& c : make_cases({shape}, policy, options.seeds)) {
    const std::string_view distribution = name_of(c.distribution);
    std::optional<CaseData> data;
    for (const bool is_candidate : {true, false}) {
      GreenTally& tally = is_candidate ? out.candidate : out.baseline;
      if (tally.first_red) continue;
      if (!is_candidate && c.seed != options.seeds.front()) continue;
      if (!data) {
        activity.set(fmt::format("oracle on {} {} seed {}", c.name, distribution, c.seed));
        auto prepared = prepare_case(c, policy);
        if (!prepared) return prepared.status();
        data = std::move(*prepared);
      }
      if (c.distribution == Distribution::normal) keep_larger(out.limits, data->limits);
      Subject& subject = stage->of(is_candidate);
      activity.set(fmt::format("{} on {} {} seed {}", subject.id(), c.name, distribution, c.seed),
                   is_candidate ? Actor::candidate : Actor::baseline);
      const CaseResult result = validate(subject, *stage->device, *data, policy);
      subject.pause();  // nothing of it runs while the other side is looked at
      // A kernel for one shape may refuse the problems that the ends of the range bring.
      if (result.verdict == Verdict::skipped && has_own_problem(c.distribution)) {
        tally.refused.emplace(distribution, result.reason);
        continue;
      }
      count(result, distribution, tally);
    }
  }
  return out;
}

std::vector<ClaimKind> claim_kinds(const GateOptions& options, const NamedProblem& primary) {
  const Problem& p = primary.problem;
  struct Row {
    std::string name;
    std::string shape;
    const char* asked;
    void (*set)(ProblemDefaults&);
    std::function<bool(const Problem&)> seen;
  };
  const auto shape = [&](const char* heads, const char* lengths) {
    return fmt::format("1x{}x{}x{}", heads, lengths, p.head_dim);
  };
  const auto none = [](ProblemDefaults&) {};
  // Two head dims besides the primary's: a power of two, and one that tiles of such lengths do not fit.
  const int power = p.head_dim == 64 ? 128 : 64, odd = p.head_dim == 80 ? 96 : 80;
  const Row rows[] = {
      {"lengths that are no multiple of 16", shape("2", "67"), "", none,
       [](const Problem& q) { return q.seq_q % 16 != 0 || q.seq_kv % 16 != 0; }},
      {"Sq other than Skv", shape("2", "48/160"), "", none,
       [](const Problem& q) { return q.seq_q != q.seq_kv; }},
      {"a single row of Q", shape("2", "1/96"), "", none,
       [](const Problem& q) { return q.seq_q == 1; }},
      {"fewer KV heads than Q heads", shape("4/2", "64"), "", none,
       [](const Problem& q) { return q.heads_kv != q.heads_q; }},
      {"several batches", fmt::format("3x2x32x{}", p.head_dim), "", none,
       [](const Problem& q) { return q.batch > 1; }},
      {"a causal mask", shape("2", "80"), "--causal=top-left",
       [](ProblemDefaults& d) { d.mask = Mask::causal(Alignment::top_left); },
       [](const Problem& q) { return q.mask.right == 0; }},
      {"a window", shape("2", "96"), "--window=17,9",
       [](ProblemDefaults& d) { d.mask = Mask::window(17, 9, Alignment::top_left); },
       [](const Problem& q) { return q.mask.left >= 0; }},
      {"rows that see no key", shape("2", "96/64"), "--causal=bottom-right",
       [](ProblemDefaults& d) { d.mask = Mask::causal(Alignment::bottom_right); },
       [](const Problem& q) {
         return q.mask.right >= 0 && q.mask.alignment == Alignment::bottom_right &&
                q.seq_q > q.seq_kv + q.mask.right;
       }},
      {"softcap", shape("2", "64"), "--softcap=20", [](ProblemDefaults& d) { d.softcap = 20; },
       [](const Problem& q) { return q.softcap > 0; }},
      {"LSE", shape("2", "64"), "--lse", [](ProblemDefaults& d) { d.lse = true; },
       [](const Problem& q) { return q.lse; }},
      {"LSE under a causal mask", shape("2", "80"), "--causal=top-left --lse",
       [](ProblemDefaults& d) {
         d.mask = Mask::causal(Alignment::top_left);
         d.lse = true;
       },
       [](const Problem& q) { return q.lse && q.mask.right == 0; }},
      {fmt::format("head dim {}", power), fmt::format("1x2x64x{}", power), "", none,
       [power](const Problem& q) { return q.head_dim == power; }},
      {fmt::format("head dim {}", odd), fmt::format("1x2x64x{}", odd), "", none,
       [odd](const Problem& q) { return q.head_dim == odd; }},
      {"layouts other than BHSD", shape("2", "64"), "--layout=bshd",
       [](ProblemDefaults& d) { d.layout = LayoutKind::bshd; },
       [](const Problem& q) {
         return !(q.q == make_problem(q.batch, q.heads_q, q.heads_kv, q.seq_q, q.seq_kv, q.head_dim,
                                      q.dtype)
                             .q);
       }}};
  std::vector<ClaimKind> out;
  for (const Row& row : rows) {
    auto defaults = defaults_of(options, std::string(name_of(p.dtype)));
    if (!defaults) continue;
    const Mask gate_mask = defaults->mask;
    row.set(*defaults);
    auto parsed = parse_shapes(row.shape, *defaults);
    if (!parsed) continue;  // a head dim that no problem may have was refused before
    NamedProblem problem = std::move(parsed->front());
    problem.name = row.name;
    std::string asked = fmt::format("--shapes {}", row.shape);
    // The kind's own mask, or the gate's.
    const std::string_view own = row.asked;
    if (!own.empty()) asked += fmt::format(" {}", own);
    if (!options.causal.empty() && defaults->mask == gate_mask && !own.starts_with("--causal"))
      asked += fmt::format(" --causal={}", options.causal);
    out.push_back({row.name, std::move(problem), std::move(asked), row.seen});
  }
  return out;
}

Result<ClaimsStep> claims(const GateOptions& options, const Policy& policy,
                          const NamedProblem& primary, Activity& activity) {
  auto stage = open_stage(options);
  if (!stage) return stage.status();
  Policy small = policy;
  std::erase_if(small.distributions, [](Distribution d) { return has_own_problem(d); });
  ClaimsStep out;
  for (const ClaimKind& kind : claim_kinds(options, primary)) {
    Claim& claim = out.claims.emplace_back();
    claim.kind = kind.name;
    claim.problem = to_string(kind.problem.problem);
    if (const auto why = stage->candidate->refusal(kind.problem.problem, stage->device->facts())) {
      claim.refused = *why;
      continue;
    }
    for (const Case& c : make_cases({kind.problem}, small, std::span(options.seeds).first(1))) {
      const std::string_view distribution = name_of(c.distribution);
      activity.set(fmt::format("oracle on {} {}", claim.problem, distribution));
      auto data = prepare_case(c, small);
      if (!data) return data.status();
      activity.set(fmt::format("{} on {} {}", options.candidate, claim.problem, distribution),
                   Actor::candidate);
      count(validate(*stage->candidate, *stage->device, *data, small), distribution, claim.tally);
      if (claim.tally.first_red) return out;
    }
  }
  return out;
}

Result<FastStep> fast(const GateOptions& options, const Policy& policy, const GatePolicy& rules,
                      const NamedProblem& shape, bool primary, int process, double budget,
                      const GreenStep& green, Activity& activity) {
  auto stage = open_stage(options);
  if (!stage) return stage.status();
  activity.set(fmt::format("inputs of {}", shape.name));
  // Other inputs in each process, besides the signs that each sample draws.
  auto ring =
      Ring::make(*stage->device,
                 normal_case(shape, options.seeds.front() +
                                        kProcessSeeds * (1 + static_cast<std::uint64_t>(process))));
  if (!ring) return ring.status();

  const Judge judge = timed_judge(policy, green.limits);
  std::vector<Timed> timed = {{.subject = stage->baseline.get(), .label = {}, .judge = judge},
                              {.subject = stage->candidate.get(), .label = {}, .judge = judge}};
  if (options.baseline == options.candidate) timed[1].label = options.candidate + " (candidate)";
  // The baseline once more, in the same blocks: its difference from itself is the method's noise. A
  // plugin's in another process, as the candidate is: what a process got from the system (a CPU,
  // pages) is no property of the kernel.
  std::unique_ptr<Subject> again = make_plugin_twin(options.baseline);
  if (primary) {
    timed.push_back({.subject = again ? again.get() : stage->baseline.get(),
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
  std::string doing = fmt::format("timing {}, process {}: warm-up", shape.name, process + 1);
  timing.progress = [&](int blocks, double seconds) {
    doing = fmt::format("timing {}, process {}: {} blocks, {:.0f} s", shape.name, process + 1,
                        blocks, seconds);
  };
  timing.at_work = [&](int side) {
    activity.set(doing, side < 0 ? Actor::workbench
                        : timed[static_cast<std::size_t>(side)].subject == stage->candidate.get()
                            ? Actor::candidate
                            : Actor::baseline);
  };
  auto measured = measure(*stage->device, **ring, timed, timing);
  if (!measured) return measured.status();
  return FastStep{std::move(measured->samples), std::move(measured->checks),
                  std::move(measured->stopped), std::move(measured->peak)};
}

Result<PeersStep> peers(const GateOptions& options, const Policy& policy, const GatePolicy& rules,
                        const NamedProblem& shape, double budget, Activity& activity) {
  PeerOptions ask;
  ask.policy = policy;
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
  PeersStep out;
  if (!recorded) {
    out.skipped = recorded.status().message();
    return out;
  }
  const Samples& samples = recorded->recording.shapes.front();
  for (const Side& side : samples.sides) {
    // The GPU harness times the library's own choice as well.
    if (std::find(ask.sides.begin(), ask.sides.end(), side.id) == ask.sides.end()) continue;
    PeerSide& entry = out.sides.emplace_back();
    entry.id = side.id;
    entry.correctness = recorded->recording.correctness_of(side.id, samples);
  }
  judge_peers(out, samples, options.candidate);
  out.shape = shape.name;
  out.notes = recorded->recording.notes;
  out.samples = samples;
  if (out.best.empty()) {
    out.skipped = "no peer was timed beside the candidate";
    for (const PeerSide& side : out.sides)
      if (!side.refused.empty()) out.skipped = fmt::format("{}: {}", side.id, side.refused);
  }
  return out;
}

}  // namespace greenfast::workbench::gate_steps
