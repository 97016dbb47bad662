// greenfast bench: FAST, after a quick check of every variant.
#include "cli/run_command.hpp"

namespace greenfast::cli {

Action define_bench(CLI::App& app) { return define_run_like(app, RunKind::bench); }

}  // namespace greenfast::cli
