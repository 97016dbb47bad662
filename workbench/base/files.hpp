// Whole files in, and folders that go away again. What is written to stay is in atomic_file.hpp.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <string_view>

#include <greenfast/types.hpp>

namespace greenfast::workbench {

/// The bytes of a file. What cannot be read, a directory among them, is invalid_argument with the
/// path and the system's reason.
Result<std::string> read_file(const std::filesystem::path& file);

/// A new folder under the system's temporary one, removed with what it holds when the object goes;
/// a forked child that ends leaves its parent's folder alone. The first that a process makes also
/// sweeps.
class ScratchFolder {
 public:
  /// greenfast-PURPOSE-XXXXXX; internal, naming the folder and the system's reason, where it cannot
  /// be made.
  static Result<ScratchFolder> make(std::string_view purpose);
  /// Removes this user's folders whose processes were killed: those over a minute old that nobody
  /// holds a lock on.
  static void sweep();
  /// Removes those of this process, for an end that runs no destructors.
  static void remove_own();
  ScratchFolder(ScratchFolder&& other) noexcept;
  ScratchFolder& operator=(ScratchFolder&&) = delete;
  ~ScratchFolder();

  const std::filesystem::path& path() const { return path_; }

 private:
  ScratchFolder(std::filesystem::path path, int lock);

  std::filesystem::path path_;
  int lock_;  // the folder, opened; the lock ends with the last process that has it
  pid_t owner_;
};

}  // namespace greenfast::workbench
