// What a plugin's process may not do. Asked of the system before the plugin is loaded, and for
// good: no code of the plugin's can take it back.
#pragma once

#include <cstdint>
#include <filesystem>

namespace greenfast::workbench {

/// Bits of channel::Control::confined. An older system grants less, which records say.
/// - kNoFiles (Landlock): creates, changes and removes no file. Results of a job cannot be forged,
///   and nothing is kept from one process for the next.
/// - kNoProcesses (seccomp): starts threads but no processes, leaves its group for none, and does
///   not change priorities: what can be stopped and counted is all there is.
/// - kNoSignals (Landlock 6): sends signals to itself alone.
/// `secret`: a file that it shall not read, as its path is without links; empty: none. Where
/// Landlock is there (kNoFiles), and every folder on the way to it can be listed, it does not; what
/// is made beside those folders afterwards it cannot read either. `kept_to_fewer`: no thread of it
/// changes the CPUs that it may run on (keep_to).
std::uint32_t confine(const std::filesystem::path& secret, bool kept_to_fewer);

/// Most that it may ask the system to map at once, in bytes.
inline constexpr std::uint32_t kMostPopulated = 4u << 20;

/// Lets this process run on the first `threads` of the CPUs it may use; 0: on all of them. Whether
/// the system would give it others if it asked.
bool keep_to(std::uint32_t threads);

}  // namespace greenfast::workbench
