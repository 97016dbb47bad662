// Does the gate work? Runs planted wrong kernels and honest ones through validate: every wrong one
// must turn RED, every honest one stay GREEN.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "workbench/green/policy.hpp"
#include "workbench/green/quantizer.hpp"
#include "workbench/green/validate.hpp"

namespace greenfast::workbench {

struct SelftestRow {
  std::string subject;  // "mutant.v4_leading_dimension", "honest.fp32_p"
  std::string models;   // the mistake it plants, or how it differs from the emulator
  bool honest = false;
  bool caught = false;         // turned RED on some case
  std::string metric, reason;  // of the first RED case
  std::string where;           // that case in words
  int cases = 0;               // that were run (a RED one ends a mutant's list)
  int red_cases = 0;           // honest kernels: how many were RED
};

struct SelftestResult {
  std::string policy;
  DeviceFacts device;  // on which the planted kernels ran
  std::vector<SelftestRow> rows;
  std::vector<QuantizerRow> quantizer;
  bool ok = false;  // all mutants caught, no honest kernel RED, the quantiser exact
  int mutants = 0, mutants_caught = 0, honest = 0, honest_green = 0;
  double seconds = 0;
};

using SelftestProgress = std::function<void(const SelftestRow& done, int index, int total)>;
/// Runs on the CPU or on a GPU. There the planted kernels of the CPU work on the GPU's buffers, and
/// others wrap a launch of a real kernel. Under a legacy policy the cases are those of its
/// originals, and ok says whether that gate would have caught everything.
Result<SelftestResult> selftest(const Policy& policy, const SelftestProgress& progress = {},
                                DeviceKind device = DeviceKind::cpu);

}  // namespace greenfast::workbench
