#include "workbench/evidence/verify.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include <toml++/toml.h>

#include "workbench/base/exit_code.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/cases/problem_codec.hpp"
#include "workbench/evidence/contents.hpp"
#include "workbench/evidence/kernel_files.hpp"
#include "workbench/evidence/ledger.hpp"
#include "workbench/evidence/recheck.hpp"
#include "workbench/green/policy.hpp"
#include "workbench/resources/resources.hpp"
#include "workbench/verdict/gate_policy.hpp"

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Verifier {
 public:
  Verifier(const fs::path& directory, const DeviceCode& code, const fs::path& root)
      : directory_(directory), root_(root) {
    if (!root.empty()) sources_ = kernel_files(root);
    for (const KernelCode& kernel : code.kernels) {
      kernels_[{kernel.name, kernel.arch}] = &kernel;
      archs_.insert(kernel.arch);
    }
    for (const VariantInfo& variant : greenfast::variants()) variants_[variant.id] = variant;
  }

  Verification run() {
    const auto ledger = read_ledger(directory_);
    if (!ledger.ok()) {
      add({.file = std::string(kLedgerFile),
           .state = EvidenceState::tampered,
           .detail = ledger.status().message()});
      return std::move(out_);
    }
    // Of several entries for one file the last counts; the chain holds the others.
    std::map<std::string, const json*> latest;
    std::string previous;
    std::size_t number = 0;
    for (const json& entry : (*ledger)["entries"]) {
      ++number;
      const std::string file = text_of(entry, "file");
      if (text_of(entry, "digest") != digest_of(entry) || text_of(entry, "previous") != previous ||
          !check_name(file).ok())
        add({.file = std::string(kLedgerFile),
             .subject = file,
             .state = EvidenceState::tampered,
             .detail =
                 fmt::format("entry {} was changed, or one before it was taken out", number)});
      previous = text_of(entry, "digest");
      latest[file] = &entry;
    }
    for (const auto& [file, entry] : latest)
      if (check_name(file).ok()) verify_file(file, *entry);
    std::error_code error;
    std::vector<std::string> strays;
    for (const auto& item : fs::recursive_directory_iterator(directory_, error)) {
      const std::string name = fs::relative(item.path(), directory_, error).generic_string();
      if (name.ends_with(".json") && name != kLedgerFile && !latest.contains(name))
        strays.push_back(name);
    }
    std::sort(strays.begin(), strays.end());
    for (const std::string& name : strays)
      add({.file = name,
           .state = EvidenceState::missing,
           .detail = "has no entry in the ledger: greenfast evidence import " +
                     (directory_ / name).string()});
    if (!root_.empty()) {
      verify_policies_on_disk();
      verify_tables();
    }
    for (const auto& [id, variant] : variants_) {
      // An instrumented twin is no kernel anybody is given; greenfast phases checks it as it runs.
      if (variant.device == DeviceKind::cuda && variant.built && variant.phases.empty() &&
          !green_.contains(id))
        add({.subject = id,
             .state = EvidenceState::missing,
             .detail = stale_.contains(id)
                           ? "its evidence is stale: run it again on a GPU and record that"
                           : "no record with a GREEN row is bound to its machine code"});
    }
    return std::move(out_);
  }

 private:
  void add(Finding finding) { out_.findings.push_back(std::move(finding)); }

  /// What became of the sources of some variants since they were recorded.
  struct SourceChange {
    enum class State { same, changed, unknown } state;
    std::string words;
  };
  SourceChange source_change(const json& entry, const std::set<std::string>& variants) const {
    using State = SourceChange::State;
    const json& recorded = member(entry, "sources");
    if (!recorded.is_object() || recorded.empty())
      return {State::unknown, "no sources are recorded"};
    if (sources_.empty()) return {State::unknown, "no sources here to compare (--source)"};
    RecordedSources records(recorded, sources_);
    std::set<std::string> found, changed;
    for (const std::string& variant : variants) {
      for (const std::string& path : closure_of(sources_, variant)) {
        const std::string& was = records.path_of(path);
        (was.empty() ? changed : found).insert(was.empty() ? path : was);
      }
    }
    for (const std::string& variant : variants) {
      for (const json& item : list_of(member(entry, "variants"), variant)) {
        if (!item.is_string() || found.contains(item.get<std::string>())) continue;
        const std::string path = item.get<std::string>();
        if (!sources_.contains(path) || records.path_of(path) != path) changed.insert(path);
      }
    }
    if (changed.empty()) return {State::same, "its sources have not changed"};
    return {State::changed, fmt::format("changed: {}", fmt::join(changed, ", "))};
  }

  void verify_file(const std::string& file, const json& entry) {
    const std::size_t before = out_.findings.size();
    if (text_of(entry, "bound_to") == kRetired) {
      std::error_code error;
      if (fs::exists(directory_ / file, error))
        add({.file = file,
             .state = EvidenceState::tampered,
             .detail = "the ledger says that it was retired, and it is there"});
      return;
    }
    const auto text = read_file(directory_ / file);
    if (!text.ok()) {
      add({.file = file,
           .state = EvidenceState::missing,
           .detail = "the ledger names it, and it is not there"});
      return;
    }
    if (sha256_hex(*text) != text_of(entry, "sha256")) {
      add({.file = file,
           .state = EvidenceState::tampered,
           .detail = "is not the file that was recorded (SHA-256)"});
      return;
    }
    const json record = json::parse(*text, nullptr, false);
    if (record.is_discarded()) {
      add({.file = file, .state = EvidenceState::tampered, .detail = "is no JSON"});
      return;
    }
    verify_numbers(file, record);
    verify_policy(file, record);
    unbound_here_.clear();
    std::set<std::string> stale = verify_code(file, entry, record);
    verify_plans(file, record, stale);
    const std::string bound = text_of(entry, "bound_to");
    if (bound == kMachineCode) {
      for (const json& row : list_of(record, "rows")) {
        const std::string variant = text_of(row, "variant");
        if (text_of(row, "verdict") == "GREEN" && !stale.contains(variant) &&
            !unbound_here_.contains(variant))
          green_.insert(variant);
      }
    }
    stale_.insert(stale.begin(), stale.end());
    if (out_.findings.size() == before) {
      add({.file = file,
           .state = bound == kNothing ? EvidenceState::unbound : EvidenceState::current,
           .detail =
               bound == kNothing ? text_of(entry, "why") : fmt::format("bound to {}", bound)});
    }
  }

  /// The checkout's policies against those inside this program, by which it would judge.
  void verify_policies_on_disk() {
    std::error_code error;
    if (!fs::is_directory(root_ / "policies", error)) return;  // sources alone
    std::vector<std::pair<std::string, std::string_view>> builtin = {
        {"gate", builtin_gate_policy()}, {"resources", builtin_resource_limits()}};
    for (const BuiltinPolicy& policy : builtin_policies())
      builtin.emplace_back(policy.name, policy.text);
    for (const auto& [name, text] : builtin) {
      const std::string file = fmt::format("policies/{}.toml", name);
      const auto there = read_file(root_ / file);
      if (there && *there == text) continue;
      add({.file = file,
           .state = there ? EvidenceState::stale : EvidenceState::missing,
           .detail = there ? "is not the one that this program was built with, and would judge by: "
                             "build it again"
                           : "this program was built with it, and it is not there"});
    }
  }

  /// Tables that README and docs show, against the samples they were made from.
  void verify_tables() {
    std::error_code error;
    std::vector<fs::path> files;
    for (const auto& item : fs::directory_iterator(root_ / "docs" / "results", error))
      if (item.path().extension() == ".json") files.push_back(item.path());
    std::sort(files.begin(), files.end());
    for (const fs::path& path : files) {
      const auto table = read_json(path);
      if (!table || text_of(*table, "schema") != "greenfast.peers/1") continue;
      for (Disagreement& found : recheck_peers(*table, root_))
        add({.file = fs::relative(path, root_, error).generic_string(),
             .subject = std::move(found.subject),
             .state = EvidenceState::tampered,
             .detail = std::move(found.detail)});
    }
  }

  /// Figures against what they were computed from.
  void verify_numbers(const std::string& file, const json& record) {
    for (Disagreement& found : recheck(record))
      add({.file = file,
           .subject = std::move(found.subject),
           .state = EvidenceState::tampered,
           .detail = std::move(found.detail)});
  }

  void verify_policy(const std::string& file, const json& record) {
    const std::string name = text_of(member(record, "policy"), "name"),
                      digest = text_of(member(record, "policy"), "sha256");
    for (const BuiltinPolicy& policy : builtin_policies()) {
      if (policy.name == name && load_policy(policy.name)->sha256 != digest)
        add({.file = file,
             .subject = "policy " + name,
             .state = EvidenceState::uncompared,
             .detail = "has changed since: GREEN here is by the rules of then"});
    }
  }

  /// Variants whose evidence in this file is stale.
  std::set<std::string> verify_code(const std::string& file, const json& entry,
                                    const json& record) {
    std::set<std::string> stale;
    std::map<std::string, std::set<std::string>> launched_by;
    for (const Launch& launch : launches_of(record)) {
      if (!launch.kernel.empty()) launched_by[launch.kernel].insert(launch.variant);
    }
    for (const json& item : list_of(entry, "code")) {
      for (const json& variant : list_of(item, "variants"))
        if (variant.is_string())
          launched_by[text_of(item, "kernel")].insert(variant.get<std::string>());
    }
    std::vector<std::string> other_compiler, other_build;
    if (text_of(entry, "bound_to") == kMachineCode) {
      std::set<std::string> bound, free;
      for (const json& item : list_of(entry, "code")) {
        if (text_of(item, "sha256").empty()) continue;
        const std::set<std::string>& users = launched_by[text_of(item, "kernel")];
        bound.insert(users.begin(), users.end());
      }
      for (const Launch& launch : launches_of(record))
        if (!bound.contains(launch.variant)) free.insert(launch.variant);
      unbound_here_ = free;
      for (const std::string& variant : free)
        add({.file = file,
             .subject = variant,
             .state = EvidenceState::unbound,
             .detail = "no machine code of it is recorded"});
    }
    for (const json& item : list_of(entry, "code")) {
      const std::string name = text_of(item, "kernel"), arch = text_of(item, "arch"),
                        digest = text_of(item, "sha256");
      if (digest.empty()) continue;  // said so when it was recorded
      const std::set<std::string>& users = launched_by[name];
      const auto found = kernels_.find({name, arch});
      const std::string was = text_of(item, "compiler");
      std::string why;
      if (found == kernels_.end()) {
        const bool built = std::any_of(users.begin(), users.end(), [&](const std::string& id) {
          const auto variant = variants_.find(id);
          return variant != variants_.end() && variant->second.built;
        });
        if (!archs_.contains(arch) || !built) {
          other_build.push_back(name);
        } else {
          why = "is not in this build any more";
        }
      } else if (!was.empty() && found->second->compiler != was) {
        other_compiler.push_back(name);
      } else if (found->second->sha256 != digest) {
        why = fmt::format("machine code {} is now {}", digest.substr(0, 12),
                          found->second->sha256.substr(0, 12));
      } else {
        continue;
      }
      const SourceChange change = source_change(entry, users);
      if (why.empty()) {
        // Cannot be compared: the sources decide, where they are known.
        if (change.state != SourceChange::State::changed) continue;
        why = "its machine code cannot be compared here";
      }
      why += "; " + change.words;
      stale.insert(users.begin(), users.end());
      add({.file = file,
           .subject = fmt::format("{} ({})", name, arch),
           .state = EvidenceState::stale,
           .detail = fmt::format("{}: {}", fmt::join(users, ", "), why),
           .variants = users});
    }
    const auto tell = [&](const std::vector<std::string>& names, const std::string& why) {
      if (!names.empty())
        add({.file = file,
             .subject = names.size() == 1 ? names[0] : fmt::format("{} kernels", names.size()),
             .state = EvidenceState::uncompared,
             .detail =
                 why +
                 (sources_.empty() ? "" : "; where their sources are recorded, those decided")});
    };
    tell(other_compiler,
         "compiled by another ptxas than this build's: other machine code says nothing");
    tell(other_build, "this build has no code for their architecture, or leaves them out");
    if (text_of(entry, "bound_to") == kSources) {
      for (const auto& [variant, paths] : member(entry, "variants").items()) {
        const SourceChange change = source_change(entry, {variant});
        if (change.state == SourceChange::State::same) continue;
        const bool changed = change.state == SourceChange::State::changed;
        if (changed) stale.insert(variant);
        add({.file = file,
             .subject = variant,
             .state = changed ? EvidenceState::stale : EvidenceState::uncompared,
             .detail = change.words,
             .variants = {variant}});
      }
    }
    return stale;
  }

  void verify_plans(const std::string& file, const json& record,
                    std::set<std::string>& stale_here) {
    if (text_of(record, "schema") != kRunSchema) return;
    const DeviceFacts facts = facts_of(member(record, "device"));
    const std::map<std::string, Problem> problems = problems_of(record);
    for (const json& plan_row : list_of(record, "plans")) {
      const std::string id = text_of(plan_row, "variant");
      const auto variant = variants_.find(id);
      const auto problem = problems.find(text_of(plan_row, "problem"));
      if (variant == variants_.end() || !variant->second.built || problem == problems.end())
        continue;
      Options options;
      options.device = facts.kind;
      options.variant = id;
      const auto stale = [&](std::string detail) {
        stale_here.insert(id);
        add({.file = file,
             .subject = id,
             .state = EvidenceState::stale,
             .detail = fmt::format("plan of {}: {}", problem->first, std::move(detail)),
             .variants = {id}});
      };
      const auto now = plan(problem->second, facts, options);
      if (!now.ok()) {
        // A build without the architecture refuses every problem; that is no change of the plan.
        if (facts.kind == DeviceKind::cuda && !has_code_for(facts.arch)) continue;
        stale(now.status().message());
        continue;
      }
      json fields = plan_json(*now);
      fields.erase("variant");
      fields.erase("note");  // a sentence, which may say more than it did
      // Records without machine code of their own are older than the names that plans give kernels.
      if (list_of(record, "code").empty()) fields.erase("kernel");
      for (const auto& [field, value] : fields.items()) {
        if (member(plan_row, field) == value) continue;
        stale(fmt::format("{} was {}, is {}", field, member(plan_row, field).dump(), value.dump()));
        break;
      }
    }
  }

  /// Whether this program's kernels could run there: its plans are asked, whatever `code` is of.
  static bool has_code_for(int arch) {
    const Result<DeviceCode>& own = own_device_code();
    return own && !kernels_for(*own, arch).empty();
  }

  fs::path directory_, root_;
  KernelFiles sources_;
  std::map<std::pair<std::string, std::string>, const KernelCode*> kernels_;
  std::set<std::string> archs_;
  std::map<std::string, VariantInfo> variants_;
  std::set<std::string> green_, stale_;
  std::set<std::string> unbound_here_;  // variants of the file at hand
  Verification out_;
};

}  // namespace

