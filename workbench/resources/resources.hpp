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

/// Most that a kernel may take; one row of policies/resources.toml.
struct KernelLimit {
  std::string kernel;   ///< regular expression on "greenfast::cuda::" and the kernel's name; or
  std::string variant;  ///< an id, or the begin of several: "cuda.v2c.*"
  std::string arch;     ///< "sm_89"; empty: all
  std::optional<std::int64_t> registers, static_shared, shared, stack;
  std::string reason;
  std::string known;  ///< why the build exceeds it for the time being; empty: it must not
};
/// policies/resources.toml as it was when this binary was built.
std::string_view builtin_resource_limits();
Result<std::vector<KernelLimit>> parse_resource_limits(std::string_view name,
                                                       std::string_view toml);

/// One kernel on one architecture, as a variant launches it.
struct ResourceRow {
  std::string variant;  ///< empty: no plan launches it (the backend's own, or nobody)
  KernelCode code;
  std::int64_t dynamic_shared = 0;  ///< bytes, the most of all plans
  int threads = 0;                  ///< a block
  std::string problem;              ///< of that plan
  std::optional<Occupancy> occupancy;
  struct Broken {
    std::string what;   ///< "registers 122 > 71 (why this limit)"
    std::string known;  ///< why it is so for the time being
  };
  std::vector<Broken> broken;
  std::int64_t shared() const { return code.static_shared + dynamic_shared; }
};

struct ResourceReport {
  std::vector<ResourceRow> rows;     ///< registry order, then architecture
  std::vector<std::string> missing;  ///< kernels that plans name and the file lacks, in words
  bool within_limits() const;        ///< nothing is broken; known or not
};

/// Every kernel of the library's variants in `code`; `archs` ("sm_89") and `variants` (ids) keep
/// those alone, empty keeps all. Which kernel a variant launches, with how much shared memory, is
/// asked of the plans of this build, over a grid of problems.
ResourceReport resource_report(const DeviceCode& code, std::span<const KernelLimit> limits,
                               std::span<const std::string> archs,
                               std::span<const std::string> variants);

/// The same for one variant and the kernels of given plans alone, on a device of compute capability
/// `arch`, from the running program and the built-in limits: what a gate asks. A kernel without
/// machine code is `missing`.
Result<ResourceReport> resources_of(std::string_view variant, int arch,
                                    std::span<const Plan> plans);

}  // namespace greenfast::workbench
