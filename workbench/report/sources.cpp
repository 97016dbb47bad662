#include "workbench/report/sources.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>

#include "workbench/base/checkpoint.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/report/assets.hpp"

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// What a record must have, or it is a piece of one.
struct Kind {
  std::string_view name;
  std::vector<std::string_view> objects, arrays;
};
const std::array<Kind, 7>& kinds() {
  static const std::array<Kind, 7> rows{{
      {"run",
       {"build", "host", "device", "settings", "policy"},
       {"rows", "cases", "problems", "argv"}},
      {"gate", {"build", "options", "verdict"}, {"checklist", "argv"}},
      {"compare", {}, {"shapes"}},
      {"samples", {}, {"shapes"}},
      {"ladder", {}, {"steps"}},
      {"selftest", {"build", "policy"}, {"rows", "argv"}},
      {"profile", {"build", "device"}, {"sides", "argv"}},
  }};
  return rows;
}

Status refuse(const fs::path& file, const std::string& why) {
  return Status(StatusCode::invalid_argument, fmt::format("{}: {}", file.string(), why));
}

std::string known_schemas() {
  std::vector<std::string> names;
  for (const Kind& kind : kinds()) names.push_back(fmt::format("greenfast.{}/1", kind.name));
  return fmt::format("{}", fmt::join(names, ", "));
}

Status check_parts(const fs::path& file, const Kind& kind, const json& record) {
  const auto missing = [&](std::string_view name, const char* what) {
    return refuse(file, fmt::format("'{}' is {}; not a whole greenfast.{}/1 record, copy or record "
                                    "it again",
                                    name, record.contains(name) ? what : "missing", kind.name));
  };
  for (const std::string_view name : kind.objects)
    if (!record.contains(name) || !record[name].is_object()) return missing(name, "not an object");
  for (const std::string_view name : kind.arrays)
    if (!record.contains(name) || !record[name].is_array()) return missing(name, "not a list");
  return {};
}

bool has_type(const json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "number") return value.is_number();
  if (type == "integer") return value.is_number_integer();
  if (type == "boolean") return value.is_boolean();
  return value.is_null();
}

// Where a document breaks a schema, as a JSON path and a reason; empty where it does not. The part
// of JSON Schema that decides whether a reader finds what it looks for: types, required members,
// items, alternatives. Members that the schema does not know are a later version's business.
std::string breach(const json& schema, const json& value, const std::string& path) {
  if (const auto type = schema.find("type"); type != schema.end()) {
    bool fits = false;
    if (type->is_string()) fits = has_type(value, type->get<std::string>());
    if (type->is_array())
      for (const json& one : *type) fits = fits || has_type(value, one.get<std::string>());
    if (!fits) return fmt::format("{} is {}, not {}", path, value.type_name(), type->dump());
  }
  if (const auto one = schema.find("const"); one != schema.end() && value != *one)
    return fmt::format("{} is not {}", path, one->dump());
  if (const auto allowed = schema.find("enum");
      allowed != schema.end() &&
      std::find(allowed->begin(), allowed->end(), value) == allowed->end())
    return fmt::format("{} is none of {}", path, allowed->dump());
  if (const auto choices = schema.find("oneOf"); choices != schema.end()) {
    std::string why;
    bool fits = false;
    for (const json& choice : *choices) {
      why = breach(choice, value, path);
      fits = fits || why.empty();
    }
    if (!fits) return why;
  }
  if (value.is_number()) {
    const double number = value.get<double>();
    const auto bound = [&](const char* name, auto inside) {
      const auto limit = schema.find(name);
      return limit == schema.end() || inside(number, limit->get<double>());
    };
    if (!bound("minimum", std::greater_equal<>()) || !bound("maximum", std::less_equal<>()) ||
        !bound("exclusiveMinimum", std::greater<>()))
      return fmt::format("{} is {}, outside what it can be", path, value.dump());
  }
  if (value.is_object()) {
    if (const auto required = schema.find("required"); required != schema.end())
      for (const json& name : *required)
        if (!value.contains(name.get<std::string>()))
          return fmt::format("{}.{} is missing", path, name.get<std::string>());
    const auto known = schema.find("properties");
    const auto other = schema.find("additionalProperties");
    for (const auto& [name, member] : value.items()) {
      const json* rule = nullptr;
      if (known != schema.end() && known->contains(name))
        rule = &known->at(name);
      else if (other != schema.end() && other->is_object())
        rule = &*other;
      if (rule == nullptr) continue;
      if (std::string why = breach(*rule, member, fmt::format("{}.{}", path, name)); !why.empty())
        return why;
    }
  }
  if (value.is_array()) {
    const auto least = schema.find("minItems");
    if (least != schema.end() && value.size() < least->get<std::size_t>())
      return fmt::format("{} has {} items, at least {} are needed", path, value.size(),
                         least->dump());
    if (const auto items = schema.find("items"); items != schema.end())
      for (std::size_t i = 0; i < value.size(); ++i)
        if (std::string why = breach(*items, value[i], fmt::format("{}[{}]", path, i));
            !why.empty())
          return why;
  }
  return {};
}

