// Markdown out of text that may hold anything.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace greenfast::workbench {

/// text, so that Markdown shows it as it is: in a table, on one line.
std::string markdown_text(std::string_view text);
/// A table in Markdown; cells are escaped.
std::string markdown_table(std::span<const std::string> header,
                           std::span<const std::vector<std::string>> rows);

}  // namespace greenfast::workbench
