// Two sides beside each other: the ratio of their times with its interval, whether both are right,
// and how far their outputs differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "workbench/cases/workload.hpp"
#include "workbench/fast/measure.hpp"
#include "workbench/fast/samples.hpp"
#include "workbench/fast/statistics.hpp"
#include "workbench/green/correctness.hpp"
#include "workbench/green/policy.hpp"
#include "workbench/subjects/subject.hpp"

namespace greenfast::workbench {

/// How far two outputs lie apart, in units of the last place of their type: 0 between equal numbers
/// (and between +0 and -0), 1 between neighbours.
struct OutputDifference {
  std::int64_t elements = 0, differing = 0;
  std::int64_t max_ulp = 0;
  std::int64_t p99_ulp =
      0;  ///< 99% of all elements differ by at most this; near zero an ulp is tiny
  std::int64_t nan_mismatch = 0;  ///< elements where exactly one side is NaN
  bool identical() const { return differing == 0 && nan_mismatch == 0; }
};
/// Both hold as many elements of dtype (fp32, fp16 or bf16).
OutputDifference difference(DType dtype, std::span<const std::byte> a,
                            std::span<const std::byte> b);
/// "bit for bit", "3 of 262144 elements differ, by at most 1 ulp (99% by at most 0)".
std::string describe(const OutputDifference& difference);

/// A recorded run: samples, and what it said of each side's correctness.
struct Recording {
  std::string source;   ///< the file, for messages
  std::string setting;  ///< "avx512bf16, 2 threads" of a record made on a CPU
  std::vector<Samples> shapes;
  /// Of GREEN beside the samples, by side, then shape's name; without an entry where there was none.
  std::map<std::string, std::map<std::string, Correctness>> correctness;
  std::vector<std::string> notes;  ///< what the recorder says of the circumstances
  /// Why a harness did without an engine that it was asked for, by the engine's name.
  std::map<std::string, std::string> missing;
  /// At one of the shapes: from above, else what stands with the side's samples.
  Correctness correctness_of(const std::string& side, const Samples& shape) const;
};
/// The ways in which a recording's shapes were timed, in its order; one empty name where it does not
/// say, as of a run that timed in one way alone.
std::vector<std::string> ways_of(const Recording& recording);
/// Leaves the shapes that were timed in this way, which no mean mixes with others; empty: the first
/// way, and a note says which others there are. invalid_argument where nothing was timed so.
Status keep_way(Recording& recording, const std::string& way);
/// Of a problem's text in a recording: where it says more than can be read here, the type alone.
std::optional<Problem> problem_of_recorded(const std::string& text);
/// What the errors that a recorder measured against fp64 mean: RED where one is above the policy's cap,
/// which bounds its limit whatever the emulator says. A recorder's own RED stays, since it may have
/// seen more than it wrote down; its GREEN counts only where it wrote no error down.
void judge_errors(Recording& recording, const Policy& policy);
/// Reads greenfast.run/1 or greenfast.samples/1, or gate.json; a directory stands for the run.json
/// or gate.json in it. Errors name the file: another schema (invalid_argument), truncated
/// (invalid_argument), unreadable (internal).
Result<Recording> read_recording(const std::filesystem::path& path);

struct ShapeComparison {
  std::string name, problem;
  Interval p50, p90;          ///< t_a / t_b: above 1 when b is faster
  LogRatio log_p50, log_p90;  ///< that they are made of, for means
  Summary a, b;
  double a_percent_of_peak = 0, b_percent_of_peak = 0;  ///< 0 where no peak was measured
  Correctness a_correct, b_correct;
  std::string a_variant, b_variant;  ///< as Side has it
  std::string outputs;               ///< how the outputs agree, in words
  std::map<std::string, double> a_errors, b_errors;
  bool a_impossible = false, b_impossible = false;  ///< faster than the measured ceilings allow
};

/// What an interval of a ratio shows of the second side.
enum class Seen { faster, slower, no_difference };
/// "faster", "slower", "no_difference".
std::string_view name_of(Seen seen) noexcept;
Seen seen_of(const Interval& ratio) noexcept;

/// Why a shape stands in no table of a comparison.
enum class SkipReason {
  refused,          ///< the side does not take the problem
  not_measured,     ///< the recording does not know the side there
  no_samples,       ///< it knows it, and says why there are none
  other_recording,  ///< one of two recordings alone holds the shape
  noise,            ///< a difference from the neighbours alone that is no time
  failed,           ///< timed calls failed or were wrong
  nothing,          ///< no rows or no keys: there is nothing that two sides could differ in
};
/// "refused", "not_measured", ...: as records have it.
std::string_view name_of(SkipReason reason) noexcept;

struct SkippedShape {
  std::string shape;
  std::string side;  ///< whose doing; empty: no side's
  SkipReason reason = SkipReason::refused;
  std::string detail;  ///< in words; other_recording: which holds it
};
/// "long: cpu.flash refuses it: ...".
std::string describe(const SkippedShape& skipped);
/// Of one entry of a record's "skipped": the shape's name, and the sentence for people. Throws
/// nlohmann::json::exception for what is not of the schema.
std::string shape_of_skipped(const nlohmann::json& skipped);
std::string words_of_skipped(const nlohmann::json& skipped);

struct Comparison {
  std::string a, b;
  bool paired = true;
  std::string device, cache;
  std::string way, neighbour;  ///< as Samples has them; those of shapes of one way
  std::vector<ShapeComparison> shapes;
  std::vector<SkippedShape> skipped;
  std::optional<Interval> overall_p50, overall_p90;  ///< geometric mean over shapes
  std::vector<std::string> notes;
  std::vector<Samples> samples;  ///< of a live comparison
  int exit_code = 0;
};

/// Sides of one recording, measured in the same blocks. Its shapes are of one way (keep_way).
Result<Comparison> compare_sides(const Recording& recording, const std::string& a,
                                 const std::string& b);
/// Sides of two recordings. Refuses, by name, recordings of different devices or cache states, and
/// shapes whose problems differ. Its intervals hold only if the machine did not change in between,
/// and a note says so.
Result<Comparison> compare_recordings(const Recording& first, const std::string& a,
                                      const Recording& second, const std::string& b);

struct CompareOptions {
  std::vector<NamedProblem> problems;
  std::vector<std::uint64_t> seeds{0};
  Policy policy;
  MeasureOptions timing;
  std::function<void(std::size_t done, std::size_t total, const std::string& what)> step;
};
/// Validates both subjects, then times them side by side.
Result<Comparison> compare_live(Device& device, Subject& a, Subject& b,
                                const CompareOptions& options);

nlohmann::json to_json(const Comparison& comparison);
std::string compare_text(const Comparison& comparison, bool color);
std::string compare_markdown(const Comparison& comparison);

}  // namespace greenfast::workbench
