#include "workbench/verdict/gate.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <set>

#include "workbench/base/atomic_file.hpp"
#include "workbench/base/build_info.hpp"
#include "workbench/base/checkpoint.hpp"
#include "workbench/base/exit_code.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/host.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/base/seconds_since.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/base/stdout_aside.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/cases/problem_codec.hpp"
#include "workbench/fast/measure.hpp"
#include "workbench/record/record.hpp"
#include "workbench/resources/compiler_logs.hpp"
#include "workbench/resources/device_code.hpp"
#include "workbench/resources/resources.hpp"
#include "workbench/subjects/plugin/plugins.hpp"
#include "workbench/verdict/advise.hpp"
#include "workbench/verdict/decide.hpp"
#include "workbench/verdict/gate_identity.hpp"
#include "workbench/verdict/gate_judge.hpp"
#include "workbench/verdict/gate_policy.hpp"
#include "workbench/verdict/gate_record.hpp"
#include "workbench/verdict/gate_resources.hpp"
#include "workbench/verdict/gate_steps.hpp"
#include "workbench/verdict/gate_walk.hpp"
#include "workbench/verdict/peer.hpp"
#include "workbench/verdict/predictions.hpp"
#include "workbench/verdict/step_results.hpp"

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

/// What a plugin's process may grow by while it is timed: allocators round, pools fill.
constexpr std::int64_t kMostGrowth = std::int64_t{1} << 20;

bool is_plugin(const std::string& id) {
  const auto rows = plugin_kernels();
  return std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row.id == id; });
}

/// What the kernels of a plugin take at most, since it does not tell which of them it launches.
std::optional<KernelResources> plugin_kernels_code(const fs::path& library, int arch,
                                                   const std::string& candidate,
                                                   std::int64_t dynamic_shared,
                                                   const ResourceLimits& limits) {
  const auto code = read_device_code(library);
  if (!code) return std::nullopt;
  KernelCode most;
  std::string digests;
  for (const KernelCode* kernel : kernels_for(*code, arch)) {
    most.arch = kernel->arch;
    most.registers = std::max(most.registers, kernel->registers);
    most.static_shared = std::max(most.static_shared, kernel->static_shared);
    most.stack = std::max(most.stack, kernel->stack);
    digests += kernel->sha256 + '\n';
  }
  if (digests.empty()) return std::nullopt;
  return KernelResources{
      most.arch,  most.registers,      most.static_shared,
      most.stack, sha256_hex(digests), check_foreign(candidate, most, dynamic_shared, limits)};
}

/// What the compiler said of a plugin's source while this command compiled it.
std::optional<CompilerLogs> plugin_logs(const std::string& kernel) {
  const auto log = plugin_compiler_log(kernel);
  if (!log) return std::nullopt;
  CompilerLogs out{1, {}};
  for (const std::string& line : complaints_of(*log))
    out.complaints.push_back(fmt::format("{}: {}", kernel, line));
  return out;
}

/// A kernel of this program as a device of compute capability `arch` loads it, held to its limits
/// as the candidate launches it.
std::optional<KernelResources> compiled_kernel(const std::string& kernel, int arch,
                                               const std::string& candidate,
                                               std::span<const PlannedShape> shapes,
                                               const ResourceLimits& limits) {
  std::vector<Plan> plans;
  std::int64_t dynamic = 0;
  for (const PlannedShape& shape : shapes) {
    if (!shape.candidate || shape.candidate->kernel != kernel) continue;
    plans.push_back(*shape.candidate);
    dynamic = std::max<std::int64_t>(dynamic, shape.candidate->shared_bytes);
  }
  if (const fs::path library = plugin_library(kernel); !library.empty())
    return plugin_kernels_code(library, arch, candidate, dynamic, limits);
  const Result<DeviceCode>& code = own_device_code();
  if (!code) return std::nullopt;
  const KernelCode* found = find_kernel(*code, kernel, arch);
  if (found == nullptr) return std::nullopt;
  KernelResources out{found->arch,  found->registers, found->static_shared,
                      found->stack, found->sha256,    {}};
  if (const auto report = resources_of(candidate, arch, plans, limits))
    for (const ResourceRow& row : report->rows)
      out.checks.insert(out.checks.end(), row.checks.begin(), row.checks.end());
  return out;
}

class Gate {
 public:
  Gate(Checkpoint job, GateOptions options, Policy policy, GatePolicy rules, ResourceLimits limits,
       const GateObserver& observer)
      : job_(std::move(job)),
        options_(std::move(options)),
        policy_(std::move(policy)),
        rules_(std::move(rules)),
        limits_(std::move(limits)),
        rule_(rules_.rule(options_.candidate)),
        observer_(observer),
        start_(Clock::now()) {
    thresholds_.gate = options_.gate.value_or(rule_.gate.value_or(policy_.gate));
    thresholds_.guard = policy_.guard;
    if (auto rows = parse_predictions("policies/predictions.toml", builtin_predictions()))
      predictions_ = std::move(*rows);
    if (const Prediction* p = find_prediction(predictions_, options_.baseline, options_.candidate))
      prediction_ = *p;
    thresholds_.noise = rules_.noise_floor;
    if (options_.processes) rules_.processes = *options_.processes;
    walk_.processes = rules_.processes;
    walk_.peers = options_.peers;
    if (options_.budget_seconds) rules_.budget_seconds = *options_.budget_seconds;
  }

