#include "backends/cpu/pool.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include <greenfast/arithmetic.hpp>

namespace greenfast::cpu {
namespace {

using Clock = std::chrono::steady_clock;

// About twice what a wake-up costs: a waiter that spins this long before it sleeps never costs
// more than twice the better choice.
constexpr auto kSpin = std::chrono::microseconds(50);

void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

template <class Condition>
bool spin_until(Condition done) noexcept {
  const auto start = Clock::now();
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      pause();
    }
  } while (Clock::now() - start < kSpin);
  return done();
}

// Scratch of one thread for each depth of nested runs; grows, and goes with the thread.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    for (Block& block : blocks_) std::free(block.data);
  }

  void* get(int level, std::size_t bytes) noexcept {
    if (level < 0 || level >= kDepths) return nullptr;
    Block& block = blocks_[level];
    if (block.bytes < bytes) {
      constexpr std::size_t kPage = 4096;
      const std::size_t rounded = round_up(bytes, kPage);
      std::free(block.data);
      block.data = std::aligned_alloc(kPage, rounded);
      block.bytes = block.data == nullptr ? 0 : rounded;
    }
    return block.data;
  }

 private:
  static constexpr int kDepths = 4;
  struct Block {
    void* data = nullptr;
    std::size_t bytes = 0;
  };
  Block blocks_[kDepths];
};

thread_local Scratch scratch;
thread_local int depth = 0;  // runs that this thread is inside

struct Nesting {
  Nesting() noexcept { ++depth; }
  ~Nesting() { --depth; }
};

void set_affinity(pthread_t thread, std::span<const int> cpus) noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(cpu), &set);
  }
  // A refusal costs speed only.
  (void)pthread_setaffinity_np(thread, sizeof set, &set);
}

}  // namespace

// One run. Lives on the caller's stack; listed in the team while workers may join.
struct ThreadPool::Job {
  Task task;
  void* context;
  std::int64_t tasks;
  int max_threads;
  int joined = 1;          // threads that ever took part; guarded by the team's mutex
  int to_wake = 0;         // sleeping workers that are still to be woken; likewise
  std::size_t node = 0;    // the caller's; likewise
  int near = 0;            // idle workers of that node that the run still counts on; likewise
  bool near_only = false;  // they are all that it wants
  bool caller_sleeps = false;
  Job* next_job = nullptr;
  std::atomic<int> inside{0};  // workers now taking part
  alignas(64) std::atomic<std::int64_t> next{0};

  void work(int worker) {
    const Nesting nesting;
    for (;;) {
      const std::int64_t index = next.fetch_add(1, std::memory_order_relaxed);
      if (index >= tasks) return;
      task(context, index, worker);
    }
  }
  bool open_to(std::size_t worker_node) const noexcept {
    return joined < max_threads && (!near_only || worker_node == node) &&
           next.load(std::memory_order_relaxed) < tasks;
  }
};

struct ThreadPool::Team {
  // Workers of one node of memory; there is one of these where the machine has one node, and where
  // workers are not pinned.
  struct Group {
    std::condition_variable work_ready;
    int sleepers = 0;
    int waking = 0;   // of them: woken, and not yet up
    int idle = 0;     // workers in no run
    int claimed = 0;  // of them: counted on by a run
  };
  struct Worker {
    std::thread thread;
    std::size_t node = 0;  // index of its group
    int cpu = -1;          // that it is pinned to
    bool busy = false;
  };

  const PoolConfig& config;
  std::mutex mutex;
  std::condition_variable job_done;
  Job* jobs = nullptr;  // open runs, oldest first
  bool stopping = false;
  bool started = false;
  std::vector<Worker> workers;
  std::vector<Group> groups;
  int spare = -1;                      // the CPU of the mask that no pinned worker has
  std::size_t home = 0;                // unpinned: the node they stay on
  int away = 0;                        // runs in a row whose caller was on another
  std::atomic<std::uint32_t> news{0};  // counts jobs, so that spinning workers need no lock
  Team* previous = nullptr;

  explicit Team(const PoolConfig& pool_config)
      : config(pool_config), groups(pinned() ? std::max<std::size_t>(1, config.nodes.size()) : 1) {}

  // A pool smaller than its mask is left to the scheduler: pinned, two such pools of two
  // processes would share the first CPUs and leave the last idle.
  bool pinned() const noexcept {
    return config.pin && config.threads == static_cast<int>(config.cpus.size());
  }
  bool stays_near() const noexcept { return config.pin && !pinned() && config.nodes.size() > 1; }

