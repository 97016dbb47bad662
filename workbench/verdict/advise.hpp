// What to do after a verdict: the decision tree's levels, and what to try where none was reached.
// Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "workbench/verdict/decide.hpp"
#include "workbench/verdict/gate_policy.hpp"
#include "workbench/verdict/predictions.hpp"

namespace greenfast::workbench {

/// Of a tree, with what a verdict made of it. Only a promotion reaches a level: a lower bound above
/// it beside a missed gate or an open guard reaches none.
struct ReachedLevel {
  std::string name;
  double at_least = 1;
  bool reached = false;
};
struct Advice {
  std::string level;                 ///< the highest that was reached; empty: none
  std::vector<ReachedLevel> levels;  ///< all of the tree, where the primary shape was timed
  std::vector<std::string> next;     ///< empty after a promotion at the highest level alone
};

/// What was gated: it is not proposed again, nor is what it was held against.
struct GatedSides {
  std::string_view baseline, candidate;
};
/// Whether a line of advice names that variant.
bool names_variant(std::string_view line, std::string_view variant);
/// The symptom of the idea that a line of advice proposes, where it names one that has some.
const Symptom* symptom_in_line(std::string_view line, std::span<const Prediction> predictions);
/// Why what a line of advice names is a control experiment, which is never proposed; empty where it
/// names none.
std::string control_in_line(std::string_view line, std::span<const Prediction> predictions);

/// `primary`: the interval that decided p50 at the primary shape; none where nothing was timed.
/// `gate`: what its lower bound had to reach. Every verdict but a PROMOTE is told what to do: first
/// what is wrong beside speed, then what would settle what is open, then what else to try where the
/// primary shape falls short. What would try either side itself is left out, and so are control
/// experiments; an idea with a symptom is proposed where a profile shows it: a gate reads no counters.
Advice advise(const Decision& decision, const DecisionTree& tree, const GatedSides& sides,
              const std::optional<Interval>& primary, double gate,
              std::span<const Prediction> predictions);

}  // namespace greenfast::workbench
