// Composes messages without streams or locales.
#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace greenfast::core {

inline void append(std::string& out, std::string_view piece) { out += piece; }
inline void append(std::string& out, char piece) { out += piece; }

template <class Number>
requires(std::integral<Number> || std::floating_point<Number>) &&
    (!std::same_as<Number, bool>)void append(std::string& out, Number number) {
  char digits[40];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  out.append(digits, end);
}

/// concat("D ", 12, ": must be …"). Numbers in their shortest exact form.
template <class... Pieces>
std::string concat(const Pieces&... pieces) {
  std::string out;
  (append(out, pieces), ...);
  return out;
}

/// `return refuse(why, "takes D 64, not ", d)`: the reason, where somebody asks for it; composes
/// nothing where nobody does.
template <class... Pieces>
bool refuse(std::string* why, const Pieces&... pieces) {
  if (why != nullptr) *why = concat(pieces...);
  return false;
}

}  // namespace greenfast::core