  Result<GateResult> run() {
    try {
      return walk();
    } catch (const WrongStep& wrong) {
      return Status(
          StatusCode::invalid_argument,
          fmt::format("{}: is not what this version writes ({}); delete this file, and "
                      "resuming does the step again",
                      (job_.directory() / "steps" / (wrong.step + ".json")).string(), wrong.why));
    }
  }

 private:
  /// A finished step whose file is whole and holds something else.
  struct WrongStep {
    std::string step, why;
  };

  Result<GateResult> walk() {
    record_.head = job_.head();

    auto build = isolated<BuildStep>(
        {.kind = StepKind::build}, [&](Activity&) { return gate_steps::build(options_, policy_); });
    if (!build) return build.status();
    if (*build) {
      if (Status status = take_build(std::move(**build)); !status) return status;
      if (Status status = green(); !status) return status;
      if (!ended_) {
        if (Status status = claims(); !status) return status;
      }
      if (!ended_) resources();
      if (!ended_) {
        if (Status status = fast(); !status) return status;
      }
      if (!ended_ && !options_.peers.empty()) {
        if (Status status = peers(); !status) return status;
      }
    }
    return finish();
  }

  /// Result of a step: from the checkpoint, or from a child. Nothing where a child died, which ends
  /// the walk with a verdict; but where `instead` is given, it says what such an end comes to.
  template <class Step>
  Result<std::optional<Step>> isolated(
      const WalkStep& step, const std::function<Result<Step>(Activity&)>& work,
      const std::function<Step(const std::string& why)>& instead = {}) {
    const std::string name = name_of(step), what = describe(step, walk_);
    if (observer_.stop && observer_.stop()) throw GateStopped{};
    if (observer_.step) observer_.step(done_, total_, what);
    ++done_;
    const auto begin = Clock::now();
    const bool had = job_.finished(name);
    const auto step_ended = [&](std::optional<ReasonCode> as) {
      record_.steps.push_back({step, what, as, had, seconds_since(begin)});
    };
    if (!had) {
      ChildLimits limits;
      limits.seconds = rules_.timeout_seconds;
      limits.stop = observer_.stop;
      limits.clean_output = true;  // a CUDA plugin prints there
      const auto end = run_in_child(
          [&](Activity& activity) {
            const StdoutAside aside;  // whatever a step loads may print
            activity.set(what);
            if (Status status = job_.save(name, step_json(work(activity))); !status)
              throw std::runtime_error(status.message());
          },
          limits, observer_.activity);
      if (!end) return end.status();
      switch (end->how) {
        case ChildEnd::How::finished:
          break;
        case ChildEnd::How::stopped:
          // Begun and not finished, the step is done again by whoever resumes.
          throw GateStopped{};
        case ChildEnd::How::failed:
          return Status(StatusCode::internal, fmt::format("{}: {}", what, end->detail));
        case ChildEnd::How::crashed:
        case ChildEnd::How::timed_out: {
          const Reason reason = reason_of_end(*end);
          if (instead) {
            step_ended(code_of_end(*end));
            return std::optional<Step>(instead(reason.detail));
          }
          step_ended(reason.code);
          reasons_.push_back(reason);
          ended_ = true;
          return std::optional<Step>();
        }
      }
    }
    const auto stored = job_.load(name);
    if (!stored) return stored.status();
    auto result = [&]() -> Result<Step> {
      try {
        return step_of_json<Step>(*stored);
      } catch (const json::exception& error) {
        throw WrongStep{name, reason_of(error)};
      }
    }();
    step_ended({});
    if (observer_.finished) {
      observer_.finished(had ? fmt::format("{}: taken from the checkpoint", what)
                             : fmt::format("{}: {:.1f} s", what, seconds_since(begin)));
    }
    if (!result) return result.status();
    return std::optional<Step>(std::move(*result));
  }

  static ReasonCode code_of_end(const ChildEnd& end) {
    return end.how == ChildEnd::How::crashed ? ReasonCode::crash : ReasonCode::timeout;
  }
  /// Only what the candidate did is held against it; in a timed block either side may be at fault.
  Reason reason_of_end(const ChildEnd& end) const {
    const std::string detail = fmt::format("{}, while: {}", end.detail, end.activity);
    if (end.actor == Actor::workbench)
      return {ReasonCode::inconclusive, detail,
              "smaller shapes, or a larger timeout_seconds in a gate policy"};
    if (end.actor == Actor::baseline && options_.candidate != options_.baseline)
      return {ReasonCode::inconclusive, "the baseline: " + detail, "a baseline that works"};
    return {code_of_end(end), detail, ""};
  }

