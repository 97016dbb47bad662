// White space around what people write.
#pragma once

#include <string_view>

namespace greenfast::workbench {

/// text without the blanks, tabs and line ends at both of its ends.
inline std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const auto first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

}  // namespace greenfast::workbench
