// GREEN: does a subject compute attention? Compares with the fp64 oracle on the bits the kernel
// reads, with limits derived from an emulator of an honest kernel, and checks that it touched only
// what it may.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "workbench/base/fault.hpp"
#include "workbench/cases/workload.hpp"
#include "workbench/device/device.hpp"
#include "workbench/green/policy.hpp"
#include "workbench/reference/metrics.hpp"
#include "workbench/reference/oracle.hpp"
#include "workbench/subjects/subject.hpp"

namespace greenfast::workbench {

/// What each metric may be: by policy, from the emulator's metrics and the largest |reference|.
std::map<std::string, double> limits_for(const Policy& policy, const Problem& problem,
                                         const Metrics& emulator, double largest,
                                         Distribution distribution = Distribution::normal);

enum class Verdict { green, red, skipped };
/// "GREEN", "RED", "SKIPPED".
std::string_view name_of(Verdict verdict);

/// The inputs of one case and what they should give: computed once, shared by every subject.
struct CaseData {
  Case test;
  Inputs inputs;
  Reference reference;
  Metrics emulator;                      // of the emulator: m_base
  std::map<std::string, double> limits;  // by metric
  double element_threshold = 0;          // of percent_bad
};
/// Generates the inputs. StatusCode::out_of_memory where the machine cannot hold the case.
Result<CaseData> prepare_case(const Case& c, const Policy& policy);
/// With inputs of the caller's (files).
Result<CaseData> prepare_case(const Case& c, Inputs inputs, const Policy& policy);

struct CaseResult {
  std::string subject;
  Case test;
  Verdict verdict = Verdict::red;
  std::string reason;         // first failed check in words, or why it was skipped
  std::string failed_metric;  // a metric's name, or "launch", "stream", "unwritten", "redzone",
                              // "inputs", "rerun"; empty when green
  Fault fault = Fault::none;  // what kind of failure it is: of launch, integrity or numerics
  Metrics metrics, emulator;
  std::map<std::string, double> limits;
  std::string output_sha256;  // of the elements of O in BHSD order, then LSE
  std::int64_t rows_checked = 0, rows_total = 0;
};

/// Runs the subject on the case and judges everything the policy asks for.
CaseResult validate(Subject& subject, Device& device, const CaseData& data, const Policy& policy);

/// Judges numbers alone: an output already on the host, in the layout of the problem. For timed
/// launches, whose outputs are checked off the clock. Fills metrics, limits, verdict and reason.
CaseResult judge_output(const CaseData& data, const void* o, const float* lse);

/// Every problem x distribution of the policy x seed, problems outermost.
std::vector<Case> make_cases(const std::vector<NamedProblem>& problems, const Policy& policy,
                             std::span<const std::uint64_t> seeds);

}  // namespace greenfast::workbench
