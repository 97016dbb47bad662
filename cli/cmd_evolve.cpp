// greenfast evolve: tries sources that another process proposes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.hpp"
#include "cli/search_options.hpp"
#include "workbench/base/atomic_file.hpp"
#include "workbench/base/build_info.hpp"
#include "workbench/base/clean_text.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/search/evolve.hpp"
#include "workbench/search/rung.hpp"
#include "workbench/search/tune.hpp"
#include "workbench/subjects/plugin/toolchain.hpp"

namespace greenfast::cli {
namespace {

namespace fs = std::filesystem;
using workbench::kUsage;

struct EvolveOptions {
  std::vector<std::string> what;
  std::string proposer, tree, profile, simulate;
  int candidates = 16;
  double patience = 600;
  bool compile_only = false;
  SearchOptions search;
};

/// What is evolved: a file, or a rung of the ladder that becomes one beside the cache.
struct Start {
  fs::path source;
  std::string name;
  fs::path tree;  // of a rung
};

/// Architectures for a rung's source, of those of this build those that the rung runs on.
std::string arch_flags(int min_arch) {
  std::string out;
  for (const std::string& arch : split_list(workbench::build_info().cuda_archs))
    if (std::atoi(arch.c_str()) >= min_arch)
      out += fmt::format(" -gencode=arch=compute_{0},code=sm_{0}", arch);
  return out.empty() ? fmt::format(" -arch=sm_{}{}", min_arch, min_arch == 90 ? "a" : "") : out;
}

Start start_of(EvolveOptions& options) {
  const std::string& what = options.what.front();
  std::error_code error;
  if (fs::is_regular_file(what, error)) {
    if (!workbench::is_plugin_source(what))
      throw Failure(kUsage, fmt::format("{}: expected a plugin's source (.c, .cpp, .cu)", what));
    return {what, fs::path(what).stem().string(), {}};
  }
  const fs::path tree = fs::absolute(
      options.tree.empty() ? fs::path(workbench::toolchain::kSourceTree) : fs::path(options.tree));
  const std::string text = value_or_fail(workbench::rung_source(tree, what));
  const auto variants = greenfast::variants();
  const auto rung = std::find_if(variants.begin(), variants.end(),
                                 [&](const VariantInfo& variant) { return variant.id == what; });
  // Of a rung that takes one type alone nobody need name it.
  if (options.search.problem.dtype.empty() && rung->takes.hold(Features{Feature::in_e4m3}))
    options.search.problem.dtype = "e4m3";
  SearchOptions& search = options.search;
  if (search.flags.find("-arch") == std::string::npos &&
      search.flags.find("-gencode") == std::string::npos)
    search.flags += arch_flags(rung->min_arch);
  if (search.cache.empty())
    search.cache = (fs::path("results") / fmt::format("evolve-{}", what) / "cache.jsonl").string();
  const fs::path source = fs::absolute(search.cache).parent_path() / fmt::format("{}.cu", what);
  fs::create_directories(source.parent_path(), error);
  if (const auto there = workbench::read_file(source); !there || *there != text)
    if (Status status = workbench::write_file_atomically(source, text); !status)
      throw Failure(status);
  return {source, what, tree};
}

/// What a recorded profile says of a variant; of a file's kernels, all that it says.
std::vector<std::string> advice_of(const std::string& file, const std::string& variant) {
  std::vector<std::string> out, known;
  if (file.empty()) return out;
  const auto text = workbench::read_file(file);
  if (!text) throw Failure(kUsage, "--profile " + text.status().message());
  const auto profile = nlohmann::json::parse(*text, nullptr, false);
  if (!profile.is_object() || !profile.contains("sides") || !profile["sides"].is_array())
    throw Failure(
        kUsage, fmt::format("--profile {}: expected the profile.json of greenfast profile", file));
  for (const auto& side : profile["sides"]) {
    const std::string id = side.value("variant", "");
    known.push_back(id);
    if (!variant.empty() && id != variant) continue;
    for (const char* part : {"findings", "advice"})
      for (const auto& line : side.value(part, nlohmann::json::array()))
        if (line.is_string()) out.push_back(line.get<std::string>());
  }
  if (out.empty())
    throw Failure(kUsage,
                  fmt::format("--profile {}: says nothing of {}; it is of {}", file,
                              variant.empty() ? "any kernel" : variant, fmt::join(known, ", ")));
  return out;
}

/// What became of each proposal where nothing was run.
int print_compiled(const EvolveOptions& options, const nlohmann::json& result) {
  std::size_t good = 0;
  for (const auto& row : result["lineage"]) good += row["ok"].get<bool>() ? 1 : 0;
  if (options.search.as_json) {
    fmt::print("{}\n", result.dump(1));
  } else {
    using Align = workbench::Table::Align;
    workbench::Table table({{"id", Align::left},
                            {"from", Align::left},
                            {"registers"},
                            {"compiles", Align::left},
                            {"what was changed", Align::left}});
    for (const auto& row : result["lineage"]) {
      const std::string reason = row.value("reason", "");
      table.add_row(
          {row["id"].get<std::string>(),
           fmt::format("{}", fmt::join(row["parents"].get<std::vector<std::string>>(), ", ")),
           row.contains("resources") ? fmt::format("{}", row["resources"]["registers"].get<int>())
                                     : "-",
           row["ok"].get<bool>() ? "yes" : reason.substr(0, reason.find('\n')),
           row["note"].get<std::string>()});
    }
    fmt::print("{}{} of {} compile, none was run\nsources: {}\n", table.text(), good,
               result["lineage"].size(), result["folder"].get<std::string>());
  }
  // The first is what there was.
  return good > 1 || result["lineage"].size() == 1 ? workbench::kPassed : workbench::kDefer;
}

int run_evolve(EvolveOptions& options) {
  if (options.proposer.empty())
    throw Failure(kUsage, "--proposer COMMAND is needed: who proposes sources (docs/evolve.md)");
  if (options.candidates < 1) throw Failure(kUsage, "--candidates: at least 1");
  if (!(options.patience > 0)) throw Failure(kUsage, "--patience: more than 0 seconds");
  const bool simulates = !options.simulate.empty();
  if (simulates && options.compile_only)
    throw Failure(kUsage, "--simulate runs nothing and compiles nothing: leave --compile-only out");
  if (simulates && !options.search.cache.empty())
    throw Failure(kUsage, "--simulate reads its cache and writes none: leave --cache out");
  // What it is shown of sources again is nobody's to keep.
  std::optional<workbench::ScratchFolder> scratch;
  if (simulates) {
    scratch.emplace(value_or_fail(workbench::ScratchFolder::make("evolve")));
    options.search.cache = (scratch->path() / "cache.jsonl").string();
  }
  const Start start = start_of(options);
  const fs::path& source = start.source;
  SearchDisplay display(options.search.as_json);
  workbench::EvolveOptions evolve;
  evolve.source = source;
  evolve.compile_only = options.compile_only;
  evolve.advice = advice_of(options.profile, start.tree.empty() ? "" : start.name);
  evolve.proposer = options.proposer;
  evolve.candidates = options.candidates;
  evolve.proposal_seconds = options.patience;
  evolve.lab = options.search.lab("evolve", start.name, source, start.tree, display);
  evolve.folder = fs::absolute(evolve.lab.cache).parent_path() / "candidates";
  if (simulates) {
    evolve.lab.cache = options.simulate;
    evolve.lab.simulate = true;
  }
  // What the source includes is found from where its children lie as well.
  if (start.tree.empty())
    evolve.lab.compile.flags += " -I" + fs::absolute(source).parent_path().string();
  else
    for (const char* folder : {"", "src", "include"})
      evolve.lab.compile.flags += " -I" + (start.tree / folder).string();
  return search_or_interrupted(display, evolve.lab.cache, [&] {
    const nlohmann::json result = workbench::evolve(evolve);
    display.clear();
    if (options.compile_only) return print_compiled(options, result);
    const fs::path folder = evolve.folder.parent_path();
    fs::path record;
    if (!simulates) record = write_search_record(result, folder, "evolve.json");
    if (options.search.as_json) {
      fmt::print("{}\n", result.dump(1));
    } else {
      fmt::print("{}{} candidates, {} rejected\n", workbench::search_text(result),
                 result["lineage"].size() - 1, result["rejected"].size());
      const fs::path winner = result["winner"] == result["hand_set"]
                                  ? source
                                  : folder / result["winner_file"].get<std::string>();
      if (!simulates)
        fmt::print("source: {}\nrecord: {}\n", workbench::clean_line(winner.string()),
                   workbench::clean_line(record.string()));
    }
    return workbench::exit_code_of_search(result);
  });
}

}  // namespace

Action define_evolve(OptionSet& set) {
  auto options = std::make_shared<EvolveOptions>();
  set.positional("what", &options->what, 1, 1,
                 "What there is to improve: a plugin's source, or a rung of the ladder");
  set.text("--proposer", &options->proposer, "COMMAND",
           "A shell command that answers JSON lines with sources (docs/evolve.md)");
  set.integer("--candidates", &options->candidates, "N", "Proposals to ask for (default: 16)");
  set.number("--patience", &options->patience, "SECONDS", "For one proposal (default: 600)");
  set.text("--tree", &options->tree, "DIR",
           "Checkout with the rungs' sources (default: the one this was built from)");
  set.text("--profile", &options->profile, "FILE",
           "A profile.json; what it finds and advises goes to the proposer");
  set.flag("--compile-only", &options->compile_only,
           "Compile every proposal into the cache's folder and run none; needs no device");
  set.text(
      "--simulate", &options->simulate, "FILE",
      "Walk the search that this cache recorded with the proposer and without a device: it must "
      "propose the same sources");
  options->search.define(set);
  return [options](const Arguments&) {
    try {
      return run_evolve(*options);
    } catch (const workbench::LabError& error) {
      throw failure_of(error);
    }
  };
}

}  // namespace greenfast::cli
