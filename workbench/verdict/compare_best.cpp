#include "workbench/verdict/compare_best.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "workbench/base/exit_code.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/base/terminal.hpp"

namespace greenfast::workbench {
namespace {

using nlohmann::json;

const ShapeComparison* find_shape(const Comparison& comparison, const Samples& shape) {
  const auto found = std::find_if(
      comparison.shapes.begin(), comparison.shapes.end(),
      [&](const auto& s) { return s.name == shape.name && s.problem == shape.problem; });
  return found == comparison.shapes.end() ? nullptr : &*found;
}

BestAtShape best_at(const Samples& shape, std::span<const Comparison> beside,
                    const std::string& ours) {
  BestAtShape out;
  out.name = shape.name;
  out.problem = shape.problem;
  out.metric = shape.metric;
  if (const auto problem = problem_of_recorded(shape.problem)) out.dtype = problem->dtype;
  if (const int side = shape.side(ours); side >= 0)
    out.variant = shape.sides[static_cast<std::size_t>(side)].variant;
  std::vector<Contender> contenders;
  std::vector<const ShapeComparison*> compared;
  for (const Comparison& one : beside) {
    const ShapeComparison* const at = find_shape(one, shape);
    // Beside a wrong answer of ours nobody is slower.
    if (at == nullptr || at->b_correct.red()) continue;
    contenders.push_back({one.a, at->a.p50, at->a_correct});
    compared.push_back(at);
  }
  const auto best = fastest_right(contenders);
  if (!best) return out;
  out.best = contenders[*best].id;
  out.p50 = compared[*best]->p50;
  out.p90 = compared[*best]->p90;
  out.log_p50 = compared[*best]->log_p50;
  out.log_p90 = compared[*best]->log_p90;
  return out;
}

using Members = std::vector<const BestAtShape*>;

Standing standing_of(const Members& shapes) {
  Standing out;
  std::vector<LogRatio> p50, p90;
  for (const BestAtShape* shape : shapes) {
    const double ratio = shape->p50.value;
    out.least = out.shapes == 0 ? ratio : std::min(out.least, ratio);
    out.most = std::max(out.most, ratio);
    ++out.shapes;
    out.faster += seen_of(shape->p50) == Seen::faster;
    out.slower += seen_of(shape->p50) == Seen::slower;
    p50.push_back(shape->log_p50);
    p90.push_back(shape->log_p90);
  }
  out.p50 = speedup(geometric_mean(p50));
  out.p90 = speedup(geometric_mean(p90));
  return out;
}

/// One standing for each key, in the order in which keys come first; shapes without one are in none.
template <class Key>
std::vector<StandingOf> grouped(const Members& shapes,
                                const std::function<std::optional<Key>(const BestAtShape&)>& key_of,
                                const std::function<StandingOf(const Key&)>& named) {
  std::vector<std::pair<Key, Members>> groups;
  for (const BestAtShape* shape : shapes) {
    const std::optional<Key> key = key_of(*shape);
    if (!key) continue;
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& known) { return known.first == *key; });
    if (group == groups.end()) group = groups.insert(group, {*key, {}});
    group->second.push_back(shape);
  }
  std::vector<StandingOf> out;
  for (const auto& [key, members] : groups) {
    StandingOf& of = out.emplace_back(named(key));
    of.standing = standing_of(members);
  }
  return out;
}

json standing_json(const Standing& s) {
  return {{"shapes", s.shapes},
          {"faster", s.faster},
          {"slower", s.slower},
          {"least", s.least},
          {"most", s.most},
          {"mean_p50", interval_json(s.p50)},
          {"mean_p90", interval_json(s.p90)}};
}

json standing_json(const StandingOf& of) {
  json out = standing_json(of.standing);
  if (of.dtype) out["type"] = name_of(*of.dtype);
  if (of.metric) out["metric"] = name_of(*of.metric);
  if (!of.variant.empty()) out["variant"] = of.variant;
  return out;
}

std::string words_of(const StandingOf& of) {
  if (!of.variant.empty()) return of.variant;
  return fmt::format("{}{}", name_of(*of.dtype),
                     *of.metric == CallMetric::after_pause ? ", after a pause" : "");
}

std::string best_opening(const BestComparison& c) {
  const Comparison& first = c.beside.front();
  std::vector<std::string> others;
  for (const Comparison& one : c.beside) others.push_back(one.a);
  return fmt::format(
      "{} against the best of {} on {}, {} caches{}; ratio = t(best) / t({}), 95% intervals, "
      "interleaved",
      c.ours, fmt::join(others, ", "), first.device, first.cache,
      first.neighbour.empty() ? "" : ", behind a neighbour", c.ours);
}

Color tone_of(const Interval& ratio) {
  const Seen seen = seen_of(ratio);
  return seen == Seen::faster ? Color::green : seen == Seen::slower ? Color::red : Color::yellow;
}

Table shapes_table(const BestComparison& c, bool color) {
  using Align = Table::Align;
  Table table({{"shape", Align::left},
               {"best", Align::left},
               {"ratio p50", Align::left},
               {"ratio p90", Align::left}});
  for (const BestAtShape& shape : c.shapes) {
    if (shape.best.empty()) {
      table.add_row({shape.name, "none", "", ""});
      continue;
    }
    table.add_row({shape.name, shape.best, paint(ratio_words(shape.p50), tone_of(shape.p50), color),
                   ratio_words(shape.p90)});
  }
  return table;
}

