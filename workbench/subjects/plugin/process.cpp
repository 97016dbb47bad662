#include "workbench/subjects/plugin/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>

#include <greenfast/attention.hpp>

#include "workbench/base/clean_text.hpp"
#include "workbench/base/seconds_since.hpp"
#include "workbench/device/arena.hpp"
#include "workbench/subjects/plugin/channel.hpp"
#include "workbench/subjects/plugin/serve.hpp"

extern char** environ;

namespace greenfast::workbench {
namespace {

using Clock = std::chrono::steady_clock;

/// Between two looks whether the process is still there.
constexpr double kLookSeconds = 0.05;

}  // namespace

Result<std::unique_ptr<PluginProcess>> PluginProcess::start(const std::string& path,
                                                            std::uint64_t memory_bytes) {
  const auto failed = [&](const char* what) {
    return Status(StatusCode::internal,
                  fmt::format("--plugin {}: {}: {}", path, what, std::strerror(errno)));
  };
  if (!SharedArena::open()) return failed("no shared memory");
  const SharedArena& arena = *SharedArena::active();
  const int made = memfd_create("greenfast-plugin-control", MFD_CLOEXEC);
  if (made < 0) return failed("no shared memory");
  const int descriptor = fcntl(made, F_DUPFD_CLOEXEC, 16);
  close(made);
  if (descriptor < 0 || ftruncate(descriptor, sizeof(channel::Control)) != 0) {
    if (descriptor >= 0) close(descriptor);
    return failed("no shared memory");
  }
  void* block =
      mmap(nullptr, sizeof(channel::Control), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (block == MAP_FAILED) {
    close(descriptor);
    return failed("no shared memory");
  }
  auto* control = new (block) channel::Control{};
  control->magic = channel::kMagic;
  control->parent = getpid();
  control->arena_bytes = arena.bytes();
  control->memory_bytes = memory_bytes;
  if (const auto facts = device_facts(DeviceKind::cpu))
    control->threads = static_cast<std::uint32_t>(std::max(0, facts->multiprocessors));

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  // What a plugin prints is not the command's result.
  posix_spawn_file_actions_adddup2(&actions, 2, 1);
  posix_spawn_file_actions_adddup2(&actions, descriptor, channel::kControlDescriptor);
  posix_spawn_file_actions_adddup2(&actions, arena.descriptor(), channel::kArenaDescriptor);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // The command's signal handlers and ignored signals are its own.
  sigset_t all;
  sigfillset(&all);
  posix_spawnattr_setsigdefault(&attributes, &all);
  // A group of its own: what the terminal sends to the command (Ctrl-C) is not the plugin's end,
  // and whatever it starts can be stopped with it.
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::error_code ignored;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", ignored).string();
  std::string name = "greenfast", command = kPluginHostCommand, argument = path;
  char* argv[] = {name.data(), command.data(), argument.data(), nullptr};
  pid_t child = -1;
  const int error = posix_spawn(&child, self.c_str(), &actions, &attributes, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(descriptor);
  if (error != 0) {
    munmap(block, sizeof(channel::Control));
    errno = error;
    return failed("no process");
  }
  std::unique_ptr<PluginProcess> process(new PluginProcess(control, child));
  process->owner_ = getpid();
  return process;
}

PluginProcess::~PluginProcess() {
  // A fork of its owner has no say over it.
  if (owner_ == getpid() && end_ == PluginEnd::none) {
    kill(-child_, SIGKILL);
    while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  munmap(control_, sizeof(channel::Control));
}

Status PluginProcess::gone(int status) {
  end_ = PluginEnd::crashed;
  kill(-child_, SIGKILL);  // what it started does not outlive it
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    const char* name = sigabbrev_np(number);
    why_ = {StatusCode::internal,
            fmt::format(
                "crashed: killed by {}{}",
                name != nullptr ? fmt::format("SIG{}", name) : std::to_string(number),
                number == SIGKILL ? " (the system does that to who takes too much memory)" : "")};
  } else {
    why_ = {StatusCode::internal,
            fmt::format("crashed: its process ended with code {}", WEXITSTATUS(status))};
  }
  return why_;
}

Status PluginProcess::ask(channel::Request request, double timeout, double* seconds) {
  if (end_ != PluginEnd::none) return why_;
  control_->request = request;
  const auto begin = Clock::now();
  if (paused_) {
    kill(-child_, SIGCONT);
    paused_ = false;
  }
  const std::uint32_t ticket = control_->asked.load(std::memory_order_relaxed) + 1;
  control_->asked.store(ticket, std::memory_order_release);
  channel::wake(control_->asked);
  for (;;) {
    const std::uint32_t answered = control_->answered.load(std::memory_order_acquire);
    if (answered == ticket) break;
    channel::wait_while(control_->answered, answered, kLookSeconds);
    if (control_->answered.load(std::memory_order_acquire) == ticket) break;
    const double waited = seconds_since(begin);
    if (waited < kLookSeconds) continue;
    int status = 0;
    if (waitpid(child_, &status, WNOHANG) == child_) return gone(status);
    if (waited > timeout) {
      kill(-child_, SIGKILL);
      while (waitpid(child_, &status, 0) < 0 && errno == EINTR) {
      }
      end_ = PluginEnd::hung;
      why_ = {StatusCode::internal, fmt::format("hung: no end after {:g} s", timeout)};
      return why_;
    }
  }
  if (seconds != nullptr) *seconds = seconds_since(begin);
  const auto code = control_->status;
  if (code == 0) return {};
  const std::string text =
      clean_text({control_->text, strnlen(control_->text, channel::kTextBytes)});
  const bool known = code > 0 && code <= static_cast<int>(StatusCode::internal);
  return {known ? static_cast<StatusCode>(code) : StatusCode::internal, text};
}

void PluginProcess::pause() {
  if (end_ != PluginEnd::none || owner_ != getpid() || paused_) return;
  kill(-child_, SIGSTOP);
  paused_ = true;
}

std::optional<CpuUse> PluginProcess::cpu_use() const {
  clockid_t clock{};
  timespec used{};
  if (clock_getcpuclockid(child_, &clock) != 0 || clock_gettime(clock, &used) != 0)
    return std::nullopt;
  return CpuUse{child_,
                static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec)};
}

std::optional<std::int64_t> PluginProcess::private_bytes() const {
  // Counted page by page; the counters of statm lag behind by some hundred KB.
  std::ifstream file(fmt::format("/proc/{}/smaps_rollup", child_));
  for (std::string line; std::getline(file, line);) {
    std::int64_t kilobytes = 0;
    if (std::sscanf(line.c_str(), "Anonymous: %ld kB", &kilobytes) == 1) return 1024 * kilobytes;
  }
  return std::nullopt;
}

int PluginProcess::other_processes() const {
  int count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc", error), end; !error && it != end;
       it.increment(error)) {
    const pid_t pid = std::atoi(it->path().filename().c_str());
    if (pid > 0 && pid != child_ && getpgid(pid) == child_) ++count;
  }
  return count;
}

ThreadStates own_threads() {
  ThreadStates states;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/task", error), end; !error && it != end;
       it.increment(error)) {
    const pid_t thread = std::atoi(it->path().filename().c_str());
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(thread, sizeof set, &set) != 0) continue;
    std::vector<int> cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    errno = 0;
    const int nice = getpriority(PRIO_PROCESS, static_cast<id_t>(thread));
    if (errno == 0) states[thread] = {std::move(cpus), nice};
  }
  return states;
}

bool own_threads_changed(const ThreadStates& before) {
  const ThreadStates now = own_threads();
  return std::any_of(before.begin(), before.end(), [&](const auto& was) {
    const auto is = now.find(was.first);
    if (is == now.end()) return false;
    // The library's workers pin themselves when they first run, which may be after `before`.
    const bool moved = was.first == getpid() && is->second.first != was.second.first;
    return moved || is->second.second != was.second.second;
  });
}

int PluginProcess::threads() const {
  int count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it(fmt::format("/proc/{}/task", child_), error), end;
       !error && it != end; it.increment(error))
    ++count;
  return count;
}

}  // namespace greenfast::workbench
