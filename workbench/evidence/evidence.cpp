#include "workbench/evidence/evidence.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include <toml++/toml.h>

#include "kernel_sources.hpp"  // generated: the sources of each kernel, as CMake compiles them

#include "workbench/base/atomic_file.hpp"
#include "workbench/base/build_info.hpp"
#include "workbench/base/exit_code.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/cases/problem_codec.hpp"
#include "workbench/cases/workload.hpp"
#include "workbench/evidence/recheck.hpp"
#include "workbench/fast/samples.hpp"
#include "workbench/fast/statistics.hpp"
#include "workbench/green/policy.hpp"
#include "workbench/record/code_json.hpp"
#include "workbench/resources/resources.hpp"
#include "workbench/verdict/gate_policy.hpp"

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kMachineCode = "machine code", kSources = "sources",
                           kNothing = "nothing";

Status bad(std::string text) { return {StatusCode::invalid_argument, std::move(text)}; }

/// The member of an object, or null; never throws.
const json& member(const json& object, std::string_view key) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}
std::string text_of(const json& object, std::string_view key) {
  const json& value = member(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}
std::int64_t integer_of(const json& object, std::string_view key) {
  const json& value = member(object, key);
  return value.is_number_integer() ? value.get<std::int64_t>() : 0;
}
const json& list_of(const json& object, std::string_view key) {
  static const json kEmpty = json::array();
  const json& value = member(object, key);
  return value.is_array() ? value : kEmpty;
}

/// A kernel that a record says was launched.
struct Launch {
  std::string variant, kernel, problem;
};
std::vector<Launch> launches_of(const json& record) {
  std::vector<Launch> out;
  const auto add = [&](const json& plan, std::string problem) {
    Launch launch{text_of(plan, "variant"), text_of(plan, "kernel"), std::move(problem)};
    if (!launch.variant.empty()) out.push_back(std::move(launch));
  };
  for (const json& plan : list_of(record, "plans")) add(plan, text_of(plan, "problem"));  // run
  for (const json& shape : list_of(record, "shapes")) {
    for (const char* side : {"baseline", "candidate"})
      add(member(member(shape, "plans"), side), "");               // gate
    const json& engines = member(member(shape, "ab"), "engines");  // greenfast.ab
    if (!engines.is_object()) continue;
    for (const auto& [name, engine] : engines.items())
      add(member(engine, "plan").is_object() ? engine["plan"] : engine, text_of(shape, "name"));
  }
  return out;
}

/// The program that runs was built from the record's commit, by its compiler, without changes.
bool made_by_this_program(const json& record) {
  const json& build = member(record, "build");
  const json& git = member(build, "git");
  const BuildInfo& own = build_info();
  const json& dirty = member(git, "dirty");
  return !own.git_sha.empty() && text_of(git, "sha") == own.git_sha && !own.git_dirty &&
         dirty.is_boolean() && !dirty.get<bool>() &&
         text_of(member(build, "cuda"), "compiler") == own.cuda;
}

// ---- Sources ----

bool is_word(char c) {
  return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// Whether text defines `core::Kernel symbol`, as a kernel's source does.
bool defines_kernel(std::string_view text, std::string_view symbol) {
  const std::string wanted = fmt::format("core::Kernel {}", symbol);
  for (std::size_t found = 0; (found = text.find(wanted, found)) != std::string_view::npos;
       found += wanted.size()) {
    const std::size_t end = found + wanted.size();
    if (end == text.size() || (!is_word(text[end]) && text[end] != ';')) return true;
  }
  return false;
}

/// Quoted includes of a source.
std::vector<std::string> includes_of(std::string_view text) {
  std::vector<std::string> out;
  constexpr std::string_view kInclude = "#include \"";
  for (std::size_t found = 0; (found = text.find(kInclude, found)) != std::string_view::npos;) {
    found += kInclude.size();
    const std::size_t end = text.find('"', found);
    if (end == std::string_view::npos) break;
    out.emplace_back(text.substr(found, end - found));
  }
  return out;
}

/// All files under src/kernels, by path from the root.
std::map<std::string, std::string> kernel_sources(const fs::path& root) {
  std::map<std::string, std::string> out;
  std::error_code error;
  fs::recursive_directory_iterator files(root / "src" / "kernels", error);
  if (error) return out;
  for (const fs::directory_entry& entry : files) {
    const std::string suffix = entry.path().extension();
    if (suffix != ".cu" && suffix != ".cuh" && suffix != ".cpp" && suffix != ".hpp" &&
        suffix != ".inc")
      continue;
    if (auto text = read_file(entry.path()); text.ok())
      out.emplace(fs::relative(entry.path(), root, error).generic_string(), *text);
  }
  return out;
}

/// The file of `files` that `includer` means by a quoted include; empty where there is none.
std::string included_file(const std::map<std::string, std::string>& files,
                          const std::string& includer, const std::string& name) {
  const std::string beside =
      (fs::path(includer).parent_path() / name).lexically_normal().generic_string();
  for (const std::string& candidate : {beside, "src/" + name})
    if (files.contains(candidate)) return candidate;
  return {};
}

/// What a variant's kernel is compiled from: the sources of the object that defines it, as CMake
/// lists them, and the files under src/kernels that those include. Empty where `files` are of a
/// checkout that has them elsewhere.
std::vector<std::string> closure_of(const std::map<std::string, std::string>& files,
                                    std::string_view variant) {
  std::string symbol(variant);
  std::replace(symbol.begin(), symbol.end(), '.', '_');
  std::set<std::string> seen;
  std::vector<std::string> todo;
  for (const auto& [kernel, path] : kKernelSources) {
    const auto file = files.find(std::string(path));
    if (file == files.end() || !defines_kernel(file->second, symbol)) continue;
    for (const auto& [other, part] : kKernelSources)
      if (other == kernel) todo.emplace_back(part);
  }
  while (!todo.empty()) {
    const std::string path = todo.back();
    todo.pop_back();
    if (!files.contains(path) || !seen.insert(path).second) continue;
    for (const std::string& name : includes_of(files.at(path)))
      if (std::string file = included_file(files, path, name); !file.empty())
        todo.push_back(std::move(file));
  }
  return {seen.begin(), seen.end()};
}

/// Finds the files of a checkout among those that a ledger's entry names. A file that lies
/// elsewhere now is known by its content, if what it includes is spelled as it was then.
class RecordedSources {
 public:
  RecordedSources(const json& recorded, const std::map<std::string, std::string>& files)
      : recorded_(recorded), files_(files) {}

  /// The path under which a file was recorded as it is; empty: it is new, or has changed since.
  const std::string& path_of(const std::string& path) {
    const auto [place, fresh] = known_.try_emplace(path);
    if (fresh) place->second = find(path);  // a map's elements stay where they are
    return place->second;
  }

 private:
  std::string find(const std::string& path) {
    const std::string& text = files_.at(path);
    const std::string digest = source_digest(text);
    const std::string recorded = text_of(recorded_, path);
    if (!recorded.empty() && recorded == digest) return path;
    const std::string then = source_digest(as_included_then(path));
    if (!recorded.empty()) return recorded == then ? path : std::string();
    for (const auto& [old, was] : recorded_.items())
      if (!files_.contains(old) && was.is_string() && (was == digest || was == then)) return old;
    return {};
  }

  /// The text with includes of moved files by their old names, each run of includes in order again,
  /// as the formatter has them.
  std::string as_included_then(const std::string& path) {
    constexpr std::string_view kInclude = "#include \"";
    std::string out;
    std::vector<std::string> run;
    const auto end_of_run = [&] {
      std::sort(run.begin(), run.end());
      for (const std::string& line : run) out += line + "\n";
      run.clear();
    };
    std::istringstream lines(files_.at(path));
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with(kInclude)) {
        end_of_run();
        out += line + "\n";
        continue;
      }
      const std::size_t end = line.find('"', kInclude.size());
      const std::string name = line.substr(kInclude.size(), end - kInclude.size());
      if (const std::string now = included_file(files_, path, name); !now.empty())
        if (const std::string& was = path_of(now); was.starts_with("src/") && was != now)
          line.replace(kInclude.size(), name.size(), was.substr(4));
      run.push_back(line);
    }
    end_of_run();
    return out;
  }

  const json& recorded_;
  const std::map<std::string, std::string>& files_;
  std::map<std::string, std::string> known_;
};

