#include "workbench/report/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <greenfast/attention.hpp>
#include <greenfast/operands.hpp>

#include "workbench/base/terminal.hpp"
#include "workbench/cases/problem_codec.hpp"
#include "workbench/fast/measure.hpp"
#include "workbench/fast/samples.hpp"
#include "workbench/fast/statistics.hpp"

namespace greenfast::workbench {
namespace {

using nlohmann::json;

std::string text(const json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() && found->is_string()
             ? found->get<std::string>()
             : std::string();
}
double number(const json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() && found->is_number() ? found->get<double>()
                                                                           : 0.0;
}

std::string commit_of(const json& record) {
  if (!record.contains("build")) return {};
  const json& build = record["build"];
  const std::string sha =
      build.contains("git") ? text(build["git"], "sha") : text(build, "git_sha");
  return sha.substr(0, 10);
}

void add_run(const ReportSource& source, ReportModel& out) {
  const json& record = source.record;
  const std::string device = text(record["device"], "name");
  std::map<std::string, std::pair<std::string, double>> problems;  // name: text, FLOP
  for (const json& p : record["problems"])
    problems[text(p, "name")] = {text(p, "problem"), number(p, "flop")};
  for (const json& row : record["rows"]) {
    if (!row.contains("time") || !row["time"].is_object()) continue;
    const json& time = row["time"];
    Timing t{source.label, text(record, "utc"),  commit_of(record),
             device,       text(row, "variant"), text(row, "problem"),
             "",           text(time, "mode")};
    const auto problem = problems.find(t.shape);
    if (problem != problems.end()) std::tie(t.problem, t.flop) = problem->second;
    t.bytes = work_of(t.problem).bytes;
    t.p50 = number(time, "p50_seconds");
    t.p90 = number(time, "p90_seconds");
    t.std = number(time, "std_seconds");
    const json& ci = time.at("p50_ci_seconds");
    t.lo = ci.at(0).is_number() ? ci[0].get<double>() : t.p50;
    t.hi = ci.at(1).is_number() ? ci[1].get<double>() : t.p50;
    t.percent_of_peak = number(time, "percent_of_peak");
    out.timings.push_back(std::move(t));
  }
  if (record.contains("peaks")) {
    for (const json& peak : record["peaks"])
      out.ceilings.push_back({device, text(peak, "problem"), text(peak, "method"),
                              number(peak, "flops"), number(peak, "bytes_per_second")});
  }
  // Limits and metrics go by the same names but for the log-sum-exp.
  std::map<std::tuple<std::string, std::string, std::string>, std::size_t> at;
  for (const json& c : record["cases"]) {
    if (!c.contains("metrics")) continue;
    const auto key = std::tuple(text(c, "variant"), text(c, "problem"), text(c, "distribution"));
    const auto [where, fresh] = at.try_emplace(key, out.errors.size());
    if (fresh)
      out.errors.push_back(
          {source.label, std::get<0>(key), std::get<1>(key), std::get<2>(key), ""});
    DistributionError& e = out.errors[where->second];
    ++e.cases;
    e.red += text(c, "verdict") == "RED" ? 1 : 0;
    e.rel_fro = std::max(e.rel_fro, number(c["metrics"], "rel_fro"));
    for (const auto& [metric, limit] : c.at("limits").items()) {
      const double value = number(c["metrics"], metric == "lse" ? "max_lse_err" : metric.c_str());
      if (!limit.is_number() || !(limit.get<double>() > 0)) continue;
      const double share = std::abs(value) / limit.get<double>();
      if (share <= e.share) continue;
      e.share = share;
      e.worst_metric = metric;
    }
  }
}

void add_gate(const ReportSource& source, ReportModel& out) {
  const json& record = source.record;
  if (!record.contains("fast")) return;
  const std::string device = record.contains("device") ? text(record["device"], "name") : "";
  for (const json& shape : record["fast"]) {
    if (shape.contains("skipped") || !shape.contains("baseline")) continue;
    const double flop = number(shape, "candidate_flops") * number(shape["candidate"], "p50");
    const json& peak = shape.at("peak");
    for (const char* side : {"baseline", "candidate"}) {
      const json& s = shape.at(side);
      Timing t{source.label,
               text(record, "utc"),
               commit_of(record),
               device,
               text(record["options"], side),
               text(shape, "shape"),
               text(shape, "problem"),
               record["options"].at("hot").get<bool>() ? "hot" : "cold"};
      t.flop = flop;
      t.bytes = work_of(t.problem).bytes;
      t.p50 = number(s, "p50");
      t.p90 = number(s, "p90");
      t.std = number(s, "std");
      t.lo = number(s, "ci_lo");
      t.hi = number(s, "ci_hi");
      if (number(peak, "flops") > 0) t.percent_of_peak = 100 * t.rate() / number(peak, "flops");
      out.timings.push_back(std::move(t));
    }
    out.ceilings.push_back({device, text(shape, "problem"), text(peak, "method"),
                            number(peak, "flops"), number(peak, "bytes_per_second")});
  }
}

void add_compare(const ReportSource& source, ReportModel& out) {
  const json& record = source.record;
  for (const json& shape : record["shapes"]) {
    for (const char* side : {"a", "b"}) {
      const json& s = shape.at(side);
      Timing t{source.label,
               "",
               "",
               text(record, "device"),
               text(record, side),
               text(shape, "name"),
               text(shape, "problem"),
               text(record, "cache")};
      const Work work = work_of(t.problem);
      t.flop = work.flop;
      t.bytes = work.bytes;
      t.p50 = number(s, "p50_seconds");
      t.p90 = number(s, "p90_seconds");
      t.std = number(s, "std_seconds");
      const json& ci = s.at("p50_ci_seconds");
      t.lo = ci.at(0).get<double>();
      t.hi = ci.at(1).get<double>();
      t.percent_of_peak = number(s, "percent_of_peak");
      out.timings.push_back(std::move(t));
    }
  }
}

void add_samples(const ReportSource& source, ReportModel& out) {
  const auto shapes = samples_from_json(source.record);
  if (!shapes.ok()) return;  // check_samples has refused it before
  for (const Samples& shape : *shapes) {
    for (std::size_t side = 0; side < shape.sides.size(); ++side) {
      if (!shape.sides[side].refused.empty()) continue;
      const Summary s = summarize(shape, static_cast<int>(side));
      if (s.n == 0) continue;
      Timing t{source.label,
               text(source.record, "utc"),
               "",
               shape.device_name,
               shape.sides[side].id,
               shape.name,
               shape.problem,
               std::string(name_of(shape.cache))};
      t.flop = shape.flops > 0 ? shape.flops : work_of(shape.problem).flop;
      t.bytes = work_of(shape.problem).bytes;
      t.p50 = s.p50;
      t.p90 = s.p90;
      t.std = s.std;
      t.lo = s.ci_lo;
      t.hi = s.ci_hi;
      t.run = shape.metric == CallMetric::back_to_back ? 0 : 1;
      out.timings.push_back(std::move(t));
    }
  }
}

template <class Range, class Get>
std::vector<std::string> distinct(const Range& range, Get get) {
  std::vector<std::string> out;
  for (const auto& item : range) {
    const std::string value = get(item);
    if (std::find(out.begin(), out.end(), value) == out.end()) out.push_back(value);
  }
  return out;
}

// Of several records with the same side at the same problem, the last one given.
std::vector<Timing> latest(std::span<const Timing> timings, const std::string& device) {
  std::map<std::tuple<std::string, std::string, std::string>, std::size_t> at;
  std::vector<Timing> out;
  for (const Timing& t : timings) {
    if (t.device != device) continue;
    const auto [where, fresh] = at.try_emplace({t.variant, t.shape, t.mode}, out.size());
    if (fresh)
      out.push_back(t);
    else
      out[where->second] = t;
  }
  return out;
}

// "mission hot" of "mission fp16 hot".
std::string without_type(std::string_view shape) {
  std::string out;
  while (!shape.empty()) {
    const std::size_t end = std::min(shape.find(' '), shape.size());
    const std::string_view word = shape.substr(0, end);
    shape.remove_prefix(std::min(end + 1, shape.size()));
    if (!word.empty() && !parse_dtype(word)) out.append(out.empty() ? "" : " ").append(word);
  }
  return out;
}

std::string tflops(double rate) { return fmt::format("{:.3f}", rate * 1e-12); }

Chart throughput_chart(const std::vector<Timing>& timings, const std::string& device,
                       std::size_t index) {
  Chart chart;
  chart.id = fmt::format("throughput-{}", index);
  chart.title = fmt::format("TFLOP/s by shape, {}", device);
  chart.y_title = "TFLOP/s at p50";
  chart.labels = distinct(timings, [](const Timing& t) { return t.shape; });
  double least = INFINITY, most = 0;
  for (const std::string& variant : distinct(timings, [](const Timing& t) { return t.variant; })) {
    Chart::Series series{variant, {}};
    for (const std::string& shape : chart.labels) {
      const auto found = std::find_if(timings.begin(), timings.end(), [&](const Timing& t) {
        return t.variant == variant && t.shape == shape && t.rate() > 0;
      });
      if (found == timings.end()) {
        series.points.push_back(std::nullopt);
        continue;
      }
      const double rate = found->rate() * 1e-12;
      least = std::min(least, rate);
      most = std::max(most, rate);
      series.points.push_back(Chart::Point{
          0, rate, found->hi > 0 ? std::optional(found->flop / found->hi * 1e-12) : std::nullopt,
          found->lo > 0 ? std::optional(found->flop / found->lo * 1e-12) : std::nullopt,
          format_duration(found->p50)});
    }
    chart.series.push_back(std::move(series));
  }
  // Shapes from microseconds to milliseconds on one linear axis would leave the small ones
  // invisible.
  chart.y_log = most > 30 * least;
  const auto best =
      std::max_element(timings.begin(), timings.end(),
                       [](const Timing& a, const Timing& b) { return a.rate() < b.rate(); });
  chart.note = fmt::format(
      "Higher is better{}. The fastest is {} with {} TFLOP/s on {}. Whiskers: 95% interval of p50.",
      chart.y_log ? ", logarithmic" : "", best->variant, tflops(best->rate()), best->shape);
  chart.header = {"variant", "shape",   "caches",    "p50",   "95% interval",
                  "p90",     "TFLOP/s", "% of peak", "record"};
  for (const Timing& t : timings)
    chart.rows.push_back({t.variant, t.shape, t.mode, format_duration(t.p50),
                          duration_range(t.lo, t.hi), format_duration(t.p90), tflops(t.rate()),
                          t.percent_of_peak > 0 ? fmt::format("{:.1f}", t.percent_of_peak) : "-",
                          t.source});
  return chart;
}

Chart ladder_chart(const Ladder& ladder, const std::string& device, std::size_t index) {
  const std::vector<Rung>& rungs = ladder.rungs;
  Chart chart;
  chart.id = fmt::format("ladder-{}", index);
  chart.title = fmt::format("Ladder at {}, {}", ladder.shape, device);
  chart.kind = Chart::Kind::bars_across;
  chart.x_title = "p50, µs, logarithmic";
  chart.x_log = true;
  Chart::Series series{"p50", {}};
  chart.header = {"version",      "optimisation",         "p50",
                  "95% interval", "over its predecessor", "over the first"};
  for (const Rung& r : rungs) {
    chart.labels.push_back(r.variant);
    series.points.push_back(Chart::Point{0, r.p50 * 1e6, r.lo * 1e6, r.hi * 1e6, r.idea});
    const auto times = [](double ratio) {
      return ratio > 0 ? fmt::format("{:.2f}×", ratio) : std::string("-");
    };
    chart.rows.push_back({r.variant, r.idea, format_duration(r.p50), duration_range(r.lo, r.hi),
                          times(r.over_predecessor), times(r.over_first)});
  }
  chart.series.push_back(std::move(series));
  const auto best = std::max_element(rungs.begin(), rungs.end(), [](const Rung& a, const Rung& b) {
    return a.over_first < b.over_first;
  });
  chart.note = fmt::format(
      "Shorter is better. {} is {:.2f} times as fast as the first rung of its family. "
      "Ratios of p50s of one record, {}, caches {}, without the paired interval that gate gives.",
      best->variant, best->over_first, ladder.source, ladder.mode);
  return chart;
}

std::optional<Chart> roofline_chart(const std::vector<Timing>& timings,
                                    std::span<const Ceiling> ceilings, const std::string& device,
                                    std::size_t index) {
  // One roof for each way a peak was measured: the types differ in it.
  struct Roof {
    std::string method;
    double flops = 0, bytes = 0;
  };
  std::vector<Roof> roofs;
  std::map<std::string, std::size_t> roof_of;  // by problem, as records name it
  for (const Ceiling& c : ceilings) {
    if (c.device != device || !(c.flops > 0) || !(c.bytes_per_second > 0)) continue;
    const auto found = std::find_if(roofs.begin(), roofs.end(),
                                    [&](const Roof& r) { return r.method == c.method; });
    const std::size_t at = static_cast<std::size_t>(found - roofs.begin());
    if (found == roofs.end()) roofs.push_back({c.method, 0, 0});
    roofs[at].flops = std::max(roofs[at].flops, c.flops);
    roofs[at].bytes = std::max(roofs[at].bytes, c.bytes_per_second);
    roof_of[c.problem] = at;
  }
  if (roofs.empty()) return std::nullopt;
  Chart chart;
  double lowest = roofs[0].flops / roofs[0].bytes, highest = lowest;
  for (const std::string& variant : distinct(timings, [](const Timing& t) { return t.variant; })) {
    Chart::Series series{variant, {}};
    for (const Timing& t : timings) {
      if (t.variant != variant || !(t.bytes > 0) || !(t.rate() > 0)) continue;
      const double intensity = t.flop / t.bytes;
      lowest = std::min(lowest, intensity);
      highest = std::max(highest, intensity);
      series.points.push_back(Chart::Point{intensity, t.rate() * 1e-12, {}, {}, t.shape});
      auto own = roof_of.find(t.shape);
      if (own == roof_of.end()) own = roof_of.find(t.problem);
      const bool known = own != roof_of.end();
      const Roof& roof = roofs[known ? own->second : 0];
      const double ceiling = std::min(roof.flops, intensity * roof.bytes);
      const bool memory = intensity * roof.bytes < roof.flops;
      chart.rows.push_back({t.variant, t.shape, fmt::format("{:.1f}", intensity), tflops(t.rate()),
                            known ? tflops(ceiling) : "not measured",
                            known ? fmt::format("{:.1f}", 100 * t.rate() / ceiling) : "-",
                            !known   ? "-"
                            : memory ? "memory"
                                     : "arithmetic"});
    }
    if (!series.points.empty()) chart.series.push_back(std::move(series));
  }
  if (chart.series.empty()) return std::nullopt;
  chart.id = fmt::format("roofline-{}", index);
  chart.title = fmt::format("Roofline, {}", device);
  chart.kind = Chart::Kind::points;
  chart.x_title = "FLOP per byte, each tensor once";
  chart.y_title = "TFLOP/s";
  chart.x_log = chart.y_log = true;
  std::string ceilings_text;
  for (const Roof& roof : roofs) {
    const double ridge = roof.flops / roof.bytes;
    Chart::Series line{"ceiling: " + roof.method, {}, true};
    for (const double x : {lowest / 2, ridge, highest * 2})
      if (x == ridge || roof.bytes * lowest / 2 < roof.flops || x > ridge)
        line.points.push_back(
            Chart::Point{x, std::min(roof.flops, x * roof.bytes) * 1e-12, {}, {}, "ceiling"});
    std::sort(line.points.begin(), line.points.end(),
              [](const auto& a, const auto& b) { return a.value().x < b.value().x; });
    chart.series.push_back(std::move(line));
    ceilings_text +=
        fmt::format("{}{} TFLOP/s ({}) and {:.1f} GB/s, which meet at {:.1f} FLOP per byte",
                    ceilings_text.empty() ? "" : "; ", tflops(roof.flops), roof.method,
                    roof.bytes * 1e-9, ridge);
  }
  chart.note = fmt::format(
      "Closer to the line is better; left of its bend memory is the bound, right of it arithmetic. "
      "Ceilings measured in the same records: {}.",
      ceilings_text);
  chart.header = {"variant",         "shape",        "FLOP per byte", "TFLOP/s",
                  "ceiling TFLOP/s", "% of ceiling", "bound by"};
  return chart;
}

std::optional<Chart> error_chart(std::span<const DistributionError> errors) {
  if (errors.empty()) return std::nullopt;
  Chart chart;
  chart.id = "errors";
  chart.title = "Error by distribution, as a part of its limit";
  chart.y_title = "largest metric / limit";
  chart.y_log = true;
  chart.mark = 1;
  chart.labels = distinct(errors, [](const DistributionError& e) { return e.distribution; });
  double worst = 0;
  for (const std::string& variant :
       distinct(errors, [](const DistributionError& e) { return e.variant; })) {
    Chart::Series series{variant, {}};
    for (const std::string& distribution : chart.labels) {
      double share = 0;
      for (const DistributionError& e : errors)
        if (e.variant == variant && e.distribution == distribution)
          share = std::max(share, e.share);
      worst = std::max(worst, share);
      series.points.push_back(share > 0 ? std::optional(Chart::Point{0, share, {}, {}, ""})
                                        : std::nullopt);
    }
    chart.series.push_back(std::move(series));
  }
  chart.note = fmt::format(
      "Limits come from a model of an honest kernel of the same precision; at 1 a kernel is RED. "
      "The largest is {:.2g}.",
      worst);
  chart.header = {"variant", "shape",   "distribution",         "cases",
                  "RED",     "rel_fro", "closest to its limit", "part of the limit"};
  for (const DistributionError& e : errors)
    chart.rows.push_back({e.variant, e.shape, e.distribution, fmt::format("{}", e.cases),
                          fmt::format("{}", e.red), fmt::format("{:.1e}", e.rel_fro),
                          e.worst_metric, fmt::format("{:.3f}", e.share)});
  return chart;
}

/// Bars that a chart may have and still be told apart, on the width of a page.
constexpr std::size_t kMostBars = 200;

std::vector<bool> present(const Chart& chart, std::size_t label) {
  std::vector<bool> out;
  for (const Chart::Series& series : chart.series) out.push_back(series.points[label].has_value());
  return out;
}

/// A chart of bars as several where it has too many: labels that have the same series stay together,
/// and of the table each part gets its own rows, by the column that holds the label.
std::vector<Chart> readable(Chart chart, std::size_t label_column) {
  std::size_t most = 0;  // bars at one label, for which every label keeps room
  std::vector<std::vector<std::size_t>> parts;
  std::vector<std::vector<bool>> has;  // of each part: which series
  std::vector<std::size_t> filled;     // bars of each part
  for (std::size_t label = 0; label < chart.labels.size(); ++label) {
    const std::vector<bool> here = present(chart, label);
    const auto more = static_cast<std::size_t>(std::count(here.begin(), here.end(), true));
    most = std::max(most, more);
    std::size_t part = parts.size();
    for (std::size_t i = 0; i < parts.size(); ++i)
      if (has[i] == here && filled[i] + more <= kMostBars) part = i;
    if (part == parts.size()) {
      parts.emplace_back();
      has.push_back(here);
      filled.push_back(0);
    }
    parts[part].push_back(label);
    filled[part] += more;
  }
  if (most * chart.labels.size() <= kMostBars) return {std::move(chart)};
  std::vector<Chart> out;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    Chart& one = out.emplace_back();
    one.id = part == 0 ? chart.id : fmt::format("{}-{}", chart.id, part + 1);
    one.title = fmt::format("{}, {} of {}", chart.title, part + 1, parts.size());
    one.note = chart.note;
    one.kind = chart.kind;
    one.x_title = chart.x_title;
    one.y_title = chart.y_title;
    one.x_log = chart.x_log;
    one.y_log = chart.y_log;
    one.mark = chart.mark;
    one.header = chart.header;
    for (const std::size_t label : parts[part]) one.labels.push_back(chart.labels[label]);
    for (std::size_t s = 0; s < chart.series.size(); ++s) {
      if (!has[part][s]) continue;
      Chart::Series& series = one.series.emplace_back();
      series.name = chart.series[s].name;
      for (const std::size_t label : parts[part])
        series.points.push_back(chart.series[s].points[label]);
    }
    for (const auto& row : chart.rows)
      if (std::find(one.labels.begin(), one.labels.end(), row[label_column]) != one.labels.end())
        one.rows.push_back(row);
  }
  return out;
}

// Gates and comparisons measured both sides in the same blocks: their ratios have intervals.
std::optional<Chart> speedup_chart(std::span<const ReportSource> sources) {
  Chart chart;
  chart.id = "speedups";
  chart.title = "Speedup with its 95% interval";
  chart.kind = Chart::Kind::bars_across;
  chart.x_title = "t_baseline / t_candidate";
  chart.header = {"candidate", "baseline", "shape", "speedup p50", "95% interval", "record"};
  Chart::Series series{"speedup p50", {}};
  const auto add = [&](const std::string& candidate, const std::string& baseline,
                       const std::string& shape, const json& i, const std::string& source) {
    const double value = number(i, "value"), lo = number(i, "lo"), hi = number(i, "hi");
    if (!(value > 0)) return;
    chart.labels.push_back(fmt::format("{} over {}, {}", candidate, baseline, shape));
    series.points.push_back(Chart::Point{0, value, lo, hi, ""});
    chart.rows.push_back({candidate, baseline, shape, fmt::format("{:.3f}×", value),
                          fmt::format("{:.3f} to {:.3f}", lo, hi), source});
    chart.x_log = chart.x_log || value > 20;
  };
  for (const ReportSource& source : sources) {
    const json& r = source.record;
    if (source.kind == "gate" && r.contains("fast")) {
      for (const json& s : r["fast"])
        if (s.contains("speedup"))
          add(text(r["options"], "candidate"), text(r["options"], "baseline"), text(s, "shape"),
              s["speedup"], source.label);
    } else if (source.kind == "compare") {
      for (const json& s : r["shapes"])
        if (s.contains("ratio_p50"))
          add(text(r, "b"), text(r, "a"), text(s, "name"), s["ratio_p50"], source.label);
    }
  }
  if (series.points.empty()) return std::nullopt;
  chart.series.push_back(std::move(series));
  chart.mark = 1;
  chart.note = "Right of 1 the candidate is faster. An interval that holds 1 shows no difference.";
  return chart;
}

}  // namespace

