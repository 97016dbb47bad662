// What a plugin's process may not do. Asked of the system before the plugin is loaded, and for
// good: no code of the plugin's can take it back.
#pragma once

#include <cstdint>

namespace greenfast::workbench {

/// Bits of channel::Control::confined. An older system grants less, which records say.
/// - kNoFiles (Landlock): creates, changes and removes no file. Results of a job cannot be forged,
///   and nothing is kept from one process for the next.
/// - kNoProcesses (seccomp): starts threads but no processes, leaves its group for none, and does
///   not change priorities: what can be stopped and counted is all there is.
/// - kNoSignals (Landlock 6): sends signals to itself alone.
std::uint32_t confine();

/// Lets this process run on the first `threads` of the CPUs it may use; 0 changes nothing.
void keep_to(std::uint32_t threads);

}  // namespace greenfast::workbench