// ---- Problems and devices of a record ----

DeviceFacts facts_of(const json& device) {
  DeviceFacts facts;
  facts.kind =
      text_of(device, "kind") == name_of(DeviceKind::cuda) ? DeviceKind::cuda : DeviceKind::cpu;
  facts.index = static_cast<int>(integer_of(device, "index"));
  facts.name = text_of(device, "name");
  facts.arch = static_cast<int>(integer_of(device, "arch"));
  facts.multiprocessors = static_cast<int>(integer_of(device, "multiprocessors"));
  facts.shared_per_block = integer_of(device, "shared_per_block");
  facts.l2_bytes = integer_of(device, "l2_bytes");
  facts.isa = text_of(device, "isa");
  facts.driver = text_of(device, "driver");
  return facts;
}

/// The problems of a record by the names its rows use, and the device they ran on.
std::map<std::string, Problem> problems_of(const json& record) {
  std::map<std::string, Problem> out;
  for (const json& row : list_of(record, "problems"))
    if (const auto problem = problem_of_json(row)) out[text_of(row, "name")] = *problem;
  for (const json& shape : list_of(record, "shapes")) {
    const json& row = member(shape, "ab");
    const auto dtype = parse_dtype(text_of(row, "dtype"));
    if (!dtype) continue;
    ProblemDefaults defaults;
    defaults.dtype = *dtype;
    const json& causal = member(row, "causal");
    if (causal.is_boolean() && causal.get<bool>())
      defaults.mask = Mask::causal(Alignment::top_left);
    const auto parsed = parse_shapes(text_of(row, "shape"), defaults);
    if (parsed.ok() && parsed->size() == 1) out[text_of(shape, "name")] = parsed->front().problem;
  }
  return out;
}
std::optional<DeviceFacts> device_of(const json& record) {
  const json& device = member(record, "device");
  if (device.is_object()) return facts_of(device);
  if (!device.is_string()) return std::nullopt;
  for (const char* model : {"h200", "h100", "a100", "l4"}) {  // greenfast.ab names the device alone
    auto facts = model_facts(model);
    if (facts.ok() && facts->name == device.get<std::string>()) return *facts;
  }
  return std::nullopt;
}