  void check(CheckKind kind, std::string gate, std::string target, std::string actual,
             CheckStatus status) {
    record_.checklist.push_back(
        {kind, std::move(gate), std::move(target), std::move(actual), status});
  }
  /// What shows a RED case again: a command that runs as it stands.
  std::string check_command(const std::string& asked, std::uint64_t seed) const {
    std::string out = "greenfast check";
    for (const PluginKernelRow& row : plugin_kernels())
      if (row.id == options_.candidate) out += fmt::format(" {}", shell_word(row.file));
    if (!options_.plugins.files.empty() && !options_.plugins.compile.flags.empty())
      out += fmt::format(" {}", shell_word("--plugin-flags=" + options_.plugins.compile.flags));
    out += fmt::format(" --variants {} {} --dtype {}", shell_word(options_.candidate), asked,
                       build_.dtype);
    if (seed != 0) out += fmt::format(" --seeds {}", seed);
    if (options_.policy != GateOptions().policy)
      out += fmt::format(" --policy {}", shell_word(options_.policy));
    return out;
  }
  void end_with(Reason reason) {
    reasons_.push_back(std::move(reason));
    ended_ = true;
  }
  /// What a part comes to, as the record and the verdict have it.
  void take(GatePart part) {
    record_.checklist.insert(record_.checklist.end(), part.checklist.begin(), part.checklist.end());
    for (Reason& reason : part.reasons) reasons_.push_back(std::move(reason));
    ended_ = ended_ || part.ended;
  }
  CheckAgain again() const {
    return
        [this](const std::string& asked, std::uint64_t seed) { return check_command(asked, seed); };
  }

  Status take_build(BuildStep build) {
    build_ = std::move(build);
    record_.build = build_;
    const auto shapes = gate_steps::shapes_of(options_, policy_, build_.dtype);
    if (!shapes) return shapes.status();
    if (shapes->size() != build_.shapes.size())
      throw WrongStep{name_of(WalkStep{.kind = StepKind::build}), "plans of other shapes"};
    shapes_ = *shapes;
    no_op_ = build_.no_op;
    for (const PlannedShape& shape : build_.shapes)
      walk_.shapes.push_back({shape.name, !shape.refused.empty()});
    total_ = steps_of(walk_).size() + 1;  // and resources, in this process
    const BuildInfo& info = build_info();
    std::string logs;
    // Of kernels for a GPU alone there are logs; a program that was copied away has lost them.
    if (build_.device.kind == DeviceKind::cuda) {
      if (const Result<DeviceCode>& code = own_device_code())
        record_.code = code_of_sides(build_.shapes, build_.device.arch, *code);
      if (const auto said = logs_of_sides(build_.shapes, {own_compiler_logs, plugin_logs})) {
        record_.compiler_logs = *said;
        logs = said->complaints.empty()
                   ? fmt::format(", no warning in {} compiler logs of them", said->logs)
                   : fmt::format(", {} warnings, the first: {}", said->complaints.size(),
                                 said->complaints.front());
      }
    }
    check(CheckKind::build, "build", "both sides built",
          fmt::format("{}{}{}", info.git_sha.empty() ? "no git" : info.git_sha.substr(0, 10),
                      info.git_dirty ? ", uncommitted changes" : "", logs),
          CheckStatus::pass);
    return {};
  }

  const std::string& refused(std::size_t shape) const { return build_.shapes[shape].refused; }

