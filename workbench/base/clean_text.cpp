#include "workbench/base/clean_text.hpp"

#include <algorithm>
#include <cstdint>

namespace greenfast::workbench {
namespace {

/// Length of the character of UTF-8 that text begins with; 0 where it begins with none.
std::size_t character(std::string_view text, std::uint32_t& code) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) {
    code = first;
    return 1;
  }
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  code = first & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0u) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fu);
  }
  // The shortest form alone, and no half of a pair.
  const bool shortest = code >= (length == 2 ? 0x80u : length == 3 ? 0x800u : 0x10000u);
  return shortest && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? length : 0;
}

bool is_control(std::uint32_t code) {
  if (code == '\n' || code == '\t') return false;
  // The second range holds one-character forms of escape sequences; the last ones turn the
  // direction of writing, so that a name reads as another.
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x202a && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

std::string clean_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    std::uint32_t code = 0;
    const std::size_t length = character(text, code);
    if (length == 0)
      out += "\xef\xbf\xbd";
    else if (is_control(code))
      out += '?';
    else
      out += text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

std::string clean_line(std::string_view text) {
  std::string out = clean_text(text);
  while (!out.empty() && out.back() == '\n') out.pop_back();
  std::replace(out.begin(), out.end(), '\n', ' ');
  return out;
}

}  // namespace greenfast::workbench
