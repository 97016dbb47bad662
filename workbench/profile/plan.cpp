// Predictions, written down before a change is measured.
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>

#include "workbench/profile/profile.hpp"

namespace greenfast::workbench {

Result<std::vector<Prediction>> parse_predictions(std::string_view name, std::string_view toml) {
  const auto wrong = [&](const std::string& what) {
    return Status(StatusCode::invalid_argument, fmt::format("{}: {}", name, what));
  };
  try {
    const toml::table root = toml::parse(toml);
    std::vector<Prediction> out;
    const toml::array* changes = root["change"].as_array();
    if (changes == nullptr) return wrong("no [[change]]");
    for (const toml::node& node : *changes) {
      const toml::table* row = node.as_table();
      if (row == nullptr) return wrong("change: expected tables, [[change]]");
      Prediction p;
      for (const auto& [key, value] : *row) {
        const std::string id(key.str());
        const auto text = value.value<std::string>();
        if (!text) return wrong(fmt::format("change[{}].{}: expected a text", out.size(), id));
        if (id == "candidate")
          p.candidate = *text;
        else if (id == "baseline")
          p.baseline = *text;
        else if (id == "because")
          p.because = *text;
        else {
          const auto known = [&](std::span<const ProfileMetric> metrics) {
            return std::any_of(metrics.begin(), metrics.end(),
                               [&](const ProfileMetric& m) { return m.id == id; });
          };
          if (!known(gpu_metrics()) && !known(cpu_metrics()))
            return wrong(fmt::format(
                "change[{}].{}: no such metric (workbench/profile/counters.cpp)", out.size(), id));
          if (*text != "up" && *text != "down" && *text != "equal")
            return wrong(fmt::format("change[{}].{}: \"{}\"; expected up, down or equal",
                                     out.size(), id, *text));
          p.directions[id] = *text;
        }
      }
      if (p.candidate.empty() || p.baseline.empty())
        return wrong(fmt::format("change[{}]: candidate and baseline are needed", out.size()));
      out.push_back(std::move(p));
    }
    return out;
  } catch (const toml::parse_error& error) {
    return wrong(
        fmt::format("line {}: {}", error.source().begin.line, std::string(error.description())));
  }
}

}  // namespace greenfast::workbench
