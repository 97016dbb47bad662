#include "workbench/verdict/gate_status.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <greenfast/attention.hpp>

#include "workbench/base/build_info.hpp"
#include "workbench/base/exit_code.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/verdict/gate.hpp"
#include "workbench/verdict/gate_policy.hpp"

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

/// What its build step found: name and whether it is refused, of each shape.
std::vector<std::pair<std::string, bool>> shapes_of(const fs::path& directory) {
  std::vector<std::pair<std::string, bool>> out;
  const auto saved = read_json(directory / "steps" / "build.json");
  if (!saved || !saved->is_object()) return out;
  const json& step = saved->contains("result") ? (*saved)["result"] : *saved;
  if (!step.is_object() || !step.contains("shapes")) return out;
  for (const json& shape : step["shapes"])
    out.emplace_back(shape.value("name", "?"),
                     !shape.value("refused", std::string()).empty() || shape.contains("skipped"));
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

Result<json> status_of_gate(const fs::path& directory, const json& head) {
  const auto options =
      head.contains("options")
          ? gate_options_from_json(head["options"])
          : Result<GateOptions>(Status(StatusCode::invalid_argument, "no options"));
  if (!options) return no_job(directory, "job.json holds " + options.status().message());
  json out = {{"schema", kGateStatusSchema},           {"directory", directory.string()},
              {"baseline", options->baseline},         {"candidate", options->candidate},
              {"utc", head.value("utc", "")},          {"steps", json::array()},
              {"exit_code", static_cast<int>(kDefer)}, {"verdict", nullptr}};
  std::error_code error;
  const fs::path record = directory / "gate.json";
  if (fs::exists(record, error)) {
    const auto gate = read_record(record);
    if (!gate) return gate.status();
    if (!gate->contains("verdict") || !(*gate)["verdict"].is_object())
      return no_job(directory, "gate.json holds no verdict");
    out["state"] = "finished";
    out["verdict"] = (*gate)["verdict"].value("decision", "?");
    out["exit_code"] = (*gate)["verdict"].value("exit_code", static_cast<int>(kInternal));
    for (const json& step : gate->value("steps", json::array()))
      out["steps"].push_back(
          {{"name", step.value("name", "")}, {"what", step.value("what", "")}, {"done", true}});
    out["next"] = fmt::format("greenfast report {}", shell_word(directory.string()));
    out["left"] = 0;
    out["done"] = out["steps"].size();
    return out;
  }
  int processes = 3;
  {
    const auto text = options->gate_policy.empty()
                          ? Result<std::string>(std::string(builtin_gate_policy()))
                          : read_file(options->gate_policy);
    if (!text) return Status(text.status().code(), "--gate-policy " + text.status().message());
    const auto rules = parse_gate_policy("gate policy", *text);
    if (!rules) return rules.status();
    processes = options->processes.value_or(rules->processes);
  }
  const auto add = [&](const std::string& name, const std::string& what) {
    out["steps"].push_back({{"name", name}, {"what", what}, {"done", done(directory, name)}});
  };
  add("build", "plans and refusals");
  const auto shapes = shapes_of(directory);
  // Which shapes there are, and which are refused, the first step finds.
  out["known"] = !shapes.empty();
  for (std::size_t i = 0; i < shapes.size(); ++i)
    if (!shapes[i].second) add(fmt::format("green.{}", i), "GREEN " + shapes[i].first);
  if (!shapes.empty()) add("claims", "GREEN of what else it takes");
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (shapes[i].second) continue;
    for (int p = 0; p < processes; ++p)
      add(fmt::format("fast.{}.{}", i, p),
          fmt::format("FAST {}, process {} of {}", shapes[i].first, p + 1, processes));
  }
  if (!shapes.empty() && !options->peers.empty()) add("peers", "beside peers");
  std::size_t left = 0;
  for (const json& step : out["steps"]) left += step["done"].get<bool>() ? 0 : 1;
  out["left"] = left;
  out["done"] = out["steps"].size() - left;
  const bool running = is_held(directory / "job.json");
  out["state"] = running ? "running" : "interrupted";
  out["foreign"] = is_foreign(head);
  out["next"] = running ? fmt::format("greenfast gate --status {}", shell_word(directory.string()))
                        : fmt::format("greenfast gate --resume {}", shell_word(directory.string()));
  return out;
}