  Status green() {
    green_.assign(shapes_.size(), std::nullopt);
    auto& rows = record_.green.emplace();
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      if (!refused(i).empty()) continue;
      const NamedProblem& shape = shapes_[i];
      auto result =
          isolated<GreenStep>({.kind = StepKind::green, .shape = i}, [&](Activity& activity) {
            return gate_steps::green(options_, policy_, shape, activity);
          });
      if (!result) return result.status();
      if (!*result) break;
      const GreenStep& seen = green_[i].emplace(std::move(**result));
      rows.push_back({shape.name, seen.baseline, seen.candidate});
      if (seen.candidate.first_red || seen.baseline.first_red) break;
    }
    if (ended_) {
      check(CheckKind::green, "GREEN", fmt::format("all cases of policy {}", policy_.name),
            reasons_.back().detail,
            rejects(reasons_.back().code) ? CheckStatus::fail : CheckStatus::defer);
      return {};
    }
    take(judge_green(options_, policy_.name, rows, again()));
    return {};
  }

  /// What the candidate takes beside the asked shapes: right there too, or named as never seen.
  Status claims() {
    const NamedProblem& primary = shapes_.front();
    auto result = isolated<ClaimsStep>({.kind = StepKind::claims}, [&](Activity& activity) {
      return gate_steps::claims(options_, policy_, primary, activity);
    });
    if (!result) return result.status();
    if (!*result) {
      check(CheckKind::green_claims, "GREEN of what else it takes",
            "right wherever it does not refuse", reasons_.back().detail,
            rejects(reasons_.back().code) ? CheckStatus::fail : CheckStatus::defer);
      return {};
    }
    claims_ = std::move(**result);
    record_.claims = claims_;
    for (const Claim& claim : claims_->claims)
      if (claim.refused.empty())
        record_.green->push_back(
            {fmt::format("{}: {}", claim.kind, claim.problem), GreenTally(), claim.tally});
    take(judge_claims(
        options_, *claims_, [this](const std::string& kind) { return asked_of(kind); }, again()));
    return {};
  }

  std::string asked_of(const std::string& kind) const {
    for (const gate_steps::ClaimKind& row : gate_steps::claim_kinds(options_, shapes_.front()))
      if (row.name == kind) return row.asked;
    return {};
  }

  void resources() {
    ++done_;
    auto& rows = record_.resources.emplace();
    std::int64_t arena = -1, workspace = 0;
    for (const PlannedShape& shape : build_.shapes) {
      if (!shape.candidate) continue;
      arena = std::max<std::int64_t>(arena, shape.candidate->shared_bytes);
      workspace = std::max<std::int64_t>(workspace, shape.candidate->workspace_bytes);
    }
    const bool cpu = build_.device.kind == DeviceKind::cpu;
    // A plugin's plan tells nothing of its memory; that of its process is measured while it is timed.
    plugin_memory_ = cpu && is_plugin(options_.candidate);
    if (plugin_memory_) return;
    if (cpu && arena < 0) {
      const std::string why = fmt::format("{} tells no plan", options_.candidate);
      rows.push_back({.name = "plan", .status = CheckStatus::skipped, .reason = why});
      check(CheckKind::resources, "resources", "inside limits", why, CheckStatus::skipped);
      reasons_.push_back(
          {ReasonCode::tool_missing, "resources are unknown: " + why, "a subject with a plan"});
      return;
    }
    if (cpu) {
      const bool inside = arena <= rules_.cpu_arena_bytes;
      rows.push_back({.name = "arena_bytes_per_thread",
                      .status = inside ? CheckStatus::pass : CheckStatus::fail,
                      .value = arena,
                      .limit = rules_.cpu_arena_bytes,
                      .workspace_bytes = workspace});
      check(CheckKind::resources, "resources: arena of a thread",
            fmt::format("<= {} KB", rules_.cpu_arena_bytes / 1024),
            fmt::format("{:.0f} KB", static_cast<double>(arena) / 1024),
            inside ? CheckStatus::pass : CheckStatus::fail);
      if (!inside) {
        end_with(
            {ReasonCode::resources,
             fmt::format("a thread's arena is {} bytes, limit {}", arena, rules_.cpu_arena_bytes),
             "smaller tiles"});
      }
      return;
    }
    const ResourceJudgement judged = judge_kernels(build_.shapes, [&](const std::string& kernel) {
      return compiled_kernel(kernel, build_.device.arch, options_.candidate, build_.shapes,
                             limits_);
    });
    rows = judged.rows;
    record_.checklist.insert(record_.checklist.end(), judged.checklist.begin(),
                             judged.checklist.end());
    if (no_op_.empty()) no_op_ = judged.no_op;
    if (!judged.reason) return;
    if (rejects(judged.reason->code)) {
      end_with(*judged.reason);
    } else {
      reasons_.push_back(*judged.reason);
    }
  }

  Status fast() {
    const double share =
        rules_.budget_seconds /
        static_cast<double>(shapes_.size() * static_cast<std::size_t>(rules_.processes));
    auto& rows = record_.fast.emplace();
    std::string busy;  // where the machine was not ours
    std::vector<Samples> all;
    std::vector<ShapeEvidence> evidence;
    std::vector<LogRatio> overall;
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      const NamedProblem& shape = shapes_[i];
      ShapeEvidence seen;
      seen.name = shape.name;
      seen.primary = i == 0;
      seen.missing = refused(i);
      if (!seen.missing.empty()) {
        rows.push_back({.shape = shape.name, .primary = seen.primary, .skipped = seen.missing});
        evidence.push_back(std::move(seen));
        continue;
      }
      Samples samples;
      Peak peak;
      double floor = 0;
      std::string stopped;
      bool impossible = true, base_impossible = true;
      for (int process = 0; process < rules_.processes; ++process) {
        const WalkStep step{.kind = StepKind::fast, .shape = i, .process = process};
        auto result = isolated<FastStep>(step, [&](Activity& activity) {
          return gate_steps::fast(options_, policy_, rules_, shape, i == 0, process, share,
                                  *green_[i], activity);
        });
        if (!result) return result.status();
        if (!*result) {
          record_.checklist.push_back({kind_of_speed(i == 0), "FAST", "", reasons_.back().detail,
                                       CheckStatus::fail, shape.name});
          return keep(std::move(all));
        }
        const FastStep& timed = **result;
        if (failed_side(timed, shape, i == 0)) return keep(std::move(all));
        if (build_.device.name != timed.samples.device_name) {
          job_.forget(name_of(step));
          return {StatusCode::invalid_argument,
                  fmt::format("{}: was begun on {}, this is {}; start a new gate",
                              job_.directory().string(), build_.device.name,
                              timed.samples.device_name)};
        }
        append(samples, timed.samples);
        base_impossible = base_impossible && timed.checks[0].impossible;
        impossible = impossible && timed.checks[1].impossible;
        floor = std::max(floor, timed.checks[1].floor_seconds);
        stopped = timed.stopped;
        if (timed.peak.flops > peak.flops) peak = timed.peak;
      }
      const Summary baseline = summarize(samples, 0), candidate = summarize(samples, 1);
      auto judged = evidence_of(samples, seen.primary);
      if (!judged) return judged.status();
      seen = std::move(*judged);
      seen.name = shape.name;
      // Every process agreed; one alone may have met a probe that was disturbed.
      if (impossible) seen.impossible = impossible_words(candidate.p50, floor);
      if (base_impossible && !impossible)
        reasons_.push_back(impossible_baseline(options_, shape.name, baseline.p50, floor));
      if (const std::string words = busy_words(shape.name, baseline); !words.empty()) busy = words;
      overall.push_back(seen.p50);
      GateTimes times =
          times_of(samples, seen, {rules_.processes, stopped, peak, floor}, thresholds_);
      times.baseline_impossible = base_impossible;
      times.candidate_impossible = impossible;
      rows.push_back(std::move(times));
      all.push_back(std::move(samples));
      evidence.push_back(std::move(seen));
    }
    if (plugin_memory_ && !memory_of_plugin(all)) return keep(std::move(all));
    if (!overall.empty()) record_.overall = speedup(geometric_mean(overall));
    record_.samples = all;
    take(judge_times(evidence, thresholds_, no_op_, busy, reasons_.empty()));
    return {};
  }

  /// Samples of the shapes that were timed before the walk ended; their figures stand in the record.
  Status keep(std::vector<Samples> all) {
    if (!all.empty()) record_.samples = std::move(all);
    return {};
  }

  /// What a CPU plugin's process took beside the workspace that it was given; false ends the walk.
  bool memory_of_plugin(const std::vector<Samples>& all) {
    std::int64_t held = -1, grown = -1;
    for (const Samples& samples : all) {
      held = std::max(held, samples.sides[1].held_bytes);
      grown = std::max(grown, samples.sides[1].grown_bytes);
    }
    const std::int64_t limit = rules_.cpu_arena_bytes * build_.device.multiprocessors;
    const char* const gate = "resources: memory of the plugin's process";
    const std::string target =
        fmt::format("<= {} KB, growth <= {} KB", limit / 1024, kMostGrowth / 1024);
    if (held < 0) {
      const std::string why = "the system does not tell what the plugin's process takes";
      record_.resources->push_back(
          {.name = "private_bytes", .status = CheckStatus::skipped, .reason = why});
      check(CheckKind::resources, gate, target, why, CheckStatus::skipped);
      reasons_.push_back({ReasonCode::tool_missing, "resources are unknown: " + why,
                          "a system with /proc/PID/smaps_rollup"});
      return true;
    }
    const bool inside = held <= limit, steady = grown <= kMostGrowth;
    record_.resources->push_back({.name = "private_bytes",
                                  .status = inside ? CheckStatus::pass : CheckStatus::fail,
                                  .value = held,
                                  .limit = limit});
    record_.resources->push_back({.name = "grown_bytes",
                                  .status = steady ? CheckStatus::pass : CheckStatus::fail,
                                  .value = grown,
                                  .limit = kMostGrowth});
    check(CheckKind::resources, gate, target,
          fmt::format("{} KB, of them {} KB grown in timed calls", held / 1024, grown / 1024),
          inside && steady ? CheckStatus::pass : CheckStatus::fail);
    if (inside && steady) return true;
    end_with({ReasonCode::resources,
              steady ? fmt::format("the plugin's process holds {} bytes of its own, limit {}", held,
                                   limit)
                     : fmt::format("the plugin's process grew by {} bytes in its timed calls, and "
                                   "may by {}: it keeps memory from call to call",
                                   grown, kMostGrowth),
              steady ? "smaller tiles, or the workspace that a kernel asks for"
                     : "free what a call takes, or ask for a workspace"});
    return false;
  }

  /// The candidate beside the peers that were asked for, at the primary shape. For the report
  /// alone.
  Status peers() {
    // As long as the primary shape was timed for.
    const double budget = rules_.budget_seconds / static_cast<double>(shapes_.size());
    auto result = isolated<PeersStep>(
        {.kind = StepKind::peers},
        [&](Activity& activity) {
          return gate_steps::peers(options_, policy_, rules_, shapes_.front(), budget, activity);
        },
        // Whatever ends the harness is no fault of the candidate's.
        [](const std::string& why) {
          PeersStep none;
          none.skipped = why;
          return none;
        });
    if (!result) return result.status();
    record_.peers = std::move(**result);
    return {};
  }

  /// A side whose launch failed or whose timed output was wrong ends the walk.
  bool failed_side(const FastStep& timed, const NamedProblem& shape, bool primary) {
    for (const std::size_t side : {1, 0, 2}) {
      if (side >= timed.checks.size()) continue;
      const SideCheck& seen = timed.checks[side];
      if (seen.fault == Fault::none) continue;
      const std::string& who = side == 1 ? options_.candidate : options_.baseline;
      record_.checklist.push_back(
          {kind_of_speed(primary), "FAST " + shape.name, "timed calls do the work",
           fmt::format("{}: {}", who, seen.failure), CheckStatus::fail, shape.name});
      if (side == 1) {
        end_with({reason_of(seen.fault), fmt::format("{} at {}: {}", who, shape.name, seen.failure),
                  ""});
      } else {
        end_with({ReasonCode::inconclusive,
                  fmt::format("the baseline {} at {}: {}", who, shape.name, seen.failure),
                  "a baseline that works"});
      }
      return true;
    }
    return false;
  }

  /// Blocks of another process. Batches may differ; the shortest bounds the timer's resolution.
  static void append(Samples& to, const Samples& from) {
    if (to.sides.empty()) {
      to = from;
      return;
    }
    for (std::size_t side = 0; side < to.sides.size(); ++side) {
      Side& kept = to.sides[side];
      const Side& more = from.sides[side];
      kept.batch = std::min(kept.batch, more.batch);
      kept.held_bytes = std::max(kept.held_bytes, more.held_bytes);
      kept.grown_bytes = std::max(kept.grown_bytes, more.grown_bytes);
    }
    to.blocks.insert(to.blocks.end(), from.blocks.begin(), from.blocks.end());
  }

  /// What GREEN of this gate never saw of what a problem may ask for: not promised by its verdict.
  std::vector<std::string> unseen() const {
    std::vector<std::string> out;
    if (shapes_.empty()) return out;
    for (const gate_steps::ClaimKind& kind : gate_steps::claim_kinds(options_, shapes_.front())) {
      bool seen = false;
      for (std::size_t i = 0; i < green_.size(); ++i)
        seen = seen || (green_[i] && kind.seen(shapes_[i].problem));
      std::string refused;
      for (const Claim& claim : claims_ ? claims_->claims : std::vector<Claim>()) {
        if (claim.kind != kind.name) continue;
        seen = seen || claim.tally.cases > 0;
        refused = claim.refused;
      }
      if (seen) continue;
      out.push_back(refused.empty() ? kind.name
                                    : fmt::format("{} (refused: {})", kind.name, refused));
    }
    // What no gate tries at all: kinds are tried one by one, in one type, at a few head dims.
    std::set<std::int64_t> head_dims;
    for (std::size_t i = 0; i < green_.size(); ++i)
      if (green_[i]) head_dims.insert(shapes_[i].problem.head_dim);
    for (const Claim& claim : claims_ ? claims_->claims : std::vector<Claim>())
      if (const auto problem = problem_of_text(claim.problem); problem && claim.tally.cases > 0)
        head_dims.insert(problem->head_dim);
    out.push_back(fmt::format("types other than {}", build_.dtype));
    if (!head_dims.empty())
      out.push_back(fmt::format("head dims other than {}", fmt::join(head_dims, ", ")));
    out.emplace_back("several of these kinds at once, but for those that are named together");
    std::map<std::string, std::string> ends;
    for (const std::optional<GreenStep>& step : green_)
      if (step) ends.insert(step->candidate.refused.begin(), step->candidate.refused.end());
    for (const auto& [name, why] : ends)
      out.push_back(fmt::format("the distribution {} (refused: {})", name, why));
    return out;
  }

  /// What was predicted of the step, and what came of it where its shape was timed.
  std::optional<GatePrediction> predicted() const {
    if (!prediction_.speedup) return std::nullopt;
    GatePrediction out{prediction_, std::nullopt};
    for (const GateTimes& times : record_.fast.value_or(std::vector<GateTimes>())) {
      if (times.shape == prediction_.shape && times.skipped.empty())
        out.outcome = outcome_of(*prediction_.speedup, times.speedup);
    }
    return out;
  }

  Result<GateResult> finish() {
    std::optional<Interval> primary;
    if (record_.fast && !record_.fast->empty() && record_.fast->front().skipped.empty())
      primary = record_.fast->front().deciding();
    GateVerdict& verdict = record_.verdict;
    verdict.decision = from_reasons(std::move(reasons_));
    verdict.advice =
        advise(verdict.decision, rules_.tree(rule_.tree), {options_.baseline, options_.candidate},
               primary, thresholds_.gate, predictions_);
    verdict.gate = thresholds_.gate;
    verdict.guard = thresholds_.guard;
    verdict.noise = thresholds_.noise;
    verdict.expected = prediction_.expected;
    verdict.original = prediction_.original;
    verdict.predicted = predicted();
    verdict.unseen = unseen();
    record_.plugins = plugins_json();
    record_.finished_utc = utc_time();
    record_.seconds = seconds_since(start_);

    GateResult result{std::move(record_), {}, {}};
    const json record = json_of(result.record);
    result.headline = gate_headline(record);
    result.written =
        write_file_atomically(job_.directory() / "gate.json", json_text(json_of(result), 1) + "\n");
    if (result.written)
      result.written = write_file_atomically(job_.directory() / "report.md", gate_markdown(record));
    return result;
  }

  Checkpoint job_;
  GateOptions options_;
  Policy policy_;
  GatePolicy rules_;
  ResourceLimits limits_;
  RungRule rule_;
  std::vector<Prediction> predictions_;
  Prediction prediction_;  // without words where the step has none
  const GateObserver& observer_;
  Clock::time_point start_;
  Thresholds thresholds_;
  GateRecord record_;
  std::vector<NamedProblem> shapes_;
  Walk walk_;
  BuildStep build_;
  std::vector<std::optional<GreenStep>> green_;  // beside shapes_
  std::optional<ClaimsStep> claims_;
  std::vector<Reason> reasons_;
  bool ended_ = false;  // nothing more is run
  std::string no_op_;
  bool plugin_memory_ = false;
  std::size_t done_ = 0, total_ = 3;
};

