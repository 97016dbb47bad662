#include "workbench/verdict/gate_status.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include <greenfast/attention.hpp>

#include "workbench/base/checkpoint.hpp"
#include "workbench/base/exit_code.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/markdown.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/green/policy.hpp"
#include "workbench/verdict/gate_options.hpp"
#include "workbench/verdict/gate_policy.hpp"
#include "workbench/verdict/gate_walk.hpp"
#include "workbench/verdict/step_results.hpp"

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Status no_job(const fs::path& directory, const std::string& why) {
  return Status(
      StatusCode::invalid_argument,
      fmt::format("{}: {}; expected the directory that a gate made", directory.string(), why));
}

/// Whether a process is at work on it. A lock that could be had is given back at once.
bool is_held(const fs::path& head) {
  const int file = ::open(head.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool held = ::flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(file);
  return held;
}

Status damaged(const fs::path& file, const std::string& why, const std::string& remedy) {
  return Status(StatusCode::invalid_argument,
                fmt::format("{}: damaged: {}; {}", file.string(), why, remedy));
}

/// The steps that lie there: each is what this job saved, or is refused by its name.
template <class Step>
Status check_step(const Checkpoint& job, const std::string& name) {
  if (!job.finished(name)) return {};
  const auto saved = job.load(name);
  if (!saved) return saved.status();
  try {
    (void)step_of_json<Step>(*saved);
  } catch (const json::exception& error) {
    return damaged(job.directory() / "steps" / (name + ".json"), reason_of(error),
                   "delete this file, and resuming does the step again");
  }
  return {};
}

Status check_step(const Checkpoint& job, const WalkStep& step) {
  const std::string name = name_of(step);
  switch (step.kind) {
    case StepKind::build:
      return check_step<BuildStep>(job, name);
    case StepKind::green:
      return check_step<GreenStep>(job, name);
    case StepKind::claims:
      return check_step<ClaimsStep>(job, name);
    case StepKind::fast:
      return check_step<FastStep>(job, name);
    case StepKind::peers:
      return check_step<PeersStep>(job, name);
  }
  return {};
}

/// What its build step found of its shapes; none where it is not done, ended without a result, or
/// is another program's, in whose words nobody here reads.
std::vector<WalkShape> shapes_of(const Checkpoint& job) {
  std::vector<WalkShape> out;
  const std::string name = name_of(WalkStep{.kind = StepKind::build});
  if (!job.finished(name)) return out;
  const auto saved = job.load(name);
  if (!saved) return out;
  try {
    if (const auto build = step_of_json<BuildStep>(*saved))
      for (const PlannedShape& shape : build->shapes)
        out.push_back({shape.name, !shape.refused.empty()});
  } catch (const json::exception&) {
    out.clear();
  }
  return out;
}

/// What keeps this program from going on with it. Plugins are not compiled for that.
std::optional<IdentityGap> gap_of(const json& begun, const GateOptions& options) {
  const auto policy = load_policy(options.policy);
  if (!policy)
    return IdentityGap{
        fmt::format("under a policy that is not there now ({})", policy.status().message()),
        "put it back"};
  const auto rules = load_gate_policy(options.gate_policy);
  if (!rules)
    return IdentityGap{
        fmt::format("under a gate policy that is not there now ({})", rules.status().message()),
        "put it back"};
  json here = gate_identity(*policy, *rules, options);
  here["plugins"] = begun.value("plugins", json());
  if (!options.plugins.files.empty()) {
    // Nor is it known then on which device they run.
    const json cpu = begun.value("cpu", json());
    if (const auto facts = device_facts(DeviceKind::cpu); facts && cpu.is_object())
      here["cpu"] = {{"isa", facts->isa}, {"threads", facts->multiprocessors}};
    else
      here["cpu"] = cpu;
  }
  return gap_between(begun, here);
}

/// The command that began it, for who has to begin anew; of a rung of a ladder, that rung's.
std::string begin_anew(const json& head, const GateOptions* rung) {
  std::vector<std::string> words{"greenfast"};
  for (const json& item : head.at("argv")) {
    const std::string word = item.get<std::string>();
    if (rung != nullptr && word == "--ladder") {
      words.insert(words.end(), {"--baseline", rung->baseline, "--candidate", rung->candidate});
      continue;
    }
    words.push_back(shell_word(word));
  }
  return fmt::format("{}", fmt::join(words, " "));
}

/// Where gate.json lies beside the job, that it is over and with which verdict.
Result<GateStatus> finished_gate(GateStatus out, const fs::path& record) {
  const std::string remedy = fmt::format(
      "copy it again, or delete it, and greenfast gate --resume {} makes it anew from the finished "
      "steps",
      shell_word(out.directory.string()));
  const auto gate = read_record(record);
  if (!gate && gate.status().code() == StatusCode::invalid_argument)
    return damaged(record, "not valid JSON, perhaps truncated", remedy);
  if (!gate) return gate.status();
  try {
    const json& verdict = field::object(*gate, "verdict");
    const std::string decision = field::text(verdict, "decision");
    out.decision = parse_outcome(decision);
    if (!out.decision) field::wrong(fmt::format("{} is no decision", decision));
    out.exit_code = field::count_of<int>(verdict, "exit_code");
    const Outcome outcome = *out.decision;
    const bool fits = outcome == Outcome::promote ? out.exit_code == kPassed
                      : outcome == Outcome::defer
                          ? out.exit_code == kDefer
                          : out.exit_code >= kNumerics && out.exit_code <= kCrash;
    if (!fits) field::wrong(fmt::format("{} with exit code {}", decision, out.exit_code));
    for (const json& step : field::list(*gate, "steps", true))
      out.steps.push_back({field::text(step, "name"), field::text(step, "what"), true});
  } catch (const json::exception& error) {
    return damaged(record, reason_of(error), remedy);
  }
  out.state = JobState::finished;
  out.next = fmt::format("greenfast report {}", shell_word(out.directory.string()));
  return out;
}

Result<GateStatus> status_of_gate(const fs::path& directory) {
  const auto job = Checkpoint::look(directory, kGateSchema);
  if (!job) return job.status();
  const json& head = job->head();
  if (Status status = check_job_head(directory, head, false); !status) return status;
  const auto options = gate_options_from_json(head.at("options"));
  GateStatus out;
  out.directory = directory;
  out.baseline = options->baseline;
  out.candidate = options->candidate;
  out.utc = head.at("utc").get<std::string>();
  out.exit_code = kDefer;
  out.gap = gap_of(head.at("build"), *options);
  std::error_code error;
  if (const fs::path record = directory / "gate.json"; fs::exists(record, error))
    return finished_gate(std::move(out), record);
  // A policy that is not there any more stands in the gap; how many processes it asked for is not
  // known then.
  const auto rules = load_gate_policy(options->gate_policy);
  const Walk walk{.shapes = shapes_of(*job),
                  .processes = options->processes.value_or(rules ? rules->processes : 1),
                  .peers = options->peers};
  out.state = is_held(directory / "job.json") ? JobState::running : JobState::interrupted;
  // Another build's steps are that one's to judge.
  const bool ours = !out.gap;
  if (ours)
    if (Status status = check_step(*job, WalkStep{.kind = StepKind::build}); !status) return status;
  for (const WalkStep& step : steps_of(walk)) {
    if (ours)
      if (Status status = check_step(*job, step); !status) return status;
    out.steps.push_back({name_of(step), describe(step, walk), job->finished(name_of(step))});
  }
  out.known = !walk.shapes.empty();
  out.next = out.state == JobState::running
                 ? fmt::format("greenfast gate --status {}", shell_word(directory.string()))
             : out.gap ? begin_anew(head, &*options)
                       : fmt::format("greenfast gate --resume {}", shell_word(directory.string()));
  return out;
}

Result<GateStatus> status_of_ladder(const fs::path& directory) {
  const auto job = Checkpoint::look(directory, kLadderSchema);
  if (!job) return job.status();
  const json& head = job->head();
  if (Status status = check_job_head(directory, head, true); !status) return status;
  GateStatus out;
  out.directory = directory;
  out.ladder = true;
  out.utc = head.at("utc").get<std::string>();
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
      // A walk goes on through all of its rungs, the finished ones too.
      if (!out.gap) out.gap = rung->gap;
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
    out.next = running   ? fmt::format("greenfast gate --status {}", shell_word(directory.string()))
               : out.gap ? begin_anew(head, nullptr)
                         : fmt::format("greenfast gate --ladder --resume {}",
                                       shell_word(directory.string()));
  }
  out.exit_code = worst_of(codes);
  return out;
}

