#include "workbench/checkpoint.hpp"

#include <fmt/format.h>

#include "workbench/atomic_file.hpp"
#include "workbench/files.hpp"
#include "workbench/json.hpp"

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kHead = "job.json";

}  // namespace

fs::path Checkpoint::file(const std::string& step) const {
  return directory_ / "steps" / (step + ".json");
}

Result<Checkpoint> Checkpoint::begin(const fs::path& directory, json head) {
  Checkpoint job;
  job.directory_ = directory;
  job.head_ = std::move(head);
  std::error_code error;
  fs::create_directories(directory / "steps", error);
  if (error) {
    return Status(
        StatusCode::internal,
        fmt::format("cannot create {}: {}", (directory / "steps").string(), error.message()));
  }
  if (Status status = write_file_atomically(directory / kHead, job.head_.dump(2) + "\n"); !status) {
    return status;
  }
  return job;
}

Result<Checkpoint> Checkpoint::resume(const fs::path& directory, std::string_view schema) {
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
  return job;
}

bool Checkpoint::finished(const std::string& step) const {
  std::error_code error;
  return fs::exists(file(step), error);
}

Result<json> Checkpoint::load(const std::string& step) const { return read_json(file(step)); }

Status Checkpoint::save(const std::string& step, const json& result) const {
  return write_file_atomically(file(step), result.dump() + "\n");
}

}  // namespace greenfast::workbench
