// Who failed how: one type for what every command's exit code and every verdict say of it.
#pragma once

#include <optional>
#include <string_view>

namespace greenfast::workbench {

enum class Fault {
  none,
  launch,     // an error, a crash, a hang: CRASH
  numerics,   // a wrong result, seen before anything was timed: NUMERICS
  integrity,  // wrong only while timed, or it touched what is not its own: INTEGRITY
};
std::string_view name_of(Fault fault) noexcept;
std::optional<Fault> parse_fault(std::string_view name);
/// 24, 20, 21; 0 for none.
int exit_code_of(Fault fault) noexcept;

}  // namespace greenfast::workbench
