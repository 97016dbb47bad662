// Where candidates of a search are tried: each through compile, resources, adversarial cases,
// short timings, full GREEN, paired finals and a last measurement on fresh data, every result a
// line of a cache. A search that is killed finds its results there again; a simulated one finds
// nothing else.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <greenfast/types.hpp>

#include "workbench/base/fault.hpp"
#include "workbench/cases/workload.hpp"
#include "workbench/device/device.hpp"
#include "workbench/subjects/plugin/compile.hpp"

namespace greenfast::workbench {

/// A source in one configuration. `key` names it in the cache and to people.
struct LabCandidate {
  std::string key;
  std::filesystem::path source;
  std::vector<std::string> defines;
};

struct LabOptions {
  /// What results depend on besides the candidate: kept as the cache's first line, and compared
  /// with it when a search goes on.
  nlohmann::json identity;
  std::filesystem::path cache;         ///< a file of JSON lines; its folder holds what is compiled
  bool simulate = false;               ///< answer from the cache alone
  std::string kernel;                  ///< of the plugin; empty: its first
  std::vector<NamedProblem> problems;  ///< the primary shape, then those held out for the finals
  std::string policy = "strict";
  std::uint64_t seed = 0;
  int finalists = 3;
  CompileOptions compile;
  double timeout_seconds = 60;  ///< of one call
  double memory_gib = 8;
  int jobs = 1;  ///< compilers at once
  bool hot = false;
  std::function<void(const std::string& what)> step{};      ///< something begins
  std::function<void(const std::string& line)> finished{};  ///< a candidate's stage ended
  std::function<bool()> stop{};
};

/// A simulated search asked for what its cache does not hold, the system failed, or the hand-set
/// configuration, without which there is nothing to search from, did.
class LabError : public std::runtime_error {
 public:
  explicit LabError(Status status, Fault fault = Fault::none)
      : std::runtime_error(status.message()), status_(status), fault_(fault) {}
  const Status& status() const { return status_; }
  /// Of the hand-set configuration; none where it is not its fault.
  Fault fault() const { return fault_; }

 private:
  Status status_;
  Fault fault_;
};
/// The user asked to stop; everything so far is in the cache.
struct LabStopped {};

class Lab {
 public:
  /// Opens or begins the cache. A torn last line, as a kill leaves it, is cut off. Refuses by name
  /// a cache of something else.
  static Result<std::unique_ptr<Lab>> open(LabOptions options);
  /// What the first line of a cache says.
  static Result<nlohmann::json> read_identity(const std::filesystem::path& cache);
  ~Lab();
  Lab(const Lab&) = delete;
  Lab& operator=(const Lab&) = delete;

  /// Results of a stage: {"ok": bool, "reason": why not, ...}. All throw LabError and LabStopped.
  /// Compiles and looks at resources: spills and what the machine code takes.
  void compile(const std::vector<LabCandidate>& candidates);
  /// compile, then the adversarial cases for those that passed. Returns those that passed both, but
  /// of several with the same machine code the first alone.
  std::vector<LabCandidate> qualify(const std::vector<LabCandidate>& candidates);
  /// Speedup over `reference` on the primary shape, 2^fidelity times as many samples each step; 0
  /// for a candidate that failed. `reference` is qualified as well.
  std::vector<double> time(const LabCandidate& reference,
                           const std::vector<LabCandidate>& candidates, int fidelity);
  struct Final {
    LabCandidate winner;
    nlohmann::json finalists;  ///< each with its speedups by shape
    nlohmann::json confirmed;  ///< of the winner, on fresh data: {"ok", "shapes": [...]}; null when
                               ///< the winner is the reference
  };
  /// Full GREEN for the best, then finals on all shapes, then the winner again.
  Final decide(const LabCandidate& reference, const std::vector<LabCandidate>& best);

  /// What the cache is about (LabOptions::identity), and on what device, host and build it was
  /// measured; null where nothing has been.
  nlohmann::json origin() const;
  /// The cached result of a stage, null when there is none.
  const nlohmann::json* find(const std::string& key, const std::string& stage) const;
  /// Adds a line to the cache.
  void add(const std::string& key, const std::string& stage, nlohmann::json result);

 private:
  explicit Lab(LabOptions options);
  void remember(Device& device);
  struct Loaded;
  const nlohmann::json& need(const std::string& key, const std::string& stage) const;
  void reload();
  void watch();
  std::vector<Case> adversarial_cases() const;
  void child(const std::string& stage, const LabCandidate* reference,
             const std::vector<LabCandidate>& candidates, const std::function<void(Loaded&)>& work);
  void measure_beside(const std::string& stage, const LabCandidate& reference,
                      const std::vector<LabCandidate>& candidates, std::size_t at_once,
                      const std::vector<NamedProblem>& problems, int fidelity, std::uint64_t seed);

  LabOptions options_;
  nlohmann::json identity_;
  std::map<std::string, nlohmann::json> results_;  // "stage key"
  std::size_t read_ = 0;                           // bytes of the cache that are in results_
};

/// The digest of a source and of everything it includes with quotes, as far as that is found beside
/// it or in the folders given.
std::string source_digest(const std::filesystem::path& source,
                          const std::vector<std::filesystem::path>& folders);

}  // namespace greenfast::workbench
