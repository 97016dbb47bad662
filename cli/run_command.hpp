// What run, check and bench have in common: their options, and the job itself.
#pragma once

#include "cli/command.hpp"

namespace greenfast::cli {

enum class RunKind { run, check, bench };

/// Declares the options of a run-like subcommand and returns its action.
Action define_run_like(OptionSet& options, RunKind kind);

}  // namespace greenfast::cli
