#include "workbench/verdict/predictions.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <stdexcept>

namespace greenfast::workbench {
namespace {

struct BadPrediction : std::runtime_error {
  using std::runtime_error::runtime_error;
};

bool is_variant(std::string_view id) {
  const auto all = variants();
  return std::any_of(all.begin(), all.end(), [&](const VariantInfo& v) { return v.id == id; });
}

std::pair<double, double> range_of(const toml::node& node) {
  const toml::array* ends = node.as_array();
  const auto least =
      ends != nullptr && ends->size() == 2 ? (*ends)[0].value<double>() : std::optional<double>();
  const auto most = least ? (*ends)[1].value<double>() : std::optional<double>();
  if (!most || !(*least > 0) || !(*most >= *least))
    throw BadPrediction("speedup: expected least and most, such as [1.05, 1.10]");
  return {*least, *most};
}

Symptom symptom_in(const toml::node& node, const std::function<bool(std::string_view)>& is_metric) {
  const toml::table* table = node.as_table();
  Symptom out;
  if (table != nullptr && table->size() == 3) {
    out.metric = (*table)["metric"].value_or(std::string());
    out.of = (*table)["of"].value_or(std::string());
    out.above = (*table)["above"].value_or(0.0);
  }
  if (out.metric.empty() || out.of.empty() || !(out.above > 0 && out.above < 1))
    throw BadPrediction(
        "symptom: expected two metrics and a part of 1, such as { metric = \"bank_conflicts\", of "
        "= "
        "\"shared_wavefronts\", above = 0.2 }");
  for (const std::string& id : {out.metric, out.of})
    if (is_metric && !is_metric(id))
      throw BadPrediction(
          fmt::format("symptom: {}: no such metric (workbench/profile/counters.cpp)", id));
  return out;
}

/// Whether a row is of a kernel that stands behind GREENFAST_EXPERIMENTAL and that this build lacks.
bool is_left_out(const toml::table& row) {
  const toml::node* mark = row.get("experimental");
  if (mark == nullptr) return false;
  const auto candidate = row["candidate"].value<std::string>();
  if (mark->value_exact<bool>() != true || !candidate)
    throw BadPrediction("experimental: expected true, in a row with a candidate");
  return !is_variant(*candidate);
}

Prediction read_row(const toml::table& row,
                    const std::function<bool(std::string_view)>& is_metric) {
  Prediction p;
  for (const auto& [key, value] : row) {
    const std::string id(key.str());
    if (id == "experimental") continue;
    if (id == "speedup") {
      p.speedup = range_of(value);
      continue;
    }
    if (id == "symptom") {
      p.symptom = symptom_in(value, is_metric);
      continue;
    }
    const auto text = value.value_exact<std::string>();
    if (!text || text->empty()) throw BadPrediction(fmt::format("{}: expected a text", id));
    if (id == "candidate")
      p.candidate = *text;
    else if (id == "baseline")
      p.baseline = *text;
    else if (id == "expected")
      p.expected = *text;
    else if (id == "because")
      p.because = *text;
    else if (id == "written")
      p.written = *text;
    else if (id == "original")
      p.original = *text;
    else if (id == "shape")
      p.shape = *text;
    else if (id == "control")
      p.control = *text;
    else {
      if (is_metric && !is_metric(id))
        throw BadPrediction(fmt::format("{}: no such metric (workbench/profile/counters.cpp)", id));
      if (*text != "up" && *text != "down" && *text != "equal")
        throw BadPrediction(fmt::format("{}: \"{}\"; expected up, down or equal", id, *text));
      p.directions[id] = *text;
    }
  }
  if (p.candidate.empty() || p.baseline.empty())
    throw BadPrediction("candidate and baseline are needed");
  if (p.symptom && !p.control.empty())
    throw BadPrediction("a control experiment cures nothing: symptom or control, not both");
  for (const std::string& id : {p.candidate, p.baseline})
    if (!is_variant(id))
      throw BadPrediction(
          fmt::format("{}: no variant is called so; a prediction is for a step that exists "
                      "(greenfast list)",
                      id));
  return p;
}

}  // namespace

Result<std::vector<Prediction>> parse_predictions(
    std::string_view name, std::string_view text,
    const std::function<bool(std::string_view id)>& is_metric) {
  const auto wrong = [&](const std::string& what) {
    return Status(StatusCode::invalid_argument, fmt::format("{}: {}", name, what));
  };
  try {
    const toml::table root = toml::parse(text);
    std::vector<Prediction> out;
    for (const auto& [key, node] : root)
      if (key != "change")
        return wrong(fmt::format("line {}: {}: possible are [[change]] tables alone",
                                 node.source().begin.line, key.str()));
    const toml::array* changes = root["change"].as_array();
    if (changes == nullptr) return wrong("no [[change]]");
    for (const toml::node& node : *changes) {
      const auto line = node.source().begin.line;
      const toml::table* row = node.as_table();
      if (row == nullptr)
        return wrong(fmt::format("line {}: change: expected tables, [[change]]", line));
      try {
        if (is_left_out(*row)) continue;
        Prediction p = read_row(*row, is_metric);
        p.place = fmt::format("{}: line {}", name, line);
        if (const Prediction* other = find_prediction(out, p.baseline, p.candidate))
          throw BadPrediction(fmt::format("{} after {} has a row already ({})", p.candidate,
                                          p.baseline, other->place));
        out.push_back(std::move(p));
      } catch (const BadPrediction& bad) {
        return wrong(fmt::format("line {}: change: {}", line, bad.what()));
      }
    }
    return out;
  } catch (const toml::parse_error& error) {
    return wrong(
        fmt::format("line {}: {}", error.source().begin.line, std::string(error.description())));
  }
}

const Prediction* find_prediction(std::span<const Prediction> predictions,
                                  std::string_view baseline, std::string_view candidate) {
  const auto found = std::find_if(predictions.begin(), predictions.end(), [&](const Prediction& p) {
    return p.baseline == baseline && p.candidate == candidate;
  });
  return found == predictions.end() ? nullptr : &*found;
}

std::string words_of(const Symptom& symptom) {
  return fmt::format("{} above {:.0f}% of {}", symptom.metric, 100 * symptom.above, symptom.of);
}

std::vector<std::string> gaps_in(std::span<const Prediction> predictions) {
  std::vector<std::string> out;
  const auto all = variants();
  for (const VariantInfo& v : all) {
    if (v.predecessor.empty()) continue;
    const Prediction* p = find_prediction(predictions, v.predecessor, v.id);
    if (p == nullptr)
      out.push_back(fmt::format("{} after {}: no prediction; write it before measuring", v.id,
                                v.predecessor));
    else if (!p->speedup || p->expected.empty() || p->because.empty() || p->written.empty())
      out.push_back(
          fmt::format("{}: {} needs speedup, expected, because and written", p->place, v.id));
  }
  for (const Prediction& p : predictions)
    if (std::none_of(all.begin(), all.end(), [&](const VariantInfo& v) {
          return v.id == p.candidate && v.predecessor == p.baseline;
        }))
      out.push_back(fmt::format("{}: {} after {} is no step of the ladder", p.place, p.candidate,
                                p.baseline));
  return out;
}

std::string_view name_of(PredictionOutcome outcome) noexcept {
  switch (outcome) {
    case PredictionOutcome::as_predicted:
      return "as predicted";
    case PredictionOutcome::more:
      return "more than predicted";
    case PredictionOutcome::less:
      return "less than predicted";
  }
  return "";
}

PredictionOutcome outcome_of(const std::pair<double, double>& predicted, const Interval& measured) {
  if (measured.lo > predicted.second) return PredictionOutcome::more;
  if (measured.hi < predicted.first) return PredictionOutcome::less;
  return PredictionOutcome::as_predicted;
}

}  // namespace greenfast::workbench
