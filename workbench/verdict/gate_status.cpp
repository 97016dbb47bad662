#include "workbench/verdict/gate_status.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include <greenfast/attention.hpp>

#include "workbench/base/build_info.hpp"
#include "workbench/base/exit_code.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/verdict/gate_options.hpp"
#include "workbench/verdict/gate_policy.hpp"
#include "workbench/verdict/gate_walk.hpp"
#include "workbench/verdict/step_results.hpp"

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Status no_job(const fs::path& directory, const std::string& why) {
  return Status(StatusCode::invalid_argument,
                fmt::format("{}: {}; --status takes the directory that a gate made",
                            directory.string(), why));
}

/// Whether a process is at work on it. A lock that could be had is given back at once.
bool is_held(const fs::path& head) {
  const int file = ::open(head.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool held = ::flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(file);
  return held;
}

bool done(const fs::path& directory, const std::string& step) {
  std::error_code error;
  return fs::exists(directory / "steps" / (step + ".json"), error);
}

/// What its build step found of its shapes; none where it is not done or ended without a result.
/// Throws json::exception for a step that is damaged.
std::vector<WalkShape> shapes_of(const fs::path& directory) {
  std::vector<WalkShape> out;
  const auto saved =
      read_json(directory / "steps" / (name_of(WalkStep{.kind = StepKind::build}) + ".json"));
  if (!saved) return out;
  const auto build = step_of_json<BuildStep>(*saved);
  if (!build) return out;
  for (const PlannedShape& shape : build->shapes)
    out.push_back({shape.name, !shape.refused.empty()});
  return out;
}

/// Whether this program is not the one that began it, and so may not go on with it.
bool is_foreign(const json& head) {
  const BuildInfo& info = build_info();
  const json begun = head.value("build", json::object());
  return begun.value("git_sha", "") != info.git_sha ||
         begun.value("git_diff_sha256", "") != info.git_diff_sha256 ||
         begun.value("compiler", "") != info.compiler || begun.value("flags", "") != info.flags;
}

/// Where gate.json lies beside the job, that it is over and with which verdict.
Result<GateStatus> finished_gate(GateStatus out, const fs::path& record) {
  const auto gate = read_record(record);
  if (!gate) return gate.status();
  const json verdict = gate->value("verdict", json());
  out.decision = verdict.is_object() ? parse_outcome(verdict.value("decision", "")) : std::nullopt;
  if (!out.decision) return no_job(out.directory, "gate.json holds no verdict");
  out.state = JobState::finished;
  out.exit_code = verdict.value("exit_code", static_cast<int>(kInternal));
  for (const json& step : gate->value("steps", json::array()))
    out.steps.push_back({step.value("name", ""), step.value("what", ""), true});
  out.next = fmt::format("greenfast report {}", shell_word(out.directory.string()));
  return out;
}

Result<GateStatus> status_of_gate(const fs::path& directory, const json& head) {
  const auto options =
      head.contains("options")
          ? gate_options_from_json(head["options"])
          : Result<GateOptions>(Status(StatusCode::invalid_argument, "no options"));
  if (!options) return no_job(directory, "job.json holds " + options.status().message());
  GateStatus out;
  out.directory = directory;
  out.baseline = options->baseline;
  out.candidate = options->candidate;
  out.utc = head.value("utc", "");
  out.exit_code = kDefer;
  std::error_code error;
  if (const fs::path record = directory / "gate.json"; fs::exists(record, error))
    return finished_gate(std::move(out), record);
  const auto text = options->gate_policy.empty()
                        ? Result<std::string>(std::string(builtin_gate_policy()))
                        : read_file(options->gate_policy);
  if (!text) return Status(text.status().code(), "--gate-policy " + text.status().message());
  const auto rules = parse_gate_policy("gate policy", *text);
  if (!rules) return rules.status();
  const Walk walk{.shapes = shapes_of(directory),
                  .processes = options->processes.value_or(rules->processes),
                  .peers = options->peers};
  for (const WalkStep& step : steps_of(walk))
    out.steps.push_back({name_of(step), describe(step, walk), done(directory, name_of(step))});
  out.known = !walk.shapes.empty();
  out.state = is_held(directory / "job.json") ? JobState::running : JobState::interrupted;
  out.foreign = is_foreign(head);
  out.next =
      fmt::format("greenfast gate --{} {}", out.state == JobState::running ? "status" : "resume",
                  shell_word(directory.string()));
  return out;
}

Result<GateStatus> status_of_ladder(const fs::path& directory, const json& head) {
  GateStatus out;
  out.directory = directory;
  out.ladder = true;
  out.utc = head.value("utc", "");
  std::error_code error;
  std::vector<int> codes;
  bool running = is_held(directory / "job.json");
  for (const VariantInfo& variant : variants()) {
    if (variant.predecessor.empty() || !variant.built) continue;
    JobStep step{variant.id, fmt::format("{} against {}", variant.id, variant.predecessor), false};
    const fs::path own = directory / variant.id;
    if (fs::exists(own / "job.json", error)) {
      const auto rung = gate_status(own);
      if (!rung) return rung.status();
      step.done = rung->state == JobState::finished;
      running = running || rung->state == JobState::running;
      step.what += rung->decision
                       ? fmt::format(": {}", name_of(*rung->decision))
                       : fmt::format(": {} of {} steps", rung->done(), rung->steps.size());
      if (step.done) codes.push_back(rung->exit_code);
    }
    out.steps.push_back(std::move(step));
  }
  if (fs::exists(directory / "ladder.json", error)) {
    out.state = JobState::finished;
    out.next = fmt::format("greenfast report {}", shell_word(directory.string()));
  } else {
    codes.push_back(kDefer);
    out.state = running ? JobState::running : JobState::interrupted;
    out.next = fmt::format("greenfast gate {} {}", running ? "--status" : "--ladder --resume",
                           shell_word(directory.string()));
  }
  out.exit_code = worst_of(codes);
  return out;
}

std::string head_line(const GateStatus& status) {
  const std::string what = status.ladder
                               ? std::string("walk of the ladder")
                               : fmt::format("{} against {}", status.candidate, status.baseline);
  return fmt::format("{}: {}, {} steps done, {}{} left, begun {}", name_of(status.state), what,
                     status.done(), status.known ? "" : "more than ", status.left(), status.utc);
}

}  // namespace

