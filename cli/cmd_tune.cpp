// greenfast tune: searches the configurations of a kernel's source.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/command.hpp"
#include "cli/search_options.hpp"
#include "workbench/base/clean_text.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/search/tune.hpp"
#include "workbench/subjects/plugin/toolchain.hpp"

namespace greenfast::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using workbench::kUsage;

struct TuneOptions {
  std::vector<std::string> what;
  std::string strategy = "halving";
  std::string tree, simulate;
  int candidates = 32, seed = 0;
  bool compile_only = false;
  SearchOptions search;
};

/// The source of what was asked for: a file, or tune/<id>.cu of the source tree for a variant.
fs::path source_of(const TuneOptions& options) {
  const std::string& what = options.what.front();
  std::error_code error;
  if (fs::is_regular_file(what, error)) return what;
  const fs::path tree =
      options.tree.empty() ? fs::path(workbench::toolchain::kSourceTree) : fs::path(options.tree);
  for (const char* extension : {".cu", ".cpp"}) {
    const fs::path file = tree / "tune" / (what + extension);
    if (fs::is_regular_file(file, error)) return file;
  }
  std::vector<std::string> known;
  for (fs::directory_iterator it(tree / "tune", error), end; !error && it != end;
       it.increment(error))
    if (it->path().extension() == ".cu" || it->path().extension() == ".cpp")
      known.push_back(it->path().stem().string());
  std::sort(known.begin(), known.end());
  throw Failure(kUsage,
                fmt::format("{}: neither a source file nor a variant that can be tuned; {}", what,
                            known.empty() ? fmt::format("{} has no tune folder: name a checkout "
                                                        "with --tree",
                                                        tree.string())
                                          : fmt::format("those are {}", fmt::join(known, ", "))));
}

workbench::Strategy strategy_of(const std::string& name) {
  std::vector<std::string_view> names;
  for (const workbench::StrategyRow& row : workbench::strategy_table()) {
    if (row.name == name) return row.id;
    names.push_back(row.name);
  }
  throw Failure(kUsage,
                fmt::format("--strategy {}: possible are {}", name, fmt::join(names, ", ")));
}

int finish(const TuneOptions& options, const json& result, const fs::path& folder) {
  fs::path record;
  if (options.simulate.empty()) record = write_search_record(result, folder, "tune.json");
  if (options.search.as_json) {
    fmt::print("{}\n", result.dump(1));
  } else {
    fmt::print("{}", workbench::search_text(result));
    if (!record.empty()) fmt::print("record: {}\n", workbench::clean_line(record.string()));
  }
  return workbench::exit_code_of_search(result);
}

int simulate(const TuneOptions& options) {
  const auto head = value_or_fail(workbench::Lab::read_identity(options.simulate));
  workbench::TuneOptions tune;
  workbench::TuneSpace space;
  try {
    const json& identity = head["identity"];
    space = value_or_fail(workbench::make_space(
        options.simulate, identity.at("parameters").get<std::vector<std::string>>(),
        identity.at("conditions").get<std::vector<std::string>>()));
    const json& search = identity.at("search");
    tune.strategy = strategy_of(search.at("strategy"));
    tune.candidates = search.at("candidates");
    tune.seed = search.at("seed");
    tune.lab.finalists = search.at("finalists");
    tune.lab.seed = tune.seed;
  } catch (const json::exception& error) {
    throw Failure(kUsage, fmt::format("--simulate {}: its first line lacks what a search is made "
                                      "of ({})",
                                      options.simulate, workbench::reason_of(error)));
  }
  // The shapes are those of the cache; their number alone matters to nobody here.
  tune.lab.problems.resize(1);
  tune.lab.cache = options.simulate;
  tune.lab.simulate = true;
  return finish(options, workbench::tune("", space, tune), "");
}

