#include "workbench/search/tune.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include "workbench/base/exit_code.hpp"
#include "workbench/base/terminal.hpp"

namespace greenfast::workbench {
namespace {

using nlohmann::json;

constexpr std::array kStrategies{
    StrategyRow{Strategy::exhaustive, "exhaustive", "every configuration, the better half again"},
    StrategyRow{Strategy::random, "random", "--candidates of them, each once"},
    StrategyRow{Strategy::halving, "halving",
                "successive halving: the better half again with twice the samples, until few are "
                "left"},
    StrategyRow{Strategy::evolution, "evolution",
                "crossover and mutation of the better of two, --candidates in all"},
};

/// A slowdown of a shape that did not choose the winner, at most.
constexpr double kGuard = 0.98;

struct Scored {
  Configuration configuration;
  double score = 0;
};

class Search {
 public:
  Search(const std::filesystem::path& source, const TuneSpace& space, const TuneOptions& options,
         Lab& lab)
      : source_(source), space_(space), options_(options), lab_(lab), random_(options.seed) {}

  json run() {
    std::vector<Scored> best;
    switch (options_.strategy) {
      case Strategy::exhaustive:
        best = score(space_.all(), 0);
        best.resize(std::max<std::size_t>(keep(), best.size() / 2));
        best = again(best, 1);
        break;
      case Strategy::random:
        best = score(sample(options_.candidates), 0);
        break;
      case Strategy::halving: {
        best = score(sample(options_.candidates), 0);
        for (int fidelity = 1; best.size() > keep() && fidelity < 4; ++fidelity) {
          best.resize(std::max(keep(), (best.size() + 1) / 2));
          best = again(best, fidelity);
        }
        break;
      }
      case Strategy::evolution:
        best = evolve();
        break;
    }
    std::vector<LabCandidate> order;
    for (const Scored& s : best)
      if (s.score > 0) order.push_back(candidate(s.configuration));
    const LabCandidate hand = candidate(space_.hand_set());
    const Lab::Final final = lab_.decide(hand, order);

    json failed = json::array();
    for (const std::string& key : tried_)
      for (const char* stage : {"compile", "case", "time0", "green"})
        if (const json* result = lab_.find(key, stage);
            result != nullptr && !result->at("ok").get<bool>()) {
          failed.push_back({{"key", key},
                            {"stage", stage},
                            {"reason", result->value("reason", "failed").substr(0, 300)}});
          if (result->contains("fault")) failed.back()["fault"] = result->at("fault");
        }
    const json origin = lab_.origin();
    return {{"schema", "greenfast.tune/1"},
            {"identity", origin["identity"]},
            {"measured", origin["measured"]},
            {"strategy", kStrategies[static_cast<std::size_t>(options_.strategy)].name},
            {"seed", options_.seed},
            {"candidates", options_.candidates},
            {"space", space_.all().size()},
            {"tried", tried_.size()},
            {"hand_set", hand.key},
            {"winner", final.winner.key},
            {"finalists", final.finalists},
            {"confirmed", final.confirmed},
            {"rejected", failed}};
  }

 private:
  std::size_t keep() const { return static_cast<std::size_t>(std::max(1, options_.lab.finalists)); }

  LabCandidate candidate(const Configuration& c) const {
    return {space_.text(c), source_, space_.defines(c)};
  }

  std::size_t below(std::size_t count) { return static_cast<std::size_t>(random_() % count); }

  /// Best first; equals in the order given.
  std::vector<Scored> score(const std::vector<Configuration>& configurations, int fidelity) {
    std::vector<LabCandidate> candidates;
    for (const Configuration& c : configurations) {
      candidates.push_back(candidate(c));
      tried_.insert(candidates.back().key);
    }
    const auto scores = lab_.time(candidate(space_.hand_set()), candidates, fidelity);
    std::vector<Scored> out;
    for (std::size_t i = 0; i < configurations.size(); ++i)
      out.push_back({configurations[i], scores[i]});
    std::stable_sort(out.begin(), out.end(),
                     [](const Scored& a, const Scored& b) { return a.score > b.score; });
    return out;
  }
  std::vector<Scored> again(const std::vector<Scored>& some, int fidelity) {
    std::vector<Configuration> configurations;
    for (const Scored& s : some)
      if (s.score > 0) configurations.push_back(s.configuration);
    return score(configurations, fidelity);
  }

  /// Different valid configurations in random order, the hand-set one not among them.
  std::vector<Configuration> sample(int count) {
    std::vector<Configuration> all = space_.all();
    std::erase(all, space_.hand_set());
    for (std::size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[below(i)]);
    all.resize(std::min(all.size(), static_cast<std::size_t>(std::max(1, count))));
    return all;
  }