Result<json> status_of_ladder(const fs::path& directory, const json& head) {
  json out = {{"schema", kGateStatusSchema},
              {"directory", directory.string()},
              {"utc", head.value("utc", "")},
              {"ladder", true},
              {"steps", json::array()},
              {"known", true},
              {"verdict", nullptr}};
  std::error_code error;
  std::vector<int> codes;
  std::size_t left = 0;
  bool running = is_held(directory / "job.json");
  const auto all = variants();
  for (const VariantInfo& variant : all) {
    if (variant.predecessor.empty() || !variant.built) continue;
    json step = {{"name", variant.id},
                 {"what", fmt::format("{} against {}", variant.id, variant.predecessor)},
                 {"done", false}};
    const fs::path own = directory / variant.id;
    if (fs::exists(own / "job.json", error)) {
      const auto rung = gate_status(own);
      if (!rung) return rung.status();
      step["done"] = (*rung)["state"] == "finished";
      running = running || (*rung)["state"] == "running";
      step["what"] = fmt::format(
          "{}: {}", plain(step["what"]),
          (*rung)["verdict"].is_string()
              ? plain((*rung)["verdict"])
              : fmt::format("{} of {} steps", plain((*rung)["done"]), (*rung)["steps"].size()));
      if (step["done"].get<bool>()) codes.push_back((*rung)["exit_code"].get<int>());
    }
    left += step["done"].get<bool>() ? 0 : 1;
    out["steps"].push_back(std::move(step));
  }
  const bool finished = fs::exists(directory / "ladder.json", error);
  if (finished) left = 0;
  if (!finished) codes.push_back(kDefer);
  out["left"] = left;
  out["done"] = out["steps"].size() - left;
  out["state"] = finished ? "finished" : running ? "running" : "interrupted";
  out["exit_code"] = worst_of(codes);
  out["next"] =
      finished ? fmt::format("greenfast report {}", shell_word(directory.string()))
      : running
          ? fmt::format("greenfast gate --status {}", shell_word(directory.string()))
          : fmt::format("greenfast gate --ladder --resume {}", shell_word(directory.string()));
  return out;
}

std::string head_line(const json& status) {
  const std::string what =
      status.contains("ladder")
          ? std::string("walk of the ladder")
          : fmt::format("{} against {}", plain(status["candidate"]), plain(status["baseline"]));
  return fmt::format("{}: {}, {} steps done, {}{} left, begun {}", plain(status["state"]), what,
                     plain(status["done"]), status.value("known", true) ? "" : "more than ",
                     plain(status["left"]), plain(status["utc"]));
}

}  // namespace

Result<json> gate_status(const fs::path& directory) {
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

std::string gate_status_text(const json& status) {
  std::string out = head_line(status) + "\n";
  for (const json& step : status["steps"])
    out +=
        fmt::format("  {} {}\n", step["done"].get<bool>() ? "done" : "left", plain(step["what"]));
  if (status["verdict"].is_string())
    out += fmt::format("verdict: {}, exit code {}\n", plain(status["verdict"]),
                       plain(status["exit_code"]));
  if (status.value("foreign", false) && status["state"] == "interrupted")
    out += "it was begun by another build of greenfast: only that one goes on with it\n";
  return out + fmt::format("next: {}\n", plain(status["next"]));
}

std::string gate_status_markdown(const json& status) {
  std::string out = head_line(status) + ". There is no verdict yet.\n\n";
  for (const json& step : status["steps"])
    out += fmt::format("- [{}] {}\n", step["done"].get<bool>() ? "x" : " ", plain(step["what"]));
  return out + fmt::format("\nNext:\n\n```\n{}\n```\n", plain(status["next"]));
}

}  // namespace greenfast::workbench
