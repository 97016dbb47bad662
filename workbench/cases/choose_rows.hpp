// Which rows of a case are worth the oracle's time.
#pragma once

#include <cstdint>
#include <vector>

#include "workbench/cases/placement.hpp"
#include "workbench/cases/workload.hpp"

namespace greenfast::workbench {

/// Rows to check within a budget of FLOP: all that exist when it suffices, else first and last rows
/// and rows at tile boundaries of every length in use (multiples of 16, 32, 64, 128), then others,
/// by seed. Where sequences have lengths of their own, each one's first and last row is among them,
/// and the rows that face the first key of a page or a chunk and the key before.
std::vector<std::int64_t> choose_rows(const Case& c, const Placement& placement,
                                      double flop_budget);
/// With the arrays that the case draws.
std::vector<std::int64_t> choose_rows(const Case& c, double flop_budget);

}  // namespace greenfast::workbench
