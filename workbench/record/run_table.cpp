#include "workbench/record/run_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "workbench/base/terminal.hpp"

namespace greenfast::workbench {
namespace {

Color color_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::green:
      return Color::green;
    case Verdict::red:
      return Color::red;
    case Verdict::skipped:
      break;
  }
  return Color::yellow;
}

std::string scientific(double value) {
  return std::isnan(value) ? "NaN" : value == 0 ? "0" : fmt::format("{:.1e}", value);
}

std::string percent(double value) {
  return std::isnan(value) ? "NaN" : value == 0 ? "0" : fmt::format("{:.3g}", value);
}

}  // namespace

std::vector<LeftOut> left_out(std::span<const RunRow> rows) {
  // First by variant and reason, then those together that were left out of the same problems.
  std::vector<LeftOut> out;
  for (const RunRow& row : rows) {
    if (row.verdict != Verdict::skipped) continue;
    const auto same = std::find_if(out.begin(), out.end(), [&](const LeftOut& left) {
      return left.reason == row.reason && left.variants.front() == row.variant;
    });
    if (same == out.end())
      out.push_back({row.reason, {row.variant}, {row.problem}});
    else
      same->problems.push_back(row.problem);
  }
  std::vector<LeftOut> together;
  for (LeftOut& left : out) {
    const auto same = std::find_if(together.begin(), together.end(), [&](const LeftOut& other) {
      return other.reason == left.reason && other.problems == left.problems;
    });
    if (same == together.end())
      together.push_back(std::move(left));
    else
      same->variants.push_back(left.variants.front());
  }
  return together;
}

std::string run_table(const RunPlan& plan, const RunResult& result, bool color) {
  using Align = Table::Align;
  std::vector<Table::Column> columns = {
      {"variant", Align::left}, {"shape", Align::left}, {"verdict", Align::left}};
  for (const char* title : {"max_err", "mean_err", "%bad", "rel_err"})
    columns.push_back({title, Align::right});
  if (plan.fast)
    for (const char* title : {"p50", "p90", "std", "TFLOP/s", "%peak", "×fastest"})
      columns.push_back({title, Align::right});

  Table table(columns);
  std::size_t sampled = 0, cases = 0;
  for (const RunRow& row : result.rows) {
    if (row.verdict == Verdict::skipped) continue;
    std::vector<std::string> cells = {row.variant, row.problem,
                                      paint(name_of(row.verdict), color_of(row.verdict), color)};
    cells.push_back(scientific(row.worst.max_err));
    cells.push_back(scientific(row.worst.mean_err));
    cells.push_back(percent(row.worst.percent_bad));
    cells.push_back(scientific(row.worst.rel_fro));
    if (row.time) {
      cells.push_back(format_duration(row.time->p50));
      cells.push_back(format_duration(row.time->p90));
      cells.push_back(format_duration(row.time->std));
      cells.push_back(fmt::format("{:.3f}", row.flops * 1e-12));
      cells.push_back(row.percent_of_peak > 0 ? fmt::format("{:.1f}", row.percent_of_peak) : "-");
      cells.push_back(row.times_fastest > 0 ? fmt::format("{:.2f}", row.times_fastest) : "-");
    }
    table.add_row(cells);
    sampled += static_cast<std::size_t>(row.rows_sampled);
    cases += static_cast<std::size_t>(row.cases);
  }

  std::string out;
  if (!table.empty()) out += table.text();
  for (const RunRow& row : result.rows)
    if (row.verdict == Verdict::red)
      out += fmt::format("{} {} on {}: {}\n", paint("RED", Color::red, color), row.variant,
                         row.problem, row.reason);
  for (const RunRow& row : result.rows)
    if (row.verdict == Verdict::green && !row.reason.empty())
      out += fmt::format("NOTE {} on {}: {}\n", row.variant, row.problem, row.reason);
  for (const LeftOut& left : left_out(result.rows))
    out += fmt::format("{} {} on {} ({})\n", paint("SKIPPED", Color::yellow, color),
                       fmt::join(left.variants, ", "), fmt::join(left.problems, ", "), left.reason);
  for (const std::string& failure : result.failures)
    out += fmt::format("{} {}\n", paint("FAILED", Color::red, color), failure);
  if (sampled > 0)
    out += fmt::format(
        "In {} of {} cases the oracle checked a part of the rows, chosen by seed, "
        "within the policy's budget.\n",
        sampled, cases);
  for (std::size_t i = 0; i < result.peaks.size(); ++i) {
    if (i > 0 && result.peaks[i].method == result.peaks[i - 1].method) continue;
    const std::string& neighbour = result.samples[i].neighbour;
    out +=
        fmt::format("Peak measured around the timings: {:.3f} TFLOP/s ({}). Timed {}{}.\n",
                    result.peaks[i].flops * 1e-12, result.peaks[i].method,
                    result.samples[i].cache == CacheState::cold ? "with cold caches" : "hot",
                    neighbour.empty() ? "" : ", each call behind a kernel, less it: " + neighbour);
  }
  double others = 0;
  for (const RunRow& row : result.rows)
    if (row.time) others = std::max(others, row.time->other_work);
  if (others > 0.05)
    out += fmt::format(
        "Other work took up to {:.0f}% of these cores while this was timed; intervals in the "
        "record "
        "reach down by as much.\n",
        100 * others);
  if (result.interrupted) out += "Interrupted: other problems were not begun.\n";
  return out;
}

std::string selftest_table(const SelftestResult& result, bool color) {
  using Align = Table::Align;
  Table table({{"planted kernel", Align::left},
               {"result", Align::left},
               {"caught by", Align::left},
               {"where", Align::left},
               {"what it models", Align::left}});
  for (const SelftestRow& row : result.rows) {
    const bool right = row.honest ? row.red_cases == 0 : row.caught;
    const std::string outcome = row.honest ? (right ? "GREEN" : "RED, but honest")
                                           : (row.caught ? "RED" : "GREEN, but wrong");
    table.add_row({row.subject, paint(outcome, right ? Color::green : Color::red, color),
                   row.metric.empty() ? "-" : row.metric, row.where.empty() ? "-" : row.where,
                   row.models});
  }
  std::string quantizer;
  for (const QuantizerRow& row : result.quantizer)
    quantizer += fmt::format(
        "Quantiser, {}: {}\n", row.what,
        row.wrong == 0
            ? paint(fmt::format("{} exact", row.values), Color::green, color)
            : paint(fmt::format("{} of {} wrong, first: {}", row.wrong, row.values, row.first),
                    Color::red, color));
  return table.text() + quantizer +
         fmt::format(
             "{} of {} wrong kernels caught, {} of {} honest ones passed, policy {}, on {}, {:.1f} "
             "s.\n",
             result.mutants_caught, result.mutants, result.honest_green, result.honest,
             result.policy, result.device.name, result.seconds);
}

}  // namespace greenfast::workbench