Table standings_table(const BestComparison& c) {
  using Align = Table::Align;
  Table table({{"over", Align::left},
               {"shapes"},
               {"faster"},
               {"slower"},
               {"least"},
               {"most"},
               {"geometric mean p50", Align::left},
               {"geometric mean p90", Align::left}});
  const auto add = [&](const std::string& over, const Standing& s) {
    table.add_row({over, fmt::format("{}", s.shapes), fmt::format("{}", s.faster),
                   fmt::format("{}", s.slower), fmt::format("{:.3f}x", s.least),
                   fmt::format("{:.3f}x", s.most), ratio_words(s.p50), ratio_words(s.p90)});
  };
  if (c.all) add("all", *c.all);
  if (c.by_type.size() > 1)
    for (const StandingOf& of : c.by_type) add(words_of(of), of.standing);
  for (const StandingOf& of : c.by_variant) add(words_of(of), of.standing);
  return table;
}

std::string best_remarks(const BestComparison& c, const char* bullet) {
  std::string out;
  for (const Comparison& one : c.beside) {
    for (const ShapeComparison& shape : one.shapes) {
      if (shape.a_correct.red())
        out +=
            fmt::format("{}{} at {} is {}\n", bullet, one.a, shape.name, describe(shape.a_correct));
      if (shape.b_correct.red() && &one == &c.beside.front())
        out += fmt::format("{}{} at {} is {}\n", bullet, c.ours, shape.name,
                           describe(shape.b_correct));
    }
    for (const SkippedShape& skipped : one.skipped)
      out += fmt::format("{}SKIPPED {}\n", bullet, describe(skipped));
  }
  for (const std::string& note : c.beside.front().notes) out += fmt::format("{}{}\n", bullet, note);
  return out;
}

}  // namespace

std::optional<std::size_t> fastest_right(std::span<const Contender> contenders) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    if (contenders[i].correctness.verdict != Verdict::green) continue;
    if (!best || contenders[i].p50 < contenders[*best].p50) best = i;
  }
  return best;
}

Result<BestComparison> compare_best(const Recording& recording,
                                    const std::vector<std::string>& others,
                                    const std::string& ours) {
  if (others.empty())
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: nothing beside {}", recording.source, ours));
  BestComparison out;
  out.ours = ours;
  for (const std::string& other : others) {
    auto one = compare_sides(recording, other, ours);
    if (!one) return one.status();
    for (const ShapeComparison& shape : one->shapes)
      if (shape.b_correct.red()) out.exit_code = kNumerics;
    out.beside.push_back(std::move(*one));
  }
  for (const Samples& shape : recording.shapes)
    out.shapes.push_back(best_at(shape, out.beside, ours));

  Members ranked;
  for (const BestAtShape& shape : out.shapes)
    if (!shape.best.empty()) ranked.push_back(&shape);
  if (ranked.empty()) return out;
  out.all = standing_of(ranked);
  using Type = std::pair<DType, CallMetric>;
  out.by_type = grouped<Type>(
      ranked,
      [](const BestAtShape& shape) {
        return shape.dtype ? std::optional(Type(*shape.dtype, shape.metric)) : std::nullopt;
      },
      [](const Type& key) { return StandingOf{.dtype = key.first, .metric = key.second}; });
  out.by_variant = grouped<std::string>(
      ranked,
      [](const BestAtShape& shape) {
        return shape.variant.empty() ? std::nullopt : std::optional(shape.variant);
      },
      [](const std::string& key) { return StandingOf{.variant = key}; });
  return out;
}

json best_json(const BestAtShape& shape) {
  json out = {{"name", shape.name}, {"problem", shape.problem}, {"best", nullptr}};
  if (shape.best.empty()) return out;
  out["best"] = shape.best;
  out["ratio_p50"] = interval_json(shape.p50);
  out["ratio_p90"] = interval_json(shape.p90);
  out["seen"] = name_of(seen_of(shape.p50));
  return out;
}

json standings_json(const BestComparison& c) {
  json types = json::array(), variants = json::array();
  for (const StandingOf& of : c.by_type) types.push_back(standing_json(of));
  for (const StandingOf& of : c.by_variant) variants.push_back(standing_json(of));
  return {{"all", c.all ? standing_json(*c.all) : json()},
          {"types", std::move(types)},
          {"variants", std::move(variants)}};
}

json to_json(const BestComparison& c) {
  json beside = json::array(), shapes = json::array();
  for (const Comparison& one : c.beside) beside.push_back(to_json(one));
  for (const BestAtShape& shape : c.shapes) shapes.push_back(best_json(shape));
  return {{"schema", kCompareBestSchema},   {"ours", c.ours},
          {"beside", std::move(beside)},    {"shapes", std::move(shapes)},
          {"standings", standings_json(c)}, {"exit_code", c.exit_code}};
}

std::string compare_text(const BestComparison& c, bool color) {
  return fmt::format("{}\n\n{}\n{}\n{}", best_opening(c), shapes_table(c, color).text(),
                     standings_table(c).text(), best_remarks(c, "  "));
}

std::string compare_markdown(const BestComparison& c) {
  return fmt::format("# {} beside its best rival\n\n{}.\n\n{}\n{}\n{}", c.ours, best_opening(c),
                     shapes_table(c, false).markdown(), standings_table(c).markdown(),
                     best_remarks(c, "- "));
}

}  // namespace greenfast::workbench
