// greenfast bench: FAST, after a quick check of every variant.
#include "cli/run_command.hpp"

namespace greenfast::cli {

Action define_bench(OptionSet& options) { return define_run_like(options, RunKind::bench); }

}  // namespace greenfast::cli