// ---- Ledger ----

std::string digest_of(json entry) {
  entry.erase("digest");
  return sha256_hex(entry.dump());
}

void seal(json& entry, const std::string& previous) {
  entry["previous"] = previous.empty() ? json(nullptr) : json(previous);
  entry["digest"] = digest_of(entry);
}

Result<json> read_ledger(const fs::path& directory) {
  const fs::path file = directory / kLedgerFile;
  std::error_code error;
  if (!fs::exists(file, error)) return json{{"schema", kLedgerSchema}, {"entries", json::array()}};
  auto ledger = read_json(file);
  if (!ledger.ok()) return ledger.status();
  if (text_of(*ledger, "schema") != kLedgerSchema || !member(*ledger, "entries").is_array())
    return bad(fmt::format("{}: schema '{}', expected {}", file.string(),
                           text_of(*ledger, "schema"), kLedgerSchema));
  return ledger;
}

/// A path that stays inside the directory and ends as records do.
Status check_name(const std::string& name) {
  const fs::path path(name);
  const bool inside = path.is_relative() && !name.empty() &&
                      std::none_of(path.begin(), path.end(), [](const fs::path& part) {
                        return part.empty() || part.string().starts_with('.');
                      });
  if (!inside || !name.ends_with(".json") || name == kLedgerFile)
    return bad(
        fmt::format("'{}': a record is named NAME.json or FOLDER/NAME.json, stays in the "
                    "directory, has no part that begins with '.', and is not {}",
                    name, kLedgerFile));
  return {};
}

