#include "workbench/evidence/recheck.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>

#include "workbench/base/exit_code.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/cases/problem_codec.hpp"
#include "workbench/cases/workload.hpp"
#include "workbench/evidence/recheck_facts.hpp"
#include "workbench/evidence/recheck_gate.hpp"
#include "workbench/fast/measure.hpp"
#include "workbench/fast/statistics.hpp"
#include "workbench/record/record.hpp"
#include "workbench/verdict/compare.hpp"
#include "workbench/verdict/compare_best.hpp"

namespace greenfast::workbench {
namespace {

using nlohmann::json;

class Recheck {
 public:
  explicit Recheck(const json& record) : record_(record) {}

  std::vector<Disagreement> run() {
    const std::string schema = record_.value("schema", "");
    try {
      if (schema == kRunSchema) check_run();
      if (schema == kGateSchema) found(recheck_gate(record_));
      if (schema == kSamplesSchema) check_samples();
      if (schema == kCompareSchema) {
        check_compare();
        check_seen(record_);
      }
      if (schema == kSelftestSchema) check_selftest();
      // Of tools that are no part of this program.
      if (schema == "greenfast.ladder_gates/1") found(recheck_ladder_gates(record_));
      if (schema == "greenfast.known-factors/1") found(recheck_known_factors(record_));
      if (schema == "greenfast.python/1") check_python();
      if (schema == "greenfast.loaded/1") check_loaded();
    } catch (const json::exception& error) {
      add("", fmt::format("is not what its schema says: {}", error.what()));
    }
    return std::move(out_);
  }

