// How far an output lies from the reference, in several measures: each sees a class of faults that
// the others forgive.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "workbench/reference/oracle.hpp"

namespace greenfast::workbench {

/// Measures of one output against a reference.
struct Metrics {
  double max_err = 0, mean_err = 0;
  double p999_err = 0;            // 99.9th percentile of |error|
  double percent_bad = 0;         // % of elements above the policy's element threshold
  double rel_fro = 0;             // ||o - r|| / ||r||, Frobenius
  double max_row = 0;             // max over rows of ||o_i - r_i|| / ||r_i||
  double bias = 0;                // mean(o - r) / rms(r), signed
  double gain = 0;                // |<o, r> / <r, r> - 1|
  double cosine = 1;              // <o, r> / (||o|| ||r||)
  double max_lse_err = 0;         // where LSE was asked for
  std::int64_t nan_mismatch = 0;  // elements where exactly one side is NaN or Inf of that sign
  std::int64_t worst_row = -1, worst_col = -1;  // of max_err: (b * Hq + h) * Sq + i, and d
  std::int64_t worst_lse = -1;                  // of max_lse_err: place among the reference's rows
};

/// o: rows x D, lse: rows or empty, both in the reference's order. Rows whose reference is zero
/// (no visible key) count their absolute error in max_row. `out_dtype` says beyond which magnitude
/// the reference rounds to infinity.
Metrics measure(const Reference& reference, std::int64_t head_dim, DType out_dtype,
                std::span<const double> o, std::span<const double> lse, double element_threshold);

/// Metrics a policy may limit, in the order they are judged; the value that is compared.
struct MetricRow {
  std::string_view name, meaning;
  double (*value)(const Metrics&);
};
std::span<const MetricRow> metric_table();

}  // namespace greenfast::workbench
