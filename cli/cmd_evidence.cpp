// greenfast evidence: records of runs bound to the machine code that ran; are they still about this
// code?
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "workbench/base/atomic_file.hpp"
#include "workbench/base/clean_text.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/evidence/ledger.hpp"
#include "workbench/evidence/verify.hpp"

namespace greenfast::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using workbench::Color;
using workbench::EvidenceState;

struct EvidenceOptions {
  std::vector<std::string> what;
  std::string directory = "evidence";
  std::string out, source, binary, rebuilt, known, why;
  bool as_json = false;
};

/// "ladder-h200=results/x/run.json" or a file alone, whose name it then is. A record that is called
/// as every run's is called after its directory.
std::pair<std::string, std::string> name_and_file(const std::string& argument) {
  const std::size_t equals = argument.find('=');
  if (equals != std::string::npos && equals > 0 && !fs::exists(argument)) {
    std::string name = argument.substr(0, equals);
    if (!name.ends_with(".json")) name += ".json";
    return {name, argument.substr(equals + 1)};
  }
  const fs::path path(argument);
  std::string name = path.filename().string();
  if (name == "run.json" || name == "gate.json") {
    const std::string parent =
        fs::absolute(path).lexically_normal().parent_path().filename().string();
    if (!parent.empty()) name = parent + ".json";
  }
  return {name, argument};
}

/// Where the sources are: as asked, or here if this is a checkout.
fs::path source_root(const EvidenceOptions& options) {
  const fs::path root = options.source.empty() ? fs::path(".") : fs::path(options.source);
  if (fs::exists(root / "src" / "dispatch" / "variants.def")) return root;
  if (!options.source.empty())
    throw Failure(
        workbench::kUsage,
        fmt::format("--source {}: no checkout of Greenfast there (src/dispatch/variants.def)",
                    options.source));
  return {};
}

workbench::BindingSources binding(const EvidenceOptions& options, workbench::DeviceCode& library) {
  workbench::BindingSources from;
  if (!options.rebuilt.empty() && !options.binary.empty())
    throw Failure(workbench::kUsage, "--rebuilt and --binary: one of them");
  if (!options.rebuilt.empty()) {
    library = value_or_fail(workbench::read_device_code(fs::path(options.rebuilt)));
    from.rebuilt = &library;
  }
  from.root = source_root(options);
  from.trust_root = !options.source.empty();
  if (!options.binary.empty()) {
    library = value_or_fail(workbench::read_device_code(fs::path(options.binary)));
    from.library = &library;
    from.library_sha256 =
        workbench::sha256_hex(value_or_fail(workbench::read_file(options.binary)));
  }
  return from;
}

std::string directory_of(const EvidenceOptions& options) {
  if (!fs::is_directory(options.directory))
    throw Failure(workbench::kUsage, fmt::format("--dir {}: no such directory", options.directory));
  return options.directory;
}

/// A bundle or record that is not what was written is evidence that failed, not a slip of the
/// command line.
std::vector<std::string> accepted(workbench::Import import) {
  if (import.tampered) throw Failure(workbench::kEvidence, import.status.message());
  if (!import.status) throw Failure(import.status);
  return std::move(import.files);
}

int record(const EvidenceOptions& options) {
  std::vector<std::string> names, texts;
  for (const std::string& argument : options.what) {
    const auto [name, file] = name_and_file(argument);
    names.push_back(name);
    texts.push_back(value_or_fail(workbench::read_file(file)));
  }
  workbench::DeviceCode library;
  const auto from = binding(options, library);
  const json bundle = value_or_fail(workbench::make_bundle(names, texts, from));
  for (const json& item : bundle["records"]) {
    const json& entry = item["entry"];
    const std::string why = entry["why"].is_string() ? ": " + entry["why"].get<std::string>() : "";
    workbench::say(stderr, fmt::format("{}: bound to {}{}\n", entry["file"].get<std::string>(),
                                       entry["bound_to"].get<std::string>(), why));
  }
  if (options.out == "-") {
    fmt::print("{}\n", bundle.dump(1));
  } else if (!options.out.empty()) {
    if (Status status = workbench::write_file_atomically(options.out, bundle.dump(1) + "\n");
        !status)
      throw Failure(status);
  } else {
    accepted(workbench::import_evidence(directory_of(options), "bundle", bundle.dump(), from));
  }
  return workbench::kPassed;
}

int import(const EvidenceOptions& options) {
  const std::string directory = directory_of(options);
  workbench::DeviceCode library;
  const auto from = binding(options, library);
  for (const std::string& argument : options.what) {
    const auto [name, file] = name_and_file(argument);
    for (const std::string& written : accepted(workbench::import_evidence(
             directory, name, value_or_fail(workbench::read_file(file)), from)))
      fmt::print("{}\n", workbench::clean_line((fs::path(directory) / written).string()));
  }
  return workbench::kPassed;
}

int retire(const EvidenceOptions& options) {
  std::vector<std::string> names;
  for (const std::string& name : options.what)
    names.push_back(name.ends_with(".json") ? name : name + ".json");
  if (Status status = workbench::retire_evidence(directory_of(options), names, options.why);
      !status)
    throw Failure(status);
  return workbench::kPassed;
}

