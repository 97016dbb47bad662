// A long job that can be interrupted: each finished step is a file, written whole or not at all.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include <greenfast/types.hpp>

namespace greenfast::workbench {

class Checkpoint {
 public:
  /// Starts a job in a directory that exists; head is what resuming needs to know.
  static Result<Checkpoint> begin(const std::filesystem::path& directory, nlohmann::json head);
  /// Goes on with the job of a directory. Refuses, by name, what is no job of that schema.
  static Result<Checkpoint> resume(const std::filesystem::path& directory, std::string_view schema);

  const nlohmann::json& head() const { return head_; }
  const std::filesystem::path& directory() const { return directory_; }
  bool finished(const std::string& step) const;
  Result<nlohmann::json> load(const std::string& step) const;
  Status save(const std::string& step, const nlohmann::json& result) const;

 private:
  std::filesystem::path file(const std::string& step) const;

  std::filesystem::path directory_;
  nlohmann::json head_;
};

}  // namespace greenfast::workbench