Work work_of(std::string_view problem) {
  // Strides change no work, and a problem's text does not say them.
  if (constexpr std::string_view kStrided = " strided"; problem.ends_with(kStrided))
    problem.remove_suffix(kStrided.size());
  const auto p = problem_of_text(problem);
  if (!p.ok()) return {};
  Work work{static_cast<double>(flop_count(*p)), 0};
  for (const Operand& operand : operands_of(*p))
    if (operand.needed) work.bytes += static_cast<double>(operand.bytes);
  return work;
}

ReportModel model_of(std::span<const ReportSource> sources) {
  ReportModel out;
  std::size_t runs = 0;
  for (const ReportSource& source : sources) {
    const std::size_t before = out.timings.size();
    if (source.kind == "run") add_run(source, out);
    if (source.kind == "gate") add_gate(source, out);
    if (source.kind == "compare") add_compare(source, out);
    if (source.kind == "samples") add_samples(source, out);
    // A record has two ways of timing at most: calls back to back, and after a pause.
    for (std::size_t i = before; i < out.timings.size(); ++i) out.timings[i].run += runs;
    runs += 2;
  }
  // One problem goes by one name, that of the tables where somebody used it; and where a device was
  // timed both hot and cold, the name says which.
  const auto is_shape = [](const std::string& name) {
    return !name.empty() && name[0] >= '0' && name[0] <= '9';
  };
  for (Timing& t : out.timings) {
    bool both = false;
    for (const Timing& other : out.timings) {
      both = both || (other.device == t.device && other.mode != t.mode);
      if (is_shape(t.shape) && !is_shape(other.shape) && !t.problem.empty() &&
          other.problem == t.problem)
        t.shape = other.shape;
    }
    if (both && t.mode == "hot") t.shape += " hot";
  }
  return out;
}

