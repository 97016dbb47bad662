// Threads as a CPU kernel sees them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace greenfast::core {

/// Runs tasks on the pool's threads; the caller takes part. Several callers may run at once and
/// share the threads; a run from inside a task stays on its thread. Implemented by
/// src/backends/cpu.
class Executor {
 public:
  /// task(context, index, worker): index in [0, tasks), worker in [0, threads()).
  using Task = void (*)(void* context, std::int64_t index, int worker);

  virtual ~Executor() = default;
  virtual int threads() const noexcept = 0;
  /// Calls task for every index, in rising order of start, and returns when all are done. Uses at
  /// most max_threads of the pool (0: all).
  virtual void run(std::int64_t tasks, Task task, void* context, int max_threads = 0) = 0;
  /// Scratch of a worker, 64-byte aligned, at least `bytes`, kept from call to call; valid inside a
  /// task. Null when memory is exhausted.
  virtual void* arena(int worker, std::size_t bytes) noexcept = 0;
};

}  // namespace greenfast::core
