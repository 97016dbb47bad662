// What each variant's kernels take of a GPU, from the compiled code and the plans alone, and the
// limits they keep (policies/resources.toml). No GPU is needed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/attention.hpp>

#include "workbench/resources/device_code.hpp"

namespace greenfast::workbench {

/// Blocks of one kernel on a multiprocessor, and what hinders more.
struct Occupancy {
  int blocks = 0, warps = 0;
  double percent = 0;   ///< warps of the most that the multiprocessor holds
  std::string limiter;  ///< "registers", "shared memory", "threads", "blocks"
};

/// `arch` is the compute capability (90). Shared memory is static and dynamic together. Nothing for
/// an architecture that the table does not know, or a block that does not fit at all.
std::optional<Occupancy> occupancy(int arch, int registers, std::int64_t shared_bytes, int threads);

/// Most that a kernel may take: one [[limit]] of policies/resources.toml or of a gate's policy. As a
/// [[waiver]] it has a name, and says what a kernel that is over a limit may take instead.
struct KernelLimit {
  std::string name;     ///< of a waiver; empty for a limit
  std::string kernel;   ///< regular expression on "greenfast::cuda::" and the kernel's name; or
  std::string variant;  ///< an id, or the begin of several: "cuda.v2c.*"
  std::string arch;     ///< "sm_89"; empty: all
  std::optional<std::int64_t> registers, static_shared, shared, stack;
  std::string reason;
  std::string place;  ///< "policies/resources.toml: line 12"
};
struct ResourceLimits {
  std::vector<KernelLimit> limits, waivers;
};
/// policies/resources.toml as it was when this binary was built.
std::string_view builtin_resource_limits();
/// A file of [[limit]] and [[waiver]] tables alone. Errors name the line.
Result<ResourceLimits> parse_resource_limits(std::string_view name, std::string_view toml);
/// The same two kinds of table out of a numerics policy, whose other keys are read elsewhere.
Result<ResourceLimits> parse_policy_limits(std::string_view name, std::string_view toml);
/// Adds the rows of `more`.
void append(ResourceLimits& to, const ResourceLimits& more);
/// Rows that name nothing: a variant that is no CUDA variant of the library nor one of `others`
/// (plugins), an architecture that neither the project nor this build compiles for, or not that
/// variant, a kernel that `code` does not hold for the row's architecture. The first is an error with
/// its line. What `code` would hold for an architecture that it lacks altogether cannot be asked.
Status check_names(const ResourceLimits& limits, const DeviceCode& code,
                   std::span<const std::string> others = {});

/// A figure of a kernel held to one limit.
struct LimitCheck {
  std::string what;  ///< "registers", "static shared memory", "shared memory", "local memory"
  std::int64_t value = 0, most = 0;
  std::string reason;  ///< of the limit
  bool inside = true;
  /// Of the waiver that lets it pass; empty where it is inside or nothing lets it.
  std::string waiver, waived_because;
  bool broken() const { return !inside && waiver.empty(); }
  bool waived() const { return !inside && !waiver.empty(); }
  std::string words() const;  ///< "registers 122 > 71 (why this limit)"
};

/// One kernel on one architecture, as a variant launches it.
struct ResourceRow {
  std::string variant;  ///< empty: no plan launches it (the backend's own, or nobody)
  KernelCode code;
  std::int64_t dynamic_shared = 0;  ///< bytes, the most of all plans
  int threads = 0;                  ///< a block
  std::string problem;              ///< of that plan
  /// Of that plan: what lies in the shared memory. What the compiler laid out besides comes last, so
  /// that they add up to shared(); empty without a plan.
  std::vector<SharedBuffer> buffers;
  std::optional<Occupancy> occupancy;
  std::vector<LimitCheck> checks;  ///< one for each limit that concerns it
  bool within_limits() const;      ///< nothing is broken; waived is inside
  std::int64_t shared() const { return code.static_shared + dynamic_shared; }
};

struct ResourceReport {
  std::vector<ResourceRow> rows;     ///< registry order, then architecture
  std::vector<std::string> missing;  ///< kernels that plans name and the file lacks, in words
  /// Waivers that no kernel needs, with their line. Told where everything was looked at.
  std::vector<std::string> unneeded;
  bool within_limits() const;  ///< nothing is broken, and no waiver is unneeded
};

/// Every kernel of the library's variants in `code`; `archs` ("sm_89") and `variants` (ids) keep
/// those alone, empty keeps all. Which kernel a variant launches, with how much shared memory, is
/// asked of the plans of this build, over a grid of problems.
ResourceReport resource_report(const DeviceCode& code, const ResourceLimits& limits,
                               std::span<const std::string> archs,
                               std::span<const std::string> variants);

/// The same for one variant and the kernels of given plans alone, on a device of compute capability
/// `arch`, from the running program: what a gate asks. A kernel without machine code is `missing`.
Result<ResourceReport> resources_of(std::string_view variant, int arch, std::span<const Plan> plans,
                                    const ResourceLimits& limits);

/// Bytes of local memory that the rows which name a kernel let it take; 0 where none does.
std::int64_t allowed_stack(const KernelCode& code, const ResourceLimits& limits);

/// Limits on code that is not the library's: those that name `variant` alone.
std::vector<LimitCheck> check_foreign(std::string_view variant, const KernelCode& code,
                                      std::int64_t dynamic_shared, const ResourceLimits& limits);

}  // namespace greenfast::workbench
