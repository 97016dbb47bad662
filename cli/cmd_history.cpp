// greenfast history: performance over commits.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/problem_options.hpp"
#include "workbench/base/atomic_file.hpp"
#include "workbench/base/clean_text.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/report/history.hpp"

namespace greenfast::cli {
namespace {

struct HistoryOptions {
  workbench::HistoryOptions history;
  std::string repository = ".", variants, html;
  bool as_json = false, as_markdown = false;
};

int run_history(const HistoryOptions& given) {
  HistoryOptions options = given;
  options.history.repository = options.repository;
  options.history.variants = split_list(options.variants);
  const auto history = value_or_fail(workbench::read_history(options.history));
  if (options.as_json) {
    fmt::print("{}\n", workbench::history_json(history, options.history).dump(1));
    return workbench::kPassed;
  }
  const auto parts = workbench::history_parts(history, options.history);
  if (!options.html.empty()) {
    const std::string page = value_or_fail(workbench::report_html(parts, "Performance history"));
    if (Status status = workbench::write_file_atomically(options.html, page); !status)
      throw Failure(status);
    fmt::print("wrote {}\n", workbench::clean_line(options.html));
    return workbench::kPassed;
  }
  if (options.as_markdown) {
    fmt::print("{}", workbench::report_markdown(parts));
    return workbench::kPassed;
  }
  for (const auto& part : parts) {
    for (const workbench::Chart& chart : part.charts) {
      std::vector<workbench::Table::Column> columns;
      for (const std::string& title : chart.header)
        columns.push_back({title, workbench::Table::Align::left});
      workbench::Table table(columns);
      for (const auto& row : chart.rows) table.add_row(row);
      fmt::print(
          "{}\n{}\n",
          workbench::paint(chart.title, workbench::Color::bold, workbench::wants_color(stdout)),
          table.text());
    }
  }
  for (const std::string& line : history.left_out)
    workbench::say(stderr, fmt::format("left out: {}\n", workbench::clean_line(line)));
  return workbench::kPassed;
}

}  // namespace

Action define_history(OptionSet& set) {
  auto options = std::make_shared<HistoryOptions>();
  set.text("--repo", &options->repository, "DIR",
           "A git repository whose commits hold records in evidence/ (default: here)");
  set.text("--shape", &options->history.shape, "SHAPE",
           "A shape's name, or a problem as records print it (default: mission)");
  set.text("--variants", &options->variants, "LIST",
           "Ids and beginnings (cuda.stage_c.*), with commas (default: all)");
  set.text("--device", &options->history.device, "NAME",
           "Part of a device's name: H200, EPYC (default: all)");
  set.text("--html", &options->html, "FILE", "One page with the plot");
  set.flag("--md", &options->as_markdown, "Print Markdown");
  set.flag("--json", &options->as_json, "Print JSON, with every commit of each step");
  return [options](const Arguments&) { return run_history(*options); };
}

}  // namespace greenfast::cli