/// The limits that a gate under this policy holds kernels to: the library's and the policy's own. A row that
/// names nothing is an error with its line.
Result<ResourceLimits> load_limits(const Policy& policy) {
  auto limits = parse_resource_limits("policies/resources.toml", builtin_resource_limits());
  if (!limits) return limits;
  const auto own = parse_policy_limits("policy " + policy.name, policy.text);
  if (!own) return own;
  append(*limits, *own);
  std::vector<std::string> plugins;
  for (const PluginKernelRow& row : plugin_kernels()) plugins.push_back(row.id);
  const Result<DeviceCode>& code = own_device_code();
  if (Status status = check_names(*limits, code ? *code : DeviceCode(), plugins); !status)
    return status;
  return limits;
}

/// The texts of policies that are files of the caller's, for whoever wants to gate like this again:
/// those of this version stand in its repository.
json policy_texts(const GateOptions& options, const Policy& policy, const GatePolicy& rules) {
  json out = json::object();
  if (!options.gate_policy.empty())
    out["gate_policy"] = {
        {"file", options.gate_policy}, {"text", rules.text}, {"sha256", rules.sha256}};
  const auto builtin = builtin_policies();
  if (std::none_of(builtin.begin(), builtin.end(),
                   [&](const BuiltinPolicy& row) { return row.name == options.policy; }))
    out["policy"] = {{"file", options.policy}, {"text", policy.text}, {"sha256", policy.sha256}};
  return out;
}

