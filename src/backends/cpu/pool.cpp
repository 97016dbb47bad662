#include "backends/cpu/pool.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

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
      const std::size_t rounded = (bytes + kPage - 1) / kPage * kPage;
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

void set_affinity(pthread_t thread, int cpu) noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
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
  int joined = 1;   // threads that ever took part; guarded by the team's mutex
  int to_wake = 0;  // sleeping workers that are still to be woken; likewise
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
  bool open() const noexcept {
    return joined < max_threads && next.load(std::memory_order_relaxed) < tasks;
  }
};

struct ThreadPool::Team {
  const PoolConfig& config;
  std::mutex mutex;
  std::condition_variable work_ready;
  std::condition_variable job_done;
  Job* jobs = nullptr;  // open runs, oldest first
  int sleepers = 0;
  bool stopping = false;
  bool started = false;
  std::vector<std::thread> workers;
  // Pinning: workers[i] runs on cpu_of[i]; spare is the CPU of the mask that none has.
  std::vector<int> cpu_of;
  int spare = -1;
  std::atomic<std::uint32_t> news{0};  // counts jobs, so that spinning workers need no lock
  Team* previous = nullptr;

  explicit Team(const PoolConfig& pool_config) : config(pool_config) {}

  // Called with the mutex held.
  void start() noexcept {
    if (started) return;
    started = true;
    const int wanted = config.threads - 1;
    // A pool smaller than its mask is left to the scheduler: pinned, two such pools of two
    // processes would share the first CPUs and leave the last idle.
    const bool pinned = config.pin && config.threads == static_cast<int>(config.cpus.size());
    try {
      workers.reserve(static_cast<std::size_t>(wanted));
      if (pinned) cpu_of.assign(config.cpus.begin() + 1, config.cpus.end());
      for (int i = 0; i < wanted; ++i) {
        workers.emplace_back([this] { serve(); });
        if (pinned) {
          set_affinity(workers.back().native_handle(), cpu_of[static_cast<std::size_t>(i)]);
        }
      }
    } catch (const std::exception&) {
      // Fewer workers, or none: the caller does the work.
    }
    if (pinned) spare = config.cpus.front();
  }

  // Called with the mutex held. The caller's thread is not ours to move; so the worker that is
  // pinned where the caller now runs goes to the CPU that no worker has.
  void make_way() noexcept {
    if (spare < 0) return;
    const int here = sched_getcpu();
    if (here == spare) return;
    const auto owner = std::find(cpu_of.begin(), cpu_of.end(), here);
    const auto index = static_cast<std::size_t>(owner - cpu_of.begin());
    if (index >= workers.size()) return;
    set_affinity(workers[index].native_handle(), spare);
    cpu_of[index] = spare;
    spare = here;
  }

  // Called with the mutex held: how many workers the calling thread is to wake for a job. Each that
  // wakes does the same, so that no thread pays for all (a wake-up costs it microseconds).
  int share_of_wakes(Job& job) const noexcept {
    constexpr int kEach = 2;
    const int share = std::min({kEach, job.to_wake, sleepers});
    job.to_wake -= share;
    return share;
  }

  void serve() {
    std::unique_lock lock(mutex);
    while (!stopping) {
      Job* job = jobs;
      while (job != nullptr && !job->open()) job = job->next_job;
      if (job != nullptr) {
        const int worker = job->joined++;
        job->inside.fetch_add(1, std::memory_order_relaxed);
        int wake = share_of_wakes(*job);
        lock.unlock();
        for (; wake > 0; --wake) work_ready.notify_one();
        job->work(worker);
        lock.lock();
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
      if (changed) continue;
      ++sleepers;
      work_ready.wait(lock,
                      [&] { return stopping || news.load(std::memory_order_relaxed) != seen; });
      --sleepers;
    }
  }

  void run(Job& job) {
    int wake = 0;
    {
      const std::lock_guard lock(mutex);
      start();
      if (jobs == nullptr) make_way();
      Job** last = &jobs;
      while (*last != nullptr) last = &(*last)->next_job;
      *last = &job;
      news.fetch_add(1, std::memory_order_relaxed);
      job.to_wake =
          static_cast<int>(std::min<std::int64_t>({sleepers, job.max_threads - 1, job.tasks - 1}));
      wake = share_of_wakes(job);
    }
    for (; wake > 0; --wake) work_ready.notify_one();

    job.work(0);

    {
      const std::lock_guard lock(mutex);
      Job** at = &jobs;
      while (*at != &job) at = &(*at)->next_job;
      *at = job.next_job;
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
    work_ready.notify_all();
    for (std::thread& worker : workers) worker.join();
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
