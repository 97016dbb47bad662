#include "workbench/subjects/plugin/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
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
#include <map>
#include <new>

#include <greenfast/attention.hpp>

#include "workbench/base/clean_text.hpp"
#include "workbench/base/host.hpp"
#include "workbench/base/seconds_since.hpp"
#include "workbench/device/arena.hpp"
#include "workbench/subjects/plugin/channel.hpp"
#include "workbench/subjects/plugin/plugins.hpp"
#include "workbench/subjects/plugin/serve.hpp"

extern char** environ;

namespace greenfast::workbench {
namespace {

using Clock = std::chrono::steady_clock;

/// Of what a plugin prints between two looks; beyond it waits.
constexpr int kPipeBytes = 1 << 20;

/// Between two looks whether the process is still there.
constexpr double kLookSeconds = 0.05;

/// After which a process that does not stop never will: one of its threads would have to wait that
/// long for a CPU.
constexpr double kStopSeconds = 10;

/// Bytes in somebody's pipe that nobody has read.
std::int64_t waiting_in(const std::filesystem::path& pipe) {
  int bytes = 0;
  const int end = open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (end < 0) return 0;
  if (ioctl(end, FIONREAD, &bytes) != 0) bytes = 0;
  close(end);
  return bytes;
}

std::string& hidden() {
  static std::string path;
  return path;
}

}  // namespace

void hide_from_plugins(const std::filesystem::path& secret) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::weakly_canonical(secret, error);
  const std::string path = error ? std::string() : whole.string();
  hidden() = path.size() < channel::kTextBytes ? path : std::string();
}

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
  // What a plugin prints is not the command's result, and may hold what a terminal obeys.
  int output[2] = {-1, -1};
  if (pipe2(output, O_CLOEXEC) != 0) {
    munmap(block, sizeof(channel::Control));
    close(descriptor);
    return failed("no pipe");
  }
  for (int& end : output) {
    const int above = fcntl(end, F_DUPFD_CLOEXEC, 16);  // the numbers that the child gets
    close(end);
    end = above;
  }
  fcntl(output[0], F_SETFL, O_NONBLOCK);
  fcntl(output[1], F_SETPIPE_SZ, kPipeBytes);
  auto* control = new (block) channel::Control{};
  control->magic = channel::kMagic;
  control->parent = getpid();
  control->arena_bytes = arena.bytes();
  control->memory_bytes = memory_bytes;
  std::memcpy(control->secret, hidden().c_str(), hidden().size() + 1);
  if (const auto facts = device_facts(DeviceKind::cpu))
    control->threads = static_cast<std::uint32_t>(std::max(0, facts->multiprocessors));

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  for (const int printed : {1, 2}) posix_spawn_file_actions_adddup2(&actions, output[1], printed);
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
  close(output[1]);
  struct stat control_file {
  }, arena_file{}, printed{};
  fstat(descriptor, &control_file);
  fstat(arena.descriptor(), &arena_file);
  fstat(output[0], &printed);
  close(descriptor);
  if (error != 0) {
    close(output[0]);
    munmap(block, sizeof(channel::Control));
    errno = error;
    return failed("no process");
  }
  std::unique_ptr<PluginProcess> process(new PluginProcess(control, child));
  process->owner_ = getpid();
  process->output_ = output[0];
  process->ours_ = {control_file.st_ino, arena_file.st_ino, printed.st_ino};
  return process;
}