/// What stands in the way of a resume, as a sentence.
std::string gap_words(const IdentityGap& gap) {
  return fmt::format("greenfast gate --resume would refuse it: it was begun {}; {}, or begin anew",
                     gap.begun, gap.remedy);
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
  if (!head && head.status().code() != StatusCode::invalid_argument) return head.status();
  const std::string schema =
      head && head->is_object() && head->contains("schema") ? plain((*head)["schema"]) : "missing";
  if (head && schema != kGateSchema && schema != kLadderSchema)
    return no_job(directory, fmt::format("job.json is of schema {}, no gate's", schema));
  return schema == kLadderSchema ? status_of_ladder(directory) : status_of_gate(directory);
}

json json_of(const GateStatus& status) {
  json steps = json::array();
  for (const JobStep& step : status.steps)
    steps.push_back({{"name", step.name}, {"what", step.what}, {"done", step.done}});
  json out = {{"schema", kGateStatusSchema},
              {"directory", status.directory.string()},
              {"utc", status.utc},
              {"state", name_of(status.state)},
              {"steps", std::move(steps)},
              {"known", status.known},
              {"done", status.done()},
              {"left", status.left()},
              {"verdict", nullptr},
              {"exit_code", status.exit_code},
              {"foreign", status.gap.has_value()},
              {"next", status.next}};
  if (status.gap) out["refused"] = gap_words(*status.gap);
  if (status.decision) out["verdict"] = name_of(*status.decision);
  if (status.ladder) {
    out["ladder"] = true;
  } else {
    out["baseline"] = status.baseline;
    out["candidate"] = status.candidate;
  }
  return out;
}

std::string gate_status_text(const GateStatus& status) {
  std::string out = head_line(status) + "\n";
  for (const JobStep& step : status.steps)
    out += fmt::format("  {} {}\n", step.done ? "done" : "left", step.what);
  if (status.decision)
    out += fmt::format("verdict: {}, exit code {}\n", name_of(*status.decision), status.exit_code);
  if (status.gap && status.state == JobState::interrupted) out += gap_words(*status.gap) + "\n";
  return out + fmt::format("next: {}\n", status.next);
}

std::string gate_status_markdown(const GateStatus& status) {
  std::string out = head_line(status) + ". There is no verdict yet.\n\n";
  for (const JobStep& step : status.steps)
    out += fmt::format("- [{}] {}\n", step.done ? "x" : " ", step.what);
  if (status.gap && status.state == JobState::interrupted)
    out += fmt::format("\n{}\n", markdown_text(gap_words(*status.gap)));
  return out + fmt::format("\nNext:\n\n```\n{}\n```\n", status.next);
}

}  // namespace greenfast::workbench