  // Called with the mutex held.
  void start() noexcept {
    if (started) return;
    started = true;
    const auto wanted = static_cast<std::size_t>(config.threads - 1);
    try {
      workers.reserve(wanted);  // workers look at their own entries
      if (stays_near()) home = node_of(config.nodes, sched_getcpu());
      // Said for unpinned workers too: they would inherit the mask of this caller, whose thread its
      // program may have bound to one CPU.
      const std::vector<int> shared =
          stays_near() ? cpus_near(config.nodes, home, config.threads) : config.cpus;
      for (std::size_t i = 0; i < wanted; ++i) {
        Worker& worker = workers.emplace_back();
        if (pinned()) {
          worker.cpu = config.cpus[i + 1];
          if (groups.size() > 1) worker.node = node_of(config.nodes, worker.cpu);
        }
        try {
          worker.thread = std::thread([this, i] { serve(i); });
        } catch (const std::system_error&) {
          workers.pop_back();
          throw;
        }
        ++groups[worker.node].idle;
        const auto own = pinned() ? std::span<const int>(&worker.cpu, 1) : std::span(shared);
        if (!own.empty()) set_affinity(worker.thread.native_handle(), own);
      }
    } catch (const std::exception&) {
      // Fewer workers, or none: the caller does the work.
    }
    if (pinned()) spare = config.cpus.front();
  }

  // Called with the mutex held. The caller's thread is not ours to move; so the worker that is
  // pinned where the caller now runs goes to the CPU that no worker has.
  void make_way(int here) noexcept {
    if (spare < 0 || here == spare) return;
    const auto owner = std::find_if(workers.begin(), workers.end(),
                                    [&](const Worker& worker) { return worker.cpu == here; });
    if (owner == workers.end()) return;
    set_affinity(owner->thread.native_handle(), {&spare, 1});
    owner->cpu = spare;
    spare = here;
    if (groups.size() == 1) return;
    const std::size_t node = node_of(config.nodes, owner->cpu);
    if (!owner->busy) {
      --groups[owner->node].idle;
      ++groups[node].idle;
    }
    owner->node = node;
  }

  // Called with the mutex held. A caller that has settled on another node takes its workers along.
  void follow(int here) noexcept {
    constexpr int kSettled =
        16;  // moving costs a system call a worker, and their arenas stay behind
    const std::size_t node = node_of(config.nodes, here);
    away = node == home ? 0 : away + 1;
    if (away < kSettled) return;
    home = node;
    away = 0;
    try {
      const std::vector<int> near = cpus_near(config.nodes, home, config.threads);
      for (Worker& worker : workers) set_affinity(worker.thread.native_handle(), near);
    } catch (const std::bad_alloc&) {
      // They stay where they are.
    }
  }

  // Called with the mutex held: takes from `job` the sleeping workers that the calling thread is to
  // wake, of the job's own node first. Each that wakes does the same, so that no thread pays for all
  // (a wake-up costs it microseconds).
  struct Wakes {
    static constexpr int kEach = 2;
    std::condition_variable* at[kEach] = {};
    void notify() const noexcept {
      for (std::condition_variable* const each : at) {
        if (each != nullptr) each->notify_one();
      }
    }
  };
  Wakes share_of_wakes(Job& job) noexcept {
    Wakes wakes;
    for (std::condition_variable*& wake : wakes.at) {
      if (job.to_wake == 0) break;
      Group* from = &groups[job.node];
      for (std::size_t i = 0; from->sleepers <= from->waking && i < groups.size(); ++i) {
        if (!job.near_only) from = &groups[i];
      }
      if (from->sleepers <= from->waking) break;
      ++from->waking;
      --job.to_wake;
      wake = &from->work_ready;
    }
    return wakes;
  }

  void serve(std::size_t index) {
    std::unique_lock lock(mutex);
    while (!stopping) {
      Worker& self = workers[index];
      Job* job = jobs;
      while (job != nullptr && !job->open_to(self.node)) job = job->next_job;
      if (job != nullptr) {
        const int worker = job->joined++;
        job->inside.fetch_add(1, std::memory_order_relaxed);
        self.busy = true;
        --groups[self.node].idle;
        if (self.node == job->node && job->near > 0) {
          --job->near;
          --groups[self.node].claimed;
        }
        const Wakes wakes = share_of_wakes(*job);
        lock.unlock();
        wakes.notify();
        job->work(worker);
        lock.lock();
        self.busy = false;
        ++groups[self.node].idle;
        // After the decrement the caller may return, and the job is gone.
        const bool sleeps = job->caller_sleeps;
        job->inside.fetch_sub(1, std::memory_order_release);
        if (sleeps) job_done.notify_all();
        continue;
      }
      const std::uint32_t seen = news.load(std::memory_order_relaxed);
      lock.unlock();
      const bool changed = spin_until([&] { return news.load(std::memory_order_relaxed) != seen; });
      lock.lock();
      if (changed || news.load(std::memory_order_relaxed) != seen) continue;
      Group& group = groups[self.node];
      ++group.sleepers;
      group.work_ready.wait(
          lock, [&] { return stopping || news.load(std::memory_order_relaxed) != seen; });
      --group.sleepers;
      if (group.waking > 0) --group.waking;
    }
  }

