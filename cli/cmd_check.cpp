// greenfast check: GREEN alone.
#include "cli/run_command.hpp"

namespace greenfast::cli {

Action define_check(OptionSet& options) { return define_run_like(options, RunKind::check); }

}  // namespace greenfast::cli
