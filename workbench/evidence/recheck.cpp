#include "workbench/evidence/recheck.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "workbench/base/exit_code.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/fast/statistics.hpp"
#include "workbench/record/record.hpp"
#include "workbench/verdict/decide.hpp"
#include "workbench/verdict/gate.hpp"

namespace greenfast::workbench {
namespace {

using nlohmann::json;

/// Of figures that went through JSON and back, and through other compilers' sums.
constexpr double kTolerance = 1e-6;

bool same(double said, double is) {
  return std::fabs(said - is) <= kTolerance * std::max(std::fabs(is), 1e-300) || said == is;
}

class Recheck {
 public:
  explicit Recheck(const json& record) : record_(record) {}

  std::vector<Disagreement> run() {
    const std::string schema = record_.value("schema", "");
    try {
      if (schema == kRunSchema) check_run();
      if (schema == kGateSchema) check_gate();
    } catch (const json::exception& error) {
      add("", fmt::format("is not what its schema says: {}", error.what()));
    }
    return std::move(out_);
  }

 private:
  void add(std::string subject, std::string detail) {
    out_.push_back({std::move(subject), std::move(detail)});
  }
  /// `said` is what an object says under `name`; absent or null says nothing.
  void figure(const std::string& subject, const std::string& where, const json& object,
              const char* name, double is) {
    const auto said = object.find(name);
    if (said == object.end() || !said->is_number() || same(said->get<double>(), is)) return;
    add(subject, fmt::format("{}: {} {:.6g}, but its samples say {:.6g}", where, name,
                             said->get<double>(), is));
  }

  void check_run() {
    auto samples = samples_from_json(record_.at("samples"));
    if (!samples) return add("", "samples: " + samples.status().message());
    std::map<std::string, double> peaks, fastest;
    for (const json& peak : record_.value("peaks", json::array()))
      if (peak.at("flops").is_number())
        peaks[peak.at("problem").get<std::string>()] = peak.at("flops").get<double>();
    for (const bool compare : {false, true})
      for (const json& row : record_.at("rows")) {
        const std::string variant = row.at("variant"), problem = row.at("problem");
        const json& time = row.at("time");
        if (compare) cases_of(row, variant, problem);
        if (time.is_null()) continue;
        for (const Samples& shape : *samples) {
          const int side = shape.name == problem ? shape.side(variant) : -1;
          if (side < 0) continue;
          const Summary s = summarize(shape, side);
          if (s.n == 0) continue;
          double& best = fastest[problem];
          if (!compare) {
            // A row that is RED was not compared with.
            if (row.at("verdict") == "GREEN" && (best == 0 || s.p50 < best)) best = s.p50;
            continue;
          }
          const auto is = [&](const char* name, double value) {
            figure(variant, problem, time, name, value);
          };
          is("p50_seconds", s.p50);
          is("p90_seconds", s.p90);
          is("mean_seconds", s.mean);
          if (std::isfinite(s.std)) is("std_seconds", s.std);
          is("samples", static_cast<double>(s.n));
          is("discarded", static_cast<double>(s.discarded));
          is("flops", shape.flops / s.p50);
          if (peaks[problem] > 0) is("percent_of_peak", 100 * shape.flops / s.p50 / peaks[problem]);
          if (best > 0) is("times_fastest", s.p50 / best);
          const json& interval = time.value("p50_ci_seconds", json());
          if (interval.is_array() && interval.size() == 2)
            for (const std::size_t end : {0, 1}) {
              const double value = end == 0 ? s.ci_lo : s.ci_hi;
              if (interval[end].is_number() && !same(interval[end].get<double>(), value))
                add(variant, fmt::format("{}: p50_ci_seconds {:.6g}, but its samples say {:.6g}",
                                         problem, interval[end].get<double>(), value));
            }
        }
      }
  }

