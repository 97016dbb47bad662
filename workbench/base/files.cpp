#include "workbench/base/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <mutex>
#include <utility>
#include <vector>

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

namespace {

fs::path parent_of_scratch() {
  const char* wanted = std::getenv("TMPDIR");
  return wanted != nullptr && *wanted != 0 ? wanted : "/tmp";
}

// The folder, locked; -1 where somebody else has it, or it is gone.
int lock_folder(const fs::path& path) {
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0 || flock(folder, LOCK_EX | LOCK_NB) == 0) return folder;
  close(folder);
  return -1;
}

/// The folders that are there, and whose they are: a fork has them in its memory as well.
struct OwnFolders {
  std::mutex mutex;
  std::vector<std::pair<pid_t, fs::path>> paths;
};
OwnFolders& own_folders() {
  static auto* const folders = new OwnFolders;  // until the last destructor has run
  return *folders;
}

}  // namespace

ScratchFolder::ScratchFolder(fs::path path, int lock)
    : path_(std::move(path)), lock_(lock), owner_(getpid()) {
  const std::lock_guard guard(own_folders().mutex);
  own_folders().paths.emplace_back(owner_, path_);
}

ScratchFolder::ScratchFolder(ScratchFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})),
      lock_(std::exchange(other.lock_, -1)),
      owner_(other.owner_) {}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!path_.empty() && owner_ == getpid()) {
    const std::lock_guard guard(own_folders().mutex);
    fs::remove_all(path_, ignored);
    std::erase(own_folders().paths, std::pair(owner_, path_));
  }
  if (lock_ >= 0) close(lock_);
}

void ScratchFolder::remove_own() {
  std::error_code ignored;
  const std::lock_guard guard(own_folders().mutex);
  for (const auto& [owner, path] : own_folders().paths)
    if (owner == getpid()) fs::remove_all(path, ignored);
}

Result<ScratchFolder> ScratchFolder::make(std::string_view purpose) {
  static std::once_flag swept;
  std::call_once(swept, sweep);
  std::string name = (parent_of_scratch() / fmt::format("greenfast-{}-XXXXXX", purpose)).string();
  if (mkdtemp(name.data()) == nullptr)
    return Status(StatusCode::internal,
                  fmt::format("cannot create {}: {}; set TMPDIR to a folder that can be written",
                              name, std::strerror(errno)));
  return ScratchFolder(fs::path(name), lock_folder(name));
}

void ScratchFolder::sweep() {
  // A folder that is new may have no lock yet.
  constexpr std::time_t kSeconds = 60;
  const std::time_t now = std::time(nullptr);
  std::error_code ignored;
  std::vector<fs::path> old;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent_of_scratch(), ignored)) {
    struct stat facts {};
    const std::string name = entry.path().filename().string();
    // The six characters of mkdtemp at the end.
    if (name.starts_with("greenfast-") && name.size() > 17 && name[name.size() - 7] == '-' &&
        lstat(entry.path().c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) &&
        facts.st_uid == geteuid() && now - facts.st_mtime > kSeconds)
      old.push_back(entry.path());
  }
  for (const fs::path& path : old) {
    const int folder = lock_folder(path);
    if (folder < 0) continue;
    fs::remove_all(path, ignored);
    close(folder);
  }
}

}  // namespace greenfast::workbench
