#include "workbench/resources/compiler_logs.hpp"

#include <fmt/format.h>

#include <sstream>

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

std::optional<CompilerLogs> read_compiler_logs(const fs::path& build) {
  const auto objects = read_file(build / "ptxas_objects.txt");
  if (!objects) return std::nullopt;
  CompilerLogs out;
  std::istringstream names(*objects);
  for (std::string name; names >> name;) {
    const auto log = read_file(name + ".ptxas");
    if (!log || log->find("ptxas info") == std::string::npos) return std::nullopt;
    ++out.logs;
    for (const std::string& line : complaints_of(*log))
      out.complaints.push_back(fmt::format("{}: {}", fs::path(name).filename().string(), line));
  }
  if (out.logs == 0) return std::nullopt;
  return out;
}

std::optional<CompilerLogs> own_compiler_logs() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error || program.parent_path().filename() != "bin") return std::nullopt;
  return read_compiler_logs(program.parent_path().parent_path());
}

}  // namespace greenfast::workbench
