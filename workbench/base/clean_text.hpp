// The one place that cleans what comes from outside: messages of plugins and proposers, paths, what
// other programs print. Hostile or broken, it must not move a cursor or spoil a record.
#pragma once

#include <string>
#include <string_view>

namespace greenfast::workbench {

/// Valid UTF-8 without control characters but newline and tab: bytes that are no UTF-8 become
/// U+FFFD, the beginning of an escape sequence and the like become '?'.
std::string clean_text(std::string_view text);

/// The same in one line: what somebody says of himself begins no line of its own, which could be read
/// as ours.
std::string clean_line(std::string_view text);

}  // namespace greenfast::workbench
