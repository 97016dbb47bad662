// What the command and a plugin's process share: a block of requests and answers, and an arena that
// holds the tensors. The plugin can write to all of it, so the command believes nothing it reads
// here but lengths it has clamped and outputs it checks.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include <greenfast/plugin.h>
#include <greenfast/operands.hpp>

namespace greenfast::workbench::channel {

inline constexpr std::uint32_t kMagic = 0x67667031;  // "gfp1"
inline constexpr std::size_t kMostCalls = 4096;      // sets of tensors in one request
inline constexpr std::size_t kTextBytes = 4096;
inline constexpr std::size_t kDescriptionBytes = 64 * 1024;
/// The request's block and the arena, as the child finds them.
inline constexpr int kControlDescriptor = 3, kArenaDescriptor = 4;

enum class Request : std::uint32_t { none, describe, supports, workspace, prepare, launch, quit };

/// Bits of Control::confined.
inline constexpr std::uint32_t kNoFiles = 1, kNoProcesses = 2, kNoSignals = 4;

/// A set of tensors as offsets into the arena, by OperandId; kNull where there is none.
inline constexpr std::uint64_t kNull = ~std::uint64_t{0};
using Call = std::array<std::uint64_t, kOperands>;

struct Control {
  std::uint32_t magic;
  std::int32_t parent;  // its process id
  // Counts of requests and of answers; both are futexes.
  std::atomic<std::uint32_t> asked, answered;
  Request request;
  std::uint64_t arena_bytes, arena_used;
  std::uint64_t memory_bytes;  // what the child may allocate; 0: no limit
  std::uint32_t kernel;
  gf_problem problem;
  std::uint64_t workspace, workspace_bytes;
  std::uint32_t threads;  // CPUs it may use: as many as the library; 0: all
  // launch: `count` calls, on the sets in turn.
  std::uint32_t sets, count;
  Call calls[kMostCalls];
  // The answer.
  std::int32_t status;  // a StatusCode
  std::uint64_t value;
  char text[kTextBytes];
  std::uint32_t confined;  // what the system keeps it from doing, as it said before it was loaded
  char description[kDescriptionBytes];  // of describe: name, then a line for each kernel
  char secret[kTextBytes];  // a file that it shall not be able to read; read before it is loaded
};

/// Sleeps while *word is `seen`, at most `seconds`. Spurious returns are possible.
void wait_while(const std::atomic<std::uint32_t>& word, std::uint32_t seen, double seconds);
void wake(const std::atomic<std::uint32_t>& word);

}  // namespace greenfast::workbench::channel
