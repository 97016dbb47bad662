// greenfast gate: PROMOTE, DEFER or REJECT a candidate against a baseline.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/interrupt.hpp"
#include "cli/plugin_options.hpp"
#include "cli/problem_options.hpp"
#include "workbench/base/atomic_file.hpp"
#include "workbench/base/checkpoint.hpp"
#include "workbench/base/clean_text.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/subjects/plugin/plugins.hpp"
#include "workbench/verdict/gate.hpp"
#include "workbench/verdict/gate_status.hpp"

namespace greenfast::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using workbench::GateObserver;
using workbench::GateOptions;
using workbench::Progress;
using workbench::Table;

struct GateFlags {
  GateOptions gate;
  PluginArguments plugins;
  std::string seeds = "0,1,2";
  std::string out = "results";
  std::string resume, status;
  std::string peers;
  bool ladder = false;
  bool as_json = false, as_markdown = false;
};

/// Progress on stderr; the result alone goes to stdout.
class Display {
 public:
  explicit Display(bool quiet) : progress_(stderr, quiet) {
    observer.step = [this](std::size_t done, std::size_t total, const std::string& what) {
      done_ = done;
      total_ = total;
      progress_.step(done, total, what);
    };
    observer.activity = [this](const std::string& what) {
      // Plain streams get a line for each finished step only.
      if (isatty_) progress_.step(done_, total_, what);
    };
    observer.finished = [this](const std::string& line) { progress_.finished(line); };
    observer.stop = [] { return interrupted(); };
  }
  void clear() { progress_.clear(); }

  GateObserver observer;

 private:
  Progress progress_;
  bool isatty_ = workbench::wants_color(stderr);
  std::size_t done_ = 0, total_ = 0;
};

int print_result(const workbench::GateResult& result, const GateFlags& options,
                 const fs::path& directory) {
  const json record = workbench::json_of(result);
  if (options.as_json) {
    fmt::print("{}\n", workbench::json_text(record, 1));
  } else if (options.as_markdown) {
    fmt::print("{}", workbench::gate_markdown(record));
  } else {
    fmt::print("{}\n", workbench::gate_text(record, workbench::wants_color(stdout)));
    if (result.written)
      fmt::print("record: {}\n", workbench::clean_line((directory / "gate.json").string()));
  }
  if (!result.written)
    throw Failure(workbench::kInternal, fmt::format("{} (resume with --resume {})",
                                                    result.written.message(), directory.string()));
  return result.decision().exit_code;
}

/// Runs a walk; stopped between two steps, it ends with what resumes it.
template <class Walk>
auto walk_or_stop(Display& display, const std::string& resume, const fs::path& directory,
                  const Walk& walk) {
  return unless_interrupted<workbench::GateStopped>(
      display,
      fmt::format("greenfast gate {} {} goes on after the last finished step", resume,
                  directory.string()),
      walk);
}

int walk_ladder(const GateFlags& options, const Arguments& arguments) {
  if (!options.resume.empty())  // what is no walk is refused before anything is written into it
    value_or_fail(workbench::Checkpoint::resume(options.resume, workbench::kLadderSchema));
  workbench::OutputDirectory directory =
      value_or_fail(options.resume.empty() ? workbench::OutputDirectory::open_unique(
                                                 options.out, workbench::utc_stamp() + "-ladder")
                                           : workbench::OutputDirectory::open(options.resume));
  Display display(options.as_json);
  const auto steps =
      value_or_fail(walk_or_stop(display, "--ladder --resume", directory.path(), [&] {
        return workbench::run_ladder(options.gate, directory.path(), arguments, display.observer);
      }));
  display.clear();

  using Align = Table::Align;
  Table table({{"candidate", Align::left},
               {"baseline", Align::left},
               {"verdict", Align::left},
               {"", Align::left}});
  json rows = json::array();
  std::vector<int> codes;
  for (const workbench::LadderStep& step : steps) {
    const std::string verdict(step.decision ? workbench::name_of(*step.decision) : "SKIPPED");
    const std::string& why = step.decision ? step.headline : step.skipped;
    table.add_row({step.candidate, step.baseline, verdict, why});
    rows.push_back({{"candidate", step.candidate},
                    {"baseline", step.baseline},
                    {"verdict", verdict},
                    {"reason", why},
                    {"exit_code", step.exit_code}});
    if (step.decision) codes.push_back(step.exit_code);
  }
  const int code = workbench::worst_of(codes);
  const json record = {{"schema", workbench::kLadderSchema}, {"steps", rows}, {"exit_code", code}};
  if (Status status = directory.write("ladder.json", workbench::json_text(record, 1) + "\n");
      !status)
    throw Failure(status);
  if (Status status = directory.write("ladder.md", table.markdown()); !status)
    throw Failure(status);
  if (options.as_json) {
    fmt::print("{}\n", workbench::json_text(record, 1));
  } else {
    fmt::print("{}\n{}record: {}\n", options.as_markdown ? table.markdown() : table.text(),
               codes.empty() ? "every rung was skipped\n" : "",
               workbench::clean_line((directory.path() / "ladder.json").string()));
  }
  return code;
}

int show_status(const GateFlags& options) {
  if (!options.resume.empty() || !options.gate.baseline.empty() || !options.gate.candidate.empty())
    throw Failure(workbench::kUsage,
                  fmt::format("--status {}: looks at a job and changes nothing; leave --resume, "
                              "--baseline and --candidate out",
                              options.status));
  const workbench::GateStatus status = value_or_fail(workbench::gate_status(options.status));
  fmt::print("{}", options.as_json ? workbench::json_text(workbench::json_of(status), 1) + "\n"
                                   : workbench::gate_status_text(status));
  return status.exit_code;
}