std::string_view name_of(JobState state) noexcept {
  switch (state) {
    case JobState::finished:
      return "finished";
    case JobState::running:
      return "running";
    case JobState::interrupted:
      return "interrupted";
  }
  return "";
}

std::size_t GateStatus::done() const {
  // A walk that is over leaves nothing, though it may have skipped rungs.
  if (state == JobState::finished) return steps.size();
  return static_cast<std::size_t>(
      std::count_if(steps.begin(), steps.end(), [](const JobStep& step) { return step.done; }));
}

Result<GateStatus> gate_status(const fs::path& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) return no_job(directory, "no such directory");
  if (!fs::exists(directory / "job.json", error))
    return no_job(directory, "holds no job (job.json is missing)");
  const auto head = read_json(directory / "job.json");
  if (!head) return head.status();
  const std::string schema =
      head->is_object() && head->contains("schema") ? plain((*head)["schema"]) : "missing";
  try {
    if (schema == kGateSchema) return status_of_gate(directory, *head);
    if (schema == kLadderSchema) return status_of_ladder(directory, *head);
  } catch (const json::exception& wrong) {
    return no_job(directory, fmt::format("a file of it is damaged ({})", wrong.what()));
  }
  return no_job(directory, fmt::format("job.json is of schema {}, no gate's", schema));
}

json json_of(const GateStatus& status) {
  json steps = json::array();
  for (const JobStep& step : status.steps)
    steps.push_back({{"name", step.name}, {"what", step.what}, {"done", step.done}});
  json out = {{"schema", kGateStatusSchema}, {"directory", status.directory.string()},
              {"utc", status.utc},           {"state", name_of(status.state)},
              {"steps", std::move(steps)},   {"known", status.known},
              {"done", status.done()},       {"left", status.left()},
              {"verdict", nullptr},          {"exit_code", status.exit_code},
              {"next", status.next}};
  if (status.decision) out["verdict"] = name_of(*status.decision);
  if (status.ladder) {
    out["ladder"] = true;
  } else {
    out["baseline"] = status.baseline;
    out["candidate"] = status.candidate;
    out["foreign"] = status.foreign;
  }
  return out;
}

std::string gate_status_text(const GateStatus& status) {
  std::string out = head_line(status) + "\n";
  for (const JobStep& step : status.steps)
    out += fmt::format("  {} {}\n", step.done ? "done" : "left", step.what);
  if (status.decision)
    out += fmt::format("verdict: {}, exit code {}\n", name_of(*status.decision), status.exit_code);
  if (status.foreign && status.state == JobState::interrupted)
    out += "it was begun by another build of greenfast: only that one goes on with it\n";
  return out + fmt::format("next: {}\n", status.next);
}

std::string gate_status_markdown(const GateStatus& status) {
  std::string out = head_line(status) + ". There is no verdict yet.\n\n";
  for (const JobStep& step : status.steps)
    out += fmt::format("- [{}] {}\n", step.done ? "x" : " ", step.what);
  return out + fmt::format("\nNext:\n\n```\n{}\n```\n", status.next);
}

}  // namespace greenfast::workbench
