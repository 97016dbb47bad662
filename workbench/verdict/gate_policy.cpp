#include "workbench/verdict/gate_policy.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <toml++/toml.h>
#include <initializer_list>
#include <sstream>
#include <stdexcept>

#include "workbench/base/files.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/subjects/subject.hpp"

namespace greenfast::workbench {
namespace {

/// What is wrong with a rule, with the line of the text where it stands.
struct BadRule : std::runtime_error {
  BadRule(const toml::source_region& where, const std::string& what)
      : std::runtime_error(where.begin ? fmt::format("line {}: {}", where.begin.line, what)
                                       : what) {}
};

/// A table whose every key must be one that is read; a misspelt limit would otherwise be no limit.
class TomlReader {
 public:
  TomlReader(const toml::table& table, std::string path,
             std::initializer_list<std::string_view> known)
      : table_(table), path_(std::move(path)) {
    for (const auto& [key, value] : table_) {
      bool found = false;
      for (const std::string_view name : known) found = found || name == key.str();
      if (!found)
        throw BadRule(key.source(), fmt::format("{}{}: unknown key; known: {}", path_, key.str(),
                                                fmt::join(known, ", ")));
    }
  }
  bool has(std::string_view key) const { return table_.contains(key); }
  const toml::node& node(std::string_view key) const {
    const toml::node* found = table_.get(key);
    if (found == nullptr) throw BadRule(table_.source(), fmt::format("{}{}: missing", path_, key));
    return *found;
  }
  double number(std::string_view key, double above) const {
    const auto value = node(key).value<double>();
    if (!value || !(*value > above)) fail(key, fmt::format("expected a number above {}", above));
    return *value;
  }
  std::int64_t integer(std::string_view key, std::int64_t least) const {
    const auto value = node(key).value_exact<std::int64_t>();
    if (!value || *value < least)
      fail(key, fmt::format("expected an integer of at least {}", least));
    return *value;
  }
  std::string text(std::string_view key) const {
    const auto value = node(key).value_exact<std::string>();
    if (!value) fail(key, "expected a string");
    return *value;
  }
  const toml::table& table(std::string_view key) const {
    const toml::table* found = node(key).as_table();
    if (found == nullptr) fail(key, "expected a table");
    return *found;
  }
  const toml::array& array(std::string_view key) const {
    const toml::array* found = node(key).as_array();
    if (found == nullptr) fail(key, "expected a list");
    return *found;
  }
  std::string path(std::string_view key) const { return fmt::format("{}{}", path_, key); }
  [[noreturn]] void fail(std::string_view key, const std::string& what) const {
    throw BadRule(node(key).source(), fmt::format("{}{}: {}", path_, key, what));
  }

