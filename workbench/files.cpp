#include "workbench/files.hpp"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

namespace greenfast::workbench {

namespace fs = std::filesystem;

Result<std::string> read_file(const fs::path& file) {
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  int reason = stream ? 0 : errno != 0 ? errno : EIO;
  std::error_code error;
  // A directory opens, and then has no content.
  if (fs::is_directory(file, error)) reason = EISDIR;
  std::string bytes;
  if (reason == 0) {
    bytes.assign(std::istreambuf_iterator<char>(stream), {});
    if (stream.bad()) reason = errno != 0 ? errno : EIO;
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
  std::error_code error;
  std::string name =
      (fs::temp_directory_path(error) / fmt::format("greenfast-{}-XXXXXX", purpose)).string();
  if (error || mkdtemp(name.data()) == nullptr)
    return Status(StatusCode::internal,
                  fmt::format("cannot create {}: {}; set TMPDIR to a folder that can be written",
                              name, error ? error.message() : std::strerror(errno)));
  return ScratchFolder(fs::path(name));
}

}  // namespace greenfast::workbench
