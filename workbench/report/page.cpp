// The report as one page of HTML. Nothing of a record is ever HTML or a script: text is escaped,
// and the charts' data is JSON in which no character can end its element.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "workbench/base/markdown.hpp"
#include "workbench/report/assets.hpp"
#include "workbench/report/report.hpp"

namespace greenfast::workbench {
namespace {

using nlohmann::json;

// `code` and **strong** of one line, with Markdown's backslash escapes.
std::string inline_html(std::string_view line) {
  std::string out, plain;
  const auto flush = [&] {
    out += html_text(plain);
    plain.clear();
  };
  bool strong = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\\' && i + 1 < line.size() &&
        std::string_view("|`*\\<").find(line[i + 1]) != std::string_view::npos) {
      plain += line[++i];
    } else if (line[i] == '`') {
      const std::size_t end = line.find('`', i + 1);
      if (end == std::string_view::npos) {
        plain += '`';
        continue;
      }
      flush();
      out += "<code>" + html_text(line.substr(i + 1, end - i - 1)) + "</code>";
      i = end;
    } else if (line.substr(i, 2) == "**" &&
               (strong || line.find("**", i + 2) != std::string_view::npos)) {
      flush();
      out += strong ? "</strong>" : "<strong>";
      strong = !strong;
      ++i;
    } else {
      plain += line[i];
    }
  }
  flush();
  if (strong) out += "</strong>";
  return out;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> cells_of(std::string_view line) {
  line = trimmed(line);
  if (line.starts_with('|')) line.remove_prefix(1);
  std::vector<std::string_view> cells;
  std::size_t start = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\\') {
      ++i;
    } else if (line[i] == '|') {
      cells.push_back(trimmed(line.substr(start, i - start)));
      start = i + 1;
    }
  }
  if (start < line.size()) cells.push_back(trimmed(line.substr(start)));
  return cells;
}

// A verdict is told by its word; colour only helps.
std::string cell_html(std::string_view cell) {
  const auto is = [&](std::initializer_list<std::string_view> words) {
    return std::find(words.begin(), words.end(), cell) != words.end();
  };
  const char* tone = is({"PASS", "PROMOTE", "GREEN", "as predicted"})          ? "good"
                     : is({"FAIL", "REJECT", "RED", "against the prediction"}) ? "bad"
                     : is({"DEFER", "SKIPPED", "NOISY", "WAIVED", "deferred", "not predicted"})
                         ? "wait"
                         : nullptr;
  return tone == nullptr ? fmt::format("<td>{}</td>", inline_html(cell))
                         : fmt::format("<td class=\"{}\">{}</td>", tone, inline_html(cell));
}

std::string table_html(const std::vector<std::string_view>& lines, const std::string& name) {
  std::string out = fmt::format(
      "<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"{}\"><table><thead><tr>",
      html_text(name));
  for (const std::string_view cell : cells_of(lines[0]))
    out += fmt::format("<th scope=\"col\">{}</th>", inline_html(cell));
  out += "</tr></thead><tbody>\n";
  for (std::size_t i = 2; i < lines.size(); ++i) {
    out += "<tr>";
    for (const std::string_view cell : cells_of(lines[i])) out += cell_html(cell);
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

json spec_of(const Chart& chart) {
  static constexpr const char* kKinds[] = {"bars", "bars_across", "points"};
  json series = json::array();
  for (const Chart::Series& s : chart.series) {
    json points = json::array();
    for (const auto& p : s.points) {
      if (!p) {
        points.push_back(nullptr);
        continue;
      }
      json point = {{"x", p->x}, {"y", p->y}, {"label", p->label}};
      if (p->lo && p->hi) {
        point["lo"] = *p->lo;
        point["hi"] = *p->hi;
      }
      points.push_back(std::move(point));
    }
    series.push_back({{"name", s.name}, {"points", points}, {"line", s.line}, {"marks", s.marks}});
  }
  json spec = {{"id", chart.id},
               {"kind", kKinds[static_cast<int>(chart.kind)]},
               {"x_title", chart.x_title},
               {"y_title", chart.y_title},
               {"x_log", chart.x_log},
               {"y_log", chart.y_log},
               {"labels", chart.labels},
               {"series", series},
               {"mark", chart.mark ? json(*chart.mark) : json(nullptr)}};
  if (!chart.x_ticks.empty()) spec["x_ticks"] = chart.x_ticks;
  return spec;
}

// JSON inside <script>: no '<' can end the element or begin a comment, whatever a name holds.
std::string script_json(const json& document) {
  const std::string text =
      document.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  std::string out;
  for (const char c : text) {
    if (c == '<' || c == '>' || c == '&')
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += c;
  }
  return out;
}

std::string figure_html(const Chart& chart) {
  std::string out = fmt::format(
      "<figure aria-labelledby=\"title-{0}\">\n<figcaption id=\"title-{0}\">{1}</figcaption>\n"
      "<p id=\"note-{0}\">{2}</p>\n<div class=\"plot\"><canvas id=\"chart-{0}\" role=\"img\" "
      "aria-labelledby=\"title-{0}\" aria-describedby=\"note-{0}\">{2}</canvas></div>\n"
      "<details><summary>Table: {1}</summary>\n",
      html_text(chart.id), html_text(chart.title), html_text(chart.note));
  const std::string table = markdown_table(chart.header, chart.rows);
  return out + html_of_markdown(table) + "</details>\n</figure>\n";
}

}  // namespace

std::string html_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        // Control characters have no place in a page.
        out += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? ' ' : c;
    }
  }
  return out;
}

