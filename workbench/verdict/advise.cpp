#include "workbench/verdict/advise.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace greenfast::workbench {
namespace {

bool has(const Decision& decision, ReasonCode code) {
  return std::any_of(decision.reasons.begin(), decision.reasons.end(),
                     [&](const Reason& reason) { return reason.code == code; });
}

}  // namespace

bool names_variant(std::string_view line, std::string_view variant) {
  for (std::size_t at = line.find(variant); !variant.empty() && at != std::string_view::npos;
       at = line.find(variant, at + 1)) {
    const std::size_t end = at + variant.size();
    const bool longer =
        end < line.size() &&
        (std::isalnum(static_cast<unsigned char>(line[end])) != 0 || line[end] == '_');
    if (!longer) return true;
  }
  return false;
}

const Symptom* symptom_in_line(std::string_view line, std::span<const Prediction> predictions) {
  for (const Prediction& p : predictions)
    if (p.symptom && names_variant(line, p.candidate)) return &*p.symptom;
  return nullptr;
}

Advice advise(const Decision& decision, const DecisionTree& tree, const GatedSides& sides,
              const std::optional<Interval>& primary, std::span<const Prediction> predictions) {
  Advice out;
  if (!primary) return out;
  const ReachedLevel* first_missed = nullptr;
  for (const Level& level : tree.levels)
    out.levels.push_back({level.name, level.at_least, primary->lo >= level.at_least});
  for (const ReachedLevel& level : out.levels) {
    if (level.reached)
      out.level = level.name;
    else if (first_missed == nullptr)
      first_missed = &level;
  }
  if (decision.outcome == Outcome::promote) {
    if (first_missed != nullptr)
      out.next.push_back(fmt::format("level \"{}\" asks for {:.2f}x; this is {}",
                                     first_missed->name, first_missed->at_least,
                                     ratio_words(*primary)));
    return out;
  }
  const bool slower = has(decision, ReasonCode::regression);
  const bool undecided = has(decision, ReasonCode::inconclusive) ||
                         has(decision, ReasonCode::noisy) || has(decision, ReasonCode::below_gate);
  if (!slower && !undecided) return out;
  if (slower && out.level.empty())
    out.next.push_back("keep the baseline: the candidate stays callable by name, for the record");
  if (slower && !out.level.empty())
    out.next.push_back(
        fmt::format("a guard shape is slower while the primary shape reaches level \"{}\": choose "
                    "the candidate by shape, where it is faster, or mend that shape",
                    out.level));
  if (out.level.empty()) {
    if (first_missed != nullptr)
      out.next.push_back(fmt::format("{} is short of level \"{}\", {:.2f}x", ratio_words(*primary),
                                     first_missed->name, first_missed->at_least));
    for (const std::string& line : tree.below) {
      if (names_variant(line, sides.candidate) || names_variant(line, sides.baseline)) continue;
      const Symptom* symptom = symptom_in_line(line, predictions);
      out.next.push_back(symptom == nullptr ? line
                                            : fmt::format("{}, where a profile shows {}", line,
                                                          words_of(*symptom)));
    }
  }
  return out;
}

}  // namespace greenfast::workbench
