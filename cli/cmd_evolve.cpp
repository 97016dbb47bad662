// greenfast evolve: tries sources that another process proposes.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/search_options.hpp"
#include "workbench/search/evolve.hpp"
#include "workbench/search/tune.hpp"

namespace greenfast::cli {
namespace {

namespace fs = std::filesystem;
using workbench::kUsage;

struct EvolveOptions {
  std::vector<std::string> what;
  std::string proposer;
  int candidates = 16;
  double patience = 600;
  SearchOptions search;
};

int run_evolve(const EvolveOptions& options) {
  const fs::path source = options.what.front();
  std::error_code error;
  if (!fs::is_regular_file(source, error) || !workbench::is_plugin_source(source))
    throw Failure(kUsage,
                  fmt::format("{}: expected a plugin's source (.c, .cpp, .cu)", source.string()));
  if (options.proposer.empty())
    throw Failure(kUsage, "--proposer COMMAND is needed: who proposes sources (docs/evolve.md)");
  if (options.candidates < 1) throw Failure(kUsage, "--candidates: at least 1");
  if (!(options.patience > 0)) throw Failure(kUsage, "--patience: more than 0 seconds");
  SearchDisplay display(options.search.as_json);
  workbench::EvolveOptions evolve;
  evolve.source = source;
  evolve.proposer = options.proposer;
  evolve.candidates = options.candidates;
  evolve.proposal_seconds = options.patience;
  evolve.lab = options.search.lab("evolve", source.stem().string(), source, "", display);
  // What the source includes is found from where its children lie as well.
  evolve.lab.compile.flags += " -I" + fs::absolute(source).parent_path().string();
  return search_or_interrupted(display, evolve.lab.cache, [&] {
    const nlohmann::json result = workbench::evolve(evolve);
    display.clear();
    const fs::path record =
        write_search_record(result, fs::absolute(evolve.lab.cache).parent_path(), "evolve.json");
    if (options.search.as_json) {
      fmt::print("{}\n", result.dump(1));
    } else {
      fmt::print("{}{} candidates, {} rejected\nsource: {}\nrecord: {}\n",
                 workbench::search_text(result), result["lineage"].size() - 1,
                 result["rejected"].size(), result["winner_file"].get<std::string>(),
                 record.string());
    }
    return workbench::exit_code_of_search(result);
  });
}

}  // namespace

Action define_evolve(OptionSet& set) {
  auto options = std::make_shared<EvolveOptions>();
  set.positional("source", &options->what, 1, 1, "A plugin's source: what there is to improve");
  set.text("--proposer", &options->proposer, "COMMAND",
           "A shell command that answers JSON lines with sources (docs/evolve.md)");
  set.integer("--candidates", &options->candidates, "N", "Proposals to ask for (default: 16)");
  set.number("--patience", &options->patience, "SECONDS", "For one proposal (default: 600)");
  options->search.define(set);
  return [options](const Arguments&) {
    try {
      return run_evolve(*options);
    } catch (const workbench::LabError& error) {
      throw Failure(error.status());
    }
  };
}

}  // namespace greenfast::cli