int run_tune(const TuneOptions& options) {
  if (!options.simulate.empty()) {
    if (!options.what.empty())
      throw Failure(kUsage, "--simulate takes everything from the cache; leave the source out");
    return simulate(options);
  }
  if (options.what.size() != 1)
    throw Failure(kUsage, "a source file or a variant is needed, or --simulate FILE");
  if (options.candidates < 1) throw Failure(kUsage, "--candidates: at least 1");
  if (options.seed < 0) throw Failure(kUsage, "--seed: at least 0");
  const fs::path source = source_of(options);
  const std::string text = value_or_fail(workbench::read_file(source));
  const auto space = value_or_fail(workbench::parse_space(source.string(), text));

  workbench::TuneOptions tune;
  tune.strategy = strategy_of(options.strategy);
  tune.candidates = options.candidates;
  tune.seed = static_cast<std::uint64_t>(options.seed);
  const fs::path tree =
      options.tree.empty() ? fs::path(workbench::toolchain::kSourceTree) : fs::path(options.tree);
  const std::string name = source.stem().string();
  std::vector<std::string> parameters;
  for (const workbench::TuneParameter& p : space.parameters) parameters.push_back(to_string(p));
  SearchDisplay display(options.search.as_json);
  tune.lab = options.search.lab("tune", name, source, tree, display);
  tune.lab.seed = tune.seed;
  tune.lab.identity["parameters"] = parameters;
  tune.lab.identity["conditions"] = space.conditions;
  tune.lab.identity["search"] = {{"strategy", options.strategy},
                                 {"candidates", options.candidates},
                                 {"seed", options.seed},
                                 {"finalists", options.search.finalists}};
  return search_or_interrupted(display, tune.lab.cache, [&] {
    if (options.compile_only) {
      const auto points = workbench::compile_all(source, space, tune);
      display.clear();
      // Without the hand-set one, which is the first, there is nothing to search from.
      if (const workbench::CompiledPoint& hand = points.front(); !hand.ok())
        throw Failure(
            workbench::kUsage,
            fmt::format("--compile-only: the hand-set configuration {} is refused: {} (an "
                        "architecture is named by --plugin-flags=-arch=sm_90a)",
                        hand.key, hand.reason.substr(0, hand.reason.find('\n'))));
      std::size_t compiled = 0;
      for (const workbench::CompiledPoint& point : points) {
        compiled += point.ok() ? 1 : 0;
        if (!point.ok()) fmt::print("{}: {}\n", point.key, point.reason);
      }
      fmt::print("compiled: {} of {}, in {}\n", compiled, points.size(), tune.lab.cache.string());
      return static_cast<int>(workbench::kPassed);
    }
    const json result = workbench::tune(source, space, tune);
    display.clear();
    return finish(options, result, fs::absolute(tune.lab.cache).parent_path());
  });
}

}  // namespace

Action define_tune(OptionSet& set) {
  auto options = std::make_shared<TuneOptions>();
  set.positional("what", &options->what, 0, 1,
                 "A plugin's source with // tune: lines, or a variant that has them");
  std::string strategies;
  for (const workbench::StrategyRow& row : workbench::strategy_table())
    strategies += fmt::format("{}{}: {}", strategies.empty() ? "" : "; ", row.name, row.use);
  set.text("--strategy", &options->strategy, "NAME", strategies + " (default: halving)");
  set.integer("--candidates", &options->candidates, "N",
              "Configurations to try; exhaustive tries all (default: 32)");
  set.integer("--seed", &options->seed, "N", "Of the search and of the inputs (default: 0)");
  set.text("--tree", &options->tree, "DIR",
           "Checkout with the variants' sources (default: the one this was built from)");
  set.flag("--compile-only", &options->compile_only,
           "Compile every configuration (--strategy random: --candidates of them) into the cache's "
           "folder, say which are refused and why, and stop; needs no device");
  set.text("--simulate", &options->simulate, "FILE",
           "Walk the search that this cache recorded, without compiler or device");
  options->search.define(set);
  return [options](const Arguments&) {
    try {
      return run_tune(*options);
    } catch (const workbench::LabError& error) {
      throw failure_of(error);
    }
  };
}

}  // namespace greenfast::cli
