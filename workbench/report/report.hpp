// The validation report: what a result folder says, as Markdown, as one page of HTML with charts,
// as the text of a pull request, and as a bundle with everything that reproduces it.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <greenfast/types.hpp>

#include "workbench/report/model.hpp"
#include "workbench/report/sources.hpp"

namespace greenfast::workbench {

/// Text in Markdown, then charts.
struct ReportPart {
  std::string markdown;
  std::vector<Chart> charts;
};

/// Headline, checklists, performance, errors, resources, profile, next steps, lessons, pull
/// request, artifacts and how to reproduce them. `history`: a part made from a repository's
/// evidence, or empty. Fails, by file, where a record is not of its schema.
Result<std::vector<ReportPart>> make_report(const ReportSources& sources,
                                            std::span<const ReportPart> history);

/// Where a chart stood, its table.
std::string report_markdown(std::span<const ReportPart> parts);

/// One page that needs nothing else: no network, no other file. Unsupported where this binary was
/// built without Chart.js.
Result<std::string> report_html(std::span<const ReportPart> parts, const std::string& title);
/// Whether report_html can be had, and why not.
bool has_html_report();

/// Title, summary, results, artifacts, toggle and rollback, risk, next steps, merge checklist.
/// Fails for records without a gate.
Result<std::string> pull_request_text(const ReportSources& sources);

/// A policy that a gate was given as a file, under its name in a bundle.
struct GivenPolicy {
  std::string option;  ///< "--gate-policy", "--policy"
  std::string file;    ///< as it was given
  std::string
      name;  ///< "policies/given/0123456789ab-mine.toml"; empty: the record has no text of it
  std::string text;
};
std::vector<GivenPolicy> given_policies(const nlohmann::json& gate);

/// Commit, command and expected headline of every record. In a bundle commands name the policies that
/// gates were given by the files of the bundle.
std::string reproduce_text(const ReportSources& sources, bool in_bundle = false);

/// policies/evidence.toml, opcodes.toml and spills.toml as they were when this binary was built.
std::string_view builtin_known_gaps();
std::string_view builtin_opcode_table();
std::string_view builtin_spill_table();

/// Writes FILE.tar.gz: records, profiles, report.md, report.html, pull-request.md, the policies of
/// this binary, REPRODUCE.md and SHA256SUMS. The same sources give the same bytes.
Status write_bundle(const std::filesystem::path& file, const ReportSources& sources,
                    std::span<const ReportPart> parts);

/// text, so that HTML shows it as it is, also in an attribute.
std::string html_text(std::string_view text);
/// Renders Markdown of the kind that reports are written in: headings, paragraphs, quotes, lists,
/// tables, fenced code, `code` and **strong**. Everything else, HTML included, stays text.
std::string html_of_markdown(std::string_view markdown);

}  // namespace greenfast::workbench
