// Evidence: records of runs, each bound to the machine code that ran, kept in a directory with a
// ledger (evidence/ledger.json). Here records come in; verify.hpp asks whether they still hold.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/attention.hpp>

#include "workbench/resources/device_code.hpp"

namespace greenfast::workbench {

inline constexpr std::string_view kLedgerFile = "ledger.json";

/// What an entry is bound to.
inline constexpr std::string_view kMachineCode = "machine code", kSources = "sources",
                                  kNothing = "nothing", kRetired = "no file any more";

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

/// What became of an import.
struct Import {
  std::vector<std::string> files = {};  ///< names of the records written
  Status status = {};
  bool tampered = false;  ///< the failure: not what was bundled, as its digests say
};
/// Writes records and their entries into a directory and its ledger, in the form of record_text; a
/// record of a name that exists is superseded, or keeps what it was bound to where both say the
/// same. `text` is a bundle, or a record made on another machine, which then is called `name`, a
/// path in the directory. Nothing is written where anything is refused or fails: all records and the
/// ledger, or none.
Import import_evidence(const std::filesystem::path& directory, const std::string& name,
                       const std::string& text, const BindingSources& from);

/// Takes records out of a directory: each gets a last entry that says why, and its file goes. Errors:
/// a name without a record, a record that is not what was recorded, no reason. Nothing is changed
/// where anything is refused.
Status retire_evidence(const std::filesystem::path& directory, std::span<const std::string> names,
                       const std::string& why);

/// The ledger of a directory; one without entries where there is none.
Result<nlohmann::json> read_ledger(const std::filesystem::path& directory);
/// SHA-256 of an entry or a bundle without its own digest.
std::string digest_of(nlohmann::json entry);
/// A record's name: a path that stays inside the directory and ends as records do.
Status check_name(const std::string& name);

}  // namespace greenfast::workbench
