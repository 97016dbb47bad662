// How the gate measures and judges beyond a numerics policy: policies/gate.toml, in words of C++.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/types.hpp>

namespace greenfast::workbench {

/// A level of a decision tree.
struct Level {
  double at_least = 1;  ///< lower bound of the primary p50 speedup
  std::string name;
};
struct DecisionTree {
  std::vector<Level> levels;       ///< ascending
  std::vector<std::string> below;  ///< what to try when none is reached
  /// The highest level reached; empty: none.
  std::string reached(double lower_bound) const;
};

/// What differs for one candidate.
struct RungRule {
  std::string candidate;
  std::optional<double> gate;
  std::string tree = "default";
};

struct GatePolicy {
  std::string text, sha256;  ///< as read, and its digest
  int processes = 3;
  int samples = 200;
  double halfwidth = 0.01;
  double budget_seconds = 60;
  int min_blocks = 3;
  double noise_floor = 0;  ///< most that an A/A interval may reach away from 1
  double timeout_seconds = 900;
  std::int64_t cpu_arena_bytes = 0;
  std::map<std::string, DecisionTree> trees;
  std::vector<RungRule> rungs;

  /// The candidate's row; a default one where it has none.
  RungRule rule(std::string_view candidate) const;
  const DecisionTree& tree(const std::string& name) const;
};

/// policies/gate.toml as it was when this binary was built.
std::string_view builtin_gate_policy();
/// Parses a gate policy. Unknown keys, wrong types, levels out of order, trees that do not exist and
/// rungs of candidates that nobody is called are errors that name the place.
Result<GatePolicy> parse_gate_policy(std::string_view name, std::string_view toml);
/// Of a file, or the one in this binary where the path is empty.
Result<GatePolicy> load_gate_policy(const std::string& path);

}  // namespace greenfast::workbench