// What gate.schema.json leaves open and a reader of gate.json needs.
std::string gate_breach(const json& record) {
  const auto lacks = [](const json& object, std::initializer_list<const char*> names,
                        const std::string& path) {
    for (const char* name : names)
      if (!object.contains(name)) return fmt::format("{}.{} is missing", path, name);
    return std::string();
  };
  const json& build = record.at("build");
  if (std::string why = lacks(
          build, {"version", "git_sha", "git_dirty", "compiler", "policy", "gate_policy_sha256"},
          "build");
      !why.empty())
    return why;
  if (!build["policy"].is_object()) return "build.policy is no object";
  if (std::string why = lacks(build["policy"], {"name", "sha256"}, "build.policy"); !why.empty())
    return why;
  if (record.contains("device"))
    if (std::string why = lacks(record["device"], {"kind", "name", "isa"}, "device"); !why.empty())
      return why;
  if (record.contains("resources"))
    for (const json& row : record["resources"])
      if (std::string why = lacks(row, {"name", "status"}, "resources[]"); !why.empty()) return why;
  if (!record.contains("fast")) return {};
  for (const json& shape : record["fast"]) {
    if (shape.contains("skipped")) continue;
    if (std::string why =
            lacks(shape,
                  {"baseline", "candidate", "candidate_flops", "candidate_percent_of_peak", "peak",
                   "floor_seconds", "blocks", "stopped", "speedup", "speedup_p90"},
                  "fast[]");
        !why.empty())
      return why;
    if (!shape["peak"].is_object()) return "fast[].peak is no object";
    if (std::string why =
            lacks(shape["peak"], {"flops", "bytes_per_second", "method"}, "fast[].peak");
        !why.empty())
      return why;
  }
  return {};
}

Status check_schema(const fs::path& file, const Kind& kind, const json& record) {
  std::string why;
  if (const std::string_view text = schema_text(kind.name); !text.empty())
    why = breach(json::parse(text), record, "$");
  if (why.empty() && kind.name == "gate") why = gate_breach(record);
  return why.empty()
             ? Status()
             : refuse(file, fmt::format("not of schema greenfast.{}/1: {}", kind.name, why));
}

// A profile names its raw files, which are too large for a repository: one that is not there is told,
// another one in its place is refused.
Status check_artifacts(const fs::path& file, const json& record,
                       std::vector<std::string>& left_out) {
  if (!record.contains("artifacts")) return {};
  for (const json& artifact : record["artifacts"]) {
    const std::string name = artifact["file"].get<std::string>();
    const std::string digest = artifact["sha256"].get<std::string>();
    const fs::path path = file.parent_path() / name;
    std::error_code error;
    if (!fs::exists(path, error)) {
      left_out.push_back(fmt::format("{}: not beside {}, which names it; SHA-256 {}", name,
                                     file.filename().string(), digest.substr(0, 12)));
      continue;
    }
    const auto bytes = read_file(path);
    if (!bytes) return bytes.status();
    if (sha256_hex(*bytes) != digest)
      return refuse(path, fmt::format("not the file that {} names (its SHA-256 differs); copy it "
                                      "again, or take it away",
                                      file.filename().string()));
  }
  return {};
}

// A folder's name tells more than its file's (gate.json); the way there tells about the machine.
std::string label_of(const fs::path& file) {
  const fs::path folder = file.parent_path().filename();
  return folder.empty() || folder == "." || folder == ".." ? file.filename().string()
                                                           : (folder / file.filename()).string();
}

