// GREEN: does a subject compute attention? Compares with the fp64 oracle on the bits the kernel
// reads, with limits derived from an emulator of an honest kernel, and checks that it touched only
// what it may.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "workbench/device/device.hpp"
#include "workbench/subject.hpp"
#include "workbench/workload.hpp"

namespace greenfast::workbench {

/// Rows of the fp64 result that were computed: all of them, or as many as a budget allows, chosen
/// by seed.
struct Reference {
  std::vector<std::int64_t> rows;  // (b * Hq + h) * Sq + i, ascending
  std::int64_t total_rows = 0;
  std::vector<double> o;    // rows.size() x D
  std::vector<double> lse;  // rows.size(), natural log, -inf where no key is visible
};

/// Measures of one output against a reference.
struct Metrics {
  double max_err = 0, mean_err = 0;
  double percent_bad = 0;         // % of elements above the policy's element threshold
  double rel_fro = 0;             // ||o - r|| / ||r||, Frobenius
  double max_row = 0;             // max over rows of ||o_i - r_i|| / ||r_i||
  double bias = 0;                // mean(o - r) / rms(r), signed
  double gain = 0;                // |<o, r> / <r, r> - 1|
  double max_lse_err = 0;         // where LSE was asked for
  std::int64_t nan_mismatch = 0;  // elements where exactly one side is NaN or Inf of that sign
  std::int64_t worst_row = -1, worst_col = -1;
};

enum class Verdict { green, red, skipped };

struct CaseResult {
  std::string subject;
  Case test;
  Verdict verdict = Verdict::red;
  std::string reason;  // first failed check in words, or why it was skipped
  std::string
      failed_metric;  // "max_row", "redzone", "inputs", "unwritten", "rerun", ...; empty when green
  bool integrity = false;  // the failure is one of integrity (exit 21), not of numerics (exit 20)
  Metrics metrics, emulator;
  std::map<std::string, double> limits;
  std::string output_sha256;
  std::int64_t rows_checked = 0, rows_total = 0;
};

}  // namespace greenfast::workbench
