// What people see: aligned tables, one progress line, colour where it is wanted.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace greenfast::workbench {

enum class Color { none, green, red, yellow, dim, bold };

/// Whether a stream gets colour: a terminal, NO_COLOR unset or empty (no-color.org), TERM not
/// "dumb".
bool wants_color(std::FILE* stream);

/// Writes and flushes. A stream that takes nothing (closed, a full disk) ends no command, so errors
/// are left alone: for what is said beside the result.
void say(std::FILE* stream, std::string_view text);
/// text, wrapped in the escape codes of a colour when enabled.
std::string paint(std::string_view text, Color color, bool enabled);

/// A word as a shell takes it: quoted where it must be.
std::string shell_word(const std::string& word);

/// Columns that text takes on a terminal: code points of UTF-8, escape sequences not counted.
std::size_t display_width(std::string_view text);

/// Rows of text under a header. Numbers align right, words left.
class Table {
 public:
  enum class Align { left, right };
  struct Column {
    std::string title;
    Align align = Align::right;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// As many cells as columns.
  void add_row(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }

  /// Columns separated by two spaces, header underlined, every line ended.
  std::string text() const;
  /// A GitHub table.
  std::string markdown() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// Where a long job stands. On a terminal one line that overwrites itself; elsewhere one plain line
/// per finished step, so that a log shows the history.
class Progress {
 public:
  explicit Progress(std::FILE* stream, bool quiet = false);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Step `done` of `total` begins; what it is in a few words.
  void step(std::size_t done, std::size_t total, std::string_view what);
  /// A step ended: a line of its own on plain streams, nothing on a terminal.
  void finished(std::string_view line);
  /// Removes the line, so that other output can follow.
  void clear();

 private:
  std::FILE* stream_;
  bool terminal_;
  bool quiet_;
  std::size_t width_ = 0;  // of what stands on the line
  std::chrono::steady_clock::time_point start_;
};

/// "1.234 s", "56.7 µs": a duration in seconds with three or four significant digits.
std::string format_duration(double seconds);
/// "56.7 µs to 58.1 µs": the ends of an interval.
std::string duration_range(double lo, double hi);

}  // namespace greenfast::workbench
