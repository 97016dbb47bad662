// The library's threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/cpu/numa.hpp"
#include "core/executor.hpp"

namespace greenfast::cpu {

/// How many threads, and where they may run.
struct PoolConfig {
  int threads = 1;                   // the caller counts as one
  std::vector<int> cpus;             // CPUs of the affinity mask
  bool pin = true;                   // workers on CPUs of their own, where the pool fills the mask
  std::vector<NumaNode> nodes = {};  // of those CPUs; empty where there is one
};

/// An Executor whose workers start with the first run that can use them. Several callers may run
/// at once: each works on its own tasks, and idle workers join whichever run has tasks left. A run
/// from inside a task stays on its thread. After a fork the child starts workers of its own.
///
/// On a machine of several nodes of memory a run takes workers of its caller's node as far as they go, and
/// a pool smaller than its mask stays on that node. Arenas are first touched by the thread that uses
/// them, so they lie there too.
///
/// Between runs a worker spins for a short while, because a wake-up from the kernel costs tens of
/// microseconds, then sleeps.
class ThreadPool final : public core::Executor {
 public:
  explicit ThreadPool(PoolConfig config);
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const noexcept override { return config_.threads; }
  void run(std::int64_t tasks, Task task, void* context, int max_threads = 0) override;
  void* arena(int worker, std::size_t bytes) noexcept override;

  /// Starts the workers now rather than in the first run.
  void start() noexcept;
  /// Ends the workers; later runs stay on their callers. No run may be going on.
  void close() noexcept;
  /// To be called in the child of a fork, where only the forking thread is left.
  void forget_workers() noexcept;

 private:
  struct Job;
  struct Team;  // the workers of one process, and what they share
  Team* team() noexcept;

  const PoolConfig config_;
  std::atomic<Team*> team_{nullptr};
  std::atomic<bool> closed_{false};
  Team* abandoned_ = nullptr;  // teams of parent processes: their locks may be held for ever
};

}  // namespace greenfast::cpu