bool comparable(const Timing& a, const Timing& b) {
  return a.run == b.run && a.device == b.device && a.mode == b.mode && a.problem == b.problem &&
         (!a.problem.empty() || a.shape == b.shape);
}

Ladder ladder_of(std::span<const Timing> timings, const std::string& device) {
  const std::vector<VariantInfo> all = variants();
  std::set<std::string> followed;
  for (const VariantInfo& v : all)
    if (!v.predecessor.empty()) followed.insert(v.predecessor);
  const auto family_of = [](const std::string& id) { return id.substr(0, id.rfind('.')); };

  // What stands in one ladder: of a family the times that are comparable, the first kind that was
  // timed; families differ in their type, so that "mission fp16" and "mission e4m3" are one shape.
  struct Group {
    std::size_t run;
    std::string shape, mode;
    std::map<std::string, std::vector<const Timing*>> kinds;  // of a family, one time of each kind
  };
  std::vector<Group> groups;
  std::vector<const Timing*> own;
  for (const Timing& t : timings) {
    if (t.device != device) continue;
    own.push_back(&t);
    const std::string shape = without_type(t.shape);
    auto at = std::find_if(groups.begin(), groups.end(), [&](const Group& g) {
      return g.run == t.run && g.shape == shape && g.mode == t.mode;
    });
    if (at == groups.end()) at = groups.insert(at, {t.run, shape, t.mode, {}});
    std::vector<const Timing*>& kinds = at->kinds[family_of(t.variant)];
    if (std::none_of(kinds.begin(), kinds.end(),
                     [&](const Timing* kind) { return comparable(*kind, t); }))
      kinds.push_back(&t);
  }

  const auto rungs_like = [&](const std::string& family, const Timing& kind) {
    std::vector<Rung> rungs;
    for (const VariantInfo& v : all) {
      if (family_of(v.id) != family || (v.predecessor.empty() && !followed.contains(v.id)))
        continue;
      const auto t = std::find_if(own.begin(), own.end(), [&](const Timing* one) {
        return one->variant == v.id && comparable(*one, kind);
      });
      if (t == own.end()) continue;
      Rung rung{family, v.id, v.idea, v.predecessor, (*t)->p50, (*t)->lo, (*t)->hi};
      for (const Rung& r : rungs)
        if (r.variant == v.predecessor) rung.over_predecessor = r.p50 / rung.p50;
      rung.over_first = rungs.empty() ? 1 : rungs.front().p50 / rung.p50;
      rungs.push_back(std::move(rung));
    }
    return rungs;
  };
  const auto ladder_at = [&](const Group& group) {
    Ladder ladder{group.shape, "", group.mode, {}};
    bool any_ratio = false;
    std::set<std::string> told;
    for (const VariantInfo& v : all) {  // families in registry order
      const std::string family = family_of(v.id);
      const auto kinds = group.kinds.find(family);
      if (kinds == group.kinds.end() || !told.insert(family).second) continue;
      std::vector<Rung> most;
      for (const Timing* kind : kinds->second) {
        std::vector<Rung> rungs = rungs_like(family, *kind);
        if (rungs.size() <= most.size()) continue;
        most = std::move(rungs);
        ladder.source = kind->source;
      }
      any_ratio = any_ratio || most.size() > 1;
      std::move(most.begin(), most.end(), std::back_inserter(ladder.rungs));
    }
    return any_ratio ? ladder : Ladder();
  };
  Ladder best;
  for (const Group& group : groups) {
    Ladder here = ladder_at(group);
    if (here.rungs.empty()) continue;
    const bool mission = here.shape == "mission", so_far = best.shape == "mission";
    if (mission == so_far ? here.rungs.size() >= best.rungs.size() : mission)
      best = std::move(here);
  }
  return best;
}

std::vector<Chart> charts_of(const ReportModel& model, std::span<const ReportSource> sources) {
  std::vector<Chart> charts;
  const auto devices = distinct(model.timings, [](const Timing& t) { return t.device; });
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const std::vector<Timing> timings = latest(model.timings, devices[i]);
    for (Chart& part : readable(throughput_chart(timings, devices[i], i), 1))
      charts.push_back(std::move(part));
    const Ladder ladder = ladder_of(model.timings, devices[i]);
    if (!ladder.rungs.empty()) charts.push_back(ladder_chart(ladder, devices[i], i));
    if (auto chart = roofline_chart(timings, model.ceilings, devices[i], i))
      charts.push_back(std::move(*chart));
  }
  if (auto chart = speedup_chart(sources)) charts.push_back(std::move(*chart));
  if (auto chart = error_chart(model.errors))
    for (Chart& part : readable(std::move(*chart), 2)) charts.push_back(std::move(part));
  return charts;
}

}  // namespace greenfast::workbench
