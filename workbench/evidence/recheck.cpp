#include "workbench/evidence/recheck.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "workbench/base/exit_code.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/cases/workload.hpp"
#include "workbench/fast/statistics.hpp"
#include "workbench/record/record.hpp"
#include "workbench/verdict/compare.hpp"
#include "workbench/verdict/compare_best.hpp"
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
      if (schema == kSamplesSchema) check_samples();
      if (schema == kCompareSchema) check_compare();
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

  void interval(const std::string& subject, const std::string& where, const json& object,
                const Interval& is) {
    for (const char* end : {"value", "lo", "hi"})
      if (!object.is_object() || !object.contains(end) || !object.at(end).is_number())
        return add(subject, fmt::format("{}: says nothing, and its samples do", where));
    figure(subject, where, object, "value", is.value);
    figure(subject, where, object, "lo", is.lo);
    figure(subject, where, object, "hi", is.hi);
  }
  /// A side's times, under the names that run.json and compare.json give them.
  void times(const std::string& subject, const std::string& where, const json& said,
             const Summary& s) {
    figure(subject, where, said, "p50_seconds", s.p50);
    figure(subject, where, said, "p90_seconds", s.p90);
    figure(subject, where, said, "mean_seconds", s.mean);
    if (std::isfinite(s.std)) figure(subject, where, said, "std_seconds", s.std);
    figure(subject, where, said, "samples", static_cast<double>(s.n));
    figure(subject, where, said, "discarded", static_cast<double>(s.discarded));
    const json& ends = said.value("p50_ci_seconds", json());
    if (!ends.is_array() || ends.size() != 2) return;
    for (const std::size_t end : {0, 1}) {
      const double is = end == 0 ? s.ci_lo : s.ci_hi;
      if (ends[end].is_number() && !same(ends[end].get<double>(), is))
        add(subject, fmt::format("{}: p50_ci_seconds {:.6g}, but its samples say {:.6g}", where,
                                 ends[end].get<double>(), is));
    }
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
        if (compare && std::none_of(samples->begin(), samples->end(), [&](const Samples& shape) {
              return shape.name == problem && shape.side(variant) >= 0;
            }))
          add(variant, fmt::format("{}: has a time, and no samples", problem));
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
          times(variant, problem, time, s);
          is("flops", shape.flops / s.p50);
          if (peaks[problem] > 0) is("percent_of_peak", 100 * shape.flops / s.p50 / peaks[problem]);
          if (best > 0) is("times_fastest", s.p50 / best);
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
    if (row.at("verdict") == "GREEN") worst_of_cases(row, variant, problem);
    if (row.at("verdict") == "GREEN" && (red > 0 || judged == 0))
      add(variant,
          fmt::format("{}: says GREEN, and {} of its {} cases are RED", problem, red, judged));
  }

  /// Of each metric the largest over the cases whose errors say something in a table.
  void worst_of_cases(const json& row, const std::string& variant, const std::string& problem) {
    const json said = row.value("worst", json());
    std::map<std::string, double> worst;
    std::set<std::string> no_number;
    for (const json& c : record_.at("cases")) {
      if (c.at("variant") != variant || c.at("problem") != problem) continue;
      const auto distribution = parse_distribution(c.at("distribution").get<std::string>());
      // Inputs that were captured have no distribution that anyone could draw from.
      if (!distribution && c.at("distribution") != "file")
        return add(variant,
                   fmt::format("{}: {} is no distribution", problem, c.at("distribution").dump()));
      if (c.at("verdict") == "SKIPPED" || (distribution && has_own_problem(*distribution)))
        continue;
      const json metrics = c.value("metrics", json::object());
      for (const auto& [name, value] : metrics.items()) {
        if (!value.is_number()) {  // NaN, which is worse than any number
          no_number.insert(name);
          continue;
        }
        const double is = value.get<double>();
        const auto [kept, first] = worst.try_emplace(name, is);
        const bool worse = name == "cosine" ? is < kept->second
                           : name == "bias" ? std::fabs(is) > std::fabs(kept->second)
                                            : is > kept->second;
        if (!first && worse) kept->second = is;
      }
    }
    for (const auto& [name, is] : worst) {
      // These say where the largest error lies.
      if (name == "worst_row" || name == "worst_col" || no_number.contains(name)) continue;
      if (!said.is_object() || !said.contains(name) || !said.at(name).is_number())
        add(variant,
            fmt::format("{}: worst {} is not said, and its cases say {:.6g}", problem, name, is));
      else if (!same(said.at(name).get<double>(), is))
        add(variant, fmt::format("{}: worst {} {:.6g}, but its cases say {:.6g}", problem, name,
                                 said.at(name).get<double>(), is));
    }
  }

  /// GREEN is within its limits.
  void metrics_of(const json& c, const std::string& variant) {
    // Where a limit goes by another name than its metric.
    static const std::map<std::string, std::string> kNames{{"lse", "max_lse_err"}};
    if (!c.contains("limits") || !c.contains("metrics")) return;
    for (const auto& [name, limit] : c.at("limits").items()) {
      const auto other = kNames.find(name);
      const auto value = c.at("metrics").find(other == kNames.end() ? name : other->second);
      if (!limit.is_number()) continue;
      if (value == c.at("metrics").end() || !value->is_number()) {
        add(variant,
            fmt::format("{} {}: says GREEN, and {} is not said", c.at("problem").get<std::string>(),
                        c.at("distribution").get<std::string>(), name));
        continue;
      }
      if (!(std::fabs(value->get<double>()) <= limit.get<double>()))
        add(variant,
            fmt::format("{} {} seed {}: says GREEN with {} {:.3g} over its limit {:.3g}",
                        c.at("problem").get<std::string>(), c.at("distribution").get<std::string>(),
                        c.at("seed").get<std::uint64_t>(), name, value->get<double>(),
                        limit.get<double>()));
    }
  }

  /// What the harness for other engines (greenfast.ab) says beside its samples.
  void check_samples() {
    const auto samples = samples_from_json(record_);
    if (!samples) return add("", "samples: " + samples.status().message());
    const json& shapes = record_.at("shapes");
    for (std::size_t i = 0; i < samples->size(); ++i) {
      const Samples& shape = (*samples)[i];
      const json ab = shapes.at(i).value("ab", json());
      if (!ab.is_object()) continue;
      figure("", shape.name, ab, "flops", shape.flops);
      for (const auto& [name, engine] : ab.at("engines").items()) {
        const int side = side_of(shape, name);
        if (side < 0 || !engine.contains("us")) continue;
        std::vector<double> seconds;
        for (const Block& block : shape.blocks)
          for (const Sample& sample : block.samples)
            if (sample.side == side) seconds.push_back(sample.seconds);
        const json& us = engine.at("us");
        if (us.size() != seconds.size())
          add(name,
              fmt::format("{}: {} times, and {} samples", shape.name, us.size(), seconds.size()));
        for (std::size_t k = 0; k < std::min(us.size(), seconds.size()); ++k)
          if (!same(us[k].get<double>(), 1e6 * seconds[k])) {
            add(name, fmt::format("{}: us {:.6g}, but its sample says {:.6g}", shape.name,
                                  us[k].get<double>(), 1e6 * seconds[k]));
            break;
          }
        if (!shape.neighbour.empty()) differences(name, shape.name, engine);
        const Summary s = summarize(shape, side);
        if (s.n == 0) continue;
        figure(name, shape.name, engine, "p50_us", 1e6 * s.p50);
        figure(name, shape.name, engine, "tflops", 1e-12 * shape.flops / s.p50);
        figure(name, shape.name, engine, "error", error_of(shape, side));
      }
    }
  }
  /// Times behind a neighbour are what the stretches took less what the neighbours took alone; none
  /// where that was not above zero in every round.
  void differences(const std::string& name, const std::string& shape, const json& engine) {
    const json &us = engine.at("us"), with = engine.value("with_us", json::array()),
               alone = engine.value("alone_us", json::array());
    if (with.size() != alone.size() || (!us.empty() && us.size() != with.size()))
      return add(name, fmt::format("{}: {} times, of {} and {} readings", shape, us.size(),
                                   with.size(), alone.size()));
    for (std::size_t k = 0; k < us.size(); ++k) {
      const double is = with[k].get<double>() - alone[k].get<double>();
      // Of readings that may be much larger than their difference.
      if (!(std::fabs(us[k].get<double>() - is) <= kTolerance * with[k].get<double>()))
        return add(name, fmt::format("{}: us {:.6g}, but its readings say {:.6g}", shape,
                                     us[k].get<double>(), is));
    }
  }
  /// The engine "cudnn" is the side "peer:torch-cudnn" or "peer:cudnn".
  static int side_of(const Samples& shape, const std::string& engine) {
    for (const std::string& id : {engine, "peer:" + engine, "peer:torch-" + engine})
      if (const int side = shape.side(id); side >= 0) return side;
    return -1;
  }
  static double error_of(const Samples& shape, int side) {
    const auto& errors = shape.sides[static_cast<std::size_t>(side)].errors;
    const auto found = errors.find("rel_fro");
    return found == errors.end() ? std::nan("") : found->second;
  }

  /// A live comparison keeps its samples; of two recordings they are elsewhere.
  void check_compare() {
    if (!record_.contains("samples") || record_.at("samples").empty()) return;
    const auto samples = samples_from_json(record_.at("samples"));
    if (!samples) return add("", "samples: " + samples.status().message());
    std::vector<LogRatio> overall[2];
    for (const Samples& shape : *samples) {
      const auto shows = [&](const json& said) { return said.at("name") == shape.name; };
      const json& shapes = record_.at("shapes");
      const json skipped = record_.value("skipped", json::array());
      if (std::none_of(shapes.begin(), shapes.end(), shows) &&
          std::none_of(skipped.begin(), skipped.end(),
                       [&](const json& said) { return shape_of_skipped(said) == shape.name; }))
        add("", fmt::format("{}: was measured, and is not shown", shape.name));
    }
    for (const json& said : record_.at("shapes")) {
      const std::string name = said.at("name");
      const auto shape = std::find_if(samples->begin(), samples->end(),
                                      [&](const Samples& s) { return s.name == name; });
      const std::string ids[2] = {record_.at("a"), record_.at("b")};
      const bool there = shape != samples->end();
      const int sides[2] = {there ? shape->side(ids[0]) : -1, there ? shape->side(ids[1]) : -1};
      if (sides[0] < 0 || sides[1] < 0) {
        add("", fmt::format("{}: shown, and its samples are not there", name));
        continue;
      }
      for (const Statistic statistic : {Statistic::p50, Statistic::p90}) {
        const std::string member = fmt::format("ratio_{}", name_of(statistic));
        const auto ratio = paired_log_ratio(*shape, sides[0], sides[1], statistic);
        if (!ratio) continue;
        interval("", fmt::format("{} {}", name, member), said.at(member), speedup(*ratio));
        overall[statistic == Statistic::p90].push_back(*ratio);
      }
      for (const std::size_t side : {0, 1})
        times(ids[side], name, said.at(side == 0 ? "a" : "b"), summarize(*shape, sides[side]));
    }
    for (const int p90 : {0, 1}) {
      const char* const member = p90 == 0 ? "overall_p50" : "overall_p90";
      if (!overall[p90].empty() && record_.contains(member) && record_.at(member).is_object())
        interval("", member, record_.at(member), speedup(geometric_mean(overall[p90])));
    }
  }

  void check_gate() {
    const json& verdict = record_.at("verdict");
    std::vector<Reason> reasons;
    for (const json& reason : verdict.at("reasons")) {
      const auto code = parse_reason_code(reason.at("code").get<std::string>());
      if (!code)
        return add("", fmt::format("{} is no reason of a verdict", reason.at("code").dump()));
      reasons.push_back({*code, reason.at("detail"), reason.at("settle")});
    }
    const Decision decision = from_reasons(std::move(reasons));
    if (verdict.at("decision") != name_of(decision.outcome) ||
        verdict.at("exit_code") != decision.exit_code)
      add("", fmt::format("says {}, its reasons say {}", verdict.at("decision").get<std::string>(),
                          name_of(decision.outcome)));
    // A gate that ended before FAST has none, and then nothing that they would say.
    const auto samples = record_.contains("samples")
                             ? samples_from_json(record_.at("samples"))
                             : Result<std::vector<Samples>>(std::vector<Samples>());
    if (!samples) return add("", "samples: " + samples.status().message());
    std::vector<LogRatio> overall;
    for (const json& fast : record_.value("fast", json::array())) {
      if (!fast.contains("speedup")) continue;
      const std::string name = fast.at("shape");
      // Records from before a method had a name were made with the first.
      const auto spread = parse_process_spread(fast.value("process_spread", "resampled"));
      if (!spread) {
        add("", fmt::format("{}: process_spread {} is no method", name,
                            fast.at("process_spread").dump()));
        continue;
      }
      if (std::none_of(samples->begin(), samples->end(), [&](const Samples& shape) {
            return shape.name == name && shape.sides.size() >= 2;
          }))
        add("", fmt::format("{}: has a speedup, and no samples", name));
      for (const Samples& shape : *samples) {
        if (shape.name != name || shape.sides.size() < 2) continue;
        for (const Statistic statistic : {Statistic::p50, Statistic::p90}) {
          const auto ratio = paired_log_ratio(shape, 0, 1, statistic, {.processes = *spread});
          if (!ratio) continue;
          interval("", fmt::format("{} {}", name, name_of(statistic)),
                   fast.at(statistic == Statistic::p50 ? "speedup" : "speedup_p90"),
                   speedup(*ratio));
          if (statistic == Statistic::p50) overall.push_back(*ratio);
        }
        if (shape.sides.size() > 2 && fast.contains("same_against_same"))
          if (const auto ratio = paired_log_ratio(shape, 0, 2, Statistic::p50,
                                                  {.processes = ProcessSpread::resampled})) {
            const Interval is = speedup(*ratio);
            interval("", name + " same against same", fast.at("same_against_same"), is);
            figure("", name, fast, "noise_floor", noise_floor(is));
          }
        for (const int side : {0, 1}) {
          const Summary s = summarize(shape, side);
          const json& said = fast.at(side == 0 ? "baseline" : "candidate");
          const std::string& id = shape.sides[static_cast<std::size_t>(side)].id;
          figure(id, name, said, "p50", s.p50);
          figure(id, name, said, "p90", s.p90);
          figure(id, name, said, "mean", s.mean);
          if (std::isfinite(s.std)) figure(id, name, said, "std", s.std);
          figure(id, name, said, "ci_lo", s.ci_lo);
          figure(id, name, said, "ci_hi", s.ci_hi);
          figure(id, name, said, "samples", static_cast<double>(s.n));
          figure(id, name, said, "discarded", static_cast<double>(s.discarded));
          if (side == 0) continue;
          figure(id, name, fast, "candidate_flops", shape.flops / s.p50);
          const json peak = fast.value("peak", json());
          if (peak.is_object() && peak.value("flops", 0.0) > 0)
            figure(id, name, fast, "candidate_percent_of_peak",
                   100 * shape.flops / s.p50 / peak.at("flops").get<double>());
        }
      }
    }
    if (!overall.empty() && record_.contains("overall"))
      interval("", "overall", record_.at("overall"), speedup(geometric_mean(overall)));
    for (const json& row : record_.value("resources", json::array()))
      if (row.at("status") == "PASS" && row.contains("limit") && row.at("limit").is_number() &&
          row.contains("value") && row.at("value").is_number() &&
          row.at("value").get<double>() > row.at("limit").get<double>())
        add("", fmt::format("{} {} passes its limit {}", row.at("name").get<std::string>(),
                            row.at("value").dump(), row.at("limit").dump()));
    if (verdict.at("decision") != name_of(Outcome::promote)) return;
    // What is promoted was right wherever it was looked at, and reached every threshold.
    for (const json& shape : record_.value("green", json::array())) {
      const json& tally = shape.at("candidate");
      if (!tally.at("first_red").is_null() || tally.at("green") != tally.at("cases"))
        add("", fmt::format("says PROMOTE, and {} of {} cases are GREEN at {}",
                            tally.at("green").dump(), tally.at("cases").dump(),
                            shape.at("shape").get<std::string>()));
    }
    for (const json& row : record_.value("resources", json::array()))
      if (row.at("status") == "FAIL")
        add("", fmt::format("says PROMOTE, and {} is over its limit",
                            row.at("name").get<std::string>()));
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

/// Where a table and what it should say differ, as "/shapes/3/peers/peer:fa3/p50_seconds: 1 is 2".
void compare_members(const json& said, const json& is, const std::string& at,
                     std::vector<std::string>& out) {
  if (is.is_number() && said.is_number()) {
    if (!same(said.get<double>(), is.get<double>()))
      out.push_back(fmt::format("{}: {:.6g}, but its samples say {:.6g}", at, said.get<double>(),
                                is.get<double>()));
  } else if (is.is_object() && said.is_object()) {
    for (const auto& [key, value] : is.items())
      compare_members(said.contains(key) ? said.at(key) : json(), value, at + "/" + key, out);
  } else if (is.is_array() && said.is_array() && is.size() == said.size()) {
    for (std::size_t i = 0; i < is.size(); ++i)
      compare_members(said[i], is[i], fmt::format("{}/{}", at, i), out);
  } else if (said != is) {
    out.push_back(fmt::format("{}: {}, but its samples say {}", at, said.dump(), is.dump()));
  }
}

json side_words(const Summary& s, const Correctness& correctness) {
  return {{"p50_seconds", s.p50},
          {"p50_ci_seconds", {s.ci_lo, s.ci_hi}},
          {"p90_seconds", s.p90},
          {"samples", s.n},
          {"green", describe(correctness)}};
}

/// What a table shows of one way of timing, which `recording` holds alone.
void check_way(const json& part, const std::vector<std::string>& peers, const Recording& recording,
               const std::string& ours, std::vector<Disagreement>& out) {
  constexpr const char* kOurs = "greenfast";  // what the table calls it
  const auto compared = compare_best(recording, peers, ours);
  if (!compared) return out.push_back({"", compared.status().message()});
  const std::string way = part.value("way", "");
  const auto add = [&](const std::string& id, std::vector<std::string> wrong) {
    for (std::string& detail : wrong)
      out.push_back({id, way.empty() ? std::move(detail) : fmt::format("{}: {}", way, detail)});
  };
  for (const Comparison& one : compared->beside) {
    const std::string& id = one.a;
    std::vector<std::string> wrong;
    if (one.overall_p50)
      compare_members(part.at("overall_p50").at(id), interval_json(*one.overall_p50), "overall_p50",
                      wrong);
    std::size_t shown = 0;
    for (const json& shape : part.at("shapes")) {
      if (!shape.at("peers").contains(id)) continue;
      ++shown;
      const std::string problem = shape.at("problem");
      const auto is = std::find_if(one.shapes.begin(), one.shapes.end(), [&](const auto& s) {
        return s.name == shape.value("name", s.name) && s.problem == problem;
      });
      if (is == one.shapes.end()) {
        wrong.push_back(fmt::format("{}: its samples do not have it", problem));
        continue;
      }
      compare_members(shape.at(kOurs), side_words(is->b, is->b_correct),
                      fmt::format("{} {}", problem, kOurs), wrong);
      json row = side_words(is->a, is->a_correct);
      row["speedup_p50"] = interval_json(is->p50);
      row["speedup_p90"] = interval_json(is->p90);
      compare_members(shape.at("peers").at(id), row, problem, wrong);
    }
    if (shown != one.shapes.size())
      wrong.push_back(fmt::format("shows {} of {} shapes", shown, one.shapes.size()));
    add(id, std::move(wrong));
  }
  // Which of the peers was the best, and what that comes to over the shapes.
  std::vector<std::string> wrong;
  for (const json& shape : part.at("shapes")) {
    const std::string name = shape.value("name", ""), problem = shape.at("problem");
    const auto is =
        std::find_if(compared->shapes.begin(), compared->shapes.end(),
                     [&](const BestAtShape& s) { return s.name == name && s.problem == problem; });
    if (is == compared->shapes.end()) {
      wrong.push_back(fmt::format("{}: no shape of its samples is called \"{}\"", problem, name));
      continue;
    }
    compare_members(shape.contains("best") ? shape.at("best") : json("not said"),
                    best_json(*is).at("best"), problem + "/best", wrong);
  }
  compare_members(part.value("standings", json::object()), standings_json(*compared), "standings",
                  wrong);
  add("", std::move(wrong));
}

}  // namespace

