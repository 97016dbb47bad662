// greenfast report: what result folders and records say, for people.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli/command.hpp"
#include "workbench/base/atomic_file.hpp"
#include "workbench/base/clean_text.hpp"
#include "workbench/base/subprocess.hpp"
#include "workbench/report/history.hpp"
#include "workbench/report/report.hpp"

namespace greenfast::cli {
namespace {

namespace fs = std::filesystem;

struct ReportOptions {
  std::vector<std::string> what;
  std::string out, html, markdown, bundle, history;
  bool pr = false, readme = false, check = false;
};

void write(const fs::path& file, const std::string& text) {
  if (Status status = workbench::write_file_atomically(file, text); !status) throw Failure(status);
  fmt::print("wrote {}\n", workbench::clean_line(file.string()));
}

// The tables of a repository are made in one place, tools/readme_tables.py: they need no build, and
// one of them is made by the Python harness that wrote its record.
int rewrite_tables(const ReportOptions& options) {
  constexpr const char* kTool = "tools/readme_tables.py";
  fs::path root = fs::current_path();
  while (!fs::exists(root / kTool)) {
    if (root == root.parent_path())
      throw Failure(
          workbench::kUsage,
          fmt::format(
              "--readme: no {} here or above; run it inside a Greenfast repository, whose README "
              "and docs hold the tables",
              kTool));
    root = root.parent_path();
  }
  std::vector<std::string> argv{"python3", (root / kTool).string()};
  if (options.check) argv.emplace_back("--check");
  argv.insert(argv.end(), options.what.begin(), options.what.end());
  const auto end = value_or_fail(workbench::run_program(argv, 120));
  fmt::print("{}", end.out);
  if (end.exit_code == 0) return workbench::kPassed;
  throw Failure(end.exit_code == 1 ? workbench::kEvidence : workbench::kUsage,
                workbench::last_line(end.err));
}

int run_report(const ReportOptions& options) {
  if (options.readme) return rewrite_tables(options);
  if (options.check) throw Failure(workbench::kUsage, "--check goes with --readme");
  if (options.what.empty())
    throw Failure(workbench::kUsage,
                  "what? Name a result folder (results/20261121T105533Z) or its records");
  const workbench::ReportSources sources =
      value_or_fail(workbench::load_report_sources(options.what));
  if (options.pr) {
    fmt::print("{}", value_or_fail(workbench::pull_request_text(sources)));
    return workbench::kPassed;
  }
  std::vector<workbench::ReportPart> history;
  if (!options.history.empty()) {
    workbench::HistoryOptions asked;
    asked.repository = options.history;
    history = workbench::history_parts(value_or_fail(workbench::read_history(asked)), asked);
  }
  const auto parts = value_or_fail(workbench::make_report(sources, history));
  const std::string markdown = workbench::report_markdown(parts);
  const auto page = [&] {
    return value_or_fail(workbench::report_html(parts, "Validation report"));
  };

  if (!options.bundle.empty()) {
    if (Status status = workbench::write_bundle(options.bundle, sources, parts); !status)
      throw Failure(status);
    fmt::print("wrote {}\n", workbench::clean_line(options.bundle));
  }
  if (!options.html.empty()) write(options.html, page());
  if (options.markdown == "-")
    fmt::print("{}", markdown);
  else if (!options.markdown.empty())
    write(options.markdown, markdown);
  if (!options.bundle.empty() || !options.html.empty() || !options.markdown.empty())
    return workbench::kPassed;

  // Without a file's name: both beside the first record, where they can be looked for.
  const fs::path first = options.what[0];
  const fs::path folder = !options.out.empty()      ? fs::path(options.out)
                          : fs::is_directory(first) ? first
                          : first.has_parent_path() ? first.parent_path()
                                                    : fs::path(".");
  auto directory = value_or_fail(workbench::OutputDirectory::open(folder));
  (void)directory;
  write(folder / "report.md", markdown);
  if (workbench::has_html_report())
    write(folder / "report.html", page());
  else
    fmt::print("no report.html: this greenfast was built without Chart.js (libjs-chart.js)\n");
  return workbench::kPassed;
}

}  // namespace

Action define_report(OptionSet& set) {
  auto options = std::make_shared<ReportOptions>();
  set.positional(
      "DIR|FILE", &options->what, 0, 1000,
      "Result folders and records of run, check, bench, gate, compare, selftest, profile, and of "
      "python -m greenfast_bench.ab");
  set.text("--out", &options->out, "DIR",
           "Where report.md and report.html go (default: the first folder given)");
  set.text("--html", &options->html, "FILE", "The page alone, to this file");
  set.text("--md", &options->markdown, "FILE", "The Markdown alone, to this file; - prints it");
  set.flag("--pr", &options->pr, "Print the text of a pull request, from a gate's record");
  set.text("--bundle", &options->bundle, "FILE.tar.gz",
           "Records, profiles, policies, reports and how to reproduce them, in one file");
  set.text_or_bare(
      "--history", &options->history, ".",
      "Add the performance over the commits of a repository, --history=DIR or this one");
  set.flag("--readme", &options->readme,
           "Rewrite the tables between the marks of a repository's Markdown files (those named, or "
           "all)");
  set.flag("--check", &options->check,
           "With --readme: change nothing, exit 30 when a table is out of date");
  return [options](const Arguments&) { return run_report(*options); };
}

}  // namespace greenfast::cli