 private:
  const toml::table& table_;
  std::string path_;
};

const toml::table& as_table(const toml::node& node, const std::string& path) {
  const toml::table* table = node.as_table();
  if (table == nullptr) throw BadRule(node.source(), fmt::format("{}: expected a table", path));
  return *table;
}

DecisionTree read_tree(const toml::table& table, const std::string& path) {
  const TomlReader reader(table, path + ".", {"levels", "below"});
  DecisionTree tree;
  for (const toml::node& node : reader.array("levels")) {
    const std::string place = fmt::format("{}[{}]", reader.path("levels"), tree.levels.size());
    const TomlReader level(as_table(node, place), place + ".", {"at_least", "name"});
    tree.levels.push_back({level.number("at_least", 0), level.text("name")});
    if (tree.levels.size() > 1 &&
        tree.levels.back().at_least <= tree.levels[tree.levels.size() - 2].at_least) {
      level.fail("at_least", "levels must ascend");
    }
  }
  for (const toml::node& node : reader.array("below")) {
    const auto text = node.value_exact<std::string>();
    if (!text)
      throw BadRule(node.source(), fmt::format("{}: expected strings", reader.path("below")));
    tree.below.push_back(*text);
  }
  return tree;
}

/// Why no candidate of a gate is called so; empty where one may be. Which plugins there will be, a
/// policy does not know.
std::string unknown_candidate(const std::string& id) {
  if (id.starts_with("plugin:")) return {};
  for (const VariantInfo& variant : variants())
    if (variant.id == id) return {};
  const auto found = find_subjects(id);
  if (!found) return found.status().message();
  return found->size() == 1
             ? ""
             : fmt::format("\"{}\" names {} subjects; a rung is one", id, found->size());
}

RungRule read_rung(const toml::table& table, const std::string& path) {
  const TomlReader reader(table, path + ".", {"candidate", "gate", "tree"});
  RungRule rule;
  rule.candidate = reader.text("candidate");
  if (const std::string why = unknown_candidate(rule.candidate); !why.empty())
    reader.fail("candidate", why);
  if (reader.has("gate")) rule.gate = reader.number("gate", 0);
  if (reader.has("tree")) rule.tree = reader.text("tree");
  return rule;
}

GatePolicy read_policy(const toml::table& root) {
  const TomlReader reader(root, "", {"about", "measure", "resources", "tree", "rung"});
  GatePolicy policy;
  const TomlReader measure(reader.table("measure"), "measure.",
                           {"processes", "samples", "halfwidth", "budget_seconds", "min_blocks",
                            "noise_floor", "timeout_seconds"});
  policy.processes = static_cast<int>(measure.integer("processes", 1));
  policy.samples = static_cast<int>(measure.integer("samples", 2));
  policy.halfwidth = measure.number("halfwidth", 0);
  policy.budget_seconds = measure.number("budget_seconds", 0);
  policy.min_blocks = static_cast<int>(measure.integer("min_blocks", 2));
  policy.noise_floor = measure.number("noise_floor", 0);
  policy.timeout_seconds = measure.number("timeout_seconds", 0);
  const TomlReader resources(reader.table("resources"), "resources.", {"cpu_arena_bytes"});
  policy.cpu_arena_bytes = resources.integer("cpu_arena_bytes", 0);
  for (const auto& [name, node] : reader.table("tree")) {
    const std::string path = fmt::format("tree.{}", name.str());
    policy.trees[std::string(name.str())] = read_tree(as_table(node, path), path);
  }
  if (!policy.trees.contains("default"))
    throw BadRule(reader.node("tree").source(), "tree.default: missing");
  if (reader.has("rung")) {
    for (const toml::node& node : reader.array("rung")) {
      const std::string path = fmt::format("rung[{}]", policy.rungs.size());
      RungRule rule = read_rung(as_table(node, path), path);
      if (!policy.trees.contains(rule.tree)) {
        throw BadRule(node.source(),
                      fmt::format("{}.tree: no tree is called \"{}\"", path, rule.tree));
      }
      for (const RungRule& other : policy.rungs) {
        if (other.candidate == rule.candidate) {
          throw BadRule(node.source(),
                        fmt::format("{}.candidate: {} has a row already", path, rule.candidate));
        }
      }
      policy.rungs.push_back(std::move(rule));
    }
  }
  return policy;
}

}  // namespace

std::string DecisionTree::reached(double lower_bound) const {
  std::string name;
  for (const Level& level : levels) {
    if (lower_bound >= level.at_least) name = level.name;
  }
  return name;
}

RungRule GatePolicy::rule(std::string_view candidate) const {
  for (const RungRule& rung : rungs) {
    if (rung.candidate == candidate) return rung;
  }
  RungRule rule;
  rule.candidate = std::string(candidate);
  return rule;
}

const DecisionTree& GatePolicy::tree(const std::string& name) const { return trees.at(name); }

Result<GatePolicy> parse_gate_policy(std::string_view name, std::string_view text) {
  try {
    GatePolicy policy = read_policy(toml::parse(text));
    policy.text = text;
    policy.sha256 = sha256_hex(text);
    return policy;
  } catch (const toml::parse_error& error) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: line {}: {}", name, error.source().begin.line,
                              std::string(error.description())));
  } catch (const BadRule& wrong) {
    return Status(StatusCode::invalid_argument, fmt::format("{}: {}", name, wrong.what()));
  }
}

Result<GatePolicy> load_gate_policy(const std::string& path) {
  if (path.empty()) return parse_gate_policy("policies/gate.toml", builtin_gate_policy());
  const auto text = read_file(path);
  if (!text) return Status(text.status().code(), "--gate-policy " + text.status().message());
  return parse_gate_policy(path, *text);
}

}  // namespace greenfast::workbench
