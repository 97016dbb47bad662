#include "workbench/verdict/advise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace greenfast::workbench {
namespace {

bool has(const Decision& decision, ReasonCode code) {
  return std::any_of(decision.reasons.begin(), decision.reasons.end(),
                     [&](const Reason& reason) { return reason.code == code; });
}

/// What to do about a reason that no speed answers, or before any speed is looked at. A regression
/// and a missed gate are answered by the intervals.
struct Remedy {
  ReasonCode code;
  std::string_view words;
};
constexpr std::array kRemedies{
    Remedy{ReasonCode::crash,
           "let it run to its end first: a time of what crashes is a time of nothing"},
    Remedy{ReasonCode::timeout,
           "let it end in time first, or give it more (timeout_seconds of a gate policy)"},
    Remedy{ReasonCode::integrity,
           "mend what it does beside its work before anything is timed again"},
    Remedy{
        ReasonCode::impossible,
        "find the work that is left out while it is timed: no kernel is faster than the machine"},
    Remedy{ReasonCode::numerics,
           "make it GREEN first (greenfast check): a wrong kernel's speed says nothing"},
    Remedy{ReasonCode::resources,
           "bring it inside its limit, or give it a [[waiver]] that says what was tried "
           "(greenfast resources shows each figure)"},
    Remedy{ReasonCode::inconclusive,
           "do not change the candidate yet: measure what the reasons name, as they say"},
    Remedy{ReasonCode::noisy,
           "gate again on a quieter machine: what was measured there decides nothing"},
    Remedy{ReasonCode::tool_missing,
           "gate again where what is missing is there: what was not seen is not promoted"},
    Remedy{ReasonCode::no_op,
           "nothing differs: gate something else than the baseline's own code and plan"}};

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

std::string control_in_line(std::string_view line, std::span<const Prediction> predictions) {
  for (const Prediction& p : predictions)
    if (!p.control.empty() && names_variant(line, p.candidate)) return p.control;
  return {};
}

Advice advise(const Decision& decision, const DecisionTree& tree, const GatedSides& sides,
              const std::optional<Interval>& primary, double gate,
              std::span<const Prediction> predictions) {
  Advice out;
  const bool promoted = decision.outcome == Outcome::promote;
  const Level* cleared = nullptr;  // by the lower bound, whatever the verdict
  const Level* missed = nullptr;
  if (primary) {
    for (const Level& level : tree.levels) {
      const bool above = primary->lo >= level.at_least;
      out.levels.push_back({level.name, level.at_least, above && promoted});
      if (above) {
        cleared = &level;
        if (promoted) out.level = level.name;
      } else if (missed == nullptr) {
        missed = &level;
      }
    }
  }
  if (promoted) {
    if (missed != nullptr)
      out.next.push_back(fmt::format("level \"{}\" asks for {:.2f}x; this is {}", missed->name,
                                     missed->at_least, ratio_words(*primary)));
    return out;
  }
  for (const Remedy& remedy : kRemedies)
    if (has(decision, remedy.code)) out.next.emplace_back(remedy.words);
  const bool slower = has(decision, ReasonCode::regression);
  const bool below = has(decision, ReasonCode::below_gate);
  const bool open = has(decision, ReasonCode::inconclusive);
  if (slower && cleared == nullptr)
    out.next.emplace_back(
        "keep the baseline: the candidate stays callable by name, for the record");
  if (slower && cleared != nullptr)
    out.next.push_back(fmt::format(
        "a guard shape is slower while the primary shape is at {}, enough for level \"{}\": choose "
        "the candidate by shape, where it is faster, or mend that shape",
        ratio_words(*primary), cleared->name));
  if (!(slower || below || open) || !primary) return out;
  const bool short_of_gate = !(primary->lo >= gate);
  if (short_of_gate && !slower && cleared != nullptr)
    out.next.push_back(fmt::format(
        "{} would do for level \"{}\", {:.2f}x, and this step's own gate asks for {:.2f}x",
        ratio_words(*primary), cleared->name, cleared->at_least, gate));
  if (!short_of_gate && !slower)
    out.next.push_back(
        fmt::format("the primary shape is at {}, above its gate of {:.2f}x: what keeps it from a "
                    "PROMOTE is what the reasons name, such as a guard shape or p90",
                    ratio_words(*primary), gate));
  // What else to try is no answer to a guard alone.
  if (slower ? cleared != nullptr : !short_of_gate) return out;
  if (cleared == nullptr && missed != nullptr)
    out.next.push_back(fmt::format("{} is short of level \"{}\", {:.2f}x", ratio_words(*primary),
                                   missed->name, missed->at_least));
  for (const std::string& line : tree.below) {
    if (names_variant(line, sides.candidate) || names_variant(line, sides.baseline)) continue;
    if (!control_in_line(line, predictions).empty()) continue;
    const Symptom* symptom = symptom_in_line(line, predictions);
    out.next.push_back(symptom == nullptr
                           ? line
                           : fmt::format("{}, where a profile shows {}", line, words_of(*symptom)));
  }
  return out;
}

}  // namespace greenfast::workbench
