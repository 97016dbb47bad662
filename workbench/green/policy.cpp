#include "workbench/green/policy.hpp"

#include <toml++/toml.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <initializer_list>
#include <sstream>

#include "workbench/base/files.hpp"
#include "workbench/base/numeric.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/reference/metrics.hpp"

namespace greenfast::workbench {
namespace {

// In the order of DType; the last one is e4m3's under fast accuracy, where it has limits of its own.
constexpr std::array<std::string_view, 5> kPrecisions{"fp32", "fp16", "bf16", "e4m3", "e4m3_fast"};

std::string list(auto&& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

// What is wrong with the text, with the line where it stands; 0: of no line, or of a base's text,
// which is not the one that was given.
struct Mistake : std::exception {
  explicit Mistake(std::string text, std::uint32_t line = 0)
      : what_text(line == 0 ? std::move(text) : "line " + std::to_string(line) + ": " + text) {}
  const char* what() const noexcept override { return what_text.c_str(); }
  std::string what_text;
};

// A table whose every key must be asked for: what is left over at the end is a mistake, so that a
// misspelt limit cannot be silently absent.
class PolicyTable {
 public:
  PolicyTable(const toml::table* table, std::string path) : table_(table), path_(std::move(path)) {}

  bool has(std::string_view key) const { return table_ && table_->contains(key); }

  template <class T>
  void read(std::string_view key, T& out) {
    const toml::node* node = take(key);
    if (!node) return;
    if constexpr (std::is_same_v<T, double>) {
      if (const auto value = node->value<double>(); value && node->is_number()) {
        out = *value;
        if (!std::isfinite(out)) fail(key, "must be finite");
        return;
      }
      fail(key, "must be a number");
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!node->is_boolean()) fail(key, "must be true or false");
      out = *node->value<bool>();
    } else if constexpr (std::is_integral_v<T>) {
      if (!node->is_integer()) fail(key, "must be an integer");
      out = static_cast<T>(*node->value<std::int64_t>());
    } else {
      if (!node->is_string()) fail(key, "must be a string");
      out = *node->value<std::string>();
    }
  }

  const toml::node* take(std::string_view key) {
    known_.emplace_back(key);
    return table_ ? table_->get(key) : nullptr;
  }

  PolicyTable table(std::string_view key) {
    const toml::node* node = take(key);
    if (node && !node->is_table()) fail(key, "must be a table");
    return {node ? node->as_table() : nullptr, name(key)};
  }

  void finish() const {
    if (!table_) return;
    for (const auto& [key, node] : *table_)
      if (std::find(known_.begin(), known_.end(), key.str()) == known_.end())
        throw Mistake("unknown key " + name(key.str()) + "; known: " + list(known_),
                      key.source().begin.line);
  }

  std::string name(std::string_view key) const {
    return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
  }
  [[noreturn]] void fail(std::string_view key, const std::string& what) const {
    const toml::node* node = table_ ? table_->get(key) : nullptr;
    throw Mistake(name(key) + " " + what, node ? node->source().begin.line : 0);
  }

 private:
  const toml::table* table_;
  std::string path_;
  std::vector<std::string> known_;
};

using LimitTables = std::map<std::string, std::map<std::string, MetricLimit>>;

void read_limits(PolicyTable root, LimitTables& limits) {
  for (const MetricRow& row : metric_table()) {
    PolicyTable metric = root.table(row.name);
    for (const auto precision : kPrecisions) {
      if (!metric.has(precision)) continue;
      PolicyTable entry = metric.table(precision);
      MetricLimit limit;
      double threshold = -1;
      entry.read("limit", threshold);
      entry.read("factor", limit.factor);
      entry.read("floor", limit.floor);
      entry.read("cap", limit.cap);
      if (threshold >= 0) {
        if (entry.has("factor") || entry.has("floor") || entry.has("cap"))
          entry.fail("limit", "excludes factor, floor and cap");
        limit = {0, threshold, threshold};
      }
      entry.finish();
      if (!(limit.factor >= 0 && limit.floor >= 0 && limit.cap > 0 && limit.floor <= limit.cap))
        metric.fail(precision, "needs either limit, or factor, floor and cap with floor <= cap");
      limits[std::string(row.name)][std::string(precision)] = limit;
    }
    metric.finish();
  }
  root.finish();
}

/// What a policy's text says: with `base = "strict"` that policy's text, in which each key of its
/// own stands for the whole of the base's. Its digest covers both texts.
std::pair<toml::table, std::string> whole_policy(std::string_view text) {
  toml::table own = toml::parse(text);
  // A copy forgets on which lines its values stood: what is the caller's is moved, what is the
  // base's is copied, whose lines are of another text.
  if (!own.contains("base")) return {std::move(own), sha256_hex(text)};
  const auto name = own["base"].value<std::string>();
  for (const BuiltinPolicy& builtin : builtin_policies()) {
    const toml::table base = toml::parse(builtin.text);
    if (name != builtin.name || base.contains("base")) continue;
    toml::table document = base;
    own.erase("base");
    for (auto&& [key, value] : own) document.insert_or_assign(key, std::move(value));
    return {std::move(document), sha256_hex(std::string(builtin.text) + std::string(text))};
  }
  throw Mistake("base must name a built-in policy that has none itself");
}

Policy read_policy(std::string_view name, std::string_view text) {
  auto [document, digest] = whole_policy(text);
  Policy policy;
  policy.name = name;
  policy.sha256 = digest;
  policy.text = std::string(text);
  PolicyTable root(&document, "");

  std::string about, reference = "decoded";
  root.read("about", about);
  root.read("reference", reference);
  if (reference == "unquantised")
    policy.reference = Truth::unquantised;
  else if (reference != "decoded")
    root.fail("reference", "is '" + reference + "', not decoded or unquantised");

  std::vector<std::string_view> known;
  for (const auto& row : distribution_table()) known.push_back(row.name);
  if (const toml::node* node = root.take("distributions")) {
    const toml::array* array = node->as_array();
    if (!array) root.fail("distributions", "must be an array of strings");
    for (const toml::node& item : *array) {
      const auto text_of_item = item.value<std::string>();
      const auto distribution =
          text_of_item ? parse_distribution(*text_of_item) : std::optional<Distribution>{};
      if (!distribution) root.fail("distributions", "has an unknown entry; known: " + list(known));
      policy.distributions.push_back(*distribution);
    }
  }
  if (policy.distributions.empty())
    root.fail("distributions", "must name at least one of " + list(known));

  PolicyTable numerics = root.table("numerics");
  numerics.read("relative_max_err", policy.relative_max_err);
  numerics.read("element_threshold", policy.element_threshold);
  numerics.read("flop_budget", policy.flop_budget);
  if (!(policy.flop_budget > 0)) numerics.fail("flop_budget", "must be positive");
  numerics.finish();

  read_limits(root.table("limits"), policy.limits);
  PolicyTable by_distribution = root.table("distribution");
  for (const auto& row : distribution_table())
    if (by_distribution.has(row.name))
      read_limits(by_distribution.table(row.name), policy.distribution_limits[row.id]);
  by_distribution.finish();
  if (policy.limits.empty()) root.fail("limits", "must limit at least one metric");

  PolicyTable integrity = root.table("integrity");
  integrity.read("poison", policy.poison);
  integrity.read("redzones", policy.redzones);
  integrity.read("inputs_unchanged", policy.inputs_unchanged);
  integrity.read("decoy", policy.decoy);
  integrity.read("stream", policy.stream);
  integrity.read("poison_unseen", policy.poison_unseen);
  if (const toml::node* node = integrity.take("reruns"); node && !node->is_table()) {
    integrity.read("reruns", policy.reruns.cpu);
    policy.reruns.cuda = policy.reruns.cpu;
  } else {
    PolicyTable reruns = integrity.table("reruns");
    reruns.read("cpu", policy.reruns.cpu);
    reruns.read("cuda", policy.reruns.cuda);
    reruns.finish();
  }
  for (const int count : {policy.reruns.cpu, policy.reruns.cuda})
    if (count < 0 || count > 1000) integrity.fail("reruns", "must be 0 to 1000");
  integrity.finish();

  PolicyTable selftest = root.table("selftest");
  std::string dtypes;
  selftest.read("shapes", policy.selftest_shapes);
  selftest.read("dtypes", dtypes);
  for (std::istringstream items(dtypes); std::getline(items, dtypes, ',');) {
    const auto dtype = parse_dtype(dtypes);
    if (!dtype) selftest.fail("dtypes", "must list dtypes from " + list(kPrecisions));
    policy.selftest_dtypes.push_back(*dtype);
  }
  if (policy.selftest_shapes.empty() != policy.selftest_dtypes.empty())
    selftest.fail("shapes", "and dtypes go together");
  selftest.finish();

  PolicyTable fast = root.table("fast");
  fast.read("gate", policy.gate);
  fast.read("guard", policy.guard);
  fast.read("primary", policy.primary);
  fast.read("guards", policy.guards);
  if (!(policy.gate > 0 && policy.guard > 0))
    fast.fail("gate", "and guard must be positive ratios");
  fast.finish();

  // Limits on resources, which another room reads (resources).
  root.take("limit");
  root.take("waiver");
  root.finish();
  return policy;
}

}  // namespace

const MetricLimit* Policy::limit(std::string_view metric, const Problem& problem,
                                 Distribution distribution) const {
  const DType coarser =
      numeric::unit_roundoff(problem.out_dtype) > numeric::unit_roundoff(problem.dtype)
          ? problem.out_dtype
          : problem.dtype;
  const auto find = [&](const LimitTables& table) -> const MetricLimit* {
    const auto of_metric = table.find(std::string(metric));
    if (of_metric == table.end()) return nullptr;
    const auto of = [&](std::string_view precision) {
      const auto row = of_metric->second.find(std::string(precision));
      return row == of_metric->second.end() ? nullptr : &row->second;
    };
    const MetricLimit* own = problem.accuracy == Accuracy::fast ? of(kPrecisions.back()) : nullptr;
    return own != nullptr ? own : of(kPrecisions[static_cast<std::size_t>(coarser)]);
  };
  if (const auto own = distribution_limits.find(distribution); own != distribution_limits.end())
    if (const MetricLimit* limit = find(own->second)) return limit;
  return find(limits);
}

Result<Policy> parse_policy(std::string_view name, std::string_view text) {
  const auto refuse = [&](const std::string& what) {
    return Status(StatusCode::invalid_argument, "policy " + std::string(name) + ": " + what);
  };
  try {
    return read_policy(name, text);
  } catch (const toml::parse_error& error) {
    return refuse("line " + std::to_string(error.source().begin.line) + ": " +
                  std::string(error.description()));
  } catch (const Mistake& mistake) {
    return refuse(mistake.what());
  }
}

Result<Policy> load_policy(std::string_view name_or_path) {
  std::vector<std::string_view> names;
  for (const BuiltinPolicy& builtin : builtin_policies()) {
    if (builtin.name == name_or_path) return parse_policy(builtin.name, builtin.text);
    names.push_back(builtin.name);
  }
  const auto text = read_file(name_or_path);
  if (!text)
    return Status(StatusCode::invalid_argument, "policy '" + std::string(name_or_path) +
                                                    "': neither a built-in policy (" + list(names) +
                                                    ") nor a file that can be read");
  return parse_policy(name_or_path, *text);
}

}  // namespace greenfast::workbench