Status check_options(const GateOptions& options) {
  const auto bad = [](const std::string& text) {
    return Status(StatusCode::invalid_argument, text);
  };
  if (const auto failure = load_plugins(options.plugins)) return failure->status;
  for (const auto& [id, option] :
       {std::pair(&options.baseline, "--baseline"), std::pair(&options.candidate, "--candidate")}) {
    if (id->empty()) return bad(fmt::format("{} is missing", option));
    if (auto subject = gate_steps::one_subject(*id, option); !subject) return subject.status();
  }
  if (options.seeds.empty()) return bad("--seeds: at least one seed is needed");
  if (options.gate && !(*options.gate > 0 && *options.gate < 1000))
    return bad("--gate: expected a speedup such as 1.10");
  if (options.budget_seconds && !(*options.budget_seconds > 0))
    return bad("--budget: expected seconds above 0");
  if (!options.peers.empty()) {
    PeerOptions ask;
    ask.sides = {options.candidate};
    for (const std::string& peer : options.peers) {
      if (!is_peer(peer))
        return bad(fmt::format("--peers {}: expected peers, such as peer:torch-cpu", peer));
      ask.sides.push_back(peer);
    }
    if (Status status = check_peers(ask); !status && status.code() == StatusCode::invalid_argument)
      return bad(fmt::format("--peers: {}", status.message()));
  }
  if (options.processes && (*options.processes < 1 || *options.processes > 100))
    return bad("--processes: possible are 1 to 100");
  return {};
}

}  // namespace

