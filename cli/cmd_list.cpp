// greenfast list: the registry, or what selection decides for problems and why.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include <greenfast/attention.hpp>

#include "cli/command.hpp"
#include "cli/problem_options.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/green/policy.hpp"

namespace greenfast::cli {
namespace {

using nlohmann::json;
using workbench::Color;
using workbench::Table;

struct ListOptions {
  std::string names;
  std::vector<std::string> why;
  std::string device = "auto";
  std::string model;
  bool as_json = false;
  bool batch_invariant = false;
  ProblemOptions problem;
};

// The device selection is explained for: a known model, the one asked for, or the best there is.
DeviceFacts facts_for(const ListOptions& options) {
  if (!options.model.empty()) return value_or_fail(model_facts(options.model));
  if (options.device == "cpu") return value_or_fail(device_facts(DeviceKind::cpu));
  if (options.device == "cuda") return value_or_fail(device_facts(DeviceKind::cuda));
  if (options.device != "auto")
    throw Failure(workbench::kUsage,
                  fmt::format("--device {}: possible are auto, cpu, cuda", options.device));
  if (auto cuda = device_facts(DeviceKind::cuda); cuda.ok()) return std::move(*cuda);
  return value_or_fail(device_facts(DeviceKind::cpu));
}

// One name a line, for scripts and shell completion.
int list_names(const std::string& kind) {
  std::vector<std::string> names;
  if (kind == "variants") {
    for (const VariantInfo& v : variants()) names.push_back(v.id);
  } else if (kind == "shapes") {
    for (const workbench::ShapeRow& row : workbench::shape_table()) names.emplace_back(row.name);
    for (const workbench::SuiteRow& row : workbench::suite_table()) names.emplace_back(row.name);
  } else if (kind == "policies") {
    for (const workbench::BuiltinPolicy& p : workbench::builtin_policies())
      names.emplace_back(p.name);
  } else if (kind == "layouts") {
    for (const workbench::LayoutRow& row : workbench::layout_table()) names.emplace_back(row.name);
  } else if (kind == "toggles") {
    for (const VariantInfo& v : variants())
      for (const Toggle& t : v.toggles)
        if (std::find(names.begin(), names.end(), t.name) == names.end()) names.push_back(t.name);
  } else {
    throw Failure(
        workbench::kUsage,
        fmt::format("--names {}: possible are variants, shapes, policies, layouts, toggles", kind));
  }
  for (const std::string& name : names) fmt::print("{}\n", name);
  return workbench::kPassed;
}

std::string toggle_text(const VariantInfo& variant) {
  std::vector<std::string> words;
  for (const Toggle& toggle : variant.toggles)
    words.push_back(fmt::format("{}={}", toggle.name, toggle.value));
  return fmt::format("{}", fmt::join(words, " "));
}

/// Each of a set by its name.
std::vector<std::string_view> feature_names(Features features) {
  std::vector<std::string_view> names;
  for (int bit = 0; bit < 64; ++bit) {
    const auto feature = static_cast<Feature>(bit);
    if (features.hold(feature)) names.push_back(name_of(feature));
  }
  return names;
}

int list_variants(const ListOptions& options) {
  const std::vector<VariantInfo> all = variants();
  if (options.as_json) {
    json rows = json::array();
    for (const VariantInfo& v : all) {
      json toggles = json::object();
      for (const Toggle& t : v.toggles) toggles[t.name] = t.value;
      rows.push_back({{"id", v.id},
                      {"device", name_of(v.device)},
                      {"built", v.built},
                      {"automatic", v.automatic},
                      {"min_arch", v.min_arch},
                      {"predecessor", v.predecessor},
                      {"derived_from", v.derived_from},
                      {"toggles", toggles},
                      {"phases", v.phases},
                      {"takes", feature_names(v.takes)},
                      {"idea", v.idea}});
    }
    fmt::print("{}\n", json{{"schema", "greenfast.list/1"}, {"variants", rows}}.dump(2));
    return workbench::kPassed;
  }
  using Align = Table::Align;
  Table table({{"variant", Align::left},
               {"needs", Align::left},
               {"chosen", Align::left},
               {"built", Align::left},
               {"idea", Align::left}});
  std::size_t missing = 0, derived = 0;
  for (const VariantInfo& v : all) {
    if (!v.derived_from.empty()) {
      ++derived;
      continue;
    }
    const std::string toggles = toggle_text(v);
    table.add_row({v.id, v.min_arch > 0 ? fmt::format("sm_{}", v.min_arch) : "any CPU",
                   v.automatic ? "automatically" : "by name", v.built ? "yes" : "no",
                   toggles.empty() ? v.idea : fmt::format("{} [{}]", v.idea, toggles)});
    missing += v.built ? 0 : 1;
  }
  fmt::print("{}", table.text());
  if (derived > 0)
    fmt::print(
        "And {} made from rungs, a toggle set back or clocks in it: --names variants, --set "
        "NAME=VALUE.\n",
        derived);
  if (missing > 0)
    fmt::print("{} not built here: CUDA variants need nvcc 13.0 and GREENFAST_CUDA=on.\n", missing);
  return workbench::kPassed;
}

bool any_built(DeviceKind kind) {
  const auto all = variants();
  return std::any_of(all.begin(), all.end(),
                     [&](const VariantInfo& v) { return v.device == kind && v.built; });
}

int explain_shapes(const ListOptions& options) {
  const DeviceFacts facts = facts_for(options);
  greenfast::Options call;
  call.device = facts.kind;
  call.batch_invariant = options.batch_invariant;
  const auto problems =
      problems_of(fmt::format("{}", fmt::join(options.why, ",")), options.problem, facts.kind);

  const bool color = workbench::wants_color(stdout);
  json answers = json::array();
  bool all_chosen = true;
  const bool built = any_built(facts.kind);
  for (const auto& [name, problem, lengths] : problems) {
    const Selection selection = explain(problem, facts, call);
    all_chosen = all_chosen && !selection.chosen.empty();
    // Only the environment can force one here.
    const char* forced = selection.forced ? std::getenv("GREENFAST_VARIANT") : nullptr;
    if (forced != nullptr && std::none_of(selection.candidates.begin(), selection.candidates.end(),
                                          [&](const Candidate& c) { return c.variant == forced; }))
      throw Failure(workbench::kUsage,
                    fmt::format("GREENFAST_VARIANT={}: {}", forced, selection.refusal));
    if (options.as_json) {
      json candidates = json::array();
      for (const Candidate& c : selection.candidates)
        candidates.push_back({{"variant", c.variant},
                              {"accepted", c.accepted},
                              {"rank", c.rank},
                              {"reason", c.reason}});
      answers.push_back({{"name", name},
                         {"problem", to_string(problem)},
                         {"chosen", selection.chosen},
                         {"forced", selection.forced},
                         {"refusal", selection.refusal},
                         {"candidates", candidates}});
      continue;
    }
    if (&name != &problems.front().name && built) fmt::print("\n");
    fmt::print("{} on {}: {}{}\n", to_string(problem), facts.name,
               selection.chosen.empty() ? "nothing fits" : selection.chosen,
               selection.forced ? " (forced by GREENFAST_VARIANT)" : "");
    // Without force the table's last column says it.
    if (selection.forced && !selection.refusal.empty()) fmt::print("{}\n", selection.refusal);
    if (!built) continue;  // every row would say so; the last line says it once
    Table table({{"", Table::Align::left},
                 {"variant", Table::Align::left},
                 {"rank", Table::Align::right},
                 {"why", Table::Align::left}});
    std::size_t elsewhere = 0;  // variants of the other kind of device all have that one reason
    for (const Candidate& c : selection.candidates) {
      if (!c.variant.starts_with(name_of(facts.kind))) {
        ++elsewhere;
        continue;
      }
      const bool chosen = c.variant == selection.chosen;
      table.add_row({chosen ? workbench::paint("->", Color::green, color) : "", c.variant,
                     c.accepted ? fmt::format("{}", c.rank) : "-",
                     c.accepted ? c.reason : workbench::paint(c.reason, Color::dim, color)});
    }
    fmt::print("{}", table.text());
    if (elsewhere > 0)
      fmt::print("{} variants run on {} only; --model {} explains those.\n", elsewhere,
                 facts.kind == DeviceKind::cpu ? "cuda" : "cpu",
                 facts.kind == DeviceKind::cpu ? "h200" : "cpu");
  }
  if (options.as_json)
    fmt::print(
        "{}\n",
        json{{"schema", "greenfast.why/1"}, {"device", facts.name}, {"problems", answers}}.dump(2));
  else if (!built)
    fmt::print(
        "This build has no {} kernels, so that it cannot say who would take {}. Build with "
        "GREENFAST_CUDA=on (make build CUDA=on), which needs nvcc 13.0 and no GPU.\n",
        facts.kind == DeviceKind::cuda ? "CUDA" : name_of(facts.kind),
        problems.size() > 1 ? "them" : "it");
  return all_chosen ? workbench::kPassed : workbench::kNoDevice;
}

}  // namespace

Action define_list(OptionSet& set) {
  auto options = std::make_shared<ListOptions>();
  set.several("--why", &options->why, "SHAPE...",
              "Explain the selection for these problems: shape names or BxHxSxD");
  set.text("--device", &options->device, "DEVICE",
           "auto, cpu, cuda: whose facts decide (default: auto, a GPU if there is one)");
  set.text("--model", &options->model, "MODEL",
           "Decide as on this machine: cpu, h200, h100, a100, l4; needs no such device");
  set.text("--names", &options->names, "KIND",
           "Print names alone, one a line: variants, shapes, policies, layouts, toggles");
  set.flag("--batch-invariant", &options->batch_invariant,
           "Decide as with Options::batch_invariant");
  set.flag("--json", &options->as_json, "Print JSON");
  options->problem.define(set);
  return [options](const Arguments&) {
    if (!options->names.empty()) return list_names(options->names);
    if (!options->why.empty()) return explain_shapes(*options);
    if (!options->model.empty() || options->batch_invariant)
      throw Failure(workbench::kUsage,
                    fmt::format("{} is about a selection: add --why SHAPE",
                                options->model.empty() ? "--batch-invariant" : "--model"));
    return list_variants(*options);
  };
}

}  // namespace greenfast::cli
