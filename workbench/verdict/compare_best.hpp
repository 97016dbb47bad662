// One side of a recording beside several others: which of them is the best at each shape, how ours
// stands beside that, and over the shapes. What tables of peers say is copied from here.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "workbench/fast/samples.hpp"
#include "workbench/fast/statistics.hpp"
#include "workbench/green/correctness.hpp"
#include "workbench/verdict/compare.hpp"

namespace greenfast::workbench {

/// A side that may set the pace at one shape.
struct Contender {
  std::string id;
  double p50 = 0;  ///< seconds
  Correctness correctness;
};
/// Which is the best: the fastest p50 of those that are GREEN. Nothing where none is: what is wrong, or
/// was held to nothing, sets no pace.
std::optional<std::size_t> fastest_right(std::span<const Contender> contenders);

/// One shape beside the best of the others there.
struct BestAtShape {
  std::string name, problem;
  std::string best;       ///< empty: none of them was right there and timed beside ours
  Interval p50{}, p90{};  ///< t_best / t_ours
  LogRatio log_p50, log_p90;
  std::optional<DType> dtype;  ///< of the problem, where its text says one
  CallMetric metric = CallMetric::back_to_back;
  std::string variant;  ///< of ours; empty: the recorder does not tell
};

/// Shapes together, each beside its best.
struct Standing {
  int shapes = 0;
  int faster = 0, slower = 0;  ///< at how many ours was seen to be, by p50
  double least = 0, most = 0;  ///< of the ratios of p50
  /// Geometric means over the shapes. Which side is the best at a shape is settled once, by p50, and not
  /// drawn anew in each resample.
  Interval p50{}, p90{};
};
/// Of one type and metric, or of one kernel of ours.
struct StandingOf {
  std::optional<DType> dtype{};
  std::optional<CallMetric> metric{};
  std::string variant{};
  Standing standing{};
};

struct BestComparison {
  std::string ours;
  std::vector<Comparison> beside;  ///< each of the others as a, ours as b
  std::vector<BestAtShape> shapes;
  std::optional<Standing> all;  ///< nothing where no shape has a best
  std::vector<StandingOf> by_type, by_variant;
  int exit_code = 0;  ///< kNumerics where ours is RED; a RED other is none
};

/// `ours` beside each of `others`, sides of one recording. Its shapes are of one way (keep_way).
Result<BestComparison> compare_best(const Recording& recording,
                                    const std::vector<std::string>& others,
                                    const std::string& ours);

/// Schema greenfast.compare_best/1.
nlohmann::json to_json(const BestComparison& comparison);
/// The parts of it that tools/peer_table copies: shapes by name, and standings.
nlohmann::json best_json(const BestAtShape& shape);
nlohmann::json standings_json(const BestComparison& comparison);
std::string compare_text(const BestComparison& comparison, bool color);
std::string compare_markdown(const BestComparison& comparison);

}  // namespace greenfast::workbench
