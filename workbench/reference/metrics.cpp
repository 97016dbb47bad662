#include "workbench/reference/metrics.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "workbench/base/numeric.hpp"

namespace greenfast::workbench {
namespace {

constexpr std::array kMetrics{
    MetricRow{"max_row", "largest relative error of a row, |o_i - r_i| / |r_i|",
              [](const Metrics& m) { return m.max_row; }},
    MetricRow{"rel_fro", "relative error of the whole, Frobenius norm",
              [](const Metrics& m) { return m.rel_fro; }},
    MetricRow{"max_err", "largest |error| of an element",
              [](const Metrics& m) { return m.max_err; }},
    MetricRow{"mean_err", "mean |error|", [](const Metrics& m) { return m.mean_err; }},
    MetricRow{"percent_bad", "% of elements above the element threshold",
              [](const Metrics& m) { return m.percent_bad; }},
    MetricRow{"bias", "|mean error| / rms of the reference",
              [](const Metrics& m) { return std::fabs(m.bias); }},
    MetricRow{"gain", "|<o, r> / <r, r> - 1|", [](const Metrics& m) { return m.gain; }},
    MetricRow{"lse", "largest |error| of the log-sum-exp; beyond 256 relative to |lse| / 256",
              [](const Metrics& m) { return m.max_lse_err; }},
};

// Both NaN, or both infinite with the same sign.
bool same_special(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (std::isinf(a) && a == b);
}

}  // namespace

std::span<const MetricRow> metric_table() { return kMetrics; }

Metrics measure(const Reference& reference, std::int64_t head_dim, DType out_dtype,
                std::span<const double> o, std::span<const double> lse, double element_threshold) {
  Metrics m;
  const std::size_t rows = reference.rows.size();
  const auto dim = static_cast<std::size_t>(head_dim);
  const auto mismatch = [&](std::size_t row, std::int64_t col) {
    if (m.nan_mismatch++ == 0) {
      m.worst_row = reference.rows[row];
      m.worst_col = col;
    }
  };
  const auto may_be_nan = [&](std::size_t row) {
    return !reference.may_be_nan.empty() && reference.may_be_nan[row];
  };
  std::vector<double> errors;
  errors.reserve(rows * dim);
  double sum_abs = 0, sum = 0, sum_ee = 0, sum_rr = 0, sum_oo = 0, sum_or = 0;
  std::size_t bad = 0;
  // At the bottom of the type's range an honest result is off by so much as well, rounded once for
  // the output and once where blocks exchange parts of it in that type: where sinks or a tiny V leave
  // nothing else, zeros are right.
  const double unavoidable = numeric::least_step(out_dtype);
  for (std::size_t i = 0; i < rows; ++i) {
    double row_ee = 0, row_rr = 0;
    for (std::size_t d = 0; d < dim; ++d) {
      const double r = reference.o[i * dim + d], got = o[i * dim + d];
      // What an exact kernel would store: beyond the type's range that is an infinity.
      const double stored = numeric::round_to(out_dtype, r);
      if (!std::isfinite(stored) || !std::isfinite(got)) {
        const bool spread = may_be_nan(i) && std::isfinite(stored) && std::isnan(got);
        if (!same_special(stored, got) && !spread) mismatch(i, static_cast<std::int64_t>(d));
        continue;
      }
      // Nor is what scores are not known to in fp32 a fault of the kernel's.
      const double moved = reference.moved.empty() ? 0.0 : reference.moved[i * dim + d];
      const double magnitude = std::max(0.0, std::fabs(got - r) - unavoidable - moved);
      const double e = std::copysign(magnitude, got - r), a = r + e;
      errors.push_back(magnitude);
      sum += e;
      sum_abs += magnitude;
      row_ee += e * e;
      row_rr += r * r;
      sum_oo += a * a;
      sum_or += a * r;
      if (!(magnitude <= element_threshold)) ++bad;
      if (magnitude > m.max_err) {
        m.max_err = magnitude;
        if (m.nan_mismatch == 0) {
          m.worst_row = reference.rows[i];
          m.worst_col = static_cast<std::int64_t>(d);
        }
      }
    }
    sum_ee += row_ee;
    sum_rr += row_rr;
    const double least = reference.least_norm.empty() ? 0.0 : reference.least_norm[i];
    const double norm = std::max(row_rr, least * least);
    m.max_row = std::max(m.max_row, norm > 0 ? std::sqrt(row_ee / norm) : std::sqrt(row_ee));
  }
  if (!errors.empty()) {
    const auto count = static_cast<double>(errors.size());
    m.mean_err = sum_abs / count;
    m.percent_bad = 100.0 * static_cast<double>(bad) / count;
    m.bias = sum / count / (sum_rr > 0 ? std::sqrt(sum_rr / count) : 1.0);
    const auto rank = static_cast<std::ptrdiff_t>(0.999 * (count - 1.0));
    std::nth_element(errors.begin(), errors.begin() + rank, errors.end());
    m.p999_err = errors[static_cast<std::size_t>(rank)];
  }
  m.rel_fro = sum_rr > 0 ? std::sqrt(sum_ee / sum_rr) : std::sqrt(sum_ee);
  m.gain = sum_rr > 0 ? std::fabs(sum_or / sum_rr - 1.0) : 0.0;
  if (sum_rr > 0) m.cosine = sum_oo > 0 ? sum_or / std::sqrt(sum_oo * sum_rr) : 0.0;

  for (std::size_t i = 0; i < lse.size(); ++i) {
    const double r = reference.lse[i], a = lse[i];
    if (!std::isfinite(r) || !std::isfinite(a)) {
      if (!same_special(r, a)) mismatch(i, -1);
      continue;
    }
    // Beyond 256 relative: scores are sums in fp32.
    const double slack = reference.slack.empty() ? 0.0 : reference.slack[i];
    const double error =
        std::max(0.0, std::fabs(a - r) - slack) / std::max(1.0, std::fabs(r) / 256);
    if (error > m.max_lse_err) {
      m.max_lse_err = error;
      m.worst_lse = static_cast<std::int64_t>(i);
    }
  }
  return m;
}

}  // namespace greenfast::workbench
