// Evidence: records of runs, each bound to the machine code that ran, kept in a directory with a
// ledger (evidence/ledger.json). Anyone can ask whether a record still speaks of the code and the
// plans of today.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/attention.hpp>

#include "workbench/resources/device_code.hpp"

namespace greenfast::workbench {

inline constexpr std::string_view kLedgerFile = "ledger.json";

/// SHA-256 of a source without comments and with every run of white space as one blank: what a
/// comment or a line break does not change. Literals stay as they are.
std::string source_digest(std::string_view text);
/// Path from the root -> source_digest, of the files under src/kernels that a variant's kernel is
/// compiled from; empty when the root has none.
std::vector<std::pair<std::string, std::string>> sources_of(const std::filesystem::path& root,
                                                            std::string_view variant);

/// Where what a record does not hold comes from.
struct BindingSources {
  /// Sources of the build that ran, whose digests decide where machine code cannot be compared;
  /// empty: none.
  std::filesystem::path root;
  /// The caller says that the record's program was built from root; otherwise only a record made by
  /// a program of this one's commit is bound to it.
  bool trust_root = false;
  /// Kernels compiled again, by the record's compiler, from `root`, which trust_root says is the
  /// record's commit: for records that hold no machine code and whose program is gone. Null: none.
  /// The entry says that it was done so.
  const DeviceCode* rebuilt = nullptr;
  /// The library that a record of another program (greenfast.ab) loaded; null: none.
  const DeviceCode* library = nullptr;
  std::string library_sha256;  ///< of the library's file
};

/// An entry of the ledger for a record's text, without its place in the chain. Errors: text that is
/// no record of a schema that is known, a run that was interrupted, a library that is not the one
/// that ran.
Result<nlohmann::json> make_entry(const std::string& file, const std::string& text,
                                  const BindingSources& from);

/// A bundle of records with their entries: what a machine sends home. names and texts beside each
/// other.
Result<nlohmann::json> make_bundle(std::span<const std::string> names,
                                   std::span<const std::string> texts, const BindingSources& from);

/// Writes records and their entries into a directory and its ledger; a record of a name that exists
/// is superseded. `text` is a bundle, or a record made on another machine, which then is called
/// `name`.
struct Imported {
  std::vector<std::string> files;  ///< that were written
  std::string
      tampered;  ///< how the text is not what was written, and nothing was imported; else empty
};
Result<Imported> import_evidence(const std::filesystem::path& directory, const std::string& name,
                                 const std::string& text, const BindingSources& from);

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
  std::string known = {};  ///< why it is so for the time being, where the caller's list admits it
};
/// What is missing for the time being and need not end a verification; a row of
/// policies/evidence.toml.
struct KnownGap {
  std::string subject;  ///< variant
  std::string reason;
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
