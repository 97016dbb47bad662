// greenfast run, check and bench: GREEN, then FAST for what is right; GREEN alone; FAST after a quick
// look. One job that differs in what it leaves out.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "cli/command.hpp"
#include "cli/interrupt.hpp"
#include "cli/plugin_options.hpp"
#include "cli/problem_options.hpp"
#include "cli/select.hpp"
#include "workbench/base/atomic_file.hpp"
#include "workbench/base/clean_text.hpp"
#include "workbench/base/isolate.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/seconds_since.hpp"
#include "workbench/base/stdout_aside.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/record/record.hpp"
#include "workbench/record/resume.hpp"
#include "workbench/record/run_table.hpp"
#include "workbench/record/runner.hpp"

namespace greenfast::cli {
namespace {

using workbench::kUsage;

constexpr std::string_view kDefaultShapes = "small,mission";
constexpr std::string_view kRecordName = "run.json";

enum class RunKind { run, check, bench };

struct RunOptions {
  RunKind kind = RunKind::run;
  std::string shapes, inputs, variants, out, resume;
  std::string seeds = "0";
  std::string device = "auto";
  std::string policy = "strict";
  std::vector<std::string> set;
  std::optional<int> iters;
  int warmup = 10;
  std::optional<float> budget;
  bool hot = false;
  bool between = false;
  bool as_json = false;
  bool quiet = false;
  PluginArguments plugins;
  ProblemOptions problem;
};

std::string_view name_of(RunKind kind) {
  switch (kind) {
    case RunKind::check:
      return "check";
    case RunKind::bench:
      return "bench";
    default:
      return "run";
  }
}

workbench::MeasureOptions timing_of(const RunOptions& options, std::uint64_t seed) {
  workbench::MeasureOptions timing;
  timing.warmup = options.warmup;
  timing.seed = seed;
  // Whoever asks for a number of samples gets them; else p50 to 1%, within a budget.
  if (options.iters) {
    timing.iters = *options.iters;
    timing.budget_seconds = 1e9;
  } else {
    timing.target_halfwidth = 0.01;
  }
  if (options.budget) timing.budget_seconds = *options.budget;
  if (options.hot) timing.mode = workbench::CacheState::hot;
  timing.between = options.between;
  return timing;
}

/// The given shapes in a type that each variant takes, where no type was asked for.
std::vector<workbench::RunProblem> in_types_taken(const std::string& shapes,
                                                  const ProblemOptions& asked,
                                                  const workbench::RunPlan& plan) {
  std::vector<DType> types = {DType::f16, DType::bf16, DType::e4m3};
  if (plan.device->kind() == DeviceKind::cpu)
    types = {DType::f32, DType::f16, DType::bf16, DType::e4m3};
  std::map<DType, std::vector<workbench::NamedProblem>> problems;
  for (const DType dtype : types) {
    ProblemOptions options = asked;
    options.dtype = greenfast::name_of(dtype);
    problems[dtype] = problems_of(shapes, options, plan.device->kind());
  }
  std::vector<std::string> ids;
  for (const workbench::Subject* subject : plan.subjects) ids.push_back(subject->id());
  const auto takes = [&](const std::string& id, DType dtype) {
    for (workbench::Subject* subject : plan.subjects)
      for (const workbench::NamedProblem& named : problems[dtype])
        if (subject->id() == id && !subject->refusal(named.problem, plan.device->facts()))
          return true;
    return false;
  };
  const auto choices = workbench::choose_types(types, ids, takes);
  std::vector<workbench::RunProblem> out;
  for (const workbench::TypeChoice& choice : choices)
    for (workbench::NamedProblem named : problems[choice.dtype]) {
      if (choices.size() > 1) named.name += fmt::format(" {}", greenfast::name_of(choice.dtype));
      out.push_back({std::move(named), nullptr,
                     choices.size() > 1 ? choice.variants : std::vector<std::string>()});
    }
  return out;
}

std::vector<workbench::RunProblem> problems_to_run(const RunOptions& options,
                                                   const workbench::RunPlan& plan) {
  const DeviceKind device = plan.device->kind();
  std::vector<workbench::RunProblem> problems;
  std::string shapes = options.shapes;
  if (shapes.empty() && options.inputs.empty()) shapes = kDefaultShapes;
  if (!shapes.empty() && options.problem.dtype.empty()) {
    problems = in_types_taken(shapes, options.problem, plan);
  } else if (!shapes.empty()) {
    for (workbench::NamedProblem& p : problems_of(shapes, options.problem, device))
      problems.push_back({std::move(p), nullptr});
  }
  if (!options.inputs.empty()) {
    for (const auto& [name, value] : options.problem.asked()) {
      if (name == "accuracy") continue;
      throw Failure(kUsage,
                    fmt::format("--{} with --inputs: files hold dense Q, K and V alone; drop "
                                "one of the two",
                                name));
    }
    const auto captured = value_or_fail(workbench::read_captured(options.inputs));
    // Without --dtype the files decide, not the device.
    const bool as_stored = options.problem.dtype.empty();
    const auto defaults = options.problem.defaults(device);
    for (const workbench::ProblemDefaults& d : defaults) {
      std::string name = captured.q.file.filename().string();
      if (defaults.size() > 1) name += fmt::format(" {}", greenfast::name_of(d.dtype));
      problems.push_back(value_or_fail(workbench::make_captured_problem(
          captured, name, d, as_stored ? std::nullopt : std::optional(d.dtype))));
    }
  }
  const std::int64_t available = workbench::host_facts().memory_available_bytes;
  for (const workbench::RunProblem& p : problems) {
    const std::uint64_t needed = workbench::host_bytes(p.named.problem);
    if (needed > static_cast<std::uint64_t>(available))
      throw Failure(kUsage,
                    fmt::format("{} needs about {:.1f} GiB to be validated, {:.1f} are free: "
                                "choose a smaller shape",
                                to_string(p.named.problem), static_cast<double>(needed) * 0x1p-30,
                                static_cast<double>(available) * 0x1p-30));
  }
  return problems;
}

void refuse_to_time_instrumented(const std::string& variants) {
  const std::vector<std::string> asked = split_list(variants);
  for (const VariantInfo& variant : greenfast::variants())
    if (!variant.phases.empty() && std::find(asked.begin(), asked.end(), variant.id) != asked.end())
      throw Failure(kUsage, fmt::format("{} has clocks in it, its times say nothing: time {}, or "
                                        "see greenfast phases",
                                        variant.id, variant.derived_from));
}

// Where the record goes, checked before anything runs.
std::filesystem::path output_parent(const RunOptions& options) {
  return options.out.empty() ? "results" : options.out;
}

std::string write_record(const RunOptions& options, const std::string& stamp,
                         const std::string& text) {
  if (!options.resume.empty()) {
    auto directory = value_or_fail(workbench::OutputDirectory::open(options.resume));
    if (Status status = directory.write(kRecordName, text); !status.ok()) throw Failure(status);
    return (directory.path() / kRecordName).string();
  }
  const auto parent = output_parent(options);
  auto directory =
      value_or_fail(options.out.empty() ? workbench::OutputDirectory::open_unique(parent, stamp)
                                        : workbench::OutputDirectory::open(parent));
  if (Status status = directory.write(kRecordName, text); !status.ok()) throw Failure(status);
  return (directory.path() / kRecordName).string();
}

/// activity: of the child process this is, null in none.
int run_job(const RunOptions& options, const Arguments& argv, workbench::Activity* activity) {
  if (options.iters && *options.iters < 1)
    throw Failure(kUsage, fmt::format("--iters {}: at least 1", *options.iters));
  if (options.budget && !(*options.budget > 0))
    throw Failure(kUsage, fmt::format("--budget {}: more than 0 seconds", *options.budget));
  if (options.warmup < 0)
    throw Failure(kUsage, fmt::format("--warmup {}: at least 0", options.warmup));
  const bool resumes = !options.resume.empty();
  if (resumes && !options.inputs.empty())
    throw Failure(kUsage,
                  "--resume with --inputs: goes on after the last finished shape, and files are "
                  "one; begin anew");
  const bool writes = !options.as_json || !options.out.empty() || resumes;
  if (writes && !resumes)
    if (Status s = workbench::check_output_directory(output_parent(options)); !s.ok())
      throw Failure(s);

  workbench::RunPlan plan;
  plan.seeds = parse_seeds(options.seeds);
  plan.policy = value_or_fail(workbench::load_policy(options.policy));
  plan.fast = options.kind != RunKind::check;
  plan.quick = options.kind == RunKind::bench;
  plan.timing = timing_of(options, plan.seeds.front());
  if (plan.fast) refuse_to_time_instrumented(options.variants);
  if (!options.plugins.files.empty() && !options.variants.empty() &&
      options.variants.find("plugin:") == std::string::npos)
    workbench::say(stderr,
                   fmt::format("greenfast: --variants {} names none of the plugins' kernels: "
                               "{} is not used; add plugin:NAME\n",
                               options.variants, fmt::join(options.plugins.files, ", ")));
  Selected selected = select_subjects(options.device, options.variants, options.set);
  for (const std::string& note : selected.notes)
    workbench::say(stderr, fmt::format("greenfast: {}\n", note));
  plan.device = selected.device.get();
  if (options.between && plan.device->kind() != DeviceKind::cuda)
    throw Failure(kUsage,
                  "--between: calls on a CPU have no launch to hide; drop it, or ask for "
                  "--device cuda");
  for (const auto& subject : selected.subjects) plan.subjects.push_back(subject.get());
  plan.problems = problems_to_run(options, plan);

  workbench::RecordHead head = workbench::begin_record(std::string(name_of(options.kind)), argv);
  const std::string stamp = head.run_id.substr(0, head.run_id.find('-'));

  std::optional<workbench::EarlierRun> earlier;
  if (resumes) {
    earlier = value_or_fail(
        workbench::earlier_run(std::filesystem::path(options.resume) / kRecordName, head, plan));
    plan.finished = earlier->finished;
  }

  catch_interrupts();
  if (activity == nullptr) catch_crashes();
  workbench::Progress progress(stderr, options.quiet);
  workbench::RunObserver observer;
  std::string before;
  observer.step = [&](std::size_t done, std::size_t total, const std::string& what,
                      const std::string& subject) {
    if (activity != nullptr) {
      // A fault of the last step may show only now.
      if (const Status lost = plan.device->synchronize(); !lost && !before.empty())
        leave_broken_context(*activity, before,
                             fmt::format("the device reports: {}", lost.message()));
      // Without a subject several are timed in turn.
      activity->set(what, subject.empty() ? workbench::Actor::both : workbench::Actor::candidate,
                    subject);
      before = subject;
    }
    now_running(what);
    progress.step(done, total, what);
  };
  observer.row = [&](const workbench::RunRow& row) {
    progress.finished(fmt::format("{} {} on {}{}", workbench::name_of(row.verdict), row.variant,
                                  row.problem,
                                  row.cases > 0 ? fmt::format(", {} cases", row.cases) : ""));
  };
  observer.stop = [] { return interrupted(); };

  const auto start = std::chrono::steady_clock::now();
  workbench::RunResult result;
  {
    // A CUDA plugin prints in this process; its device's printf comes with a synchronisation.
    std::optional<workbench::StdoutAside> aside;
    if (activity != nullptr) aside.emplace();
    result = workbench::run(plan, observer);
    if (activity != nullptr) (void)plan.device->synchronize();
  }
  head.seconds = workbench::seconds_since(start);
  progress.clear();

  // An interrupted run that had nothing to say leaves nothing behind.
  const bool worth_writing = !result.interrupted || !result.cases.empty();
  nlohmann::json record = workbench::run_json(head, plan, result);
  if (earlier) {
    result = workbench::joined(*earlier, result);
    record = workbench::joined(*earlier, std::move(record), result);
  }
  const std::string text = workbench::json_text(record, 2) + '\n';
  std::string written;
  // What was measured is shown even where it cannot be kept.
  std::optional<Failure> unwritten;
  try {
    if (writes && worth_writing) written = write_record(options, stamp, text);
  } catch (const Failure& failure) {
    unwritten = failure;
  }
  if (options.as_json) {
    fmt::print("{}", text);
  } else {
    fmt::print("{}", workbench::run_table(plan, result, workbench::wants_color(stdout)));
    if (!written.empty()) fmt::print("Record: {}\n", workbench::clean_line(written));
  }
  if (unwritten) throw Failure(*unwritten);
  if (result.interrupted)
    throw Failure(
        workbench::kInterrupted,
        written.empty()
            ? "interrupted, nothing written"
            : fmt::format("interrupted; {0} holds what was finished, and the same "
                          "command with --resume {1} goes on after it",
                          written, std::filesystem::path(written).parent_path().string()));
  return result.exit_code;
}

Action define_run_like(OptionSet& set, RunKind kind) {
  auto options = std::make_shared<RunOptions>();
  options->kind = kind;
  std::vector<std::string_view> shape_names;
  for (const workbench::ShapeRow& row : workbench::shape_table()) shape_names.push_back(row.name);
  std::vector<std::string_view> suite_names;
  for (const workbench::SuiteRow& row : workbench::suite_table()) suite_names.push_back(row.name);
  std::vector<std::string_view> policy_names;
  for (const workbench::BuiltinPolicy& p : workbench::builtin_policies())
    policy_names.push_back(p.name);

  set.positional("file", &options->plugins.files, 0, 100,
                 "Kernels of yours, as with --plugin: mine.c, mine.cu, mine.so");
  set.text("--shapes", &options->shapes, "LIST",
           fmt::format("Names ({}), suites ({}) or BxHxSxD, with commas (default: {}; none with "
                       "--inputs)",
                       fmt::join(shape_names, ", "), fmt::join(suite_names, ", "), kDefaultShapes));
  set.text("--inputs", &options->inputs, "FILE",
           "Q, K, V from a .safetensors file (tensors q, k, v), from q.npy,k.npy,v.npy, or from a "
           "directory with those; [B, H, S, D], or [B, S, H, D] with --layout bshd");
  set.text("--seeds", &options->seeds, "LIST",
           "Seeds of the generated inputs, with commas (default: 0)");
  set.text("--variants", &options->variants, "LIST",
           "Ids (cpu.flash), patterns (cuda.*), ladder, auto, all; planted kernels as mutant.NAME, "
           "plugins as plugin:NAME "
           "(default: the plugins of --plugin; without, every variant built for the device)");
  set.repeated(
      "--set", &options->set, "NAME=VALUE",
      "A toggle of ladder variants: the built sibling of a named variant, or among several "
      "those that have it; repeatable");
  set.text("--device", &options->device, "DEVICE",
           "auto, cpu, cuda (default: auto, the variants' own, else a GPU if there is one)");
  set.text("--policy", &options->policy, "POLICY",
           fmt::format("Limits of GREEN: {}, or a TOML file (default: strict)",
                       fmt::join(policy_names, ", ")));
  if (kind != RunKind::check) {
    set.integer("--iters", &options->iters, "N",
                "Timed samples of each variant (default: until p50 is known to 1%, at most 100)");
    set.integer("--warmup", &options->warmup, "N", "Untimed calls before (default: 10)");
    set.number("--budget", &options->budget, "SECONDS",
               "Of timing, each problem (default: 10; with --iters none)");
    set.flag("--hot", &options->hot, "Time with inputs in the caches (default: fresh memory)");
  }
  if (kind == RunKind::bench)
    set.flag("--between", &options->between,
             "On a GPU: time calls behind an elementwise kernel, less the kernels alone");
  set.text("--out", &options->out, "DIR",
           "Directory for run.json (default: results/<UTC time>; with --json nothing is written "
           "unless this is given)");
  set.text("--resume", &options->resume, "DIR",
           "Go on where the same command was interrupted, after the last finished shape; DIR holds "
           "its run.json");
  set.flag("--json", &options->as_json, "Print the record to standard output, no table");
  set.flag("--quiet", &options->quiet, "No progress");
  options->plugins.define(set);
  options->problem.define(set);
  return [options](const Arguments& argv) {
    options->plugins.load();
    return run_isolated(options->plugins.timeout, [&](workbench::Activity* activity) {
      return run_job(*options, argv, activity);
    });
  };
}

}  // namespace

Action define_run(OptionSet& options) { return define_run_like(options, RunKind::run); }
Action define_check(OptionSet& options) { return define_run_like(options, RunKind::check); }
Action define_bench(OptionSet& options) { return define_run_like(options, RunKind::bench); }

}  // namespace greenfast::cli
