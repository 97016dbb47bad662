// A record's figures, computed once more from what they were computed from: raw samples, results of
// cases. Whoever edits a figure and the digests around it must edit every sample and case as well;
// that those were measured at all, nothing in a file can prove.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace greenfast::workbench {

struct Disagreement {
  std::string subject;  ///< variant, or empty
  std::string detail;   ///< which figure, what it says, what its sources say
};

/// Of greenfast.run/1, greenfast.gate/1, greenfast.samples/1, greenfast.compare/1 and
/// greenfast.selftest/1, and of tools' records that keep parts which their figures follow from.
/// docs/evidence.md lists what of each is computed again, and what has no source in it.
std::vector<Disagreement> recheck(const nlohmann::json& record);

/// A table of peers (greenfast.peers/1, which tools/peer_table writes) against what `compare` says
/// of the samples that it names, a file below `root`.
std::vector<Disagreement> recheck_peers(const nlohmann::json& table,
                                        const std::filesystem::path& root);

}  // namespace greenfast::workbench
