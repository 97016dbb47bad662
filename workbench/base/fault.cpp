#include "workbench/base/fault.hpp"

#include <array>

#include "workbench/base/exit_code.hpp"

namespace greenfast::workbench {
namespace {

struct FaultRow {
  Fault id;
  std::string_view name;
  int exit_code;
};
constexpr std::array kFaults{FaultRow{Fault::none, "none", kPassed},
                             FaultRow{Fault::launch, "launch", kCrash},
                             FaultRow{Fault::numerics, "numerics", kNumerics},
                             FaultRow{Fault::integrity, "integrity", kIntegrity}};

const FaultRow& row_of_fault(Fault fault) { return kFaults[static_cast<std::size_t>(fault)]; }

}  // namespace

std::string_view name_of(Fault fault) noexcept { return row_of_fault(fault).name; }
int exit_code_of(Fault fault) noexcept { return row_of_fault(fault).exit_code; }
std::optional<Fault> parse_fault(std::string_view name) {
  for (const FaultRow& row : kFaults)
    if (row.name == name) return row.id;
  return std::nullopt;
}

}  // namespace greenfast::workbench
