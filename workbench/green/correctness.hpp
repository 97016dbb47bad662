// What is known of a side's correctness, wherever it was found out.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "workbench/green/validate.hpp"

namespace greenfast::workbench {

struct Correctness {
  std::optional<Verdict> verdict;  ///< none: nobody looked
  std::string why;                 ///< RED, SKIPPED: why
  bool red() const { return verdict == Verdict::red; }
};
/// "GREEN", "RED: why", "not checked".
std::string describe(const Correctness& known);
/// Into an object of a record: "verdict", and "reason" where there is one; nothing where nobody
/// looked.
void write_correctness(nlohmann::json& object, const Correctness& known);
/// The inverse. Earlier records have both in one text, "RED: why". Nothing for a verdict
/// that is none.
std::optional<Correctness> read_correctness(const nlohmann::json& object);

}  // namespace greenfast::workbench
