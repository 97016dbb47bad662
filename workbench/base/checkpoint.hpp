// A long job that can be interrupted: each finished step is a file, written whole or not at all.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include <greenfast/types.hpp>

namespace greenfast::workbench {

class Checkpoint {
 public:
  // While one exists, no other process (and nobody in this one) goes on with the same job.
  /// Starts a job in a directory that exists; head is what resuming needs to know. Steps that lie
  /// there already are removed: a new job has none.
  static Result<Checkpoint> begin(const std::filesystem::path& directory, nlohmann::json head);
  /// Goes on with the job of a directory. Refuses, by name, what is no job of that schema.
  static Result<Checkpoint> resume(const std::filesystem::path& directory, std::string_view schema);
  /// Reads what is there, beside whoever is at work on it: for who saves nothing.
  static Result<Checkpoint> look(const std::filesystem::path& directory, std::string_view schema);

  const nlohmann::json& head() const { return head_; }
  const std::filesystem::path& directory() const { return directory_; }
  /// Holds the secret that steps are signed with.
  std::filesystem::path head_file() const;
  /// Whether the step lay there when the job was resumed, or was saved by this process. What
  /// somebody else puts beside them later is no step.
  bool finished(const std::string& step) const;
  /// The object that was saved. invalid_argument, naming the file, for one that is not: changed
  /// since, or of a job with another head.
  Result<nlohmann::json> load(const std::string& step) const;
  Status save(const std::string& step, nlohmann::json result);
  /// Takes a step back, so that it is done again.
  void forget(const std::string& step);

 private:
  std::filesystem::path file(const std::string& step) const;
  std::string digest(const std::string& step, const nlohmann::json& result) const;

  Status lock();
  void find_steps();

  std::filesystem::path directory_;
  nlohmann::json head_;
  std::string secret_;  // of the job: in its head alone, part of every digest
  std::set<std::string> finished_;
  std::shared_ptr<const int> lock_;  // a descriptor of the head, closed with the last copy
};

}  // namespace greenfast::workbench