 private:
  void add(std::string subject, std::string detail) {
    out_.push_back({std::move(subject), std::move(detail)});
  }
  void found(std::vector<Disagreement> disagreements) {
    std::move(disagreements.begin(), disagreements.end(), std::back_inserter(out_));
  }
  /// `said` is what an object says under `name`; absent or null says nothing.
  void figure(const std::string& subject, const std::string& where, const json& object,
              const char* name, double is) {
    const auto said = object.find(name);
    if (said == object.end() || !said->is_number() || same_figure(said->get<double>(), is)) return;
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
    figure(subject, where, said, "other_work", s.other_work);
    figure(subject, where, said, "batch", s.batch);
    figure(subject, where, said, "tick_seconds", s.tick);
    const json& ends = said.value("p50_ci_seconds", json());
    if (!ends.is_array() || ends.size() != 2) return;
    for (const std::size_t end : {0, 1}) {
      const double is = end == 0 ? s.ci_lo : s.ci_hi;
      if (ends[end].is_number() && !same_figure(ends[end].get<double>(), is))
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
    for (const Samples& shape : *samples) flops_of(shape);
    codes_of_run();
    for (const json& row : record_.value("problems", json::array()))
      if (const auto problem = problem_of_json(row); problem && is_dense(*problem))
        figure("", row.at("name").get<std::string>(), row, "flop", flop_count(*problem));
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

  /// A row's code is its verdict's kind, the run's the gravest of them.
  void codes_of_run() {
    std::vector<int> codes;
    for (const json& row : record_.at("rows")) {
      const std::string verdict = row.at("verdict");
      const int code = row.at("exit_code").get<int>();
      codes.push_back(code);
      const bool red = verdict == name_of(Verdict::red);
      if ((verdict == name_of(Verdict::green)) != (code == kPassed) ||
          red != (code == kCrash || code == kIntegrity || code == kNumerics))
        add(row.at("variant"), fmt::format("{}: says {} with exit_code {}",
                                           row.at("problem").get<std::string>(), verdict, code));
    }
    const int said = record_.at("exit_code").get<int>();
    const bool failed = !record_.value("failures", json::array()).empty();
    const int is = failed ? static_cast<int>(kInternal) : worst_of(codes);
    if (said != is && said != kInterrupted)
      add("", fmt::format("exit_code {}, but its rows say {}", said, is));
  }

  /// A row against the cases that it sums up.
  void cases_of(const json& row, const std::string& variant, const std::string& problem) {
    int judged = 0, red = 0, sampled = 0;
    for (const json& c : record_.at("cases")) {
      if (c.at("variant") != variant || c.at("problem") != problem) continue;
      if (c.at("verdict") != "SKIPPED") {
        ++judged;
        sampled += c.at("rows_checked") < c.at("rows_total");
      }
      red += c.at("verdict") == "RED";
      if (c.at("verdict") == "GREEN") metrics_of(c, variant);
    }
    const int said = row.at("cases").get<int>();
    if (said != judged)
      add(variant, fmt::format("{}: says {} cases, and has {}", problem, said, judged));
    figure(variant, problem, row, "cases_with_sampled_rows", sampled);
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
      else if (!same_figure(said.at(name).get<double>(), is))
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
      flops_of(shape);
      best_peer(shape.name, ab);
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
          if (!same_figure(us[k].get<double>(), 1e6 * seconds[k])) {
            add(name, fmt::format("{}: us {:.6g}, but its sample says {:.6g}", shape.name,
                                  us[k].get<double>(), 1e6 * seconds[k]));
            break;
          }
        if (!shape.neighbour.empty()) differences(name, shape.name, engine);
        ratios(shape.name, ab, name);
        const Summary s = summarize(shape, side);
        if (s.n == 0) continue;
        figure(name, shape.name, engine, "p50_us", 1e6 * s.p50);
        figure(name, shape.name, engine, "tflops", 1e-12 * shape.flops / s.p50);
        figure(name, shape.name, engine, "error", error_of(shape, side));
      }
    }
  }
  /// Medians over the rounds of the time of another engine over this one's, in records from before
  /// 2026-11-25, when the harness left them to `greenfast compare`.
  void ratios(const std::string& shape, const json& ab, const std::string& name) {
    const json& engine = ab.at("engines").at(name);
    const std::string best = ab.value("best_peer", "");
    const auto over = [&](const char* member, const std::string& other) {
      const json& said = engine.contains(member) ? engine.at(member) : json();
      if (!said.is_number()) return;
      const json &ours = engine.at("us"),
                 theirs = ab.at("engines").value(other, json::object()).value("us", json::array());
      std::vector<double> rounds;
      for (std::size_t k = 0; k < std::min(ours.size(), theirs.size()); ++k)
        rounds.push_back(theirs[k].get<double>() / ours[k].get<double>());
      if (rounds.empty())
        add(name, fmt::format("{}: {} is said, and {} has no times", shape, member,
                              other.empty() ? "no peer" : other));
      else
        figure(name, shape, engine, member, quantile(rounds, 0.5));
    };
    over("ratio", best);
    over("over_best_peer", best);
    const std::string family = name.substr(0, name.find(':'));
    over("over_dense", family + ":dense");
    over("over_fp16", family + ":fp16");
    over("over_bf16", family + ":bf16");
    if (ab.contains("bytes") && engine.contains("p50_us") && engine.at("p50_us").is_number())
      figure(name, shape, engine, "tbs",
             1e-6 * ab.at("bytes").get<double>() / engine.at("p50_us").get<double>());
  }
  /// The fastest peer that is GREEN sets the pace.
  void best_peer(const std::string& shape, const json& ab) {
    if (!ab.contains("best_peer") || !ab.at("best_peer").is_string()) return;
    std::string best;
    double least = 0;
    for (const auto& [name, engine] : ab.at("engines").items()) {
      if (engine.contains("variant") || name.starts_with("greenfast") ||
          engine.value("verdict", "") != name_of(Verdict::green) || !engine.contains("p50_us") ||
          !engine.at("p50_us").is_number())
        continue;
      const double us = engine.at("p50_us").get<double>();
      if (best.empty() || us < least) {
        best = name;
        least = us;
      }
    }
    if (ab.at("best_peer") != best)
      add("", fmt::format("{}: best_peer {}, and the fastest GREEN one is {}", shape,
                          ab.at("best_peer").dump(), best.empty() ? "none" : best));
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
      if (!(std::fabs(us[k].get<double>() - is) <= kFigureTolerance * with[k].get<double>()))
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

  void flops_of(const Samples& shape) {
    if (std::string wrong = wrong_flops(shape); !wrong.empty()) add("", std::move(wrong));
  }

  /// What both kinds of comparison say beside their samples: an interval's reading, and RED's code.
  void check_seen(const json& record) {
    bool some_red = false;
    std::vector<int> codes;
    for (const json& said : record.at("shapes")) {
      const std::string name = said.at("name");
      const json& ratio = said.at("ratio_p50");
      const Interval p50{ratio.at("value").get<double>(), ratio.at("lo").get<double>(),
                         ratio.at("hi").get<double>()};
      // Records from before 2026-11-25 leave the reading to whoever reads.
      if (said.contains("seen") && said.at("seen") != name_of(seen_of(p50)))
        add("", fmt::format("{}: seen {}, and its interval says {}", name, said.at("seen").dump(),
                            name_of(seen_of(p50))));
      double peak[2] = {};
      for (const int side : {0, 1}) {
        const json& of = said.at(side == 0 ? "a" : "b");
        const std::string correct = of.at("green");
        some_red = some_red || correct.starts_with(name_of(Verdict::red));
        codes.push_back(correct.starts_with(name_of(Verdict::skipped)) ? kDefer : kPassed);
        if (of.value("impossible", false)) codes.push_back(kIntegrity);
        // Both beside one peak, which is not kept.
        if (of.contains("percent_of_peak"))
          peak[side] = of.at("percent_of_peak").get<double>() * of.at("p50_seconds").get<double>();
      }
      if (!same_figure(peak[0], peak[1]))
        add("", fmt::format("{}: the sides' shares of the peak are of different peaks", name));
    }
    // Which fault a side that is RED or failed has shown, no member says.
    bool failed = false;
    for (const json& skipped : record.at("skipped")) {
      const std::string reason = skipped.is_object() ? skipped.value("reason", "") : "";
      failed = failed || skipped.is_string() || reason == name_of(SkipReason::failed);
      if (reason == name_of(SkipReason::noise)) codes.push_back(kDefer);
    }
    const int said = record.at("exit_code").get<int>(), is = worst_of(codes);
    if (some_red ? said == kPassed || said == kDefer : !failed && said != is)
      add("", fmt::format("exit_code {}, but its shapes say {}", said,
                          some_red ? "RED" : fmt::format("{}", is)));
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
      for (const std::size_t side : {0, 1}) {
        const json& of = said.at(side == 0 ? "a" : "b");
        times(ids[side], name, of, summarize(*shape, sides[side]));
        const Side& recorded = shape->sides[static_cast<std::size_t>(sides[side])];
        std::vector<std::string> wrong;
        compare_members(of.value("errors", json::object()), json(recorded.errors), "errors", wrong);
        if (of.value("errors", json::object()).size() != recorded.errors.size())
          wrong.push_back("errors: not those of its samples");
        if (of.value("variant", recorded.variant) != recorded.variant)
          wrong.push_back("variant: not that of its samples");
        for (const std::string& detail : wrong) add(ids[side], fmt::format("{}: {}", name, detail));
      }
      flops_of(*shape);
      const std::string &a = shape->sides[static_cast<std::size_t>(sides[0])].output_sha256,
                        &b = shape->sides[static_cast<std::size_t>(sides[1])].output_sha256;
      if (!a.empty() && a == b && said.at("outputs") != describe(OutputDifference()))
        add("", fmt::format("{}: outputs {}, and their digests are one", name,
                            said.at("outputs").dump()));
    }
    for (const int p90 : {0, 1}) {
      const char* const member = p90 == 0 ? "overall_p50" : "overall_p90";
      if (!overall[p90].empty() && record_.contains(member) && record_.at(member).is_object())
        interval("", member, record_.at(member), speedup(geometric_mean(overall[p90])));
    }
  }

