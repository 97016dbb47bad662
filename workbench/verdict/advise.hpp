// What to do after a verdict: the decision tree's levels, and what to try where none was reached.
// Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "workbench/verdict/decide.hpp"
#include "workbench/verdict/gate_policy.hpp"

namespace greenfast::workbench {

/// Of a tree, with what a speedup made of it.
struct ReachedLevel {
  std::string name;
  double at_least = 1;
  bool reached = false;
};
struct Advice {
  std::string level;                 ///< the highest that was reached; empty: none
  std::vector<ReachedLevel> levels;  ///< all of the tree, where the primary shape was timed
  std::vector<std::string> next;     ///< empty after the highest level
};

/// `primary`: the interval that decided p50 at the primary shape; none where nothing was timed. What
/// would try the candidate itself is left out. A verdict about correctness, resources or integrity
/// has its own remedy and asks for nothing that is about speed.
Advice advise(const Decision& decision, const DecisionTree& tree, std::string_view candidate,
              const std::optional<Interval>& primary);

}  // namespace greenfast::workbench
