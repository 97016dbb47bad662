#include "cli/search_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/command.hpp"
#include "cli/interrupt.hpp"
#include "workbench/base/atomic_file.hpp"
#include "workbench/base/build_info.hpp"
#include "workbench/base/host.hpp"
#include "workbench/base/isolate.hpp"
#include "workbench/green/policy.hpp"

namespace greenfast::cli {

namespace fs = std::filesystem;
using workbench::kUsage;

void SearchDisplay::step(const std::string& what) {
  if (terminal_) progress_.step(done_, std::max(total, done_), what);
}

void SearchDisplay::finished(const std::string& line) {
  ++done_;
  progress_.finished(line);
}

void SearchOptions::define(OptionSet& set) {
  set.heading("What is measured");
  set.text("--primary", &primary, "SHAPE", "The shape candidates are timed on (default: mission)");
  set.text("--held-out", &held_out, "LIST",
           "Shapes of the finals besides; 'none' (default: small,long)");
  set.text("--device", &device, "DEVICE", "cpu or cuda (default: cuda for .cu, else cpu)");
  set.text("--policy", &policy, "NAME", "Numerics policy (default: strict)");
  set.integer("--finalists", &finalists, "N", "Candidates in the finals (default: 3)");
  set.flag("--hot", &hot, "Time with inputs in the caches (default: cold)");
  problem.define(set);
  set.heading("How it is run");
  set.text("--cache", &cache, "FILE",
           "Every result, as it is had; the same command goes on from it (default: "
           "results/<command>-<name>/cache.jsonl)");
  set.text("--kernel", &kernel, "NAME", "Of a plugin with several (default: its first)");
  set.text("--plugin-flags", &flags, "FLAGS", "More flags for the compiler");
  set.number("--plugin-timeout", &timeout, "SECONDS",
             "Of one call; longer is a hang (default: 60)");
  set.number("--plugin-memory", &memory, "GIB",
             "What a CPU candidate's process may allocate (default: 8)");
  set.integer("--jobs", &jobs, "N", "Compilers at once (default: one for each processor)");
  set.flag("--json", &as_json, "Print the result as JSON");
}

workbench::LabOptions SearchOptions::lab(const std::string& command, const std::string& name,
                                         const fs::path& source, const fs::path& tree,
                                         SearchDisplay& display) const {
  if (finalists < 1) throw Failure(kUsage, "--finalists: at least 1");
  if (!(timeout > 0)) throw Failure(kUsage, "--plugin-timeout: more than 0 seconds");
  if (!(memory > 0)) throw Failure(kUsage, "--plugin-memory: more than 0 GiB");
  if (device != "auto" && device != "cpu" && device != "cuda")
    throw Failure(kUsage, fmt::format("--device {}: possible are auto, cpu, cuda", device));
  const bool cuda = device == "cuda" || (device == "auto" && source.extension() == ".cu");
  const DeviceKind kind = cuda ? DeviceKind::cuda : DeviceKind::cpu;
  workbench::LabOptions lab;
  lab.problems = problems_of(primary, problem, kind);
  if (lab.problems.size() != 1)
    throw Failure(kUsage, fmt::format("--primary {}: names {} problems; one decides", primary,
                                      lab.problems.size()));
  if (held_out != "none")
    for (const workbench::NamedProblem& p : problems_of(held_out, problem, kind))
      if (!(p.problem == lab.problems.front().problem)) lab.problems.push_back(p);
  lab.policy = policy;
  const auto loaded = value_or_fail(workbench::load_policy(policy));
  lab.cache = cache.empty()
                  ? fs::path("results") / fmt::format("{}-{}", command, name) / "cache.jsonl"
                  : fs::path(cache);
  lab.kernel = kernel;
  lab.finalists = finalists;
  lab.compile.flags = flags;
  std::vector<fs::path> folders;
  if (!tree.empty()) {
    folders = {tree, tree / "src", tree / "include"};
    // A variant's source includes the kernel's by its path in the tree.
    if (fs::weakly_canonical(source).string().starts_with(
            fs::weakly_canonical(tree / "tune").string()))
      for (const fs::path& folder : folders) lab.compile.flags += " -I" + folder.string();
  }
  lab.timeout_seconds = timeout;
  lab.memory_gib = memory;
  lab.jobs = jobs > 0 ? jobs : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  lab.hot = hot;
  std::vector<std::string> texts;
  for (const workbench::NamedProblem& p : lab.problems) texts.push_back(to_string(p.problem));
  lab.identity = {{"name", name},
                  {"source_sha256", workbench::source_digest(source, folders)},
                  {"flags", flags},
                  {"kernel", kernel},
                  {"problems", texts},
                  {"policy", {{"name", loaded.name}, {"sha256", loaded.sha256}}},
                  {"mode", hot ? "hot" : "cold"},
                  {"version", workbench::build_info().version}};
  lab.step = [&display](const std::string& what) { display.step(what); };
  lab.finished = [&display](const std::string& line) { display.finished(line); };
  lab.stop = [] { return interrupted(); };
  return lab;
}

int search_or_interrupted(SearchDisplay& display, const fs::path& cache,
                          const std::function<int()>& search) {
  return unless_interrupted<workbench::LabStopped>(
      display, fmt::format("{} holds what was finished: the same command goes on", cache.string()),
      search);
}

Failure failure_of(const workbench::LabError& error) {
  const int code = workbench::exit_code_of(error.fault());
  return code == workbench::kPassed ? Failure(error.status()) : Failure(code, error.what());
}

fs::path write_search_record(const nlohmann::json& result, const fs::path& folder,
                             const std::string& name) {
  const fs::path record = folder / name;
  if (Status status = workbench::write_file_atomically(record, result.dump(1) + "\n"); !status)
    throw Failure(status);
  return record;
}

}  // namespace greenfast::cli
