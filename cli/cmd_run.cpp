// greenfast run: GREEN, then FAST for what is right.
#include "cli/run_command.hpp"

namespace greenfast::cli {

Action define_run(CLI::App& app) { return define_run_like(app, RunKind::run); }

}  // namespace greenfast::cli
