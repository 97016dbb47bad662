#include "cli/problem_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>
#include <cmath>

#include "cli/command.hpp"
#include "workbench/cases/attributes.hpp"

namespace greenfast::cli {
namespace {

using workbench::ProblemDefaults;

DType parse_input_dtype(std::string_view text) {
  if (const auto dtype = parse_dtype(text)) return *dtype;
  throw Failure(workbench::kUsage,
                fmt::format("--dtype {}: possible are fp32, fp16, bf16, e4m3", text));
}

DType parse_out_dtype(std::string_view text) {
  const auto dtype = parse_dtype(text);
  if (dtype && *dtype != DType::e4m3) return *dtype;
  throw Failure(workbench::kUsage,
                fmt::format("--out-dtype {}: possible are fp32, fp16, bf16", text));
}

std::int64_t parse_bound(std::string_view window, std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < -1)
    throw Failure(workbench::kUsage,
                  fmt::format("--window {}: expected L or L,R, the keys visible before and after a "
                              "query's own, each 0 or more, or -1 for no bound",
                              window));
  return value;
}

Mask parse_mask(const std::string& causal, const std::string& window) {
  Alignment alignment = Alignment::top_left;
  if (causal == "bottom-right") {
    alignment = Alignment::bottom_right;
  } else if (!causal.empty() && causal != "top-left") {
    throw Failure(
        workbench::kUsage,
        fmt::format("--causal={}: possible are top-left (query i faces key i; the default) "
                    "and bottom-right (the last query faces the last key)",
                    causal));
  }
  if (window.empty()) return causal.empty() ? Mask::none() : Mask::causal(alignment);

  const std::vector<std::string> bounds = split_list(window);
  if (bounds.empty() || bounds.size() > 2) parse_bound(window, "");
  const std::int64_t left = parse_bound(window, bounds[0]);
  const std::int64_t right = bounds.size() == 2 ? parse_bound(window, bounds[1]) : 0;
  if (!causal.empty() && right != 0)
    throw Failure(
        workbench::kUsage,
        fmt::format("--window {} shows keys after the query, --causal none: drop one", window));
  return Mask::window(left, right, alignment);
}

std::vector<std::string_view> layout_names() {
  std::vector<std::string_view> names;
  for (const workbench::LayoutRow& row : workbench::layout_table()) names.push_back(row.name);
  return names;
}

}  // namespace

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> items;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    if (end > 0) items.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return items;
}

std::vector<std::uint64_t> parse_seeds(const std::string& text) {
  std::vector<std::uint64_t> seeds;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    std::uint64_t seed = 0;
    const auto [rest, error] = std::from_chars(item.data(), item.data() + item.size(), seed);
    if (error != std::errc() || rest != item.data() + item.size())
      throw Failure(workbench::kUsage,
                    fmt::format("--seeds {}: '{}' is not a whole number from 0; expected a "
                                "list such as 0,1,2",
                                text, item));
    seeds.push_back(seed);
    begin = end + 1;
  }
  return seeds;
}

void ProblemOptions::define(OptionSet& options) {
  options.heading("Problem");
  options.text("--dtype", &dtype, "DTYPE",
               "Element type of Q, K and V: fp32, fp16, bf16, e4m3, or several with commas "
               "(default: fp32 on the CPU, fp16 on CUDA)");
  options.text("--out-dtype", &out_dtype, "DTYPE",
               "Element type of O: fp32, fp16, bf16 (default: that of the inputs, fp16 for e4m3)");
  options.text_or_bare("--causal", &causal, "top-left",
                       "Causal mask; =bottom-right aligns it with the last key (a KV cache), "
                       "=top-left, the default, with the first, as torch's is_causal");
  options.text(
      "--window", &window, "L[,R]",
      "Sliding window: L keys before a query's own and R after it; R is 0 unless given, -1 "
      "is no bound");
  options.number("--softcap", &softcap, "C", "Scores become C * tanh(score / C); 0 is off");
  options.number("--scale", &scale, "X", "Factor of Q K^T (default: 1 / sqrt(D))");
  options.text("--layout", &layout, "ORDER",
               fmt::format("Memory order: {} (default: bhsd)", fmt::join(layout_names(), ", ")));
  options.flag("--lse", &lse, "Also write and check the log-sum-exp");

  options.heading(
      "Problem, as serving has it (behind a shape, too: 8x4x1/4096x64 pages=16 used-kv)");
  for (const workbench::AttributeRow& row : workbench::attribute_table()) {
    if (row.shape_only) continue;
    const std::string name(row.name), option = "--" + name, help(row.help);
    if (row.value.empty())
      options.flag(option, &flags[name], help);
    else if (row.bare.empty())
      options.text(option, &attributes[name], std::string(row.value), help);
    else
      options.text_or_bare(option, &attributes[name], std::string(row.bare),
                           fmt::format("{}; ={}", help, row.value));
  }
}

std::map<std::string, std::string> ProblemOptions::asked() const {
  std::map<std::string, std::string> all;
  for (const auto& [name, given] : flags)
    if (given) all[name];
  for (const auto& [name, value] : attributes)
    if (!value.empty()) all[name] = value;
  return all;
}

std::vector<ProblemDefaults> ProblemOptions::defaults(DeviceKind device) const {
  ProblemDefaults common;
  common.mask = parse_mask(causal, window);
  common.softcap = softcap;
  common.scale = scale;
  common.lse = lse;
  if (const auto kind = workbench::parse_layout(layout)) {
    common.layout = *kind;
  } else {
    throw Failure(workbench::kUsage, fmt::format("--layout {}: possible are {}", layout,
                                                 fmt::join(layout_names(), ", ")));
  }
  for (const auto& [name, value] : asked()) {
    const std::string attribute = value.empty() ? name : name + "=" + value;
    if (const Status status = workbench::apply_attribute(common, attribute); !status)
      throw Failure(workbench::kUsage, fmt::format("--{}: {}", attribute, status.message()));
  }
  if (!out_dtype.empty()) common.out_dtype = parse_out_dtype(out_dtype);

  std::vector<ProblemDefaults> all;
  for (const std::string& name : split_list(dtype)) {
    all.push_back(common);
    all.back().dtype = parse_input_dtype(name);
  }
  if (all.empty()) {
    all.push_back(common);
    all.back().dtype = device == DeviceKind::cpu ? DType::f32 : DType::f16;
  }
  return all;
}

std::vector<workbench::NamedProblem> problems_of(std::string_view shapes,
                                                 const ProblemOptions& options, DeviceKind device) {
  const std::vector<ProblemDefaults> defaults = options.defaults(device);
  std::vector<workbench::NamedProblem> problems;
  for (const ProblemDefaults& d : defaults) {
    for (workbench::NamedProblem& p : value_or_fail(workbench::parse_shapes(shapes, d))) {
      if (const Status status = check(p.problem); !status.ok()) throw Failure(status);
      if (defaults.size() > 1) p.name += fmt::format(" {}", name_of(d.dtype));
      for (const workbench::NamedProblem& other : problems)
        if (other.name == p.name)
          throw Failure(workbench::kUsage,
                        fmt::format("{}: named twice; a record knows a shape by its name", p.name));
      problems.push_back(std::move(p));
    }
  }
  return problems;
}

}  // namespace greenfast::cli