PluginProcess::~PluginProcess() {
  // A fork of its owner has no say over it.
  if (owner_ == getpid() && end_ == PluginEnd::none) {
    kill(-child_, SIGKILL);
    while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  if (owner_ == getpid()) show_output(true);
  close(output_);
  munmap(control_, sizeof(channel::Control));
}

Status PluginProcess::gone(int status) {
  end_ = PluginEnd::crashed;
  kill(-child_, SIGKILL);  // what it started does not outlive it
  show_output(true);
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
    show_output();  // a full pipe would hold it up
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
  // What it printed is shown when it is stopped: until then it might go on computing meanwhile.
  if (seconds != nullptr) {
    *seconds = seconds_since(begin);
    cpu_at_answer_ = cpu_use();
  } else {
    show_output();
  }
  const auto code = control_->status;
  if (code == 0) return {};
  const std::string text =
      clean_line({control_->text, strnlen(control_->text, channel::kTextBytes)});
  const bool known = code > 0 && code <= static_cast<int>(StatusCode::internal);
  return {known ? static_cast<StatusCode>(code) : StatusCode::internal, text};
}

void PluginProcess::show_output(bool all) {
  char text[1 << 14];
  // Of who prints faster than this reads, the rest comes the next time.
  for (std::size_t seen = 0; seen < std::size_t{kPipeBytes};) {
    const ssize_t count = read(output_, text, sizeof text);
    if (count <= 0) break;
    seen += static_cast<std::size_t>(count);
    unfinished_.append(text, static_cast<std::size_t>(count));
  }
  std::size_t shown = 0;
  for (std::size_t end; (end = unfinished_.find('\n', shown)) != std::string::npos ||
                        unfinished_.size() - shown > sizeof text;) {
    end = std::min(end, unfinished_.size());
    fmt::print(stderr, "plugin| {}\n", clean_text(unfinished_.substr(shown, end - shown)));
    shown = std::min(end + 1, unfinished_.size());
  }
  unfinished_.erase(0, shown);
  if (!all || unfinished_.empty()) return;
  fmt::print(stderr, "plugin| {}\n", clean_text(unfinished_));
  unfinished_.clear();
}

void PluginProcess::pause() {
  if (end_ != PluginEnd::none || owner_ != getpid() || paused_) return;
  kill(-child_, SIGSTOP);
  // The system leaves that to one thread, its first where it can. While this one waits for a CPU or
  // for what only SIGKILL ends, the others would go on computing: whoever meets its own stops all.
  for (const int thread : threads_of(child_)) syscall(SYS_tgkill, child_, thread, SIGSTOP);
  // A thread that cannot be stopped (in the system, for a device or as vfork waits) would hold this
  // up for good.
  const auto begin = Clock::now();
  for (useconds_t look = 10;; look = std::min<useconds_t>(2 * look, 2000)) {
    siginfo_t stopped{};
    const int got =
        waitid(P_PID, static_cast<id_t>(child_), &stopped, WSTOPPED | WEXITED | WNOWAIT | WNOHANG);
    if (got == 0 && stopped.si_pid == child_) break;
    if (got != 0 && errno != EINTR) break;  // the next ask finds out
    if (seconds_since(begin) > kStopSeconds) {
      kill(-child_, SIGKILL);
      end_ = PluginEnd::hung;
      why_ = {StatusCode::internal,
              fmt::format("hung: a thread of it could not be stopped within {:g} s", kStopSeconds)};
      while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
      }
      break;
    }
    usleep(look);
  }
  paused_ = true;
  show_output(end_ != PluginEnd::none);
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
    if (std::sscanf(line.c_str(), "Anonymous: %ld kB", &kilobytes) == 1)
      return 1024 * kilobytes + shared_bytes();
  }
  return std::nullopt;
}

std::int64_t PluginProcess::shared_bytes() const {
  // Memory that is a file without a name (memfd_create, MAP_SHARED without a file): whole where it
  // is open, else what is mapped of it now. What waits in a pipe. Of every thread: where the system
  // refuses nothing (confine.cpp), one may have a table of open files of its own.
  std::map<ino_t, std::int64_t> bytes;
  for (const int thread : threads_of(child_)) {
    std::error_code error;
    for (std::filesystem::directory_iterator
             it(fmt::format("/proc/{}/task/{}/fd", child_, thread), error),
         end;
         !error && it != end; it.increment(error)) {
      std::error_code gone;
      struct stat file {};
      const std::string to = std::filesystem::read_symlink(it->path(), gone).string();
      const bool pipe = to.starts_with("pipe:");
      if ((!pipe && !to.starts_with("/memfd:")) || stat(it->path().c_str(), &file) != 0) continue;
      if (!pipe) bytes[file.st_ino] = 512 * static_cast<std::int64_t>(file.st_blocks);
      if (pipe && bytes.count(file.st_ino) == 0) bytes[file.st_ino] = waiting_in(it->path());
    }
  }
  const std::map<ino_t, std::int64_t> open = bytes;
  std::ifstream maps(fmt::format("/proc/{}/smaps", child_));
  unsigned long inode = 0;
  bool counted = false;
  for (std::string line; std::getline(maps, line);) {
    char from[32], rights[8];
    std::int64_t kilobytes = 0;
    if (std::sscanf(line.c_str(), "%31[0-9a-f-] %7s %*s %*s %lu", from, rights, &inode) == 3) {
      const bool nameless = line.find(" /memfd:") != std::string::npos ||
                            line.find(" /dev/zero (deleted)") != std::string::npos;
      counted = nameless && open.count(inode) == 0;
    } else if (counted && std::sscanf(line.c_str(), "Rss: %ld kB", &kilobytes) == 1) {
      bytes[inode] += 1024 * kilobytes;
    }
  }
  std::int64_t sum = SharedArena::active()->bytes_beyond_use();
  for (const auto& [file, size] : bytes)
    if (std::find(ours_.begin(), ours_.end(), file) == ours_.end()) sum += size;
  return sum;
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

void start_library_workers() {
  const Problem problem = make_problem(1, 64, 64, 16, 16, 32, DType::f32);
  std::vector<float> in(static_cast<std::size_t>(64 * 16 * 32)), out(in.size());
  Tensors tensors;
  tensors.q = tensors.k = tensors.v = in.data();
  tensors.o = out.data();
  // Whether it succeeds is of no interest: then there are no workers.
  (void)attention(problem, tensors);
}

ThreadStates own_threads() {
  ThreadStates states;
  for (const int thread : threads_of(0)) {
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
    // The library moves its workers itself: a plugin's process may not (confine.cpp).
    const bool moved = was.first == getpid() && is->second.first != was.second.first;
    return moved || is->second.second != was.second.second;
  });
}

int PluginProcess::threads() const { return static_cast<int>(threads_of(child_).size()); }

}  // namespace greenfast::workbench
