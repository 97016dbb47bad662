// Everything a report rests on, in one file.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "workbench/base/atomic_file.hpp"
#include "workbench/base/build_info.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/base/subprocess.hpp"
#include "workbench/green/policy.hpp"
#include "workbench/profile/profile.hpp"
#include "workbench/report/report.hpp"
#include "workbench/resources/resources.hpp"
#include "workbench/verdict/gate_policy.hpp"

namespace greenfast::workbench {

namespace {

namespace fs = std::filesystem;

}  // namespace

Status write_bundle(const fs::path& file, const ReportSources& sources,
                    std::span<const ReportPart> parts) {
  if (!file.string().ends_with(".tar.gz"))
    return Status(StatusCode::invalid_argument,
                  fmt::format("--bundle {}: the name must end in .tar.gz", file.string()));
  // Name in the bundle: content. Records keep the names of their last two folders.
  std::vector<std::pair<std::string, std::string>> files;
  const auto add = [&](std::string name, std::string content) {
    const std::string stem = name;
    for (int n = 2;
         std::any_of(files.begin(), files.end(), [&](const auto& f) { return f.first == name; });
         ++n)
      name = fmt::format("{}-{}", n, stem);
    files.emplace_back(std::move(name), std::move(content));
  };
  for (std::size_t i = 0; i < sources.records.size(); ++i) {
    const ReportSource& s = sources.records[i];
    const std::string folder = fmt::format("records/{:02}-{}", i + 1, s.kind);
    // A job's head holds its secret, which is nobody's to read.
    if (s.kind == "job") {
      add(fmt::format("{}/status.json", folder), s.record.dump(1) + "\n");
      continue;
    }
    auto bytes = read_file(s.file);
    if (!bytes.ok()) return bytes.status();
    add(fmt::format("{}/{}", folder, s.file.filename().string()), std::move(*bytes));
    if (s.kind != "profile" || !s.record.contains("artifacts")) continue;
    for (const auto& artifact : s.record["artifacts"]) {
      const std::string name = artifact.at("file").get<std::string>();
      std::error_code error;
      // Told among what was left out when the record was read.
      if (!fs::exists(s.file.parent_path() / name, error)) continue;
      auto raw = read_file(s.file.parent_path() / name);
      if (!raw.ok()) return raw.status();
      add(fmt::format("{}/{}", folder, fs::path(name).filename().string()), std::move(*raw));
    }
  }
  for (const BuiltinPolicy& policy : builtin_policies())
    add(fmt::format("policies/{}.toml", policy.name), std::string(policy.text));
  for (const ReportSource& s : sources.records) {
    if (s.kind != "gate") continue;
    for (GivenPolicy& policy : given_policies(s.record))
      if (!policy.name.empty() && std::none_of(files.begin(), files.end(), [&](const auto& f) {
            return f.first == policy.name;
          }))
        add(policy.name, std::move(policy.text));
  }
  add("policies/gate.toml", std::string(builtin_gate_policy()));
  add("policies/resources.toml", std::string(builtin_resource_limits()));
  add("policies/predictions.toml", std::string(builtin_predictions()));
  add("policies/opcodes.toml", std::string(builtin_opcode_table()));
  add("policies/spills.toml", std::string(builtin_spill_table()));
  add("policies/evidence.toml", std::string(builtin_known_gaps()));
  add("report.md", report_markdown(parts));
  if (has_html_report()) {
    auto page = report_html(parts, "Validation report");
    if (!page.ok()) return page.status();
    add("report.html", std::move(*page));
  }
  if (auto pr = pull_request_text(sources); pr.ok()) add("pull-request.md", std::move(*pr));
  add("REPRODUCE.md",
      fmt::format(
          "# How to get these results again\n\nWritten by {}. `sha256sum -c SHA256SUMS` checks the "
          "files; `policies/` holds what this version judges by, `policies/given/` what gates were "
          "given as files, records name the digests of what they were judged by.\n\n{}",
          build_line(), reproduce_text(sources, true)));
  std::sort(files.begin(), files.end());
  std::string sums;
  for (const auto& [name, content] : files)
    sums += fmt::format("{}  {}\n", sha256_hex(content), name);
  add("SHA256SUMS", sums);

  const auto scratch = ScratchFolder::make("bundle");
  if (!scratch) return scratch.status();
  const std::string top = file.filename().string().substr(0, file.filename().string().size() - 7);
  for (const auto& [name, content] : files) {
    const fs::path path = scratch->path() / top / name;
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    if (Status status = write_file_atomically(path, content); !status) return status;
  }
  // One time, owner and order, so that the same sources give the same bytes.
  const std::vector<std::string> argv{"tar",
                                      "--sort=name",
                                      "--mtime=@0",
                                      "--owner=0",
                                      "--group=0",
                                      "--numeric-owner",
                                      "--mode=u=rwX,go=rX",
                                      "-czf",
                                      "-",
                                      "-C",
                                      scratch->path().string(),
                                      "--",
                                      top};
  auto end = run_program(argv, 120);
  if (!end.ok()) return end.status();
  if (end->exit_code != 0)
    return Status(StatusCode::internal, fmt::format("tar: {}", last_line(end->err)));
  return write_file_atomically(file, end->out);
}

}  // namespace greenfast::workbench
