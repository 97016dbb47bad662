// greenfast run: GREEN, then FAST for what is right.
#include "cli/run_command.hpp"

namespace greenfast::cli {

Action define_run(OptionSet& options) { return define_run_like(options, RunKind::run); }

}  // namespace greenfast::cli
