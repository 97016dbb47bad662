// From a source file to a shared object: which compiler, which flags, and what it said.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/types.hpp>

namespace greenfast::workbench {

struct CompileOptions {
  std::string flags;                 ///< appended, split at spaces
  std::vector<std::string> defines;  ///< "NAME=VALUE"
  double timeout_seconds = 300;
  std::function<bool()> stop{};  ///< true ends the compiler, which then is an internal failure
};

/// What was compiled, and how; all of it goes into records.
struct Compiled {
  std::filesystem::path library;
  std::string compiler, version;  ///< its path, the last line of --version
  std::string command;            ///< as run, for whoever wants to repeat it
  std::string source_sha256;      ///< of the source file alone
  std::string key;  ///< digest of source, headers, flags and compiler version: the library's name
  std::string log;  ///< what the compiler printed; for .cu with ptxas' resource lines
  bool reused = false;  ///< the library was there already
};

/// Whether compile() takes files of this name: .c, .cc, .cpp, .cxx, .cu.
bool is_plugin_source(const std::filesystem::path& path);

/// The command line for a source, without running it; what identifies a build.
Result<std::vector<std::string>> compile_command(const std::filesystem::path& source,
                                                 const CompileOptions& options,
                                                 const std::filesystem::path& include);

/// Compiles source to directory/<digest>.so, or finds it there. invalid_argument with the
/// compiler's message when it refuses the source, no_device when there is no compiler for it,
/// internal when it cannot be run or does not end.
Result<Compiled> compile_plugin(const std::filesystem::path& source,
                                const std::filesystem::path& directory,
                                const CompileOptions& options);

/// What ptxas says of the kernels in a log of compile_plugin.
struct PtxasUse {
  int registers = 0;      ///< of the kernel that takes most
  long spill_bytes = 0;   ///< stores and loads of all kernels
  long shared_bytes = 0;  ///< static, of the kernel that takes most
  int kernels = 0;
};
PtxasUse read_ptxas(std::string_view log);

}  // namespace greenfast::workbench