/// The last entry of a record, where `document` says what the recorded file says: a record that is
/// only laid out anew stays bound to what it was bound to.
std::optional<json> laid_out_anew(const fs::path& directory, const std::string& file,
                                  const json& document, const json& entries) {
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (text_of(*entry, "file") != file) continue;
    const auto text = read_file(directory / file);
    if (!text.ok() || sha256_hex(*text) != text_of(*entry, "sha256")) return std::nullopt;
    if (json::parse(*text, nullptr, false) != document) return std::nullopt;
    return *entry;
  }
  return std::nullopt;
}

// ---- Machine code of a record that does not hold it at its head ----

/// A gate's record has it in its rows of resources.
json code_of_gate(const json& record) {
  json out = json::array();
  std::set<std::string> seen;
  for (const json& row : list_of(record, "resources")) {
    const std::string kernel = text_of(row, "kernel"), arch = text_of(row, "arch"),
                      digest = text_of(row, "sha256");
    if (digest.empty() || !seen.insert(kernel + arch).second) continue;
    out.push_back({{"kernel", kernel}, {"arch", arch}, {"sha256", digest}});
  }
  return out;
}

/// By the names of the record's plans; where they are older than those names, by what the present
/// plan of the same problem calls it.
json code_of_launches(const std::vector<Launch>& launches,
                      const std::map<std::string, Problem>& problems, const DeviceFacts& facts,
                      const DeviceCode& binary) {
  std::map<std::string, std::set<std::string>> variants;
  std::vector<std::string> names;
  for (const Launch& launch : launches) {
    std::string name = launch.kernel;
    const auto problem = problems.find(launch.problem);
    if (find_kernel(binary, name, facts.arch) == nullptr && problem != problems.end()) {
      Options options;
      options.device = facts.kind;
      options.variant = launch.variant;
      if (const auto now = plan(problem->second, facts, options); now.ok()) name = now->kernel;
    }
    names.push_back(name);
    variants[name].insert(launch.variant);
  }
  json out = code_json(names, facts.arch, binary);
  for (json& item : out) item["variants"] = variants[text_of(item, "kernel")];
  return out;
}

// ---- Verification ----

class Verifier {
 public:
  Verifier(const fs::path& directory, const DeviceCode& code, const fs::path& root)
      : directory_(directory), root_(root) {
    if (!root.empty()) sources_ = kernel_sources(root);
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
      for (const json& shape : list_of(record, "shapes")) {  // greenfast.ab
        const json& engines = member(member(shape, "ab"), "engines");
        if (!engines.is_object()) continue;
        for (const auto& [name, engine] : engines.items()) {
          const std::string variant = text_of(engine, "variant");
          if (text_of(engine, "verdict") == "GREEN" && !stale.contains(variant) &&
              !unbound_here_.contains(variant))
            green_.insert(variant);
        }
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
      if (policy.name == name && sha256_hex(policy.text) != digest)
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
           .detail = fmt::format("{}: {}", fmt::join(users, ", "), why)});
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
             .detail = change.words});
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
             .detail = fmt::format("plan of {}: {}", problem->first, std::move(detail))});
      };
      const auto now = plan(problem->second, facts, options);
      if (!now.ok()) {
        // A build without the architecture refuses every problem; that is no change of the plan.
        if (facts.kind == DeviceKind::cuda && !has_code_for(facts.arch)) continue;
        stale(now.status().message());
        continue;
      }
      json fields = {{"grid", now->grid},
                     {"block", now->block},
                     {"cluster", now->cluster},
                     {"tile_q", now->tile_q},
                     {"tile_kv", now->tile_kv},
                     {"stages", now->stages},
                     {"splits", now->splits},
                     {"shared_bytes", now->shared_bytes},
                     {"workspace_bytes", now->workspace_bytes}};
      // Records without machine code of their own are older than the names that plans give kernels.
      if (!list_of(record, "code").empty()) fields["kernel"] = now->kernel;
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
  std::map<std::string, std::string> sources_;
  std::map<std::pair<std::string, std::string>, const KernelCode*> kernels_;
  std::set<std::string> archs_;
  std::map<std::string, VariantInfo> variants_;
  std::set<std::string> green_, stale_;
  std::set<std::string> unbound_here_;  // variants of the file at hand
  Verification out_;
};

}  // namespace