int verify(const EvidenceOptions& options) {
  const std::string directory = directory_of(options);
  workbench::DeviceCode code;
  if (options.binary.empty()) {
    const auto& own = workbench::own_device_code();
    if (!own.ok()) throw Failure(own.status());
    code = *own;
  } else {
    code = value_or_fail(workbench::read_device_code(fs::path(options.binary)));
  }
  std::vector<workbench::KnownGap> known;
  if (!options.known.empty())
    known = value_or_fail(workbench::parse_known_gaps(
        options.known, value_or_fail(workbench::read_file(options.known))));
  const workbench::Verification seen =
      workbench::verify_evidence(directory, code, source_root(options), known);
  std::map<std::string, int> counts;
  json findings = json::array();
  for (const workbench::Finding& finding : seen.findings) {
    ++counts[std::string(workbench::name_of(finding.state))];
    findings.push_back(
        {{"state", workbench::name_of(finding.state)},
         {"file", finding.file.empty() ? json(nullptr) : json(finding.file)},
         {"subject", finding.subject.empty() ? json(nullptr) : json(finding.subject)},
         {"detail", finding.detail},
         {"known", finding.known.empty() ? json(nullptr) : json(finding.known)}});
  }
  if (options.as_json) {
    fmt::print("{}\n", json{{"schema", "greenfast.verification/1"},
                            {"directory", directory},
                            {"findings", findings},
                            {"counts", counts},
                            {"exit_code", seen.exit_code()}}
                           .dump(2));
    return seen.exit_code();
  }
  const bool color = workbench::wants_color(stdout);
  for (const workbench::Finding& finding : seen.findings) {
    const Color shade = finding.state == EvidenceState::current      ? Color::green
                        : finding.state == EvidenceState::unbound    ? Color::yellow
                        : finding.state == EvidenceState::uncompared ? Color::yellow
                                                                     : Color::red;
    const std::string where = finding.file.empty()      ? finding.subject
                              : finding.subject.empty() ? finding.file
                                                        : finding.file + ": " + finding.subject;
    fmt::print(
        "{} {}: {}\n",
        workbench::paint(fmt::format("{:12}", workbench::name_of(finding.state)), shade, color),
        workbench::clean_text(where),
        workbench::clean_text(finding.detail) +
            (finding.known.empty() ? "" : "; known: " + workbench::clean_text(finding.known)));
  }
  std::vector<std::string> parts;
  for (const auto& [state, count] : counts) parts.push_back(fmt::format("{} {}", count, state));
  fmt::print("{}: {}\n", directory,
             parts.empty() ? "nothing to verify" : fmt::format("{}", fmt::join(parts, ", ")));
  return seen.exit_code();
}

}  // namespace

Action define_evidence(OptionSet& set) {
  auto options = std::make_shared<EvidenceOptions>();
  set.positional("what", &options->what, 1, 1000,
                 "record [NAME=]FILE..., import [NAME=]FILE..., retire NAME..., or verify. record "
                 "binds run.json, gate.json and the records of greenfast.ab to the machine code "
                 "that ran; import takes a bundle, or a record made elsewhere; retire takes out "
                 "records that others have replaced");
  set.text("--dir", &options->directory, "DIR", "Where evidence lies (default: evidence)");
  set.text("--out", &options->out, "FILE",
           "record: write one bundle to take home instead; - prints it");
  set.text("--binary", &options->binary, "FILE",
           "record, import: the library that a record of greenfast.ab loaded; verify: the build to "
           "compare with (default: "
           "this program)");
  set.text("--rebuilt", &options->rebuilt, "FILE",
           "record, import: kernels compiled again by the same compiler from --source, the "
           "checkout of the record's commit; "
           "for records without machine code whose program is gone");
  set.text("--source", &options->source, "DIR",
           "record, import: the checkout that the program which ran was built from; verify: the "
           "one to compare with (default: "
           "the working directory, where it is a checkout)");
  set.text("--known", &options->known, "FILE",
           "verify: variants whose evidence is known to be missing (policies/evidence.toml): told, "
           "and no failure");
  set.text("--why", &options->why, "TEXT",
           "retire: what stands in the records' place, for the ledger");
  set.flag("--json", &options->as_json, "verify: print JSON");
  return [options](const Arguments&) {
    const std::string verb = options->what.front();
    options->what.erase(options->what.begin());
    const bool takes_names = verb == "record" || verb == "import" || verb == "retire";
    if (!takes_names && verb != "verify")
      throw Failure(workbench::kUsage,
                    fmt::format("'{}': possible are record, import, retire, verify", verb));
    if (takes_names == options->what.empty())
      throw Failure(workbench::kUsage,
                    takes_names ? fmt::format("{}: a {} is needed", verb,
                                              verb == "retire" ? "record's name" : "file")
                                : fmt::format("verify: unexpected '{}'", options->what.front()));
    return verb == "record"   ? record(*options)
           : verb == "import" ? import(*options)
           : verb == "retire" ? retire(*options)
                              : verify(*options);
  };
}

}  // namespace greenfast::cli