json json_of(const GateResult& result) {
  json out = json_of(result.record);
  out["headline"] = result.headline;
  return out;
}

Status check_gate(const GateOptions& options) {
  if (Status status = check_options(options); !status) return status;
  const auto policy = load_policy(options.policy);
  if (!policy) return policy.status();
  if (const auto rules = load_gate_policy(options.gate_policy); !rules) return rules.status();
  if (const auto limits = load_limits(*policy); !limits) return limits.status();
  // Which dtype is decided later; it does not change which names are known.
  const std::string dtype = options.dtype.empty() ? "fp16" : options.dtype;
  return gate_steps::shapes_of(options, *policy, dtype).status();
}

Result<GateResult> run_gate(const GateOptions& options, const fs::path& directory,
                            const std::vector<std::string>& argv, const GateObserver& observer) {
  if (Status status = check_gate(options); !status) return status;
  auto policy = load_policy(options.policy);
  if (!policy) return policy.status();
  auto rules = load_gate_policy(options.gate_policy);
  if (!rules) return rules.status();
  auto limits = load_limits(*policy);
  if (!limits) return limits.status();
  json head = {{"schema", kGateSchema},
               {"status", "running"},
               {"run_id", directory.filename().string()},
               {"utc", utc_time()},
               {"argv", argv},
               {"host", host_json(host_facts())},
               {"options", to_json(options)},
               {"build", gate_identity(*policy, *rules, options)}};
  if (json texts = policy_texts(options, *policy, *rules); !texts.empty())
    head["policies"] = std::move(texts);
  auto job = Checkpoint::begin(directory, std::move(head));
  if (!job) return job.status();
  hide_from_plugins(job->head_file());
  return Gate(std::move(*job), options, std::move(*policy), std::move(*rules), std::move(*limits),
              observer)
      .run();
}

