#include "workbench/resources/compiler_logs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>

#include <greenfast/attention.hpp>

#include "workbench/base/files.hpp"

namespace greenfast::workbench {
namespace fs = std::filesystem;

std::vector<std::string> complaints_of(std::string_view log) {
  std::vector<std::string> out;
  std::istringstream lines{std::string(log)};
  for (std::string line; std::getline(lines, line);) {
    const bool told = line.find("warning") != std::string::npos ||
                      line.find("error") != std::string::npos ||
                      line.find("(C75") != std::string::npos;
    // Names of functions may hold any of these words.
    const bool statistic = line.find("Compiling entry function") != std::string::npos ||
                           line.find("Function properties for") != std::string::npos;
    if (told && !statistic) out.push_back(line);
  }
  return out;
}

namespace {

/// Names of the kernels that a log of ptxas tells of compiling.
std::set<std::string> kernels_in(std::string_view log) {
  constexpr std::string_view kBegin = "Compiling entry function '";
  std::set<std::string> out;
  for (std::size_t at = log.find(kBegin); at != std::string_view::npos; at = log.find(kBegin, at)) {
    at += kBegin.size();
    out.insert(kernel_name(log.substr(at, log.find('\'', at) - at)));
  }
  return out;
}

}  // namespace

std::optional<CompilerLogs> read_compiler_logs(const fs::path& build,
                                               std::span<const std::string> kernels) {
  const auto objects = read_file(build / "ptxas_objects.txt");
  if (!objects) return std::nullopt;
  CompilerLogs out;
  std::set<std::string> unseen(kernels.begin(), kernels.end());
  std::istringstream names(*objects);
  for (std::string name; names >> name;) {
    const auto log = read_file(name + ".ptxas");
    if (!log) continue;
    const std::set<std::string> held = kernels_in(*log);
    if (std::none_of(kernels.begin(), kernels.end(),
                     [&](const std::string& kernel) { return held.contains(kernel); }))
      continue;
    for (const std::string& kernel : held) unseen.erase(kernel);
    ++out.logs;
    for (const std::string& line : complaints_of(*log))
      out.complaints.push_back(fmt::format("{}: {}", fs::path(name).filename().string(), line));
  }
  if (out.logs == 0 || !unseen.empty()) return std::nullopt;
  return out;
}

std::optional<CompilerLogs> own_compiler_logs(std::span<const std::string> kernels) {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error || program.parent_path().filename() != "bin") return std::nullopt;
  return read_compiler_logs(program.parent_path().parent_path(), kernels);
}

}  // namespace greenfast::workbench