  /// A row against the cases that it sums up.
  void cases_of(const json& row, const std::string& variant, const std::string& problem) {
    int judged = 0, red = 0;
    for (const json& c : record_.at("cases")) {
      if (c.at("variant") != variant || c.at("problem") != problem) continue;
      if (c.at("verdict") != "SKIPPED") ++judged;
      red += c.at("verdict") == "RED";
      if (c.at("verdict") == "GREEN") metrics_of(c, variant);
    }
    const int said = row.at("cases").get<int>();
    if (said != judged)
      add(variant, fmt::format("{}: says {} cases, and has {}", problem, said, judged));
    if (row.at("verdict") == "GREEN" && (red > 0 || judged == 0))
      add(variant,
          fmt::format("{}: says GREEN, and {} of its {} cases are RED", problem, red, judged));
  }

  /// GREEN is within its limits.
  void metrics_of(const json& c, const std::string& variant) {
    // Where a limit goes by another name than its metric.
    static const std::map<std::string, std::string> kNames{{"lse", "max_lse_err"}};
    if (!c.contains("limits") || !c.contains("metrics")) return;
    for (const auto& [name, limit] : c.at("limits").items()) {
      const auto other = kNames.find(name);
      const auto value = c.at("metrics").find(other == kNames.end() ? name : other->second);
      if (value == c.at("metrics").end() || !value->is_number() || !limit.is_number()) continue;
      if (!(std::fabs(value->get<double>()) <= limit.get<double>()))
        add(variant,
            fmt::format("{} {} seed {}: says GREEN with {} {:.3g} over its limit {:.3g}",
                        c.at("problem").get<std::string>(), c.at("distribution").get<std::string>(),
                        c.at("seed").get<std::uint64_t>(), name, value->get<double>(),
                        limit.get<double>()));
    }
  }

  void check_gate() {
    const json& verdict = record_.at("verdict");
    std::vector<Reason> reasons;
    for (const json& reason : verdict.at("reasons"))
      reasons.push_back({reason.at("code"), reason.at("detail"), reason.at("settle")});
    const Decision decision = from_reasons(std::move(reasons));
    if (verdict.at("decision") != name_of(decision.outcome) ||
        verdict.at("exit_code") != decision.exit_code)
      add("", fmt::format("says {}, its reasons say {}", verdict.at("decision").get<std::string>(),
                          name_of(decision.outcome)));
    if (!record_.contains("samples")) return;
    const auto samples = samples_from_json(record_.at("samples"));
    if (!samples) return add("", "samples: " + samples.status().message());
    for (const json& fast : record_.value("fast", json::array())) {
      if (!fast.contains("speedup")) continue;
      const std::string name = fast.at("shape");
      for (const Samples& shape : *samples) {
        if (shape.name != name || shape.sides.size() < 2) continue;
        for (const Statistic statistic : {Statistic::p50, Statistic::p90}) {
          const auto ratio = paired_log_ratio(shape, 0, 1, statistic);
          if (!ratio) continue;
          const Interval i = speedup(*ratio);
          const json& said = fast.at(statistic == Statistic::p50 ? "speedup" : "speedup_p90");
          const std::string where = fmt::format("{} {}", name, name_of(statistic));
          figure("", where, said, "value", i.value);
          figure("", where, said, "lo", i.lo);
          figure("", where, said, "hi", i.hi);
        }
        for (const int side : {0, 1}) {
          const Summary s = summarize(shape, side);
          const json& said = fast.at(side == 0 ? "baseline" : "candidate");
          figure(shape.sides[static_cast<std::size_t>(side)].id, name, said, "p50", s.p50);
          figure(shape.sides[static_cast<std::size_t>(side)].id, name, said, "p90", s.p90);
        }
      }
    }
    if (verdict.at("decision") != name_of(Outcome::promote)) return;
    // What is promoted reached every threshold.
    for (const json& fast : record_.at("fast")) {
      const double least = fast.at("primary").get<bool>() ? verdict.at("gate").get<double>()
                                                          : verdict.at("guard").get<double>();
      for (const char* which : {"speedup", "speedup_p90"})
        if (!fast.contains(which) || !(fast.at(which).at("lo").get<double>() >= least))
          add("", fmt::format("says PROMOTE, and {} of {} is not above {:.2f}", which,
                              fast.at("shape").get<std::string>(), least));
    }
  }

  const json& record_;
  std::vector<Disagreement> out_;
};

}  // namespace

std::vector<Disagreement> recheck(const json& record) { return Recheck(record).run(); }

}  // namespace greenfast::workbench
