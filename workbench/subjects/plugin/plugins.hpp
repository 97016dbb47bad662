// The plugins of this command: files given with --plugin, compiled where they are sources, and
// their kernels as subjects plugin:NAME.
//
// A CPU plugin is called in a process of its own, on memory shared with this one; poison, redzones,
// input hashes, oracle and clock stay here. A CUDA plugin shares its device context with whoever
// launches it, so its calls are made in the calling process, which must be a child made for that.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/types.hpp>

#include "workbench/subjects/plugin/compile.hpp"
#include "workbench/subjects/subject.hpp"

namespace greenfast::workbench {

struct PluginOptions {
  std::vector<std::string> files;
  CompileOptions compile;
  double timeout_seconds = 60;  ///< of one request: loading, one call, one timed sample
  double memory_gib = 8;        ///< what a CPU plugin's process may allocate
  std::filesystem::path keep;   ///< where to compile and copy; empty: a temporary directory
};

/// Why a plugin could not be loaded, and whether it is to blame for how it ended.
struct PluginFailure {
  Status status;
  bool crashed = false;  ///< it crashed or hung while it was loaded: exit code 24, not 2
};

/// Compiles what is a source, looks into each file in a process of its own, and adds its kernels.
/// Files that are loaded already are left as they are.
std::optional<PluginFailure> load_plugins(const PluginOptions& options);
/// Processes of CPU plugins that start from now on cannot read this file, where the system can see to
/// that (confine.hpp).
void hide_from_plugins(const std::filesystem::path& secret);
/// The same for one file; its kernels' ids are appended to `ids`. A prefix other than "plugin:"
/// keeps several builds of one source apart.
std::optional<PluginFailure> load_plugin(const std::string& file, const PluginOptions& options,
                                         std::vector<std::string>* ids = nullptr,
                                         const std::string& prefix = "plugin:");
/// Forgets every plugin that was loaded with this prefix.
void unload_plugins(std::string_view prefix);

struct PluginKernelRow {
  std::string id, idea, file;
  DeviceKind device = DeviceKind::cpu;
};
/// Kernels of the loaded plugins, in the order given.
std::vector<PluginKernelRow> plugin_kernels();
/// The shared object that the kernel with this id lies in; empty for an unknown id.
std::filesystem::path plugin_library(std::string_view id);
/// What the compiler printed while the kernel with this id was compiled, by this command; nothing for
/// an unknown id, and where the plugin was given as a shared object.
std::optional<std::string> plugin_compiler_log(std::string_view id);
/// Null for an unknown id.
std::unique_ptr<Subject> make_plugin_subject(std::string_view id);
/// The same kernel in a process of its own, where a CPU plugin's subjects otherwise share one: what
/// differs between two of them is what differs from process to process. Null for an unknown id and
/// for a CUDA plugin.
std::unique_ptr<Subject> make_plugin_twin(std::string_view id);
/// Whether any loaded plugin is for CUDA.
bool any_cuda_plugin();
/// From here on every call of this kernel fails with that reason: it crashed, hung or broke the
/// device's context in a process that is gone.
void condemn_plugin(const std::string& id, const std::string& reason);
/// File, digests, compiler, flags and kernels of each plugin, for records.
nlohmann::json plugins_json();
/// Of what was loaded: the same for the same sources, compilers and flags. Empty without plugins.
std::string plugins_digest();

}  // namespace greenfast::workbench
