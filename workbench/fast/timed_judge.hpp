// The oracle for timed calls: rows that nobody could foresee, of inputs that nobody had seen, held
// to the limits of GREEN.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "workbench/cases/workload.hpp"
#include "workbench/fast/measure.hpp"
#include "workbench/green/policy.hpp"

namespace greenfast::workbench {

struct CaseData;

/// By metric, as GREEN derives them (CaseData::limits).
using Limits = std::map<std::string, double>;

/// Larger of each: what either case would let pass.
void keep_larger(Limits& limits, const Limits& other);

/// Judges outputs of one problem. Copies share what was prepared. Limits that GREEN derived for the
/// problem's normal case save their derivation, which takes the emulator a part of GREEN's time.
Judge timed_judge(const Policy& policy, Limits limits = {});

}  // namespace greenfast::workbench
