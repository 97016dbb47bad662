// What tune and evolve have in common: shapes, limits, the cache, and how they tell where they are.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/command.hpp"
#include "cli/option_set.hpp"
#include "cli/problem_options.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/search/lab.hpp"

namespace greenfast::cli {

/// Progress on stderr.
class SearchDisplay {
 public:
  explicit SearchDisplay(bool quiet) : progress_(stderr, quiet) {}
  void step(const std::string& what);
  void finished(const std::string& line);
  void clear() { progress_.clear(); }
  /// Candidates that are to be tried; 0 when nobody knows.
  std::size_t total = 0;

 private:
  workbench::Progress progress_;
  bool terminal_ = workbench::wants_color(stderr);
  std::size_t done_ = 0;
};

struct SearchOptions {
  std::string primary = "mission", held_out = "small,long";
  std::string policy = "strict";
  std::string cache, device = "auto", kernel, flags;
  double timeout = 60, memory = 8;
  int finalists = 3, jobs = 0;
  bool hot = false, as_json = false;
  ProblemOptions problem;

  void define(OptionSet& set);
  /// Opens nothing yet; throws Failure for what cannot be. `tree` is where includes of a variant's
  /// source are found.
  workbench::LabOptions lab(const std::string& command, const std::string& name,
                            const std::filesystem::path& source, const std::filesystem::path& tree,
                            SearchDisplay& display) const;
};

/// Runs a search; interrupted, it clears the display and ends with what the cache keeps.
int search_or_interrupted(SearchDisplay& display, const std::filesystem::path& cache,
                          const std::function<int()>& search);
/// With the exit code of the hand-set configuration's fault, where it is that.
Failure failure_of(const workbench::LabError& error);
/// Writes a search's result as FOLDER/NAME; throws Failure when it cannot be written.
std::filesystem::path write_search_record(const nlohmann::json& result,
                                          const std::filesystem::path& folder,
                                          const std::string& name);

}  // namespace greenfast::cli
