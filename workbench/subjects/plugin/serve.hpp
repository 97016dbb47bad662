// The process a CPU plugin lives in: `greenfast plugin-host FILE`, started by the command itself.
#pragma once

#include <string>

namespace greenfast::workbench {

/// Serves requests on the inherited descriptors until told to quit; returns the exit code. Ends
/// with its parent.
int serve_plugin(const std::string& path);

/// The hidden subcommand's name.
inline constexpr const char* kPluginHostCommand = "plugin-host";

}  // namespace greenfast::workbench
