// How what a record says is held to what its parts say: figures within rounding, sentences by the facts
// in them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "workbench/fast/samples.hpp"

namespace greenfast::workbench {

/// Of figures that went through JSON and back, and through other compilers' sums.
inline constexpr double kFigureTolerance = 1e-6;
bool same_figure(double said, double is);

/// Where a table and what it should say differ, as "/shapes/3/peers/peer:fa3/p50_seconds: 1 is 2". What
/// `is` does not have is not looked at.
void compare_members(const nlohmann::json& said, const nlohmann::json& is, const std::string& at,
                     std::vector<std::string>& out);

/// Whether two sentences tell the same facts in the same order: whole numbers, numbers with a point
/// (within one of their last place), words in capitals (REJECT, FAIL), names (cpu.flash, max_row), and
/// the unit behind a number. Other words may change from version to version.
bool same_facts(std::string_view said, std::string_view is);

/// What a call computes against what its problem's text says, where that says all of it; empty: nothing
/// is wrong. The harness for other engines counts half of all pairs under a causal mask, as those
/// engines' own tables do.
std::string wrong_flops(const Samples& shape);

}  // namespace greenfast::workbench