int run_gate(const GateFlags& given, const Arguments& arguments) {
  if (!given.status.empty()) return show_status(given);
  GateFlags options = given;
  if (!options.resume.empty()) {
    const GateOptions& g = options.gate;
    const bool more = !g.baseline.empty() || !g.candidate.empty() || !g.primary.empty() ||
                      !g.guards.empty() || !g.dtype.empty() || !g.causal.empty() ||
                      !g.gate_policy.empty() || g.policy != "strict" || g.hot || g.processes ||
                      !options.peers.empty() || options.seeds != GateFlags().seeds ||
                      g.budget_seconds || g.gate;
    if (more)
      throw Failure(
          workbench::kUsage,
          fmt::format("--resume {}: goes on as it was begun; leave what is measured and how "
                      "it is judged out, or start a new gate",
                      options.resume));
  }
  options.gate.seeds = parse_seeds(options.seeds);
  // What is loaded here is loaded beside the job's secret.
  if (!options.resume.empty()) workbench::hide_from_plugins(fs::path(options.resume) / "job.json");
  options.plugins.load();
  options.gate.plugins = options.plugins.options();
  options.gate.peers = split_list(options.peers);
  if (options.ladder) {
    if (!options.gate.baseline.empty() || !options.gate.candidate.empty())
      throw Failure(
          workbench::kUsage,
          "--ladder takes baselines and candidates from the registry; leave --baseline and "
          "--candidate out");
    return walk_ladder(options, arguments);
  }
  Display display(options.as_json);
  if (!options.resume.empty()) {
    const auto result = value_or_fail(walk_or_stop(display, "--resume", options.resume, [&] {
      return workbench::resume_gate(options.resume, display.observer);
    }));
    display.clear();
    return print_result(result, options, options.resume);
  }
  // Wrong arguments shall leave nothing behind.
  if (Status status = workbench::check_gate(options.gate); !status) throw Failure(status);
  auto directory = value_or_fail(
      workbench::OutputDirectory::open_unique(options.out, workbench::utc_stamp() + "-gate"));
  auto result = walk_or_stop(display, "--resume", directory.path(), [&] {
    return workbench::run_gate(options.gate, directory.path(), arguments, display.observer);
  });
  display.clear();
  if (!result.ok()) {
    const StatusCode code = result.status().code();
    const bool usage = code == StatusCode::unsupported || code == StatusCode::invalid_argument ||
                       code == StatusCode::no_device;
    if (usage) directory.discard();
    throw Failure(workbench::exit_code_of(code),
                  usage ? result.status().message()
                        : fmt::format("{} (resume with --resume {})", result.status().message(),
                                      directory.path().string()));
  }
  return print_result(*result, options, directory.path());
}

}  // namespace

Action define_gate(OptionSet& set) {
  auto options = std::make_shared<GateFlags>();
  set.text("--baseline", &options->gate.baseline, "ID", "What the candidate must beat");
  set.text("--candidate", &options->gate.candidate, "ID",
           "What is judged: a variant, plugin:NAME, mutant.NAME or honest.NAME");
  set.flag("--ladder", &options->ladder, "Walk every built rung against its predecessor");
  set.text("--resume", &options->resume, "DIR",
           "Go on after the last finished step of that directory");
  set.text("--status", &options->status, "DIR",
           "Show steps done and left of that directory and the next command, change nothing; ends "
           "with the verdict's exit code, 10 while there is none");
  options->plugins.define(set);
  set.heading("What is measured");
  set.text("--primary", &options->gate.primary, "SHAPE",
           "The shape that decides (default: the policy's, mission)");
  set.text("--guards", &options->gate.guards, "LIST",
           "Shapes that must not get slower; 'none' (default: the policy's, small,long)");
  set.text("--dtype", &options->gate.dtype, "DTYPE",
           "fp32, fp16, bf16, e4m3 (default: the first both sides accept)");
  set.text_or_bare("--causal", &options->gate.causal, "top-left",
                   "Causal mask: top-left or bottom-right");
  set.text("--seeds", &options->seeds, "LIST",
           "Seeds of GREEN; the first also of FAST (default: 0,1,2)");
  set.text("--peers", &options->peers, "LIST",
           "Also time the candidate beside these at the primary shape (peer:torch-cpu, "
           "peer:torch-cudnn, peer:fa3, ...)");
  set.flag("--hot", &options->gate.hot, "Time with inputs in the caches (default: cold)");
  set.heading("How it is judged");
  set.number("--gate", &options->gate.gate, "RATIO",
             "Speedup the lower bound must reach (default: the rung's or policy's, 1.10)");
  set.text("--policy", &options->gate.policy, "NAME",
           "Numerics policy, by name or file (default: strict)");
  set.text("--gate-policy", &options->gate.gate_policy, "FILE",
           "Instead of the built-in policies/gate.toml");
  set.number("--budget", &options->gate.budget_seconds, "SECONDS",
             "Of timing, all shapes together (default: 60)");
  set.integer("--processes", &options->gate.processes, "N",
              "Fresh processes a shape is timed in (default: 3)");
  set.heading("Output");
  set.text("--out", &options->out, "DIR", "Where the result directory is made (default: results)");
  set.flag("--json", &options->as_json, "Print the record as JSON");
  set.flag("--md", &options->as_markdown, "Print the report as Markdown");
  return [options](const Arguments& arguments) { return run_gate(*options, arguments); };
}

}  // namespace greenfast::cli
