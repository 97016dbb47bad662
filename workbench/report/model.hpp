// What records of any kind say, in one form: times, ceilings, errors; and charts of them, each with
// the table that says the same.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "workbench/report/sources.hpp"

namespace greenfast::workbench {

/// One side at one problem of one record.
struct Timing {
  std::string source, utc, commit;
  std::string device;                                // "NVIDIA H200"
  std::string variant;                               // or a peer: "cudnn"
  std::string shape;                                 // its name: "mission", "1x8x512x64 fp16"
  std::string problem;                               // "1x8x512x64 fp16"
  std::string mode;                                  // "cold", "hot"
  double p50 = 0, p90 = 0, std = 0, lo = 0, hi = 0;  // seconds; lo, hi: 95% interval of p50
  double flop = 0, bytes = 0;                        // of one call; bytes: each tensor once
  double percent_of_peak = 0;                        // 0 where no peak was measured
  std::size_t run = 0;  // the same for what one record timed in one way, and for nothing else
  bool has_interval() const { return lo < hi; }
  double rate() const { return p50 > 0 ? flop / p50 : 0; }
};

/// A peak measured beside a problem.
struct Ceiling {
  std::string device, problem, method;
  double flops = 0, bytes_per_second = 0;
};

/// The worst of one variant at one distribution of one record.
struct DistributionError {
  std::string source, variant, shape, distribution, worst_metric;
  int cases = 0, red = 0;
  double rel_fro = 0;
  double share = 0;  // the largest metric as a part of its limit: above 1 is RED
};

struct ReportModel {
  std::vector<Timing> timings;
  std::vector<Ceiling> ceilings;
  std::vector<DistributionError> errors;
};
/// Whether a ratio of two times means something: of one record, timed in one way, of one problem, on
/// caches in one state. What was measured apart was measured on another day and another machine.
bool comparable(const Timing& a, const Timing& b);
/// Throws nlohmann::json::exception for what is not of its schema.
ReportModel model_of(std::span<const ReportSource> sources);

/// FLOP and the bytes of all operands, of "1x8x512x64 fp16 causal(...)": 0 for what is no problem.
struct Work {
  double flop = 0, bytes = 0;
};
Work work_of(std::string_view problem);

struct Chart {
  enum class Kind { bars, bars_across, points };
  struct Point {
    double x = 0, y = 0;
    std::optional<double> lo, hi;  // of y
    std::string label;             // shown when pointed at
  };
  struct Series {
    std::string name;
    std::vector<std::optional<Point>> points;  // bars: one for each label
    bool line = false;                         // points joined
    bool marks = false;                        // a line whose points are marked
  };
  std::string id, title;
  std::string note;  // how to read it, and what it shows
  Kind kind = Kind::bars;
  std::string x_title, y_title;
  bool x_log = false, y_log = false;
  std::optional<double> mark;  // a line across at this value: a limit, a gate
  std::vector<std::string> labels;
  std::vector<std::string> x_ticks;  // of points at x = 0, 1, ...: their names
  std::vector<Series> series;
  std::vector<std::string> header;  // of the table that says the same
  std::vector<std::vector<std::string>> rows;
};

/// TFLOP/s by shape, ladder and roofline, one of each for every device that was timed; error by
/// distribution; speedups with their intervals of gates and comparisons. Those without data are
/// left out.
std::vector<Chart> charts_of(const ReportModel& model, std::span<const ReportSource> sources);

/// A rung of a family, timed at one shape.
struct Rung {
  std::string family, variant, idea, predecessor;
  double p50 = 0, lo = 0, hi = 0;
  double over_predecessor = 0, over_first = 0;  // 0: no such time
};
/// Rungs of one record, timed alike at one shape; every ratio in it is of times that are comparable.
struct Ladder {
  std::string shape;         // as its times call it, without the type, which families differ in
  std::string source, mode;  // of its times
  std::vector<Rung> rungs;   // empty: no record timed two rungs that can be compared
};
/// Of a device: at mission where a record has it, else at the shape with most rungs; of several
/// records the one with most rungs, of these the last given.
Ladder ladder_of(std::span<const Timing> timings, const std::string& device);

}  // namespace greenfast::workbench