  /// Counts of its rows.
  void check_selftest() {
    int honest = 0, honest_green = 0, mutants = 0, caught = 0;
    for (const json& row : record_.at("rows")) {
      const bool is_honest = row.at("honest").get<bool>(), is_caught = row.at("caught").get<bool>();
      const int cases = row.at("cases").get<int>(), red = row.at("red_cases").get<int>();
      const std::string subject = row.at("subject");
      if (is_caught != (red > 0) || red > cases || row.at("metric").is_string() != is_caught)
        add(subject, fmt::format("says caught {} of {} RED cases of {}, by {}", is_caught, red,
                                 cases, row.at("metric").dump()));
      // The first RED case of a mutant ends its list.
      if (!is_honest && red > 1) add(subject, fmt::format("says {} RED cases of a mutant", red));
      (is_honest ? honest : mutants) += 1;
      honest_green += is_honest && !is_caught && cases > 0;
      caught += !is_honest && is_caught;
    }
    const auto count = [&](const char* name, int is) {
      if (record_.at(name) != is)
        add("", fmt::format("{} {}, but its rows say {}", name, record_.at(name).dump(), is));
    };
    count("honest", honest);
    count("honest_green", honest_green);
    count("mutants", mutants);
    count("mutants_caught", caught);
    bool exact = true;
    for (const json& row : record_.value("quantizer", json::array())) {
      exact = exact && row.at("wrong") == 0;
      if ((row.at("wrong") == 0) != row.at("first").is_null())
        add("", fmt::format("{}: {} wrong, the first {}", row.at("what").get<std::string>(),
                            row.at("wrong").dump(), row.at("first").dump()));
    }
    const bool ok = caught == mutants && honest_green == honest && exact;
    if (record_.at("ok") != ok) add("", fmt::format("ok {}, but its rows say {}", !ok, ok));
  }