Result<std::vector<KnownGap>> parse_known_gaps(std::string_view name, std::string_view text) {
  const auto wrong = [&](std::string_view what) {
    return Status(StatusCode::invalid_argument, fmt::format("{}: {}", name, what));
  };
  std::vector<KnownGap> out;
  try {
    const toml::table table = toml::parse(text);
    for (const auto& [key, node] : table) {
      if (key != "known" || !node.is_array()) return wrong("possible are [[known]] tables alone");
      for (const toml::node& row : *node.as_array()) {
        const toml::table* fields = row.as_table();
        if (fields == nullptr) return wrong("[[known]]: expected tables");
        const auto variant = (*fields)["variant"].value<std::string>();
        const auto reason = (*fields)["reason"].value<std::string>();
        const auto file = (*fields)["file"].value<std::string>();
        if (!variant || !reason || fields->size() != (fields->contains("file") ? 3 : 2) ||
            (fields->contains("file") && (!file || file->empty())))
          return wrong(
              "a [[known]] needs variant and reason, may have the file in which the variant is "
              "stale, and nothing else");
        out.push_back({*variant, *reason, file.value_or("")});
      }
    }
  } catch (const toml::parse_error& error) {
    return wrong(
        fmt::format("line {}: {}", error.source().begin.line, std::string(error.description())));
  }
  return out;
}

