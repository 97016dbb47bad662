#include "workbench/verdict/gate_walk.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>

namespace greenfast::workbench {
namespace {

constexpr std::string_view word_of(StepKind kind) {
  switch (kind) {
    case StepKind::build:
      return "build";
    case StepKind::green:
      return "green";
    case StepKind::claims:
      return "claims";
    case StepKind::fast:
      return "fast";
    case StepKind::peers:
      return "peers";
  }
  return "";
}

/// Takes ".12" off the front of a text.
template <class Number>
bool take_index(std::string_view& text, Number& value) {
  if (!text.starts_with('.')) return false;
  const char* const begin = text.data() + 1;
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
  if (error != std::errc() || *begin == '-') return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

}  // namespace

std::string name_of(const WalkStep& step) {
  const std::string_view word = word_of(step.kind);
  if (step.kind == StepKind::green) return fmt::format("{}.{}", word, step.shape);
  if (step.kind == StepKind::fast) return fmt::format("{}.{}.{}", word, step.shape, step.process);
  return std::string(word);
}

std::optional<WalkStep> parse_walk_step(std::string_view name) {
  for (const StepKind kind :
       {StepKind::build, StepKind::green, StepKind::claims, StepKind::fast, StepKind::peers}) {
    if (!name.starts_with(word_of(kind))) continue;
    WalkStep step{.kind = kind};
    std::string_view rest = name.substr(word_of(kind).size());
    const bool has_shape = kind == StepKind::green || kind == StepKind::fast;
    if (has_shape && !take_index(rest, step.shape)) continue;
    if (kind == StepKind::fast && !take_index(rest, step.process)) continue;
    if (rest.empty()) return step;
  }
  return std::nullopt;
}

std::vector<WalkStep> steps_of(const Walk& walk) {
  std::vector<WalkStep> out = {{.kind = StepKind::build}};
  if (walk.shapes.empty()) return out;
  const auto each_shape = [&](const auto& add) {
    for (std::size_t i = 0; i < walk.shapes.size(); ++i)
      if (!walk.shapes[i].refused) add(i);
  };
  each_shape([&](std::size_t i) { out.push_back({.kind = StepKind::green, .shape = i}); });
  out.push_back({.kind = StepKind::claims});
  each_shape([&](std::size_t i) {
    for (int process = 0; process < walk.processes; ++process)
      out.push_back({.kind = StepKind::fast, .shape = i, .process = process});
  });
  if (!walk.peers.empty()) out.push_back({.kind = StepKind::peers});
  return out;
}

std::string describe(const WalkStep& step, const Walk& walk) {
  const auto shape = [&](std::size_t index) {
    return index < walk.shapes.size() ? walk.shapes[index].name : std::string("?");
  };
  switch (step.kind) {
    case StepKind::build:
      return "plans and refusals";
    case StepKind::green:
      return fmt::format("GREEN {}", shape(step.shape));
    case StepKind::claims:
      return "GREEN of what else it takes";
    case StepKind::fast:
      return fmt::format("FAST {}, process {} of {}", shape(step.shape), step.process + 1,
                         walk.processes);
    case StepKind::peers:
      return fmt::format("{} beside {}", shape(0), fmt::join(walk.peers, ", "));
  }
  return "";
}

}  // namespace greenfast::workbench
