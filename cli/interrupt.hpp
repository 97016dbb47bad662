// Ctrl-C asks a run to end and write what it has; a second one ends it at once.
#pragma once

namespace greenfast::cli {

/// Installs the handler of SIGINT and SIGTERM.
void catch_interrupts();
/// The signal that arrived since, 0 when none.
int interrupt_signal() noexcept;

}  // namespace greenfast::cli
