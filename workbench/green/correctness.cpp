#include "workbench/green/correctness.hpp"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace greenfast::workbench {

using nlohmann::json;

std::string describe(const Correctness& known) {
  if (!known.verdict) return "not checked";
  const std::string_view verdict = name_of(*known.verdict);
  return known.why.empty() ? std::string(verdict) : fmt::format("{}: {}", verdict, known.why);
}

void write_correctness(json& object, const Correctness& known) {
  if (!known.verdict) return;
  object["verdict"] = name_of(*known.verdict);
  if (!known.why.empty()) object["reason"] = known.why;
}

std::optional<Correctness> read_correctness(const json& object) {
  std::string said, reason;
  for (const auto& [key, to] : {std::pair("verdict", &said), std::pair("reason", &reason)}) {
    const auto found = object.find(key);
    // run.json has null where there is no reason.
    if (found == object.end() || (to == &reason && found->is_null())) continue;
    if (!found->is_string()) return std::nullopt;
    *to = found->get<std::string>();
  }
  if (said.empty()) return Correctness();
  const std::string_view word = std::string_view(said).substr(0, said.find(':'));
  for (const Verdict verdict : {Verdict::green, Verdict::red, Verdict::skipped}) {
    if (word != name_of(verdict)) continue;
    const std::size_t why = said.find_first_not_of(": ", word.size());
    return Correctness{verdict, why == std::string::npos ? reason : said.substr(why)};
  }
  return std::nullopt;
}

}  // namespace greenfast::workbench