std::string_view name_of(EvidenceState state) noexcept {
  switch (state) {
    case EvidenceState::current:
      return "CURRENT";
    case EvidenceState::unbound:
      return "UNBOUND";
    case EvidenceState::uncompared:
      return "NOT COMPARED";
    case EvidenceState::stale:
      return "STALE";
    case EvidenceState::missing:
      return "MISSING";
    default:
      return "TAMPERED";
  }
}

int Verification::exit_code() const {
  const bool wrong = std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.known.empty() &&
           (finding.state == EvidenceState::stale || finding.state == EvidenceState::missing ||
            finding.state == EvidenceState::tampered);
  });
  return wrong ? kEvidence : kPassed;
}

Verification verify_evidence(const fs::path& directory, const DeviceCode& code,
                             const fs::path& root, std::span<const KnownGap> known) {
  Verification out = Verifier(directory, code, root).run();
  const std::vector<VariantInfo> all = greenfast::variants();
  for (const KnownGap& gap : known) {
    bool found = false;
    for (Finding& finding : out.findings) {
      const bool missing = finding.state == EvidenceState::missing && finding.file.empty() &&
                           finding.subject == gap.subject;
      // What is stale of other variants too is no known gap of this one.
      const bool stale = finding.state == EvidenceState::stale && finding.file == gap.file &&
                         finding.variants == std::set{gap.subject};
      if (gap.file.empty() ? !missing : !stale) continue;
      finding.known = gap.reason;
      found = true;
    }
    // A build without the variant cannot tell.
    const bool built = std::any_of(all.begin(), all.end(), [&](const VariantInfo& variant) {
      return variant.id == gap.subject && variant.built;
    });
    if (!found && built)
      out.findings.push_back(
          {.subject = gap.subject,
           .state = EvidenceState::stale,
           .detail = gap.file.empty()
                         ? "has current evidence: take it from the list of known gaps"
                         : gap.file + " has nothing stale of it alone: take it from the list of "
                                      "known gaps"});
  }
  return out;
}

}  // namespace greenfast::workbench
