// What is known of a side's correctness, wherever it was found out.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "workbench/green/validate.hpp"

namespace greenfast::workbench {

struct Correctness {
  std::optional<Verdict> verdict;  ///< none: nobody looked
  std::string why;                 ///< RED, SKIPPED: why
  bool red() const { return verdict == Verdict::red; }
};
/// "GREEN", "RED: why", "not checked".
std::string describe(const Correctness& known);
/// As greenfast.samples/1 has it: "GREEN", "RED: why", "SKIPPED: why", "" for nobody looked.
std::string written(const Correctness& known);
/// The inverse of written(). Nothing for a text that is none of these.
std::optional<Correctness> parse_correctness(std::string_view text);

}  // namespace greenfast::workbench
