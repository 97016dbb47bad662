// What the compilers said while a build's kernels were made, from the logs that lie beside their
// objects (tools/ptxas_log).
#pragma once

#include <filesystem>
#include <optional>
#include <span>
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
/// The logs of a build folder's objects that hold one of these kernels, by the names that plans give
/// them (kernel_name): what the objects of other kernels were told is no matter of theirs. Nothing
/// where the folder lists no kernel objects or no log tells of compiling one of these: then nobody
/// knows.
std::optional<CompilerLogs> read_compiler_logs(const std::filesystem::path& build,
                                               std::span<const std::string> kernels);
/// Of the build folder that this program lies in; nothing for one that was installed or copied.
std::optional<CompilerLogs> own_compiler_logs(std::span<const std::string> kernels);

}  // namespace greenfast::workbench
