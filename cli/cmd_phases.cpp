// greenfast phases: where a ladder rung's time goes, by its instrumented twin.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/problem_options.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/fast/phases.hpp"
#include "workbench/record/code_json.hpp"
#include "workbench/record/record.hpp"

namespace greenfast::cli {
namespace {

using nlohmann::json;
using workbench::PhaseShares;
using workbench::Table;

struct PhasesOptions {
  std::string shapes = "mission,long";
  std::string variants, causal;
  int launches = 20;
  bool as_json = false;
};

std::vector<std::string> rungs_of(const std::string& text) {
  std::vector<std::string> asked = split_list(text), known;
  for (const VariantInfo& variant : variants())
    if (!variant.phases.empty()) known.push_back(variant.derived_from);
  for (const std::string& id : asked)
    if (std::find(known.begin(), known.end(), id) == known.end())
      throw Failure(workbench::kUsage,
                    fmt::format("--variants {}: has no instrumented twin; there is one of {}{}", id,
                                fmt::join(known, ", "), did_you_mean(id, known)));
  return asked;
}

json to_json(const PhaseShares& row) {
  json shares = json::object(), estimate = json::object();
  for (std::size_t i = 0; i < row.shares.size(); ++i) {
    shares[row.phases[i]] = row.shares[i];
    const double original = workbench::original_estimate(row.phases[i]);
    estimate[row.phases[i]] = original < 0 ? json(nullptr) : json(original);
  }
  return {{"variant", row.rung},
          {"twin", row.twin},
          {"problem", row.problem},
          {"dtype", name_of(row.dtype)},
          {"skipped", row.skipped.empty() ? json(nullptr) : json(row.skipped)},
          {"shares", shares},
          {"original_estimate", estimate},
          {"cycles_per_warp", row.cycles_per_warp},
          {"warps", row.warps},
          {"launches", row.launches},
          {"green", row.green},
          {"same_output_as_rung", row.same_output}};
}

/// The machine code of rungs and twins, each kernel once, with who launches it.
json code_of(const std::vector<PhaseShares>& rows, int arch) {
  const auto& code = workbench::own_device_code();
  if (!code.ok()) return json::array();
  workbench::Launchers launchers;
  for (const PhaseShares& row : rows)
    for (const auto& [variant, kernel] : row.kernels) launchers.add(kernel, variant);
  return workbench::code_json(launchers, arch, *code);
}

void print_shares(const std::vector<PhaseShares>& rows) {
  std::vector<Table::Column> columns{{"instrumented twin of", Table::Align::left},
                                     {"shape", Table::Align::left}};
  std::vector<std::vector<std::string>> lists;
  for (const PhaseShares& row : rows)
    if (row.skipped.empty()) lists.push_back(row.phases);
  const std::vector<std::string> phases = workbench::merged_phases(lists);
  for (const std::string& phase : phases) columns.push_back({phase, Table::Align::right});
  columns.push_back({"cycles a warp", Table::Align::right});
  Table table(columns);
  for (const PhaseShares& row : rows) {
    if (!row.skipped.empty()) continue;
    std::vector<std::string> cells{row.rung, row.problem};
    for (const std::string& phase : phases) {
      const auto found = std::find(row.phases.begin(), row.phases.end(), phase);
      cells.push_back(
          found == row.phases.end()
              ? "-"
              : fmt::format(
                    "{:.1f}%",
                    100 * row.shares[static_cast<std::size_t>(found - row.phases.begin())]));
    }
    cells.push_back(fmt::format("{:.0f}", row.cycles_per_warp));
    table.add_row(cells);
  }
  std::vector<std::string> cells{"originals' estimate, stage 3 on an L4", "mission"};
  for (const std::string& phase : phases) {
    const double share = workbench::original_estimate(phase);
    cells.push_back(share < 0 ? "-" : fmt::format("{:.0f}%", 100 * share));
  }
  cells.push_back("-");
  table.add_row(cells);
  fmt::print("{}", table.text());
  for (const PhaseShares& row : rows) {
    if (!row.skipped.empty())
      fmt::print("SKIPPED {} on {}: {}\n", row.rung, row.problem, row.skipped);
    else if (!row.green)
      fmt::print("RED {} on {}: {}\n", row.twin, row.problem, row.reason);
    else if (!row.same_output)
      fmt::print("{} on {}: the twin's output differs from the rung's\n", row.twin, row.problem);
  }
  fmt::print(
      "Clock readings of a copy with clocks in it, waiting included; its time is nobody's time.\n");
}

int run_phases(const PhasesOptions& options, const Arguments& argv) {
  if (options.launches < 1)
    throw Failure(workbench::kUsage, fmt::format("--launches {}: at least 1", options.launches));
  const std::vector<std::string> rungs = rungs_of(options.variants);
  workbench::ProblemDefaults defaults;
  defaults.lse = false;
  if (options.causal == "top-left" || options.causal == "bottom-right")
    defaults.mask =
        Mask::causal(options.causal == "top-left" ? Alignment::top_left : Alignment::bottom_right);
  else if (!options.causal.empty())
    throw Failure(workbench::kUsage,
                  fmt::format("--causal={}: possible are top-left, bottom-right", options.causal));
  std::vector<workbench::PhaseShape> shapes;
  for (const DType dtype : {DType::e4m3, DType::f16}) {
    defaults.dtype = dtype;
    auto problems = value_or_fail(workbench::parse_shapes(options.shapes, defaults));
    shapes.resize(problems.size());
    for (std::size_t i = 0; i < problems.size(); ++i) shapes[i].push_back(std::move(problems[i]));
  }
  const workbench::Policy policy = value_or_fail(workbench::load_policy("strict"));
  const workbench::RecordHead head = workbench::begin_record("phases", argv);

  const auto device = value_or_fail(workbench::open_device(DeviceKind::cuda));
  const auto rows =
      value_or_fail(workbench::measure_phases(*device, rungs, shapes, policy, options.launches));
  if (options.as_json) {
    json out = workbench::head_json(head, workbench::kPhasesSchema);
    out["device"] = {{"name", device->facts().name}, {"arch", device->facts().arch}};
    out["rows"] = json::array();
    for (const PhaseShares& row : rows) out["rows"].push_back(to_json(row));
    out["code"] = code_of(rows, device->facts().arch);
    fmt::print("{}\n", out.dump(2));
  } else {
    print_shares(rows);
  }
  const bool ran = std::any_of(rows.begin(), rows.end(),
                               [](const PhaseShares& row) { return row.skipped.empty(); });
  const bool red = std::any_of(rows.begin(), rows.end(), [](const PhaseShares& row) {
    return row.skipped.empty() && !row.green;
  });
  return red ? workbench::kNumerics : ran ? workbench::kPassed : workbench::kNoDevice;
}

}  // namespace

Action define_phases(OptionSet& set) {
  auto options = std::make_shared<PhasesOptions>();
  set.text("--variants", &options->variants, "LIST",
           "Rungs that have an instrumented twin, with commas (default: all of them)");
  set.text("--shapes", &options->shapes, "LIST",
           "Shape names or BxHxSxD, in the type that the rung takes (default: mission,long)");
  set.text_or_bare("--causal", &options->causal, "top-left",
                   "Causal mask: top-left or bottom-right");
  set.integer("--launches", &options->launches, "N", "Launches that are added up (default: 20)");
  set.flag("--json", &options->as_json, "Print JSON");
  return [options](const Arguments& argv) { return run_phases(*options, argv); };
}

}  // namespace greenfast::cli
