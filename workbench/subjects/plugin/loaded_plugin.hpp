// A plugin's shared object in this process: loaded, checked against the ABI, and called. Runs a
// stranger's code, so only in a process whose end is nobody's loss.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <greenfast/plugin.h>
#include <greenfast/c_types.hpp>
#include <greenfast/types.hpp>

namespace greenfast::workbench {

/// One kernel of a plugin, as the harness knows it.
struct PluginKernelInfo {
  std::string name, idea;
  DeviceKind device = DeviceKind::cpu;
};

/// 1 to 64 letters, digits, '_', '-' or '.': what may stand behind "plugin:".
bool is_plugin_name(const char* text);

class PluginLibrary {
 public:
  /// dlopen, version, table. invalid_argument names the file and what is wrong with it.
  static Result<PluginLibrary> load(const std::string& path);

  const std::string& name() const { return name_; }
  const std::vector<PluginKernelInfo>& kernels() const { return infos_; }
  const gf_plugin_kernel& kernel(std::size_t index) const { return plugin_->kernels[index]; }

  /// Why a kernel does not take the problem; nothing when it does.
  std::optional<std::string> refusal(std::size_t index, const gf_problem& problem) const;
  std::size_t workspace_bytes(std::size_t index, const gf_problem& problem) const;
  Status prepare(std::size_t index, const gf_problem& problem) const;
  Status launch(std::size_t index, const gf_problem& problem, const gf_tensors& tensors,
                void* workspace, std::size_t workspace_bytes, void* stream) const;

 private:
  const gf_plugin* plugin_ = nullptr;
  std::string name_;
  std::vector<PluginKernelInfo> infos_;
};

}  // namespace greenfast::workbench
