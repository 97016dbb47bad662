// Which keys a query sees, by the definition, and which rows of a case are worth the oracle's time.
#pragma once

#include <cstdint>
#include <vector>

#include "workbench/cases/workload.hpp"

namespace greenfast::workbench {

/// First visible key and one past the last for query i; empty when first >= last.
struct KeyRange {
  std::int64_t first = 0, last = 0;
};
KeyRange visible_keys(const Problem& problem, std::int64_t query);

/// Rows to check within a budget of FLOP: all when it suffices, else first and last rows and rows
/// at tile boundaries of every length in use (multiples of 16, 32, 64, 128), then others, by seed.
std::vector<std::int64_t> choose_rows(const Case& c, double flop_budget);

}  // namespace greenfast::workbench
