#include "workbench/search/space.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <sstream>

#include "workbench/base/trim.hpp"

namespace greenfast::workbench {
namespace {

constexpr std::size_t kMostConfigurations = 1'000'000;

struct Bad {
  std::string what;
};

/// Recursive descent; a level of precedence is a function.
class Expression {
 public:
  Expression(std::string_view text, const std::map<std::string, std::int64_t>& names)
      : rest_(text), names_(names) {}

  std::int64_t value() {
    const std::int64_t result = either();
    skip();
    if (!rest_.empty()) throw Bad{fmt::format("'{}' is not understood", rest_)};
    return result;
  }

 private:
  void skip() {
    while (!rest_.empty() && std::isspace(static_cast<unsigned char>(rest_.front())))
      rest_.remove_prefix(1);
  }
  bool take(std::string_view token) {
    skip();
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  std::int64_t either() {
    std::int64_t left = both();
    while (take("||")) {
      const std::int64_t right = both();
      left = left != 0 || right != 0;
    }
    return left;
  }
  std::int64_t both() {
    std::int64_t left = compare();
    while (take("&&")) {
      const std::int64_t right = compare();
      left = left != 0 && right != 0;
    }
    return left;
  }
  std::int64_t compare() {
    const std::int64_t left = sum();
    if (take("==")) return left == sum();
    if (take("!=")) return left != sum();
    if (take("<=")) return left <= sum();
    if (take(">=")) return left >= sum();
    if (take("<")) return left < sum();
    if (take(">")) return left > sum();
    return left;
  }
  std::int64_t sum() {
    std::int64_t left = product();
    for (;;) {
      if (take("+"))
        left += product();
      else if (take("-"))
        left -= product();
      else
        return left;
    }
  }
  std::int64_t product() {
    std::int64_t left = unary();
    for (;;) {
      if (take("*")) {
        left *= unary();
      } else if (take("/")) {
        const std::int64_t right = unary();
        if (right == 0) throw Bad{"division by 0"};
        left /= right;
      } else if (take("%")) {
        const std::int64_t right = unary();
        if (right == 0) throw Bad{"division by 0"};
        left %= right;
      } else {
        return left;
      }
    }
  }
  std::int64_t unary() {
    skip();
    if (rest_.starts_with("!") && !rest_.starts_with("!=")) {
      rest_.remove_prefix(1);
      return unary() == 0;
    }
    if (take("-")) return -unary();
    if (take("(")) {
      const std::int64_t inner = either();
      if (!take(")")) throw Bad{"a ')' is missing"};
      return inner;
    }
    skip();
    std::size_t length = 0;
    while (length < rest_.size() &&
           (std::isalnum(static_cast<unsigned char>(rest_[length])) || rest_[length] == '_'))
      ++length;
    const std::string word(rest_.substr(0, length));
    rest_.remove_prefix(length);
    if (word.empty()) throw Bad{"a number or a parameter is missing"};
    if (std::isdigit(static_cast<unsigned char>(word.front()))) {
      std::int64_t number = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
      if (error != std::errc() || end != word.data() + word.size())
        throw Bad{fmt::format("'{}' is no whole number", word)};
      return number;
    }
    const auto it = names_.find(word);
    if (it == names_.end()) throw Bad{fmt::format("'{}' is no parameter", word)};
    return it->second;
  }

  std::string_view rest_;
  const std::map<std::string, std::int64_t>& names_;
};

std::map<std::string, std::int64_t> values_of(const TuneSpace& space, const Configuration& c) {
  std::map<std::string, std::int64_t> values;
  for (std::size_t i = 0; i < space.parameters.size(); ++i)
    values[space.parameters[i].name] = space.parameters[i].values[c[i]];
  return values;
}

Result<TuneParameter> parse_parameter(const std::string& text) {
  const auto bad = [&](std::string_view why) {
    return Status(
        StatusCode::invalid_argument,
        fmt::format("'{}': {}; expected NAME = 16 *32 64, one value with a *", text, why));
  };
  TuneParameter parameter;
  const auto equals = text.find('=');
  if (equals == std::string::npos) return bad("has no =");
  std::istringstream name(text.substr(0, equals)), words(text.substr(equals + 1));
  std::string more;
  if (!(name >> parameter.name) || (name >> more)) return bad("needs one name before the =");
  const bool identifier =
      !std::isdigit(static_cast<unsigned char>(parameter.name.front())) &&
      std::all_of(parameter.name.begin(), parameter.name.end(),
                  [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
  if (!identifier) return bad("the name is no identifier");
  int stars = 0;
  for (std::string word; words >> word;) {
    if (word.front() == '*') {
      ++stars;
      parameter.hand_set = parameter.values.size();
      word.erase(0, 1);
    }
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size())
      return bad(fmt::format("'{}' is no whole number", word));
    if (std::find(parameter.values.begin(), parameter.values.end(), value) !=
        parameter.values.end())
      return bad(fmt::format("{} stands twice", value));
    parameter.values.push_back(value);
  }
  if (parameter.values.empty()) return bad("has no values");
  if (stars != 1) return bad(stars == 0 ? "no value is marked" : "several values are marked");
  return parameter;
}

}  // namespace

Result<std::int64_t> evaluate(std::string_view expression,
                              const std::map<std::string, std::int64_t>& names) {
  try {
    return Expression(expression, names).value();
  } catch (const Bad& bad) {
    return Status(StatusCode::invalid_argument, fmt::format("'{}': {}", expression, bad.what));
  }
}

Configuration TuneSpace::hand_set() const {
  Configuration c;
  for (const TuneParameter& parameter : parameters) c.push_back(parameter.hand_set);
  return c;
}

bool TuneSpace::valid(const Configuration& c) const {
  const auto values = values_of(*this, c);
  return std::all_of(conditions.begin(), conditions.end(), [&](const std::string& condition) {
    const auto holds = evaluate(condition, values);
    return holds.ok() && *holds != 0;
  });
}

std::vector<Configuration> TuneSpace::all() const {
  std::vector<Configuration> out;
  Configuration c(parameters.size(), 0);
  for (;;) {
    if (valid(c)) out.push_back(c);
    std::size_t i = parameters.size();
    for (; i > 0; --i) {
      if (++c[i - 1] < parameters[i - 1].values.size()) break;
      c[i - 1] = 0;
    }
    if (i == 0) return out;
  }
}

std::string TuneSpace::text(const Configuration& c) const {
  return fmt::format("{}", fmt::join(defines(c), " "));
}

std::vector<std::string> TuneSpace::defines(const Configuration& c) const {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    out.push_back(fmt::format("{}={}", parameters[i].name, parameters[i].values[c[i]]));
  return out;
}

std::string to_string(const TuneParameter& parameter) {
  std::string out = fmt::format("{} =", parameter.name);
  for (std::size_t i = 0; i < parameter.values.size(); ++i)
    out += fmt::format(" {}{}", i == parameter.hand_set ? "*" : "", parameter.values[i]);
  return out;
}

Result<TuneSpace> make_space(std::string_view name, const std::vector<std::string>& parameters,
                             const std::vector<std::string>& conditions) {
  const auto bad = [&](std::string_view why) {
    return Status(StatusCode::invalid_argument, fmt::format("{}: {}", name, why));
  };
  TuneSpace space;
  std::size_t count = 1;
  for (const std::string& text : parameters) {
    auto parameter = parse_parameter(text);
    if (!parameter) return bad(fmt::format("tune: {}", parameter.status().message()));
    for (const TuneParameter& other : space.parameters)
      if (other.name == parameter->name)
        return bad(fmt::format("tune: {} is declared twice", other.name));
    count *= parameter->values.size();
    if (count > kMostConfigurations)
      return bad(fmt::format("tune: more than {} combinations", kMostConfigurations));
    space.parameters.push_back(std::move(*parameter));
  }
  if (space.parameters.empty())
    return bad("declares nothing to tune; write lines such as // tune: BLOCK_M = 32 *64 128");
  for (const std::string& condition : conditions) {
    const auto holds = evaluate(condition, values_of(space, space.hand_set()));
    if (!holds) return bad(fmt::format("tune-if: {}", holds.status().message()));
    if (*holds == 0) return bad(fmt::format("tune-if: {} excludes the hand-set values", condition));
  }
  space.conditions = conditions;
  return space;
}

Result<TuneSpace> parse_space(std::string_view name, std::string_view source) {
  std::vector<std::string> parameters, conditions;
  std::istringstream lines{std::string(source)};
  for (std::string line; std::getline(lines, line);) {
    // A line that is a comment and nothing else: after // or between /* and */.
    std::string_view text = trim(line);
    if (!text.starts_with("//") && !text.starts_with("/*")) continue;
    text.remove_prefix(2);
    if (text.ends_with("*/")) text.remove_suffix(2);
    text = trim(text);
    constexpr std::string_view kParameter = "tune: ", kCondition = "tune-if: ";
    if (text.starts_with(kParameter)) parameters.emplace_back(text.substr(kParameter.size()));
    if (text.starts_with(kCondition)) conditions.emplace_back(text.substr(kCondition.size()));
  }
  return make_space(name, parameters, conditions);
}

}  // namespace greenfast::workbench
