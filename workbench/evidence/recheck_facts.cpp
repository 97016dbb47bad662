#include "workbench/evidence/recheck_facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "workbench/cases/problem_codec.hpp"
#include "workbench/fast/measure.hpp"

namespace greenfast::workbench {
namespace {

using nlohmann::json;

struct Fact {
  bool number = false;
  double value = 0;
  int decimals = 0;
  std::string text;  ///< of a number: what stands behind it, "x"
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_letter(char c) { return is_upper(c) || (c >= 'a' && c <= 'z'); }
/// Bytes of UTF-8 too: "µs" is a word.
bool in_word(char c) {
  return is_digit(c) || is_letter(c) || c == '_' || c == '.' ||
         static_cast<unsigned char>(c) >= 128;
}

Fact number_of(std::string_view word) {
  std::size_t digits = 0;
  while (digits < word.size() && (is_digit(word[digits]) || word[digits] == '.')) ++digits;
  Fact fact{.number = true, .text = std::string(word.substr(digits))};
  const std::string_view figure = word.substr(0, digits);
  std::from_chars(figure.data(), figure.data() + figure.size(), fact.value);
  if (const auto point = figure.find('.'); point != std::string_view::npos)
    fact.decimals = static_cast<int>(figure.size() - point - 1);
  return fact;
}

/// A word in capitals, or one with a point or an underscore in it.
bool is_name(std::string_view word) {
  const bool capitals = word.size() > 1 && std::all_of(word.begin(), word.end(), [](char c) {
                          return is_upper(c) || c == '_';
                        });
  return capitals || word.find_first_of("._") != std::string_view::npos;
}

std::vector<Fact> sentence_facts(std::string_view text) {
  constexpr std::size_t kLongestUnit = 3;
  std::vector<Fact> out;
  bool behind_number = false;
  for (std::size_t i = 0; i < text.size();) {
    if (!in_word(text[i])) {
      behind_number = behind_number && text[i] == ' ';
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < text.size() && in_word(text[end])) ++end;
    std::string_view word = text.substr(i, end - i);
    i = end;
    while (word.ends_with('.')) word.remove_suffix(1);
    if (word.empty()) continue;
    if (is_digit(word.front())) {
      out.push_back(number_of(word));
      behind_number = true;
    } else {
      if (is_name(word) || (behind_number && word.size() <= kLongestUnit))
        out.push_back({.text = std::string(word)});
      behind_number = false;
    }
  }
  return out;
}

bool same_fact(const Fact& a, const Fact& b) {
  if (a.number != b.number || a.text != b.text) return false;
  const int decimals = std::min(a.decimals, b.decimals);
  if (decimals == 0) return a.value == b.value;
  return std::fabs(a.value - b.value) <= 1.01 * std::pow(10.0, -decimals);
}

}  // namespace

bool same_figure(double said, double is) {
  return std::fabs(said - is) <= kFigureTolerance * std::max(std::fabs(is), 1e-300) || said == is;
}

void compare_members(const json& said, const json& is, const std::string& at,
                     std::vector<std::string>& out) {
  if (is.is_number() && said.is_number()) {
    if (!same_figure(said.get<double>(), is.get<double>()))
      out.push_back(fmt::format("{}: {:.6g}, but its samples say {:.6g}", at, said.get<double>(),
                                is.get<double>()));
  } else if (is.is_number_float() && !std::isfinite(is.get<double>())) {
    // JSON has no NaN.
    if (!said.is_null())
      out.push_back(fmt::format("{}: {}, but its samples say none", at, said.dump()));
  } else if (is.is_object() && said.is_object()) {
    for (const auto& [key, value] : is.items())
      compare_members(said.contains(key) ? said.at(key) : json(), value, at + "/" + key, out);
  } else if (is.is_array() && said.is_array() && is.size() == said.size()) {
    for (std::size_t i = 0; i < is.size(); ++i)
      compare_members(said[i], is[i], fmt::format("{}/{}", at, i), out);
  } else if (said != is) {
    out.push_back(fmt::format("{}: {}, but its samples say {}", at, said.dump(), is.dump()));
  }
}

bool same_facts(std::string_view said, std::string_view is) {
  const std::vector<Fact> a = sentence_facts(said), b = sentence_facts(is);
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_fact);
}

std::string wrong_flops(const Samples& shape) {
  const auto problem = problem_of_text(shape.problem);
  if (!problem || !is_dense(*problem) || shape.flops == 0) return {};
  Problem whole = *problem;
  whole.mask = Mask::none();
  const double is = flop_count(*problem);
  const bool causal = problem->mask.right == 0 && problem->mask.left < 0 && problem->chunk == 0;
  if (same_figure(shape.flops, is) || (causal && same_figure(shape.flops, 0.5 * flop_count(whole))))
    return {};
  return fmt::format("{}: flops {:.6g}, and {} takes {:.6g}", shape.name, shape.flops,
                     shape.problem, is);
}

}  // namespace greenfast::workbench