  /// tools/gpu/python: medians, ratios and shares of models whose calls were timed one by one.
  void check_python() {
    // A record of other parts of the tool has no models. Not a temporary: items() refers to it.
    const json models = record_.value("models", json::object());
    for (const auto& item : models.items()) {
      // Not a structured binding: Clang 14 lets no lambda capture one.
      const std::string& name = item.key();
      const json& model = item.value();
      json medians = json::object(), speedups = json::object(), shares;
      for (const char* mode : {"eager", "compiled"}) {
        if (!model.contains(mode)) continue;
        std::map<std::string, std::vector<double>> times;
        for (const auto& [engine, seconds] : model.at(mode).items())
          if (!seconds.empty()) times[engine] = seconds.get<std::vector<double>>();
        json median = json::object(), speedup = json::object();
        for (const auto& [engine, seconds] : times) {
          median[engine] = 1e3 * quantile(seconds, 0.5);
          if (engine == "sdpa" || engine == "nothing" || !times.contains("sdpa")) continue;
          std::vector<double> rounds;
          const std::vector<double>& sdpa = times.at("sdpa");
          for (std::size_t k = 0; k < std::min(sdpa.size(), seconds.size()); ++k)
            rounds.push_back(sdpa[k] / seconds[k]);
          speedup[engine] = quantile(rounds, 0.5);
        }
        if (std::string_view(mode) == "eager" && times.contains("nothing"))
          for (const auto& [engine, seconds] : times)
            if (engine != "nothing")
              shares[engine] = 1 - quantile(times.at("nothing"), 0.5) / quantile(seconds, 0.5);
        medians[mode] = std::move(median);
        speedups[mode] = std::move(speedup);
      }
      std::vector<std::string> wrong;
      // A model that failed early has none of them.
      const auto held = [&](const char* member, const json& is) {
        const json& said = model.contains(member) ? model.at(member) : json();
        if (said.is_null() && (is.is_null() || is.empty())) return;
        compare_members(said, is, member, wrong);
        compare_members(is, said, member, wrong);
      };
      held("median_ms", medians);
      held("speedup_over_sdpa", speedups);
      held("attention_share", shares);
      for (const std::string& detail : wrong) add(name, detail);
    }
  }

  /// tools/loaded: what it says of two comparisons and benches that it keeps without their samples.
  void check_loaded() {
    const json &quiet = record_.at("quiet"), &busy = record_.at("busy");
    bool same = true;
    const auto reading = [](const json& shape) {
      const json& ratio = shape.at("ratio_p50");
      return seen_of({ratio.at("value").get<double>(), ratio.at("lo").get<double>(),
                      ratio.at("hi").get<double>()});
    };
    const json &a = quiet.at("compare").at("shapes"), &b = busy.at("compare").at("shapes");
    for (std::size_t k = 0; k < std::min(a.size(), b.size()); ++k)
      same = same && reading(a[k]) == reading(b[k]);
    json missed = json::array();
    const json &first = quiet.at("bench"), &second = busy.at("bench");
    for (std::size_t k = 0; k < std::min(first.size(), second.size()); ++k) {
      same = same && first[k].at("verdict") == second[k].at("verdict");
      const double time = first[k].at("time").at("p50_seconds").get<double>();
      const json& ends = second[k].at("time").at("p50_ci_seconds");
      if (!(ends.at(0).get<double>() <= time && time <= ends.at(1).get<double>()))
        missed.push_back(fmt::format("{}, {}", first[k].at("variant").get<std::string>(),
                                     first[k].at("problem").get<std::string>()));
    }
    if (record_.at("same") != same)
      add("", fmt::format("same {}, but its rows say {}", record_.at("same").dump(), same));
    if (record_.at("missed") != missed)
      add("", fmt::format("missed {}, but its rows say {}", record_.at("missed").dump(),
                          missed.dump()));
    check_seen(quiet.at("compare"));
    check_seen(busy.at("compare"));
  }

  const json& record_;
  std::vector<Disagreement> out_;
};

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