std::vector<Disagreement> recheck_peers(const json& table, const std::filesystem::path& root) {
  std::vector<Disagreement> out;
  try {
    const std::filesystem::path source =
        (root / table.at("source").get<std::string>()).lexically_normal();
    const auto text = read_file(source);
    if (!text) return {{"", fmt::format("its samples are not there: {}", text.status().message())}};
    if (sha256_hex(*text) != table.at("source_sha256").get<std::string>())
      return {{"", fmt::format("{} is not the file that it was made from (SHA-256)",
                               table.at("source").get<std::string>())}};
    auto recording = read_recording(source);
    if (!recording) return {{"", recording.status().message()}};
    const auto policy = load_policy("strict");
    if (!policy) return {{"", policy.status().message()}};
    judge_errors(*recording, *policy);
    std::vector<const json*> parts = {&table};
    if (table.contains("ways"))
      for (const json& part : table.at("ways")) parts.push_back(&part);
    // A way that is left out might be the one that does not flatter.
    if (const auto ways = ways_of(*recording); parts.size() != ways.size())
      out.push_back({"", fmt::format("shows {} of {} ways", parts.size(), ways.size())});
    for (const json* part : parts) {
      Recording kept = *recording;
      const std::string way = part->value("way", "");
      if (const Status status = keep_way(kept, way); !status) {
        out.push_back({"", status.message()});
        continue;
      }
      check_way(*part, table.at("peers").get<std::vector<std::string>>(), kept,
                table.value("ours", "greenfast"), out);
    }
  } catch (const json::exception& error) {
    out.push_back({"", fmt::format("is not what its schema says: {}", error.what())});
  }
  return out;
}

std::vector<Disagreement> recheck(const json& record) { return Recheck(record).run(); }

}  // namespace greenfast::workbench
