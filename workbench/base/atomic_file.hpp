// Files that exist whole or not at all.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <greenfast/types.hpp>

namespace greenfast::workbench {

/// Writes contents to a temporary file beside path, flushes it to the disk and renames it over
/// path. On failure path is as it was and the temporary file is gone; the Status (code internal)
/// names the path and the system's reason.
Status write_file_atomically(const std::filesystem::path& path, std::string_view contents);

/// One of several files.
struct FileText {
  FileText(std::filesystem::path where, std::string_view text)
      : path(std::move(where)), contents(text) {}
  /// A text that is gone before it is written: keep it, or write_file_atomically.
  FileText(std::filesystem::path, std::string&&) = delete;

  std::filesystem::path path;
  std::string_view contents;
};
/// Writes all of them or none: each to a temporary file beside its path, and when all are on the disk
/// they are renamed, in their order. Missing directories are made. On failure every path is as it
/// was, and nothing that was made for it is left. A machine that stops between two renames leaves the
/// first files new: what tells of the others belongs last.
Status write_files_atomically(std::span<const FileText> files);

/// "20261121T105533Z" of now.
std::string utc_stamp();
/// "2026-11-21T10:55:33Z" of now.
std::string utc_time();

/// Whether a file could be created at directory/name, found out without creating anything: an
/// existing path that is no directory (invalid_argument), a parent without write permission
/// (internal).
Status check_output_directory(const std::filesystem::path& directory);

/// A directory to write results into, which remembers what had to be created for it.
class OutputDirectory {
 public:
  /// The directory itself, made with its parents where it does not exist.
  static Result<OutputDirectory> open(const std::filesystem::path& directory);
  /// A new directory parent/<stamp>, or parent/<stamp>-2, -3, … when that exists; two runs of one
  /// second never share it.
  static Result<OutputDirectory> open_unique(const std::filesystem::path& parent,
                                             const std::string& stamp);

  const std::filesystem::path& path() const { return path_; }
  /// Writes path()/name atomically. On failure every directory created by open is removed again.
  Status write(std::string_view name, std::string_view contents);
  /// Removes the directory with what it holds, and what had to be created for it: as if it had
  /// never been opened.
  void discard();

 private:
  Status create(const std::filesystem::path& directory);
  void remove_created();

  std::filesystem::path path_;
  std::vector<std::filesystem::path> created_;  // outermost first
};

}  // namespace greenfast::workbench
