// Files of /proc and /sys as lines. Not by streams, whose code asks for a newer glibc than wheels
// may where it is linked statically (tools/check_wheel).
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <sys/types.h>

namespace greenfast::cpu {

/// The file's lines, without the spaces at their ends; none where it cannot be read.
inline std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::FILE* const file = std::fopen(path.c_str(), "r");
  if (file == nullptr) return lines;
  char* text = nullptr;
  std::size_t room = 0;
  for (ssize_t length = 0; (length = getline(&text, &room, file)) >= 0;) {
    std::string& line = lines.emplace_back(text, static_cast<std::size_t>(length));
    while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
  }
  std::free(text);
  (void)std::fclose(file);
  return lines;
}

/// The first of them, empty where there is none.
inline std::string first_line(const std::string& path) {
  const std::vector<std::string> lines = lines_of(path);
  return lines.empty() ? std::string() : lines.front();
}

}  // namespace greenfast::cpu
