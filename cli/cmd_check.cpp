// greenfast check: GREEN alone.
#include "cli/run_command.hpp"

namespace greenfast::cli {

Action define_check(CLI::App& app) { return define_run_like(app, RunKind::check); }

}  // namespace greenfast::cli
