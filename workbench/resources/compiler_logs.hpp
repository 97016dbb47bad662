// What the compilers said while a build's kernels were made, from the logs that lie beside their
// objects (tools/ptxas_log).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace greenfast::workbench {

struct CompilerLogs {
  int logs = 0;
  std::vector<std::string> complaints;  ///< "22_sm80_stage_c.cu.o: ptxas warning : ..."
};
/// Lines of one log that tell of a warning, an error or a serialised wgmma (C75xx).
std::vector<std::string> complaints_of(std::string_view log);
/// The logs of a build folder. Nothing where it lists no kernel objects, or one of them has no log,
/// or ptxas said nothing at all in them: then nobody knows.
std::optional<CompilerLogs> read_compiler_logs(const std::filesystem::path& build);
/// Of the build folder that this program lies in; nothing for one that was installed or copied.
std::optional<CompilerLogs> own_compiler_logs();

}  // namespace greenfast::workbench