Result<GateResult> resume_gate(const fs::path& directory, const GateObserver& observer) {
  auto job = Checkpoint::resume(directory, kGateSchema);
  if (!job) return job.status();
  hide_from_plugins(job->head_file());
  if (Status status = check_job_head(directory, job->head(), false); !status) return status;
  auto options = gate_options_from_json(job->head()["options"]);
  if (Status status = check_options(*options); !status) return status;
  auto policy = load_policy(options->policy);
  if (!policy) return policy.status();
  auto rules = load_gate_policy(options->gate_policy);
  if (!rules) return rules.status();
  auto limits = load_limits(*policy);
  if (!limits) return limits.status();
  if (const auto gap =
          gap_between(job->head()["build"], gate_identity(*policy, *rules, *options))) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: was begun {}; its steps would not belong together. Start a new "
                              "gate, or {}",
                              directory.string(), gap->begun, gap->remedy));
  }
  return Gate(std::move(*job), std::move(*options), std::move(*policy), std::move(*rules),
              std::move(*limits), observer)
      .run();
}

Result<std::vector<LadderStep>> run_ladder(const GateOptions& asked, const fs::path& directory,
                                           const std::vector<std::string>& argv,
                                           const GateObserver& observer) {
  // A walk that goes on does so with the options it was begun with.
  std::error_code error;
  GateOptions common = asked;
  if (fs::exists(directory / "job.json", error)) {
    auto job = Checkpoint::resume(directory, kLadderSchema);
    if (!job) return job.status();
    if (Status status = check_job_head(directory, job->head(), true); !status) return status;
    auto begun = gate_options_from_json(job->head()["options"]);
    common = std::move(*begun);
  } else {
    auto job = Checkpoint::begin(directory, {{"schema", kLadderSchema},
                                             {"utc", utc_time()},
                                             {"argv", argv},
                                             {"options", to_json(asked)}});
    if (!job) return job.status();
  }
  std::vector<LadderStep> steps;
  std::map<std::string, bool> built;
  for (const VariantInfo& variant : variants()) built[variant.id] = variant.built;
  for (const VariantInfo& variant : variants()) {
    if (variant.predecessor.empty()) continue;
    LadderStep step;
    step.baseline = variant.predecessor;
    step.candidate = variant.id;
    if (!variant.built || !built[step.baseline]) {
      step.skipped = fmt::format("{} is not built into this binary",
                                 variant.built ? step.baseline : step.candidate);
      steps.push_back(std::move(step));
      continue;
    }
    GateOptions options = common;
    options.baseline = step.baseline;
    options.candidate = step.candidate;
    const fs::path own = directory / step.candidate;
    fs::create_directories(own, error);
    if (error)
      return Status(StatusCode::internal,
                    fmt::format("cannot create {}: {}", own.string(), error.message()));
    // A ladder that was interrupted goes on: a rung's own job is resumed where it has one.
    auto result = fs::exists(own / "job.json", error) ? resume_gate(own, observer)
                                                      : run_gate(options, own, argv, observer);
    if (!result) {
      const StatusCode code = result.status().code();
      if (code != StatusCode::no_device && code != StatusCode::unsupported) return result.status();
      step.skipped = result.status().message();
    } else if (!result->written) {
      return result->written;
    } else {
      step.decision = result->decision().outcome;
      step.exit_code = result->decision().exit_code;
      step.headline = result->headline.front();
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace greenfast::workbench
