#include "workbench/verdict/correctness.hpp"

#include <fmt/format.h>

namespace greenfast::workbench {

std::string written(const Correctness& known) {
  if (!known.verdict) return {};
  const std::string_view verdict = name_of(*known.verdict);
  return known.why.empty() ? std::string(verdict) : fmt::format("{}: {}", verdict, known.why);
}

std::string describe(const Correctness& known) {
  return known.verdict ? written(known) : "not checked";
}

std::optional<Correctness> parse_correctness(std::string_view text) {
  if (text.empty()) return Correctness();
  const std::string_view word = text.substr(0, text.find(':'));
  for (const Verdict verdict : {Verdict::green, Verdict::red, Verdict::skipped}) {
    if (word != name_of(verdict)) continue;
    text.remove_prefix(word.size());
    if (!text.empty()) text.remove_prefix(1);
    if (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    return Correctness{verdict, std::string(text)};
  }
  return std::nullopt;
}

}  // namespace greenfast::workbench