std::string source_digest(std::string_view text) {
  std::string out;
  const auto blank = [&] {
    if (!out.empty() && out.back() != ' ') out += ' ';
  };
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (text.substr(i, 2) == "//") {
      i = std::min(text.find('\n', i), text.size());
    } else if (text.substr(i, 2) == "/*") {
      const std::size_t end = text.find("*/", i + 2);
      i = end == std::string_view::npos ? text.size() : end + 2;
      blank();
    } else if (text.substr(i, 2) == "R\"") {
      const std::size_t open = text.find('(', i);
      const std::string close = open == std::string_view::npos
                                    ? ""
                                    : fmt::format("){}\"", text.substr(i + 2, open - i - 2));
      const std::size_t end = close.empty() ? std::string_view::npos : text.find(close, open);
      const std::size_t stop = end == std::string_view::npos ? text.size() : end + close.size();
      out += text.substr(i, stop - i);
      i = stop;
    } else if (c == '"' ||
               (c == '\'' && (i == 0 || !is_word(text[i - 1])))) {  // 1'000 is no character
      std::size_t end = i + 1;
      while (end < text.size() && text[end] != c && text[end] != '\n')
        end += text[end] == '\\' ? 2 : 1;
      end = std::min(end + 1, text.size());
      out += text.substr(i, end - i);
      i = end;
    } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      blank();
      ++i;
    } else {
      out += c;
      ++i;
    }
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return sha256_hex(out);
}

std::vector<std::pair<std::string, std::string>> sources_of(const fs::path& root,
                                                            std::string_view variant) {
  const auto files = kernel_sources(root);
  std::vector<std::pair<std::string, std::string>> out;
  for (const std::string& path : closure_of(files, variant))
    out.emplace_back(path, source_digest(files.at(path)));
  return out;
}

