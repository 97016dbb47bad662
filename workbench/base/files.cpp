#include "workbench/base/files.hpp"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace greenfast::workbench {

namespace fs = std::filesystem;

Result<std::string> read_file(const fs::path& file) {
  std::string bytes;
  int reason = 0;
  if (std::FILE* stream = std::fopen(file.c_str(), "rb")) {
    // Not by its size: a pipe has none. A directory opens, and fails here.
    std::array<char, 1 << 16> part;
    while (const std::size_t got = std::fread(part.data(), 1, part.size(), stream))
      bytes.append(part.data(), got);
    if (std::ferror(stream) != 0) reason = errno != 0 ? errno : EIO;
    std::fclose(stream);
  } else {
    reason = errno;
  }
  if (reason != 0)
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: cannot be read: {}", file.string(), std::strerror(reason)));
  return bytes;
}

ScratchFolder::ScratchFolder(fs::path path) : path_(std::move(path)), owner_(getpid()) {}

ScratchFolder::ScratchFolder(ScratchFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})), owner_(other.owner_) {}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!path_.empty() && owner_ == getpid()) fs::remove_all(path_, ignored);
}

Result<ScratchFolder> ScratchFolder::make(std::string_view purpose) {
  const char* wanted = std::getenv("TMPDIR");
  const fs::path parent = wanted != nullptr && *wanted != 0 ? wanted : "/tmp";
  std::string name = (parent / fmt::format("greenfast-{}-XXXXXX", purpose)).string();
  if (mkdtemp(name.data()) == nullptr)
    return Status(StatusCode::internal,
                  fmt::format("cannot create {}: {}; set TMPDIR to a folder that can be written",
                              name, std::strerror(errno)));
  return ScratchFolder(fs::path(name));
}

}  // namespace greenfast::workbench
