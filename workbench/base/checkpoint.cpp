#include "workbench/base/checkpoint.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "workbench/base/atomic_file.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/sha256.hpp"

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kHead = "job.json";
constexpr const char* kDigest = "digest";
constexpr const char* kSecret = "secret";

std::string new_secret() {
  std::random_device source;
  std::string secret;
  for (int i = 0; i < 8; ++i) secret += fmt::format("{:08x}", source());
  return secret;
}

}  // namespace

fs::path Checkpoint::file(const std::string& step) const {
  return directory_ / "steps" / (step + ".json");
}

fs::path Checkpoint::head_file() const { return directory_ / kHead; }

Result<Checkpoint> Checkpoint::begin(const fs::path& directory, json head) {
  Checkpoint job;
  job.directory_ = directory;
  job.head_ = std::move(head);
  job.secret_ = new_secret();
  std::error_code error;
  fs::remove_all(directory / "steps", error);
  fs::create_directories(directory / "steps", error);
  if (error) {
    return Status(
        StatusCode::internal,
        fmt::format("cannot create {}: {}", (directory / "steps").string(), error.message()));
  }
  json head_and_secret = job.head_;
  head_and_secret[kSecret] = job.secret_;
  if (Status status =
          write_file_atomically(directory / kHead, json_text(head_and_secret, 2) + "\n");
      !status) {
    return status;
  }
  // Nobody else's to read.
  fs::permissions(directory / kHead, fs::perms::owner_read | fs::perms::owner_write, error);
  if (Status status = job.lock(); !status) return status;
  return job;
}

Result<Checkpoint> Checkpoint::resume(const fs::path& directory, std::string_view schema) {
  auto job = look(directory, schema);
  if (!job) return job;
  if (Status status = job->lock(); !status) return status;
  // Who held it may have saved steps since.
  job->find_steps();
  return job;
}

Result<Checkpoint> Checkpoint::look(const fs::path& directory, std::string_view schema) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    return Status(
        StatusCode::invalid_argument,
        fmt::format("{}: no such directory; --resume takes the directory an interrupted job "
                    "printed",
                    directory.string()));
  }
  if (!fs::exists(directory / kHead, error)) {
    return Status(
        StatusCode::invalid_argument,
        fmt::format("{}: holds no job to resume ({} is missing)", directory.string(), kHead));
  }
  Result<json> head = read_json(directory / kHead);
  if (!head && head.status().code() == StatusCode::invalid_argument)
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: damaged: not valid JSON, perhaps truncated; nothing goes on "
                              "without it: start a new one",
                              (directory / kHead).string()));
  if (!head) return head.status();
  const auto found = head->is_object() ? head->find("schema") : head->end();
  if (!head->is_object() || found == head->end() || *found != schema) {
    return Status(
        StatusCode::invalid_argument,
        fmt::format("{}: schema {}; this version resumes \"{}\"", (directory / kHead).string(),
                    head->is_object() && found != head->end() ? found->dump() : "missing", schema));
  }
  Checkpoint job;
  job.directory_ = directory;
  job.head_ = std::move(*head);
  const auto secret = job.head_.find(kSecret);
  if (secret == job.head_.end() || !secret->is_string() || secret->get<std::string>().empty()) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: holds no secret, as a job of this version does; start a new one",
                              (directory / kHead).string()));
  }
  job.secret_ = secret->get<std::string>();
  job.head_.erase(secret);
  job.find_steps();
  return job;
}

void Checkpoint::find_steps() {
  std::error_code error;
  for (fs::directory_iterator it(directory_ / "steps", error), end; !error && it != end;
       it.increment(error))
    if (it->path().extension() == ".json") finished_.insert(it->path().stem().string());
}

bool Checkpoint::finished(const std::string& step) const { return finished_.contains(step); }

Status Checkpoint::lock() {
  const fs::path head = directory_ / kHead;
  const int file = ::open(head.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return Status(StatusCode::internal, fmt::format("{}: {}", head.string(), std::strerror(errno)));
  lock_ = std::shared_ptr<const int>(new int(file), [](const int* descriptor) {
    ::close(*descriptor);
    delete descriptor;
  });
  // Of a job that was killed, the child dies a moment after its parent.
  for (int i = 0; i < 20; ++i) {
    if (::flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return {};
    ::usleep(50'000);
  }
  return Status(StatusCode::invalid_argument,
                fmt::format("{}: another process is at work on it", directory_.string()));
}

std::string Checkpoint::digest(const std::string& step, const json& result) const {
  return sha256_hex(
      fmt::format("{0}\n{1}\n{2}\n{3}\n{0}", secret_, json_text(head_), step, json_text(result)));
}

Result<json> Checkpoint::load(const std::string& step) const {
  auto saved = read_json(file(step));
  const auto refuse = [&](const std::string& why) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: {}; delete this file, and resuming does the step again",
                              file(step).string(), why));
  };
  if (!saved) {
    if (saved.status().code() != StatusCode::invalid_argument) return saved.status();
    return refuse("not valid JSON, perhaps truncated");
  }
  if (!saved->is_object() || !saved->contains(kDigest)) return refuse("is no step of a job");
  const json kept = (*saved)[kDigest];
  saved->erase(kDigest);
  if (kept != digest(step, *saved)) return refuse("this job saved something else");
  return saved;
}

Status Checkpoint::save(const std::string& step, json result) {
  // A file proves itself whole and written by who knew the secret; that it was measured honestly
  // nothing can.
  result[kDigest] = digest(step, result);
  Status status = write_file_atomically(file(step), json_text(result) + "\n");
  if (status) finished_.insert(step);
  return status;
}

void Checkpoint::forget(const std::string& step) {
  finished_.erase(step);
  std::error_code ignored;
  fs::remove(file(step), ignored);
}

}  // namespace greenfast::workbench