Result<json> make_entry(const std::string& file, const std::string& text,
                        const BindingSources& from) {
  if (Status status = check_name(file); !status) return status;
  const json record = json::parse(text, nullptr, false);
  if (record.is_discarded()) return bad(fmt::format("{}: not JSON, or cut off", file));
  const std::string schema = text_of(record, "schema");
  if (!schema.starts_with(kSchemaPrefix))
    return bad(
        fmt::format("{}: schema '{}'; evidence is made of records whose schema begins with "
                    "{}",
                    file, schema, kSchemaPrefix));
  for (const std::string_view known : {kRunSchema, kGateSchema, kSamplesSchema, kSelftestSchema}) {
    const std::string_view stem = known.substr(0, known.find('/') + 1);
    if (schema.starts_with(stem) && schema != known)
      return bad(fmt::format("{}: schema '{}'; this program knows {}", file, schema, known));
  }
  if (schema == kLedgerSchema || schema == kBundleSchema)
    return bad(
        fmt::format("{}: schema '{}' is no record: import takes a bundle as it is, and keeps "
                    "the ledger itself",
                    file, schema));
  if (text_of(record, "status") == "interrupted")
    return bad(fmt::format("{}: the run was interrupted; run it to its end", file));

  const std::vector<Launch> launches = launches_of(record);
  const auto facts = device_of(record);
  const json& device = member(record, "device");
  const bool same_program = made_by_this_program(record);
  const bool on_gpu = facts && facts->kind == DeviceKind::cuda;
  std::set<std::string> variants;
  for (const Launch& launch : launches) variants.insert(launch.variant);
  json code = list_of(record, "code");
  std::string why, how = "told by the program that ran";
  if (code.empty() && schema == kGateSchema) code = code_of_gate(record);
  if (code.empty() && on_gpu && !launches.empty()) {
    const std::string loaded = text_of(member(record, "library"), "sha256");
    const DeviceCode* binary = nullptr;
    if (from.rebuilt != nullptr) {
      if (!from.trust_root || from.root.empty())
        return bad(
            fmt::format("{}: --rebuilt needs --source, the checkout of the record's commit that it "
                        "was built from",
                        file));
      const std::string compiler = text_of(member(member(record, "build"), "cuda"), "compiler");
      const std::string version = compiler.substr(compiler.find(' ') + 1);  // "nvcc 13.0.88"
      const std::string& found =
          from.rebuilt->kernels.empty() ? "" : from.rebuilt->kernels.front().compiler;
      if (!version.empty() && !found.ends_with("V" + version))
        return bad(fmt::format("{}: ran code of {}, --rebuilt is of {}", file, compiler, found));
      binary = from.rebuilt;
      how = "compiled again from the sources of its commit by the same compiler";
    } else if (!loaded.empty() && from.library == nullptr) {
      why = "the library that ran was not given (--binary)";
    } else if (!loaded.empty() && from.library_sha256 != loaded) {
      return bad(fmt::format(
          "{}: --binary {} is not the library that ran: SHA-256 {}, the record says {}", file,
          from.library->file, from.library_sha256.substr(0, 12), loaded.substr(0, 12)));
    } else if (!loaded.empty()) {
      binary = from.library;
      how = "read from the library that ran";
    } else if (same_program && own_device_code().ok()) {
      binary = &*own_device_code();
      how = "read from the program that ran";
    } else {
      why = "made before records held digests of machine code";
    }
    if (binary != nullptr) code = code_of_launches(launches, problems_of(record), *facts, *binary);
  }
  json sources = json::object(), by_variant = json::object();
  if (!from.root.empty() && (from.trust_root || same_program)) {
    const auto files = kernel_sources(from.root);
    for (const std::string& variant : variants) {
      const auto closure = closure_of(files, variant);
      if (closure.empty()) continue;
      by_variant[variant] = closure;
      for (const std::string& path : closure) sources[path] = source_digest(files.at(path));
    }
  }
  const bool has_code = std::any_of(
      code.begin(), code.end(), [](const json& item) { return !text_of(item, "sha256").empty(); });
  const bool on_cpu = facts && facts->kind == DeviceKind::cpu;
  std::string bound(has_code ? kMachineCode : on_cpu && !sources.empty() ? kSources : kNothing);
  if (schema == kSelftestSchema) bound = "policy";
  if (bound == kNothing && why.empty() && launches.empty())
    why = fmt::format("{} names no plan of a kernel", schema);
  if (bound == kNothing && why.empty())
    why = on_cpu ? "made from another commit than this program's, and its sources were not given "
                   "(--source)"
                 : "no kernel of it has machine code in the binary";
  return json{{"file", file},
              {"sha256", sha256_hex(text)},
              {"schema", schema},
              {"made", text_of(record, "utc")},
              {"recorded", utc_time()},
              {"commit", member(member(member(record, "build"), "git"), "sha")},
              {"device", device.is_object() ? member(device, "name") : device},
              {"policy", member(record, "policy").is_object()
                             ? json{{"name", member(record["policy"], "name")},
                                    {"sha256", member(record["policy"], "sha256")}}
                             : json(nullptr)},
              {"bound_to", bound},
              {"why", bound == kNothing ? json(why) : json(nullptr)},
              {"how", has_code ? json(how) : json(nullptr)},
              {"code", code},
              {"sources", sources},
              {"variants", by_variant}};
}

