// The main job: problems x seeds x variants, GREEN over all distributions of the policy, then FAST
// for those that are GREEN. Nothing is timed before it is right.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "workbench/cases/readers.hpp"
#include "workbench/fast/measure.hpp"
#include "workbench/green/policy.hpp"
#include "workbench/green/validate.hpp"
#include "workbench/subjects/subject.hpp"

namespace greenfast::workbench {

/// A problem to run, with its inputs where they come from files.
struct RunProblem {
  NamedProblem named;
  std::shared_ptr<const Inputs> captured;
  std::vector<std::string> only{};  ///< ids of the variants that run it; empty: all
};

/// A type and the variants that run in it.
struct TypeChoice {
  DType dtype;
  std::vector<std::string> variants;
};
/// For whoever names no type: each variant runs in the first of `types` that it takes. Who takes
/// none stays with the first, and is left out there with its reason.
std::vector<TypeChoice> choose_types(
    std::span<const DType> types, std::span<const std::string> variants,
    const std::function<bool(const std::string& variant, DType)>& takes);

/// Turns what --inputs read into a problem and inputs in its layout. The order of the files is the
/// defaults' layout (bhsd or bshd), and the kernel gets them in that order. The type is that of the
/// files, or `dtype`, to which values are then rounded once. Errors: shapes that do not agree,
/// layouts that files do not have, scales without e4m3.
Result<RunProblem> make_captured_problem(const Captured& captured, const std::string& name,
                                         const ProblemDefaults& defaults,
                                         std::optional<DType> dtype);

struct RunPlan {
  Device* device = nullptr;
  std::vector<RunProblem> problems;
  std::vector<std::uint64_t> seeds;
  std::vector<Subject*> subjects;
  std::set<std::string>
      finished;  ///< problems, by name, that are left out: an earlier part of the run ended them
  Policy policy;
  bool fast = true;    ///< time what is GREEN
  bool quick = false;  ///< GREEN on the first seed and the first two distributions alone
  MeasureOptions timing;
};

/// One line of the result: a variant on a problem.
struct RunRow {
  std::string variant, problem;
  Verdict verdict = Verdict::skipped;
  std::string reason;          ///< of the first failure, or why it was skipped
  std::string refused_midway;  ///< why it took no more cases after some that it took
  /// Distributions at the ends of the range whose problems it does not take: why.
  std::map<std::string, std::string> refused_ends;
  int exit_code = 0;     ///< what this row alone would return; 3 for a skipped one, 10 for one that
                         ///< refused after some cases
  int cases = 0;         ///< validated
  int rows_sampled = 0;  ///< cases in which the oracle checked a part of the rows
  Metrics worst;         ///< of each metric the largest over the cases
  std::optional<Summary> time;
  double flops = 0;            ///< per second, at p50
  double percent_of_peak = 0;  ///< of the peak measured around this problem
  double times_fastest = 0;    ///< p50 over that of the fastest variant on this problem
  double floor_seconds = 0;    ///< below it a time is IMPOSSIBLE
};

struct RunResult {
  std::vector<CaseResult> cases;
  std::vector<RunRow> rows;
  std::vector<Samples> samples;            ///< one per timed problem
  std::vector<Peak> peaks;                 ///< beside samples
  std::vector<Plan> plans;                 ///< of every variant on every problem it accepts
  std::vector<std::string> plan_problems;  ///< beside plans
  std::vector<std::string> finished;  ///< names of problems that were gone through to their end
  /// What the machine failed at (no memory for a ring, a lost device): the rest went on without it,
  /// and the run ends with 4.
  std::vector<std::string> failures;
  bool interrupted = false;
  int exit_code = 0;
};

/// How a run reports, and how it is stopped.
struct RunObserver {
  /// subject: whose step it is; empty where several are timed in turn.
  std::function<void(std::size_t done, std::size_t total, const std::string& what,
                     const std::string& subject)>
      step;
  std::function<void(const RunRow&)> row;  ///< GREEN of one variant on one problem is decided
  /// Asked between steps and between blocks of timing; true ends the run with what it has.
  std::function<bool()> stop;
};

RunResult run(const RunPlan& plan, const RunObserver& observer);

}  // namespace greenfast::workbench
