// Whether the records of a directory still speak of the code, the plans and the policies of today.
#pragma once

#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/attention.hpp>

#include "workbench/resources/device_code.hpp"

namespace greenfast::workbench {

enum class EvidenceState {
  current,     ///< bound, and code, plans and policy are those of this build
  unbound,     ///< whole, but holds nothing that could be compared
  uncompared,  ///< bound to machine code that this build cannot be compared with
  stale,
  missing,
  tampered,
};
std::string_view name_of(EvidenceState state) noexcept;

/// One thing that verify has to say.
struct Finding {
  std::string file = {};     ///< of the directory; empty: of the ledger, or of no file
  std::string subject = {};  ///< variant, kernel or part that it is about; empty: the whole file
  EvidenceState state = EvidenceState::current;
  std::string detail = {};
  std::set<std::string> variants = {};  ///< of which something is stale
  std::string known = {};  ///< why it is so for the time being, where the caller's list admits it
};
/// What is missing, or stale in one record, for the time being and need not end a verification; a row of
/// policies/evidence.toml.
struct KnownGap {
  std::string subject;  ///< variant
  std::string reason;
  std::string file = {};  ///< in which it is stale; empty: it has no evidence at all
};
Result<std::vector<KnownGap>> parse_known_gaps(std::string_view name, std::string_view toml);

struct Verification {
  std::vector<Finding>
      findings;  ///< worst first within a file; one `current` for a file without any other
  /// 30 when anything is stale, missing or tampered and not known, else 0.
  int exit_code() const;
};

/// Compares a directory's evidence with the running build: ledger and files against their digests,
/// kernels against `code`, plans against the library's, policies against the built-in ones, sources
/// against `root` (empty: not compared). MISSING names every CUDA variant of this build that no
/// current record holds a GREEN row of.
/// `known`: variants whose being MISSING is admitted; one that is not missing any more is a
/// finding.
Verification verify_evidence(const std::filesystem::path& directory, const DeviceCode& code,
                             const std::filesystem::path& root,
                             std::span<const KnownGap> known = {});

}  // namespace greenfast::workbench
