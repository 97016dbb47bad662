#include "workbench/base/markdown.hpp"

namespace greenfast::workbench {

using Row = std::vector<std::string>;

std::string markdown_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '\n':
      case '\r':
        out += ' ';
        break;
      case '|':
      case '`':
      case '*':
      case '\\':
      case '<':
        out += '\\';
        [[fallthrough]];
      default:
        out += c;
    }
  }
  return out;
}

std::string markdown_table(std::span<const std::string> header, std::span<const Row> rows) {
  std::string out = "|";
  for (const std::string& cell : header) out += ' ' + markdown_text(cell) + " |";
  out += "\n|";
  for (std::size_t i = 0; i < header.size(); ++i) out += " --- |";
  for (const Row& row : rows) {
    out += "\n|";
    for (std::size_t i = 0; i < header.size(); ++i)
      out += ' ' + (i < row.size() ? markdown_text(row[i]) : std::string()) + " |";
  }
  return out + '\n';
}

}  // namespace greenfast::workbench
