// --plugin and what belongs to it; shared by every subcommand that runs variants.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/option_set.hpp"
#include "workbench/subjects/plugin/plugins.hpp"

namespace greenfast::workbench {
class Activity;
}

namespace greenfast::cli {

struct PluginArguments {
  std::vector<std::string> files;
  std::string flags;
  double timeout = 60;
  double memory = 8;

  void define(OptionSet& options);
  workbench::PluginOptions options() const;
  /// Loads them; throws Failure: 2 for what is no plugin or does not compile, 24 for what crashes
  /// or hangs while it is loaded.
  void load() const;
};

/// Runs a command's body: here, or where a CUDA plugin is loaded in a child process, so that what
/// the plugin does to it is the plugin's verdict. A child that crashed or hung in a plugin's work
/// is run again with that kernel failing for that reason, so that every other result is had.
/// `body` calls `activity` with what it does now, which names the plugin's kernel where one is at
/// work, and returns the exit code. With `nothing_kept`, which says so, an interrupt that it has not
/// answered within half a second ends the child.
int run_isolated(double timeout, const std::function<int(workbench::Activity*)>& body,
                 const char* nothing_kept = nullptr);

/// Ends the child because the device's context is lost to what `blamed` did. Only in run_isolated's
/// child.
[[noreturn]] void leave_broken_context(workbench::Activity& activity, const std::string& blamed,
                                       const std::string& reason);

}  // namespace greenfast::cli
