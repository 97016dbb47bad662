// What people read of a profile.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "workbench/base/json.hpp"
#include "workbench/base/markdown.hpp"
#include "workbench/profile/profile.hpp"

namespace greenfast::workbench {
namespace {

using nlohmann::json;
using Row = std::vector<std::string>;

std::string value_of(const json& metric) {
  const json& value = metric.at("value");
  if (!value.is_number()) return "-";
  const double v = value.get<double>();
  const std::string unit = plain(metric.at("unit"));
  const std::string number = v == static_cast<double>(static_cast<long long>(v)) && v < 1e15
                                 ? fmt::format("{:.0f}", v)
                                 : fmt::format("{:.4g}", v);
  return unit.empty() ? number : number + ' ' + unit;
}

}  // namespace

std::string profile_markdown(const json& record) {
  std::vector<std::string> names;
  for (const json& side : record.at("sides")) names.push_back(plain(side.at("variant")));
  std::string out = fmt::format(
      "# Profile: {}{}\n\n{} on {}, {}, {}.\n", markdown_text(names.at(0)),
      names.size() > 1 ? " and " + markdown_text(names[1]) : "",
      markdown_text(plain(record.at("problem"))), markdown_text(plain(record["device"].at("name"))),
      markdown_text(plain(record.at("tool"))), plain(record.at("utc")).substr(0, 10));
  for (const json& side : record["sides"]) {
    out += fmt::format("\n## {}\n\n", markdown_text(plain(side.at("variant"))));
    if (side.at("skipped").is_string()) {
      out += fmt::format("SKIPPED: {}\n", markdown_text(plain(side["skipped"])));
      continue;
    }
    for (const json& line : side.at("findings"))
      out += fmt::format("- {}\n", markdown_text(plain(line)));
    for (const json& line : side.at("advice"))
      out += fmt::format("- what follows: {}\n", markdown_text(plain(line)));
    if (!side.at("stalls").empty()) {
      std::vector<Row> rows;
      for (const json& stall : side["stalls"])
        rows.push_back({plain(stall.at("reason")),
                        fmt::format("{:.1f}", 100 * stall.at("share").get<double>()),
                        plain(stall.at("means"))});
      const std::vector<std::string> header{"warps waited for", "% of their time", "which is"};
      out += "\nRoot-cause split of the warps' time:\n\n" + markdown_table(header, rows);
    }
    std::vector<Row> rows;
    for (const json& metric : side.at("metrics"))
      rows.push_back({plain(metric.at("label")), value_of(metric), plain(metric.at("name"))});
    const std::vector<std::string> header{"metric", "value", "name"};
    out.append("\n").append(markdown_table(header, rows));
    if (!side.at("missing").empty()) {
      out += "\nNot given by this tool: ";
      bool first = true;
      for (const json& name : side["missing"]) {
        out += (first ? "" : ", ") + markdown_text(plain(name));
        first = false;
      }
      out += ".\n";
    }
  }
  if (record.contains("directions") && !record["directions"].empty()) {
    std::vector<Row> rows;
    for (const json& d : record["directions"])
      rows.push_back({plain(d.at("label")), plain(d.at("baseline")), plain(d.at("candidate")),
                      plain(d.at("seen")), plain(d.at("predicted")), plain(d.at("status"))});
    const std::vector<std::string> header{"metric", names.at(0), names.at(1),
                                          "seen",   "predicted", "status"};
    out += "\n## Directions\n\n" + markdown_text(plain(record.at("plan"))) + "\n\n" +
           markdown_table(header, rows);
  }
  return out;
}

}  // namespace greenfast::workbench