class Loader {
 public:
  Status add(const std::string& given) {
    const fs::path path = fs::path(given).lexically_normal();
    std::error_code error;
    if (!fs::exists(path, error))
      return refuse(path, "no such file or folder; report takes result folders and records");
    return fs::is_directory(path, error) ? add_folder(path, 0) : add_file(path, true);
  }
  ReportSources take() { return std::move(out_); }

 private:
  // 2: a folder of results, of ladders, of gates.
  static constexpr int kDeepest = 2;

  Status add_folder(const fs::path& folder, int depth) {
    std::vector<fs::path> files, folders;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename().string();
      if (entry.is_directory(error)) {
        if (name != "steps" && depth < kDeepest) folders.push_back(entry.path());
      } else if (name == "job.json") {
        // What a gate was asked; gate.json beside it repeats that.
      } else if (name.ends_with(".json")) {
        files.push_back(entry.path());
      } else if (name == "notes.md") {
        const auto notes = read_file(entry.path());
        if (!notes) return notes.status();
        out_.notes += *notes + '\n';
      }
    }
    if (error)
      return Status(StatusCode::internal,
                    fmt::format("cannot read {}: {}", folder.string(), error.message()));
    std::sort(files.begin(), files.end());
    std::sort(folders.begin(), folders.end());
    // An unfinished gate is told as what it is; a walk of the ladder has no gate.json of its own.
    if (fs::exists(folder / "job.json", error) && !fs::exists(folder / "gate.json", error)) {
      if (auto status = gate_status(folder)) {
        const fs::path head = folder / "job.json";
        if (status->state != JobState::finished)
          out_.records.push_back({head, label_of(head), "job", json_of(*status), *status});
      } else {
        return status.status();
      }
    }
    for (const fs::path& file : files)
      if (Status status = add_file(file, false); !status) return status;
    for (const fs::path& sub : folders)
      if (Status status = add_folder(sub, depth + 1); !status) return status;
    return {};
  }

  Status add_file(const fs::path& file, bool by_name) {
    std::error_code error;
    if (!seen_.insert(fs::weakly_canonical(file, error)).second) return {};
    Result<json> read = read_record(file);
    if (!read) return read.status();
    json record = std::move(*read);
    std::string schema;
    if (record.is_object() && record.contains("schema") && record["schema"].is_string())
      schema = record["schema"].get<std::string>();
    const auto kind = std::find_if(kinds().begin(), kinds().end(), [&](const Kind& k) {
      return schema.starts_with(fmt::format("greenfast.{}/", k.name));
    });
    if (kind == kinds().end()) {
      const std::string why =
          schema.empty() ? "no record: it has no schema" : fmt::format("schema {}", schema);
      if (by_name) return refuse(file, fmt::format("{}; report reads {}", why, known_schemas()));
      if (file.filename() != "job.json")
        out_.left_out.push_back(fmt::format("{}: {}", file.string(), why));
      return {};
    }
    if (schema != fmt::format("greenfast.{}/1", kind->name))
      return refuse(
          file, fmt::format("schema {}; this version reads greenfast.{}/1", schema, kind->name));
    if (Status status = check_parts(file, *kind, record); !status) return status;
    if (Status status = check_schema(file, *kind, record); !status) return status;
    if (kind->name == "profile")
      if (Status status = check_artifacts(file, record, out_.left_out); !status) return status;
    out_.records.push_back({file, label_of(file), std::string(kind->name), std::move(record), {}});
    return {};
  }

  ReportSources out_;
  std::set<fs::path> seen_;
};

}  // namespace

Result<ReportSources> load_report_sources(std::span<const std::string> paths) {
  Loader loader;
  for (const std::string& path : paths) {
    try {
      if (Status status = loader.add(path); !status) return status;
    } catch (const json::exception& error) {
      return refuse(path, fmt::format("not of its schema: {}", reason_of(error)));
    }
  }
  ReportSources out = loader.take();
  if (out.records.empty())
    return refuse(paths.empty() ? "" : paths[0],
                  fmt::format("holds no record; report reads {}", known_schemas()));
  return out;
}

}  // namespace greenfast::workbench
