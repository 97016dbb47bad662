// greenfast evolve: the same trials as tune, with sources that another process proposes.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "workbench/search/lab.hpp"

namespace greenfast::workbench {

struct EvolveOptions {
  std::filesystem::path source;   ///< what there is, "c0": a plugin's source
  std::string proposer;           ///< a shell command that speaks JSON lines (docs/evolve.md)
  int candidates = 16;            ///< proposals to ask for
  int shown = 4;                  ///< of the best, that every request carries with their source
  double proposal_seconds = 600;  ///< for one proposal
  /// What a profile of the source advises, for who proposes.
  std::vector<std::string> advice;
  /// Where proposals are kept.
  std::filesystem::path folder;
  /// Proposals are compiled and looked at; nothing is run, and no device is needed.
  bool compile_only = false;
  LabOptions lab;
};

/// Asks, tries, tells, until there are enough candidates or the proposer is done. A proposer that
/// dies, is late or talks nonsense loses that candidate and is started anew. The result,
/// greenfast.evolve/1: winner, speedups on fresh data, and the lineage of every candidate. Throws
/// LabError and LabStopped. With compile_only: {"lineage", "folder"} alone. With lab.simulate the
/// proposer is asked and told as it was then, and must answer as it did: else a LabError says where
/// it does not.
nlohmann::json evolve(const EvolveOptions& options);

}  // namespace greenfast::workbench
