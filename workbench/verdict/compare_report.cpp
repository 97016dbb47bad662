// What people and scripts read of a comparison.
#include <fmt/format.h>

#include "workbench/base/json.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/verdict/compare.hpp"

namespace greenfast::workbench {
namespace {

using nlohmann::json;

constexpr SkipReason kSkipReasons[] = {SkipReason::refused,    SkipReason::not_measured,
                                       SkipReason::no_samples, SkipReason::other_recording,
                                       SkipReason::noise,      SkipReason::failed,
                                       SkipReason::nothing};

json side_json(const Summary& s, double percent, const Correctness& correctness,
               const std::string& variant, const std::map<std::string, double>& errors,
               bool impossible) {
  json out = {{"p50_seconds", s.p50},
              {"p90_seconds", s.p90},
              {"mean_seconds", s.mean},
              {"std_seconds", s.std},
              {"p50_ci_seconds", {s.ci_lo, s.ci_hi}},
              {"samples", s.n},
              {"discarded", s.discarded},
              {"other_work", s.other_work},
              {"batch", s.batch},
              {"tick_seconds", s.tick},
              {"timer", s.method},
              {"green", describe(correctness)}};
  if (percent > 0) out["percent_of_peak"] = percent;
  if (!variant.empty()) out["variant"] = variant;
  if (!errors.empty()) out["errors"] = errors;
  if (impossible) out["impossible"] = true;
  return out;
}

json skipped_json(const SkippedShape& skipped) {
  json out = {{"shape", skipped.shape}, {"reason", name_of(skipped.reason)}};
  if (!skipped.side.empty()) out["side"] = skipped.side;
  if (!skipped.detail.empty()) out["detail"] = skipped.detail;
  return out;
}

SkippedShape skipped_of_json(const json& object) {
  SkippedShape out;
  object.at("shape").get_to(out.shape);
  out.side = object.value("side", "");
  out.detail = object.value("detail", "");
  const std::string reason = object.at("reason");
  for (const SkipReason known : kSkipReasons)
    if (name_of(known) == reason) {
      out.reason = known;
      return out;
    }
  throw json::other_error::create(601, reason + " is no reason to skip a shape", &object);
}

/// Records from before 2026-11-25 hold a sentence, which begins with the shape: "long: cpu.flash
/// refuses it: ...". No name of theirs has a colon before a space.
std::string shape_of_old_sentence(const std::string& sentence) {
  return sentence.substr(0, sentence.find(": "));
}

std::string faster(const Comparison& c, const Interval& i) {
  const Seen seen = seen_of(i);
  return seen == Seen::no_difference ? "no difference seen"
                                     : (seen == Seen::faster ? c.b : c.a) + " faster";
}

Table table_of(const Comparison& c, bool color) {
  using Align = Table::Align;
  Table table({{"shape", Align::left},
               {fmt::format("p50 {}", c.a)},
               {fmt::format("p50 {}", c.b)},
               {"ratio p50", Align::left},
               {"ratio p90", Align::left},
               {"seen", Align::left},
               {"samples"},
               {"GREEN", Align::left},
               {"outputs", Align::left}});
  for (const ShapeComparison& s : c.shapes) {
    const Seen seen = seen_of(s.p50);
    const Color tone = seen == Seen::faster   ? Color::green
                       : seen == Seen::slower ? Color::red
                                              : Color::yellow;
    const auto verdict = [](const Correctness& known) {
      return std::string(known.verdict ? name_of(*known.verdict) : "not checked");
    };
    const std::string a = verdict(s.a_correct), b = verdict(s.b_correct);
    table.add_row({s.name, format_duration(s.a.p50), format_duration(s.b.p50),
                   paint(ratio_words(s.p50), tone, color), ratio_words(s.p90), faster(c, s.p50),
                   fmt::format("{}", s.a.n), a == b ? a : fmt::format("{} / {}", a, b), s.outputs});
  }
  if (c.overall_p50 && c.shapes.size() > 1) {
    table.add_row({"geometric mean", "", "", ratio_words(*c.overall_p50),
                   ratio_words(*c.overall_p90), faster(c, *c.overall_p50), "", "", ""});
  }
  return table;
}

std::string remarks(const Comparison& c, const char* bullet) {
  std::string out;
  for (const ShapeComparison& s : c.shapes) {
    if (s.a_correct.red())
      out += fmt::format("{}{} at {} is {}\n", bullet, c.a, s.name, describe(s.a_correct));
    if (s.b_correct.red())
      out += fmt::format("{}{} at {} is {}\n", bullet, c.b, s.name, describe(s.b_correct));
    if (s.a_percent_of_peak > 0) {
      out += fmt::format("{}{}: {:.1f}% and {:.1f}% of the peak measured beside them\n", bullet,
                         s.name, s.a_percent_of_peak, s.b_percent_of_peak);
    }
    const auto errors = [&](const std::string& side, const std::map<std::string, double>& of) {
      for (const auto& [metric, value] : of)
        out += fmt::format("{}{}: {} of {} is {:.3g}\n", bullet, s.name, metric, side, value);
    };
    errors(c.a, s.a_errors);
    errors(c.b, s.b_errors);
    if (const double others = std::max(s.a.other_work, s.b.other_work); others > 0.05)
      out += fmt::format("{}{}: other work took up to {:.0f}% of the cores\n", bullet, s.name,
                         100 * others);
    const auto left_out = s.a.discarded + s.b.discarded;
    if (left_out > 0)
      out += fmt::format("{}{}: {} samples left out, the device was slow around them\n", bullet,
                         s.name, left_out);
  }
  for (const SkippedShape& skipped : c.skipped)
    out += fmt::format("{}SKIPPED {}\n", bullet, describe(skipped));
  for (const std::string& note : c.notes) out += fmt::format("{}{}\n", bullet, note);
  return out;
}

std::string opening(const Comparison& c) {
  // The neighbour's size may follow the shape; its kind does not.
  const std::string between =
      c.neighbour.empty()
          ? std::string()
          : fmt::format(", behind a neighbour ({})", c.neighbour.substr(0, c.neighbour.find(':')));
  return fmt::format("{} against {} on {}, {} caches{}; ratio = t({}) / t({}), 95% intervals, {}",
                     c.b, c.a, c.device, c.cache, between, c.a, c.b,
                     c.paired ? "interleaved" : "NOT interleaved");
}

}  // namespace

std::string_view name_of(Seen seen) noexcept {
  switch (seen) {
    case Seen::faster:
      return "faster";
    case Seen::slower:
      return "slower";
    case Seen::no_difference:
      return "no_difference";
  }
  return "";
}

Seen seen_of(const Interval& ratio) noexcept {
  return ratio.lo > 1 ? Seen::faster : ratio.hi < 1 ? Seen::slower : Seen::no_difference;
}

std::string_view name_of(SkipReason reason) noexcept {
  switch (reason) {
    case SkipReason::refused:
      return "refused";
    case SkipReason::not_measured:
      return "not_measured";
    case SkipReason::no_samples:
      return "no_samples";
    case SkipReason::other_recording:
      return "other_recording";
    case SkipReason::noise:
      return "noise";
    case SkipReason::nothing:
      return "nothing";
    case SkipReason::failed:
      return "failed";
  }
  return "";
}

std::string describe(const SkippedShape& s) {
  switch (s.reason) {
    case SkipReason::refused:
      return fmt::format("{}: {} refuses it: {}", s.shape, s.side, s.detail);
    case SkipReason::not_measured:
      return fmt::format("{}: {} was not measured there", s.shape, s.side);
    case SkipReason::other_recording:
      return fmt::format("{}: is only in {}", s.shape, s.detail);
    case SkipReason::nothing:
      return fmt::format("{}: {}", s.shape, s.detail);
    case SkipReason::no_samples:
    case SkipReason::noise:
    case SkipReason::failed:
      break;
  }
  return fmt::format("{}: {}: {}", s.shape, s.side, s.detail);
}

std::string shape_of_skipped(const json& skipped) {
  return skipped.is_string() ? shape_of_old_sentence(skipped.get<std::string>())
                             : skipped_of_json(skipped).shape;
}

std::string words_of_skipped(const json& skipped) {
  return skipped.is_string() ? skipped.get<std::string>() : describe(skipped_of_json(skipped));
}

json to_json(const Comparison& c) {
  json shapes = json::array(), skipped = json::array();
  for (const SkippedShape& shape : c.skipped) skipped.push_back(skipped_json(shape));
  for (const ShapeComparison& s : c.shapes) {
    shapes.push_back({{"name", s.name},
                      {"problem", s.problem},
                      {"ratio_p50", interval_json(s.p50)},
                      {"ratio_p90", interval_json(s.p90)},
                      {"a", side_json(s.a, s.a_percent_of_peak, s.a_correct, s.a_variant,
                                      s.a_errors, s.a_impossible)},
                      {"b", side_json(s.b, s.b_percent_of_peak, s.b_correct, s.b_variant,
                                      s.b_errors, s.b_impossible)},
                      {"outputs", s.outputs}});
  }
  json out = {{"schema", kCompareSchema}, {"a", c.a},           {"b", c.b},
              {"paired", c.paired},       {"device", c.device}, {"cache", c.cache},
              {"shapes", shapes},         {"skipped", skipped}, {"notes", c.notes},
              {"exit_code", c.exit_code}};
  if (!c.way.empty()) out["way"] = c.way;
  if (!c.neighbour.empty()) out["neighbour"] = c.neighbour;
  if (c.overall_p50) out["overall_p50"] = interval_json(*c.overall_p50);
  if (c.overall_p90) out["overall_p90"] = interval_json(*c.overall_p90);
  if (!c.samples.empty()) out["samples"] = to_json(c.samples);
  return out;
}

std::string compare_text(const Comparison& c, bool color) {
  return opening(c) + "\n\n" + table_of(c, color).text() + "\n" + remarks(c, "  ");
}

std::string compare_markdown(const Comparison& c) {
  return fmt::format("# {} against {}\n\n{}.\n\n", c.b, c.a, opening(c)) +
         table_of(c, false).markdown() + "\n" + remarks(c, "- ");
}

}  // namespace greenfast::workbench