std::string html_of_markdown(std::string_view markdown) {
  std::vector<std::string_view> lines;
  while (!markdown.empty()) {
    const std::size_t end = std::min(markdown.find('\n'), markdown.size());
    lines.push_back(markdown.substr(0, end));
    markdown.remove_prefix(std::min(end + 1, markdown.size()));
  }
  std::string out, heading = "table";
  for (std::size_t i = 0; i < lines.size();) {
    const std::string_view line = lines[i];
    const auto block = [&](std::string_view mark) {
      std::vector<std::string_view> items;
      while (i < lines.size() && lines[i].starts_with(mark))
        items.push_back(lines[i++].substr(mark.size()));
      return items;
    };
    if (trimmed(line).empty()) {
      ++i;
    } else if (line.starts_with("```")) {
      out += "<pre><code>";
      for (++i; i < lines.size() && !lines[i].starts_with("```"); ++i)
        out += html_text(lines[i]) + '\n';
      out += "</code></pre>\n";
      ++i;
    } else if (line.starts_with('#')) {
      const std::size_t level = std::min<std::size_t>(line.find_first_not_of('#'), 6);
      heading = trimmed(line.substr(std::min(level, line.size())));
      out += fmt::format("<h{0}>{1}</h{0}>\n", level, inline_html(heading));
      ++i;
    } else if (line.starts_with('|') && i + 1 < lines.size() && lines[i + 1].starts_with('|')) {
      std::vector<std::string_view> rows;
      while (i < lines.size() && lines[i].starts_with('|')) rows.push_back(lines[i++]);
      out += table_html(rows, heading);
    } else if (line.starts_with("> ")) {
      out += "<blockquote>";
      for (const std::string_view item : block("> "))
        out += fmt::format("<p>{}</p>", inline_html(trimmed(item)));
      out += "</blockquote>\n";
    } else if (line.starts_with("- ")) {
      out += "<ul>";
      for (const std::string_view item : block("- ")) {
        const bool box = item.starts_with("[x] ") || item.starts_with("[ ] ");
        out += fmt::format("<li>{}{}</li>",
                           !box             ? ""
                           : item[1] == 'x' ? "<span class=\"good\">done:</span> "
                                            : "<span class=\"wait\">open:</span> ",
                           inline_html(trimmed(box ? item.substr(4) : item)));
      }
      out += "</ul>\n";
    } else {
      out += "<p>";
      while (i < lines.size() && !trimmed(lines[i]).empty() && !lines[i].starts_with("```") &&
             !lines[i].starts_with('|') && !lines[i].starts_with("- "))
        out += inline_html(trimmed(lines[i++])) + '\n';
      // A lone line that begins like a table.
      if (out.ends_with("<p>")) out += inline_html(lines[i++]);
      out += "</p>\n";
    }
  }
  return out;
}

bool has_html_report() { return !report_assets().chart_js.empty(); }

Result<std::string> report_html(std::span<const ReportPart> parts, const std::string& title) {
  const ReportAssets assets = report_assets();
  if (assets.chart_js.empty())
    return Status(StatusCode::unsupported,
                  "this greenfast was built without Chart.js, so it writes Markdown only: install "
                  "libjs-chart.js "
                  "and build again");
  std::string body;
  json specs = json::array();
  for (const ReportPart& part : parts) {
    body += html_of_markdown(part.markdown);
    for (const Chart& chart : part.charts) {
      specs.push_back(spec_of(chart));
      body += figure_html(chart);
    }
  }
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src "
      "'unsafe-inline'; "
      "style-src 'unsafe-inline'; img-src data:\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>{}</title>\n<style>\n",
      html_text(title));
  out += assets.css;
  out +=
      "</style>\n</head>\n<body>\n<a class=\"skip\" href=\"#report\">Skip to the report</a>\n<main "
      "id=\"report\">\n";
  out += body;
  out += "</main>\n<script id=\"charts\" type=\"application/json\">";
  out += script_json(specs);
  out += "</script>\n<script>\n";
  out += assets.chart_js;
  out += "\n</script>\n<script>\n";
  out += assets.page_js;
  out += "</script>\n</body>\n</html>\n";
  return out;
}

}  // namespace greenfast::workbench
