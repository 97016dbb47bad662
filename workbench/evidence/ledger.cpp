#include "workbench/evidence/ledger.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "workbench/base/atomic_file.hpp"
#include "workbench/base/build_info.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/evidence/contents.hpp"
#include "workbench/evidence/kernel_files.hpp"
#include "workbench/record/code_json.hpp"

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Status bad(std::string text) { return {StatusCode::invalid_argument, std::move(text)}; }

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

void seal(json& entry, const std::string& previous) {
  entry["previous"] = previous.empty() ? json(nullptr) : json(previous);
  entry["digest"] = digest_of(entry);
}

/// The last entry of a record that was not retired; null where there is none.
const json* entry_of(const json& entries, const std::string& file) {
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry)
    if (text_of(*entry, "file") == file)
      return text_of(*entry, "bound_to") == kRetired ? nullptr : &*entry;
  return nullptr;
}

/// What a record's file says, where that is what was recorded.
std::optional<std::string> as_recorded(const fs::path& directory, const json& entry) {
  const auto text = read_file(directory / text_of(entry, "file"));
  if (!text.ok() || sha256_hex(*text) != text_of(entry, "sha256")) return std::nullopt;
  return *text;
}

/// The last entry of a record, where `document` says what the recorded file says: a record that is
/// only laid out anew stays bound to what it was bound to.
std::optional<json> laid_out_anew(const fs::path& directory, const std::string& file,
                                  const json& document, const json& entries) {
  const json* entry = entry_of(entries, file);
  const auto text = entry != nullptr ? as_recorded(directory, *entry) : std::nullopt;
  if (!text || json::parse(*text, nullptr, false) != document) return std::nullopt;
  return *entry;
}

// ---- Machine code of a record that does not hold it at its head ----

/// A gate's record has it for both sides; one from before 2026-11-26 in its rows of resources, which
/// are the candidate's, and where a plugin's still is.
json code_of_gate(const json& record) {
  json out = list_of(record, "code");
  std::set<std::string> seen;
  for (const json& row : out) seen.insert(text_of(row, "kernel") + text_of(row, "arch"));
  for (const json& row : list_of(record, "resources")) {
    const std::string kernel = text_of(row, "kernel"), arch = text_of(row, "arch"),
                      digest = text_of(row, "sha256");
    if (digest.empty() || !seen.insert(kernel + arch).second) continue;
    out.push_back({{"kernel", kernel}, {"arch", arch}, {"sha256", digest}});
  }
  return out;
}

/// A walk of the ladder has it in its steps, each a gate; which variants launch it is told here,
/// because no plan beside it does.
json code_of_walk(const json& record) {
  json out = json::array();
  std::map<std::string, std::size_t> places;
  for (const json& step : list_of(record, "steps")) {
    for (json row : code_of_gate(step)) {
      std::set<std::string> variants{text_of(step, "candidate")};
      if (row.contains("variants")) variants = row["variants"].get<std::set<std::string>>();
      const auto [place, fresh] = places.try_emplace(
          text_of(row, "kernel") + text_of(row, "arch") + text_of(row, "sha256"), out.size());
      if (fresh) {
        row["variants"] = variants;
        out.push_back(std::move(row));
        continue;
      }
      json& known = out[place->second]["variants"];
      variants.merge(known.get<std::set<std::string>>());
      known = variants;
    }
  }
  return out;
}

/// By the names of the record's plans; where they are older than those names, by what the present
/// plan of the same problem calls it.
json code_of_launches(const std::vector<Launch>& launches,
                      const std::map<std::string, Problem>& problems, const DeviceFacts& facts,
                      const DeviceCode& binary) {
  Launchers launchers;
  for (const Launch& launch : launches) {
    std::string name = launch.kernel;
    const auto problem = problems.find(launch.problem);
    if (find_kernel(binary, name, facts.arch) == nullptr && problem != problems.end()) {
      Options options;
      options.device = facts.kind;
      options.variant = launch.variant;
      if (const auto now = plan(problem->second, facts, options); now.ok()) name = now->kernel;
    }
    launchers.add(name, launch.variant);
  }
  return code_json(launchers, facts.arch, binary);
}

}  // namespace

std::string digest_of(json entry) {
  entry.erase("digest");
  return sha256_hex(entry.dump());
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
  if (schema == kGateSchema) code = code_of_gate(record);
  if (schema == kLadderGatesSchema) {
    code = code_of_walk(record);
    for (const json& row : code)
      for (const json& variant : row["variants"]) variants.insert(variant.get<std::string>());
  }
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
    const auto files = kernel_files(from.root);
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
  std::vector<std::string> texts;
  for (const json& record : records) {
    json entry = record["entry"];
    out.files.push_back(text_of(entry, "file"));
    texts.push_back(text_of(record, "text"));
    seal(entry, entries.empty() ? std::string() : text_of(entries.back(), "digest"));
    entries.push_back(std::move(entry));
  }
  out.files.push_back(std::string(kLedgerFile));  // last: it tells of the others
  texts.push_back(record_text(*ledger));
  std::vector<FileText> files;
  for (std::size_t i = 0; i < texts.size(); ++i)
    files.push_back({directory / out.files[i], texts[i]});
  if (Status status = write_files_atomically(files); !status) return refused(status);
  out.files.pop_back();
  return out;
}

Status retire_evidence(const fs::path& directory, std::span<const std::string> names,
                       const std::string& why) {
  if (why.empty()) return bad("retire: --why says what stands in the records' place");
  auto ledger = read_ledger(directory);
  if (!ledger.ok()) return ledger.status();
  json& entries = (*ledger)["entries"];
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (Status status = check_name(name); !status) return status;
    if (!seen.insert(name).second) return bad(fmt::format("{}: given twice", name));
    const json* entry = entry_of(entries, name);
    if (entry == nullptr)
      return bad(fmt::format("{}: the ledger has no record of that name", name));
    if (!as_recorded(directory, *entry))
      return bad(fmt::format("{}: is not the file that was recorded", name));
    json last = *entry;
    for (const char* bound : {"code", "sources", "variants"}) last.erase(bound);
    last["recorded"] = utc_time();
    last["bound_to"] = kRetired;
    last["why"] = why;
    last["how"] = nullptr;
    seal(last, text_of(entries.back(), "digest"));
    entries.push_back(std::move(last));
  }
  // The ledger first: a file that it calls retired and that is still there is found by verify.
  if (Status status = write_file_atomically(directory / kLedgerFile, record_text(*ledger)); !status)
    return status;
  for (const std::string& name : names) {
    std::error_code error;
    fs::remove(directory / name, error);
    if (error) return bad(fmt::format("{}: {}", (directory / name).string(), error.message()));
  }
  return {};
}

}  // namespace greenfast::workbench