  void run(Job& job) {
    Wakes wakes;
    {
      const std::lock_guard lock(mutex);
      start();
      const int here = sched_getcpu();
      if (jobs == nullptr) {
        make_way(here);
        if (stays_near()) follow(here);
      }
      const int wanted = static_cast<int>(std::min<std::int64_t>(job.max_threads, job.tasks)) - 1;
      if (groups.size() > 1) {
        job.node = node_of(config.nodes, here);
        Group& group = groups[job.node];
        job.near = std::clamp(group.idle - group.claimed, 0, wanted);
        job.near_only = job.near == wanted;
        group.claimed += job.near;
      }
      Job** last = &jobs;
      while (*last != nullptr) last = &(*last)->next_job;
      *last = &job;
      news.fetch_add(1, std::memory_order_relaxed);
      job.to_wake = wanted;
      wakes = share_of_wakes(job);
    }
    wakes.notify();

    job.work(0);

    {
      const std::lock_guard lock(mutex);
      Job** at = &jobs;
      while (*at != &job) at = &(*at)->next_job;
      *at = job.next_job;
      groups[job.node].claimed -= job.near;
    }
    // No worker can join any more.
    const auto finished = [&] { return job.inside.load(std::memory_order_acquire) == 0; };
    if (spin_until(finished)) {
      // The last worker still holds the mutex while it lets go of the job.
      const std::lock_guard lock(mutex);
      return;
    }
    std::unique_lock lock(mutex);
    job.caller_sleeps = true;
    job_done.wait(lock, finished);
  }

  void stop() noexcept {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
      news.fetch_add(1, std::memory_order_relaxed);
    }
    for (Group& group : groups) group.work_ready.notify_all();
    for (Worker& worker : workers) worker.thread.join();
  }
};

ThreadPool::ThreadPool(PoolConfig config) : config_(std::move(config)) {}

ThreadPool::~ThreadPool() { close(); }

void ThreadPool::close() noexcept {
  closed_.store(true, std::memory_order_relaxed);
  Team* const last = team_.exchange(nullptr, std::memory_order_acq_rel);
  if (last == nullptr) return;
  last->stop();
  delete last;
}

// Null when memory is exhausted or the pool is closed.
ThreadPool::Team* ThreadPool::team() noexcept {
  Team* current = team_.load(std::memory_order_acquire);
  if (current != nullptr || closed_.load(std::memory_order_relaxed)) return current;
  Team* const fresh = new (std::nothrow) Team(config_);
  if (fresh == nullptr) return nullptr;
  fresh->previous = abandoned_;
  if (team_.compare_exchange_strong(current, fresh, std::memory_order_acq_rel)) return fresh;
  delete fresh;
  return current;
}

void ThreadPool::forget_workers() noexcept {
  if (Team* const team = team_.load(std::memory_order_relaxed)) abandoned_ = team;
  team_.store(nullptr, std::memory_order_relaxed);
}

void ThreadPool::start() noexcept {
  if (config_.threads == 1) return;
  if (Team* const shared = team()) {
    const std::lock_guard lock(shared->mutex);
    shared->start();
  }
}

void ThreadPool::run(std::int64_t tasks, Task task, void* context, int max_threads) {
  if (tasks <= 0) return;
  const int limit = max_threads <= 0 ? config_.threads : std::min(max_threads, config_.threads);
  Job job{.task = task, .context = context, .tasks = tasks, .max_threads = limit};
  Team* const shared = limit == 1 || tasks == 1 || depth > 0 ? nullptr : team();
  if (shared == nullptr) {
    job.work(0);
  } else {
    shared->run(job);
  }
}

// Scratch belongs to the thread rather than to the worker's number, so that runs on callers alone
// need no lock.
void* ThreadPool::arena(int /*worker*/, std::size_t bytes) noexcept {
  return scratch.get(depth - 1, bytes);
}

}  // namespace greenfast::cpu