  std::vector<Scored> evolve() {
    constexpr std::size_t kPopulation = 8;
    const std::size_t most = std::min<std::size_t>(
        static_cast<std::size_t>(std::max(1, options_.candidates)), space_.all().size() - 1);
    std::vector<Scored> population =
        score(sample(static_cast<int>(std::min(kPopulation, most))), 0);
    population.push_back({space_.hand_set(), 1});
    std::set<Configuration> seen;
    for (const Scored& s : population) seen.insert(s.configuration);
    while (seen.size() - 1 < most) {
      std::vector<Configuration> children;
      // A small space runs out of new children before it runs out of configurations.
      for (int attempt = 0;
           attempt < 200 && children.size() < kPopulation && seen.size() - 1 < most; ++attempt) {
        Configuration child = parent(population).configuration;
        const Configuration& other = parent(population).configuration;
        for (std::size_t i = 0; i < child.size(); ++i)
          if (below(2) == 0) child[i] = other[i];
        if (below(4) != 0) mutate(child);
        if (space_.valid(child) && seen.insert(child).second) children.push_back(child);
      }
      if (children.empty()) break;
      for (Scored& s : score(children, 0)) population.push_back(std::move(s));
      std::stable_sort(population.begin(), population.end(),
                       [](const Scored& a, const Scored& b) { return a.score > b.score; });
      if (population.size() > 2 * kPopulation) population.resize(2 * kPopulation);
    }
    std::stable_sort(population.begin(), population.end(),
                     [](const Scored& a, const Scored& b) { return a.score > b.score; });
    return population;
  }
  const Scored& parent(const std::vector<Scored>& population) {
    const Scored& a = population[below(population.size())];
    const Scored& b = population[below(population.size())];
    return a.score >= b.score ? a : b;
  }
  /// One parameter to a neighbouring value.
  void mutate(Configuration& c) {
    const std::size_t i = below(c.size());
    const std::size_t count = space_.parameters[i].values.size();
    if (count == 1) return;
    const bool up = c[i] == 0 || (c[i] + 1 < count && below(2) == 0);
    c[i] = up ? c[i] + 1 : c[i] - 1;
  }

  const std::filesystem::path& source_;
  const TuneSpace& space_;
  const TuneOptions& options_;
  Lab& lab_;
  std::mt19937_64 random_;
  std::set<std::string> tried_;
};

}  // namespace

std::span<const StrategyRow> strategy_table() { return kStrategies; }

json tune(const std::filesystem::path& source, const TuneSpace& space, const TuneOptions& options) {
  auto lab = Lab::open(options.lab);
  if (!lab) throw LabError(lab.status());
  return Search(source, space, options, **lab).run();
}

std::vector<CompiledPoint> compile_all(const std::filesystem::path& source, const TuneSpace& space,
                                       const TuneOptions& options) {
  auto lab = Lab::open(options.lab);
  if (!lab) throw LabError(lab.status());
  std::vector<Configuration> points = space.all();
  std::erase(points, space.hand_set());
  if (options.strategy == Strategy::random) {
    std::mt19937_64 random(options.seed);
    for (std::size_t i = points.size(); i > 1; --i) std::swap(points[i - 1], points[random() % i]);
    points.resize(
        std::min(points.size(), static_cast<std::size_t>(std::max(1, options.candidates))));
  }
  points.insert(points.begin(), space.hand_set());
  std::vector<LabCandidate> all;
  for (const Configuration& c : points) all.push_back({space.text(c), source, space.defines(c)});
  (*lab)->compile(all);
  std::vector<CompiledPoint> out;
  for (const LabCandidate& c : all) {
    const json* result = (*lab)->find(c.key, "compile");
    const bool ok = result != nullptr && result->at("ok").get<bool>();
    out.push_back({c.key, ok                  ? ""
                          : result == nullptr ? "was not reached"
                                              : result->value("reason", "failed")});
  }
  return out;
}

int exit_code_of_search(const json& result) {
  const json& confirmed = result["confirmed"];
  if (confirmed.is_null() || !confirmed.value("ok", false)) return kDefer;
  bool first = true;
  for (const json& shape : confirmed["shapes"]) {
    if (!(shape["speedup"]["lo"].get<double>() > (first ? 1.0 : kGuard))) return kDefer;
    first = false;
  }
  return kPassed;
}

std::string search_text(const json& result) {
  const std::string hand = result["hand_set"], winner = result["winner"];
  const json& confirmed = result["confirmed"];
  std::string out;
  if (winner == hand) {
    out = fmt::format("DEFER: nothing beat the hand-set {}\n", hand);
  } else if (!confirmed.value("ok", false)) {
    out = fmt::format("DEFER: {} failed when measured again: {}\n", winner,
                      confirmed.value("reason", ""));
  } else {
    out = fmt::format("{}: {}\n", exit_code_of_search(result) == kPassed ? "FASTER" : "DEFER",
                      winner);
    using Align = Table::Align;
    Table table({{"shape", Align::left}, {"over " + hand}, {"interval"}, {"p50"}});
    for (const json& shape : confirmed["shapes"]) {
      const json& s = shape["speedup"];
      table.add_row({shape["shape"].get<std::string>(),
                     fmt::format("{:.3f}x", s["value"].get<double>()),
                     fmt::format("[{:.3f}, {:.3f}]", s["lo"].get<double>(), s["hi"].get<double>()),
                     format_duration(shape["p50_seconds"].get<double>())});
    }
    out += table.text();
  }
  if (result.contains("space"))
    out += fmt::format("{} of {} configurations tried ({}, seed {}), {} rejected, {} finalists\n",
                       result["tried"].get<std::size_t>(), result["space"].get<std::size_t>(),
                       result["strategy"].get<std::string>(), result["seed"].get<std::uint64_t>(),
                       result["rejected"].size(), result["finalists"].size());
  return out;
}

}  // namespace greenfast::workbench
