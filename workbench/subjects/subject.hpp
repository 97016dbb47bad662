// What the workbench can measure: a library variant, a mutant, a plugin, later a peer.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/attention.hpp>

namespace greenfast::workbench {

/// CPU time of a process, all its threads together.
struct CpuUse {
  int process = 0;  ///< its id; 0: this one
  double seconds = 0;
};

class Subject {
 public:
  virtual ~Subject() = default;
  virtual std::string id() const = 0;
  virtual DeviceKind device() const = 0;
  /// Why this subject cannot take the problem; nothing when it can.
  virtual std::optional<std::string> refusal(const Problem& problem, const DeviceFacts& facts) = 0;
  /// What it would do, where it can say.
  virtual std::optional<Plan> plan(const Problem& problem, const DeviceFacts& facts) = 0;
  virtual Status prepare(const Problem& problem, void* stream) = 0;
  virtual Status launch(const Problem& problem, const Tensors& tensors, void* stream,
                        void* workspace, std::size_t workspace_bytes) = 0;

  /// Whether it runs in a process of its own, where the device's timer does not reach: time() then
  /// times it.
  virtual bool elsewhere() { return false; }
  /// Seconds of `count` launches, on these sets of tensors in turn.
  virtual Result<double> time(const Problem& /*problem*/, std::span<const Tensors> /*sets*/,
                              int /*count*/, void* /*workspace*/, std::size_t /*workspace_bytes*/) {
    return Status(StatusCode::internal, "is timed by the device");
  }
  /// Seconds that time() adds to the launches themselves, at most: a sample must be long beside it.
  virtual double overhead() { return 0; }
  /// Gives work that a launch left behind the time to show itself.
  virtual void settle() {}
  /// Stops whatever it would do until its next call; only where it runs elsewhere.
  virtual void pause() {}
  /// CPU time of its process so far; nothing where it has none of its own.
  virtual std::optional<CpuUse> cpu_use() { return std::nullopt; }
  /// The same when its last timed launches had ended, by its own word.
  virtual std::optional<CpuUse> cpu_at_answer() { return std::nullopt; }
  /// Private memory of its process, in bytes; nothing where it has none of its own.
  virtual std::optional<std::int64_t> private_bytes() { return std::nullopt; }
  /// The same before anything of the subject's was loaded into it.
  virtual std::optional<std::int64_t> bytes_before_load() { return std::nullopt; }
  /// From here on touched() tells what its process did to things that are not its own: the affinity
  /// and priority of this process, processes it started.
  virtual void watch() {}
  virtual std::optional<std::string> touched() { return std::nullopt; }
};

/// A library variant through the public API.
std::unique_ptr<Subject> make_library_subject(const VariantInfo& variant);
/// Whatever the library selects for a problem on a device: id "auto".
std::unique_ptr<Subject> make_automatic_subject(DeviceKind device);

/// Subjects for a comma-separated selector: ids ("cpu.flash"), patterns ("cuda.*"), "all" (every
/// variant), "ladder" (the rungs), "rollback" (rungs with one toggle set back), "auto" (every
/// variant that selection may choose), planted kernels by "mutant.name" and "honest.name", kernels
/// of loaded plugins by "plugin:name". A variant derived from a rung is in no other group and
/// matches no pattern. In the order asked, each once. Errors list what exists.
Result<std::vector<std::unique_ptr<Subject>>> find_subjects(std::string_view selector);

}  // namespace greenfast::workbench
