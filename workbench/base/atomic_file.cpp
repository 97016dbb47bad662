#include "workbench/base/atomic_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;

Status io_failure(std::string_view what, const fs::path& path, int error) {
  return {StatusCode::internal,
          fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(error))};
}

std::string format_utc(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, format, &parts)};
}

/// Contents in a temporary file beside path, flushed to the disk; its name.
Result<std::string> write_beside(const fs::path& path, std::string_view contents) {
  std::string temporary = path.string() + ".tmp-XXXXXX";
  const int file = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (file < 0) return io_failure("create", path, errno);

  auto fail = [&](std::string_view what) {
    const int error = errno;
    ::close(file);
    ::unlink(temporary.c_str());
    return io_failure(what, path, error);
  };
  std::size_t done = 0;
  while (done < contents.size()) {
    const ssize_t n = ::write(file, contents.data() + done, contents.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail("write");
    done += static_cast<std::size_t>(n);
  }
  // mkstemp makes files private; a record is as readable as any other file of its owner.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  if (::fchmod(file, 0666 & ~mask) != 0) return fail("set permissions of");
  if (::fsync(file) != 0) return fail("flush");
  ::close(file);
  return temporary;
}

/// A rename is durable only once its directory is.
void flush_directory_of(const fs::path& path) {
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const int directory = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return;
  ::fsync(directory);
  ::close(directory);
}

/// Files on their way to their paths; what was not kept is undone.
class Batch {
 public:
  Batch() = default;
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() {
    if (kept_) {
      for (const Step& step : steps_)
        if (!step.former.empty()) ::unlink(step.former.c_str());
      return;
    }
    for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
      if (!step->renamed) {
        ::unlink(step->temporary.c_str());
        if (!step->former.empty()) ::unlink(step->former.c_str());
      } else if (step->former.empty()) {
        ::unlink(step->path.c_str());
      } else {
        ::rename(step->former.c_str(), step->path.c_str());
      }
    }
    for (auto made = made_.rbegin(); made != made_.rend(); ++made) ::rmdir(made->c_str());
  }

  Status write(const FileText& file) {
    if (Status status = make_parents(file.path); !status) return status;
    auto temporary = write_beside(file.path, file.contents);
    if (!temporary) return temporary.status();
    steps_.push_back({file.path, std::move(*temporary)});
    return {};
  }
  Status rename() {
    for (Step& step : steps_) {
      std::error_code error;
      if (fs::exists(fs::symlink_status(step.path, error))) {
        step.former = step.temporary + ".former";
        fs::copy_file(step.path, step.former, error);
        if (error) return io_failure("replace", step.path, error.value());
      }
      if (::rename(step.temporary.c_str(), step.path.c_str()) != 0)
        return io_failure("rename a file to", step.path, errno);
      step.renamed = true;
    }
    for (const Step& step : steps_) flush_directory_of(step.path);
    kept_ = true;
    return {};
  }

 private:
  struct Step {
    fs::path path;
    std::string temporary;
    std::string former = {};  // a copy of what was at the path
    bool renamed = false;
  };

  Status make_parents(const fs::path& path) {
    fs::path partial;
    for (const fs::path& part : path.parent_path()) {
      partial /= part;
      if (::mkdir(partial.c_str(), 0777) == 0) {
        made_.push_back(partial);
      } else if (errno != EEXIST) {
        return io_failure("create directory", partial, errno);
      }
    }
    return {};
  }

  std::vector<Step> steps_;
  std::vector<fs::path> made_;  // outermost first
  bool kept_ = false;
};

}  // namespace

Status write_file_atomically(const fs::path& path, std::string_view contents) {
  const auto temporary = write_beside(path, contents);
  if (!temporary) return temporary.status();
  if (::rename(temporary->c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary->c_str());
    return io_failure("rename a file to", path, error);
  }
  flush_directory_of(path);
  return {};
}

Status write_files_atomically(std::span<const FileText> files) {
  Batch batch;
  for (const FileText& file : files)
    if (Status status = batch.write(file); !status) return status;
  return batch.rename();
}

std::string utc_stamp() { return format_utc("%Y%m%dT%H%M%SZ"); }
std::string utc_time() { return format_utc("%Y-%m-%dT%H:%M:%SZ"); }

Status check_output_directory(const fs::path& directory) {
  fs::path existing = directory.empty() ? fs::path(".") : directory;
  std::error_code error;
  while (!fs::exists(fs::symlink_status(existing, error))) {
    existing = existing.has_parent_path() && existing.parent_path() != existing
                   ? existing.parent_path()
                   : fs::path(".");
  }
  if (!fs::is_directory(existing, error))
    return {StatusCode::invalid_argument,
            fmt::format("--out {}: {} is not a directory; name a directory to write into",
                        directory.string(), existing.string())};
  if (::access(existing.c_str(), W_OK | X_OK) != 0)
    return {StatusCode::internal,
            fmt::format("--out {}: no permission to write in {}; name another directory",
                        directory.string(), existing.string())};
  return {};
}

Status OutputDirectory::create(const fs::path& directory) {
  fs::path partial;
  for (const fs::path& part : directory) {
    partial /= part;
    if (::mkdir(partial.c_str(), 0777) == 0) {
      created_.push_back(partial);
    } else if (errno != EEXIST) {
      const int error = errno;
      remove_created();
      return io_failure("create directory", partial, error);
    }
  }
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) {
    remove_created();
    return {StatusCode::invalid_argument,
            fmt::format("{} exists and is not a directory: name a directory to write into",
                        directory.string())};
  }
  return {};
}

void OutputDirectory::remove_created() {
  for (auto it = created_.rbegin(); it != created_.rend(); ++it) ::rmdir(it->c_str());
  created_.clear();
}

Result<OutputDirectory> OutputDirectory::open(const fs::path& directory) {
  OutputDirectory result;
  result.path_ = directory;
  if (Status status = result.create(directory); !status.ok()) return status;
  return result;
}

Result<OutputDirectory> OutputDirectory::open_unique(const fs::path& parent,
                                                     const std::string& stamp) {
  OutputDirectory result;
  if (Status status = result.create(parent); !status.ok()) return status;
  for (int n = 1;; ++n) {
    result.path_ = parent / (n == 1 ? stamp : fmt::format("{}-{}", stamp, n));
    if (::mkdir(result.path_.c_str(), 0777) == 0) {
      result.created_.push_back(result.path_);
      return result;
    }
    if (errno != EEXIST) {
      const int error = errno;
      result.remove_created();
      return io_failure("create directory", result.path_, error);
    }
  }
}

void OutputDirectory::discard() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  remove_created();
}

Status OutputDirectory::write(std::string_view name, std::string_view contents) {
  Status status = write_file_atomically(path_ / name, contents);
  if (!status.ok()) remove_created();
  return status;
}

}  // namespace greenfast::workbench
