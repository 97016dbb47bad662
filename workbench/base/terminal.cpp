#include "workbench/base/terminal.hpp"
#include "workbench/base/seconds_since.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

namespace greenfast::workbench {
namespace {

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

bool dumb_terminal() {
  const char* term = std::getenv("TERM");
  return term != nullptr && std::string_view(term) == "dumb";
}

const char* escape_of(Color color) {
  switch (color) {
    case Color::green:
      return "\033[32m";
    case Color::red:
      return "\033[31m";
    case Color::yellow:
      return "\033[33m";
    case Color::dim:
      return "\033[2m";
    case Color::bold:
      return "\033[1m";
    case Color::none:
      break;
  }
  return "";
}

std::size_t terminal_columns(std::FILE* stream) {
  winsize size{};
  if (::ioctl(::fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

// The longest prefix of text that takes at most `columns` columns.
std::string_view truncate(std::string_view text, std::size_t columns) {
  std::size_t seen = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool starts_code_point = (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    if (starts_code_point && seen++ == columns) return text.substr(0, i);
  }
  return text;
}

}  // namespace

bool wants_color(std::FILE* stream) {
  return ::isatty(::fileno(stream)) == 1 && !is_set("NO_COLOR") && !dumb_terminal();
}

std::string paint(std::string_view text, Color color, bool enabled) {
  if (!enabled || color == Color::none) return std::string(text);
  return fmt::format("{}{}\033[0m", escape_of(color), text);
}

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') {
      while (i < text.size() && text[i] != 'm') ++i;
      continue;
    }
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) ++width;
  }
  return width;
}

void Table::add_row(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = display_width(columns_[c].title);
    for (const auto& row : rows_) width = std::max(width, display_width(row[c]));
    widths.push_back(width);
  }
  std::string out;
  auto line = [&](auto&& cell_of) {
    std::string text;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const std::string cell = cell_of(c);
      const std::string padding(widths[c] - display_width(cell), ' ');
      if (c > 0) text += "  ";
      text += columns_[c].align == Align::right ? padding + cell : cell + padding;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + '\n';
  };
  line([&](std::size_t c) { return columns_[c].title; });
  line([&](std::size_t c) { return std::string(widths[c], '-'); });
  for (const auto& row : rows_) line([&](std::size_t c) { return row[c]; });
  return out;
}

std::string Table::markdown() const {
  std::string out = "|";
  for (const Column& column : columns_) out += ' ' + column.title + " |";
  out += "\n|";
  for (const Column& column : columns_) out += column.align == Align::right ? "---:|" : "---|";
  for (const auto& row : rows_) {
    out += "\n|";
    for (const std::string& cell : row) out += ' ' + cell + " |";
  }
  return out + '\n';
}

void say(std::FILE* stream, std::string_view text) {
  // No errors to catch: fmt::print would throw them.
  if (std::fwrite(text.data(), 1, text.size(), stream) == text.size()) std::fflush(stream);
}

Progress::Progress(std::FILE* stream, bool quiet)
    : stream_(stream),
      terminal_(::isatty(::fileno(stream)) == 1 && !dumb_terminal()),
      quiet_(quiet),
      start_(std::chrono::steady_clock::now()) {}

void Progress::step(std::size_t done, std::size_t total, std::string_view what) {
  if (quiet_ || !terminal_) return;
  const double elapsed = seconds_since(start_);
  const std::string full = fmt::format("[{}/{}] {:.0f} s  {}", done + 1, total, elapsed, what);
  // One column stays free: writing into the last one wraps on some terminals.
  const std::string_view shown = truncate(full, terminal_columns(stream_) - 1);
  const std::size_t width = display_width(shown);
  say(stream_, fmt::format("\r{}{}", shown, std::string(width_ > width ? width_ - width : 0, ' ')));
  width_ = width;
}

void Progress::finished(std::string_view line) {
  if (quiet_ || terminal_) return;
  say(stream_, fmt::format("{}\n", line));
}

void Progress::clear() {
  if (width_ == 0) return;
  say(stream_, fmt::format("\r{}\r", std::string(width_, ' ')));
  width_ = 0;
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  struct Unit {
    double scale;
    const char* name;
  };
  for (const Unit unit : {Unit{1, "s"}, Unit{1e-3, "ms"}, Unit{1e-6, "µs"}})
    if (seconds >= unit.scale) {
      const double value = seconds / unit.scale;
      return fmt::format("{:.{}f} {}", value, value >= 100 ? 1 : value >= 10 ? 2 : 3, unit.name);
    }
  return fmt::format("{:.0f} ns", seconds * 1e9);
}

std::string duration_range(double lo, double hi) {
  return fmt::format("{} to {}", format_duration(lo), format_duration(hi));
}

std::string shell_word(const std::string& word) {
  const bool plain = std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-./:=,+@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain && !word.empty()) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace greenfast::workbench
