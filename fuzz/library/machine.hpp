// One problem at a time on a device: places its tensors between red zones, computes the reference,
// calls the library, judges what came back.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "fuzz/library/spec.hpp"
#include "fuzz/library/worker.hpp"

namespace greenfast::fuzz {

/// What one variant made of a problem.
struct Finding {
  /// Empty: right. "refused": the variant does not take the problem. Else what is wrong: "status",
  /// "device", "unwritten", "stray", "inputs", "o", "lse", "not finite" (where the reference is),
  /// "not NaN" (where it is), "plan" or "bits" (that depend on the batch).
  std::string kind;
  std::string detail;
  double got = 0, expected = 0, limit = 0;
  std::array<std::int64_t, 4> at{};  // b, h, i, d
  float worst_o = 0, worst_lse = 0;  // errors in limits

  bool refused() const { return kind == "refused"; }
  bool wrong() const { return !kind.empty() && !refused(); }
};

class Machine {
 public:
  virtual ~Machine() = default;
  Machine(DeviceFacts facts, std::unique_ptr<Worker> worker)
      : facts_(std::move(facts)), worker_(std::move(worker)) {}
  /// no_device or out_of_memory where there is none.
  static Result<std::unique_ptr<Machine>> open(DeviceKind device);

  const DeviceFacts& facts() const { return facts_; }

  /// Fills the tensors of a problem. `with_reference`: for check(), not for
  /// check_batch_invariance().
  Status load(const Spec& spec, bool with_reference);
  /// Against the reference. Variant: an id, or empty for what selection chooses.
  Finding check(const std::string& variant);
  /// Runs the whole batch and parts of it, and both again with the entries in another order: O and
  /// LSE of an entry have the same bits in all, and the plan is the same. Without asking for it, bits may differ: that shows the check can fail.
  Finding check_batch_invariance(const std::string& variant, bool asked = true);

  Finding judge(const std::string& variant, Property property) {
    return property == Property::reference ? check(variant) : check_batch_invariance(variant);
  }

 protected:
  /// What is judged. Tests plant faults here.
  virtual Status attend(const Problem& problem, const Tensors& tensors, const Options& options) {
    return attention(problem, tensors, options);
  }

 private:
  struct Part {
    std::int64_t first = 0, count = 0;
  };
  Options options_for(const std::string& variant) const;
  Problem problem_of(Part part) const;
  Status call(Part part, const Outputs& outputs, const Options& options);
  void rearrange(Arrangement order);
  bool find_workspace(const Problem& problem, Options& options, Finding& finding);

  DeviceFacts facts_;
  std::unique_ptr<Worker> worker_;
  Spec spec_;
  View view_{};
  Inputs inputs_{};
  Outputs outputs_{}, others_{};
  Reference reference_;
  char* inputs_begin_ = nullptr;
  std::size_t inputs_bytes_ = 0;
  char* workspace_ = nullptr;
  unsigned long long digest_ = 0;
};

}  // namespace greenfast::fuzz
