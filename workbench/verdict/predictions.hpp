// What each step was expected to bring, written down before it was measured
// (policies/predictions.toml): the one table that gate, profile, report and docs read.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/attention.hpp>

#include "workbench/fast/statistics.hpp"

namespace greenfast::workbench {

/// What an idea is for: where this metric is no more than that part of the other, it brings nothing.
struct Symptom {
  std::string metric, of;
  double above = 0;
};

struct Prediction {
  std::string candidate, baseline;
  std::string expected;  ///< in words
  std::string because;
  std::string written;                                         ///< by whom and when
  std::string original;                                        ///< what the originals saw
  std::optional<std::pair<double, double>> speedup;            ///< least and most
  std::string shape = "mission";                               ///< where
  std::map<std::string, std::string, std::less<>> directions;  ///< metric id: "up", "down", "equal"
  std::optional<Symptom> symptom;
  std::string control;  ///< of a control experiment: why it is no idea to gain by; else empty
  std::string place;    ///< "policies/predictions.toml: line 12"
};
std::string_view builtin_predictions();
/// Both sides must be variants of the library. What else a row names is a metric, whose id
/// `is_metric` knows; without it any is taken. Errors name the line.
Result<std::vector<Prediction>> parse_predictions(
    std::string_view name, std::string_view toml,
    const std::function<bool(std::string_view id)>& is_metric = {});
const Prediction* find_prediction(std::span<const Prediction> predictions,
                                  std::string_view baseline, std::string_view candidate);
/// "bank_conflicts above 20% of shared_wavefronts".
std::string words_of(const Symptom& symptom);
/// Steps of the ladder (a variant and its predecessor) that have no row, and rows that are no step
/// of it, with their line. The table is whole where this is empty.
std::vector<std::string> gaps_in(std::span<const Prediction> predictions);

/// A measured speedup beside the predicted one.
enum class PredictionOutcome {
  as_predicted,  ///< the intervals meet
  more,
  less,
};
/// "as predicted", "more than predicted", "less than predicted".
std::string_view name_of(PredictionOutcome outcome) noexcept;
PredictionOutcome outcome_of(const std::pair<double, double>& predicted, const Interval& measured);

}  // namespace greenfast::workbench