Result<json> make_bundle(std::span<const std::string> names, std::span<const std::string> texts,
                         const BindingSources& from) {
  json records = json::array();
  std::set<std::string> seen;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!seen.insert(names[i]).second)
      return bad(fmt::format("{}: given twice; NAME=FILE gives a record another name", names[i]));
    const json record = json::parse(texts[i], nullptr, false);
    const std::string text = record.is_discarded() ? texts[i] : record_text(record);
    auto entry = make_entry(names[i], text, from);
    if (!entry.ok()) return entry.status();
    records.push_back({{"entry", std::move(*entry)}, {"text", text}});
  }
  json bundle = {{"schema", kBundleSchema}, {"utc", utc_time()}, {"records", std::move(records)}};
  bundle["digest"] = digest_of(bundle);
  return bundle;
}

Import import_evidence(const fs::path& directory, const std::string& name, const std::string& text,
                       const BindingSources& from) {
  const auto refused = [](Status status) { return Import{.status = std::move(status)}; };
  const auto tampered = [&](std::string what) {
    return Import{.status = bad(fmt::format("{}: TAMPERED: {}", name, what)), .tampered = true};
  };
  auto ledger = read_ledger(directory);
  if (!ledger.ok()) return refused(ledger.status());
  json& entries = (*ledger)["entries"];
  const json document = json::parse(text, nullptr, false);
  if (document.is_discarded()) return refused(bad(fmt::format("{}: not JSON, or cut off", name)));
  json records = json::array();
  if (text_of(document, "schema") == kBundleSchema) {
    if (text_of(document, "digest") != digest_of(document))
      return tampered("the bundle is not what was written (SHA-256)");
    records = list_of(document, "records");
    for (const json& record : records) {
      const json& entry = member(record, "entry");
      if (Status status = check_name(text_of(entry, "file")); !status) return refused(status);
      if (text_of(entry, "sha256") != sha256_hex(text_of(record, "text")))
        return tampered(
            fmt::format("{} is not the record that was bundled (SHA-256)", text_of(entry, "file")));
    }
  } else {
    const std::string laid_out = record_text(document);
    // Who says what to bind it to wants another binding than the one it has.
    const bool asked = from.rebuilt != nullptr || from.library != nullptr || from.trust_root;
    auto entry = asked ? std::nullopt : laid_out_anew(directory, name, document, entries);
    if (!entry) {
      auto made = make_entry(name, laid_out, from);
      if (!made.ok()) return refused(made.status());
      entry = std::move(*made);
    }
    (*entry)["sha256"] = sha256_hex(laid_out);
    records.push_back({{"entry", std::move(*entry)}, {"text", laid_out}});
  }
  Import out;
  for (const json& record : records) {
    json entry = record["entry"];
    const std::string file = text_of(entry, "file");
    std::error_code error;
    fs::create_directories((directory / file).parent_path(), error);
    if (Status status = write_file_atomically(directory / file, text_of(record, "text")); !status)
      return refused(status);
    seal(entry, entries.empty() ? std::string() : text_of(entries.back(), "digest"));
    entries.push_back(std::move(entry));
    out.files.push_back(file);
  }
  if (Status status = write_file_atomically(directory / kLedgerFile, record_text(*ledger)); !status)
    return refused(status);
  return out;
}

Result<std::vector<KnownGap>> parse_known_gaps(std::string_view name, std::string_view text) {
  const auto wrong = [&](std::string_view what) { return bad(fmt::format("{}: {}", name, what)); };
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
        if (!variant || !reason || fields->size() != 2)
          return wrong("a [[known]] needs variant and reason, and nothing else");
        out.push_back({*variant, *reason});
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
      if (finding.state != EvidenceState::missing || !finding.file.empty() ||
          finding.subject != gap.subject)
        continue;
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
           .detail = "has current evidence: take it from the list of known gaps"});
  }
  return out;
}

}  // namespace greenfast::workbench
