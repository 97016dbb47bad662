#include "workbench/subjects/plugin/confine.hpp"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "workbench/base/build_info.hpp"
#include "workbench/base/host.hpp"
#include "workbench/subjects/plugin/channel.hpp"

namespace greenfast::workbench {
namespace {

// ---- Landlock, by its numbers: headers of a distribution know the first version alone

constexpr long kCreateRuleset = 444, kAddRule = 445, kRestrictSelf = 446;
constexpr unsigned kVersionFlag = 1;
struct RulesetAttributes {
  std::uint64_t files, network, scoped;
};
// Bits of the accesses to files, in the order of the versions that brought them.
constexpr std::uint64_t kWriteFile = 1u << 1, kReadFile = 1u << 2, kRemoveAndMake = 0x1ff0,
                        kRefer = 1u << 13, kTruncate = 1u << 14;
constexpr std::uint64_t kScopeSignal = 1u << 1;

void allow(int rules, std::uint64_t access, const char* path, int flags) {
  struct {
    std::uint64_t access;
    std::int32_t parent;
  } __attribute__((packed)) beneath{access, open(path, O_PATH | O_CLOEXEC | flags)};
  if (beneath.parent < 0) return;
  syscall(kAddRule, rules, 1, &beneath, 0u);
  close(beneath.parent);
}

/// What lies beside a file and beside each folder on the way to it: Landlock knows no rule that
/// takes one file away, so that everything else has to be allowed. Nothing where a folder cannot be
/// listed: who knows a name in it may read that.
std::vector<std::filesystem::path> all_beside(const std::filesystem::path& file) {
  std::vector<std::filesystem::path> out;
  std::error_code error;
  std::filesystem::path folder = "/";
  for (const std::filesystem::path& name : file.relative_path()) {
    std::filesystem::directory_iterator it(folder, error), end;
    for (; !error && it != end; it.increment(error))
      if (it->path().filename() != name) out.push_back(it->path());
    if (error) return {};
    folder /= name;
  }
  return out;
}

std::uint32_t landlock(const std::filesystem::path& secret) {
  const long version = syscall(kCreateRuleset, nullptr, std::size_t{0}, kVersionFlag);
  if (version < 1) return 0;
  RulesetAttributes attributes{};
  attributes.files = kWriteFile | kRemoveAndMake;
  if (version >= 2) attributes.files |= kRefer;
  if (version >= 3) attributes.files |= kTruncate;
  if (version >= 6) attributes.scoped = kScopeSignal;
  const auto beside = secret.empty() ? std::vector<std::filesystem::path>() : all_beside(secret);
  if (!beside.empty()) attributes.files |= kReadFile;
  const std::size_t size = version >= 6   ? sizeof attributes
                           : version >= 4 ? offsetof(RulesetAttributes, scoped)
                                          : offsetof(RulesetAttributes, network);
  const int rules = static_cast<int>(syscall(kCreateRuleset, &attributes, size, 0u));
  if (rules < 0) return 0;
  // What keeps nothing of what is written to it; not all of /dev, where memory of others (/dev/shm),
  // the terminal and the system's log lie.
  for (const char* device : {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"})
    allow(rules, kWriteFile, device, 0);
  // A link is what it leads to.
  for (const auto& path : beside) allow(rules, kReadFile, path.c_str(), O_NOFOLLOW);
  const bool done = syscall(kRestrictSelf, rules, 0u) == 0;
  close(rules);
  if (!done) return 0;
  return channel::kNoFiles | (version >= 6 ? channel::kNoSignals : 0);
}

// ---- seccomp

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr std::uint32_t kArchitecture = 0;
#endif

/// A program of jumps for the kernel; written so that every rule ends in a return.
class Filter {
 public:
  void load(std::size_t offset) {
    add(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset));
  }
  /// The system call fails with `error`.
  void refuse(long call, int error) {
    code_.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, 1, static_cast<std::uint32_t>(call)});
    add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error));
  }
  /// The same, unless of the bits of `mask` its first argument has these and no others.
  void refuse_unless(long call, std::uint32_t mask, std::uint32_t bits, int error) {
    code_.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, 5, static_cast<std::uint32_t>(call)});
    load(offsetof(seccomp_data, args));  // its lower half: both architectures are little-endian
    add(BPF_ALU | BPF_AND | BPF_K, mask);
    code_.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, 1, bits});
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error));
  }
  /// The same where its argument of this number is `value`, or where it is not.
  void refuse_where(long call, std::size_t argument, std::uint32_t value, bool is, int error) {
    code_.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, 4, static_cast<std::uint32_t>(call)});
    load(offsetof(seccomp_data, args) + argument * sizeof(std::uint64_t));
    code_.push_back({BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint8_t>(is ? 0 : 1),
                     static_cast<std::uint8_t>(is ? 1 : 0), value});
    add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error));
    load(offsetof(seccomp_data, nr));
  }
  /// The same where its argument of this number is `value` and the one of number `size` is above
  /// `most`.
  void refuse_above(long call, std::size_t argument, std::uint32_t value, std::size_t size,
                    std::uint32_t most, int error) {
    const auto place = [](std::size_t number) {
      return offsetof(seccomp_data, args) + number * sizeof(std::uint64_t);
    };
    code_.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, 8, static_cast<std::uint32_t>(call)});
    load(place(argument));
    code_.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, 5, value});
    load(place(size) + sizeof(std::uint32_t));  // its upper half
    code_.push_back({BPF_JMP | BPF_JGT | BPF_K, 2, 0, 0});
    load(place(size));
    code_.push_back({BPF_JMP | BPF_JGT | BPF_K, 0, 1, most});
    add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error));
    load(offsetof(seccomp_data, nr));
  }
  /// The same where of the bits of `mask` its argument of this number has any.
  void refuse_bits(long call, std::size_t argument, std::uint32_t mask, int error) {
    code_.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, 4, static_cast<std::uint32_t>(call)});
    load(offsetof(seccomp_data, args) + argument * sizeof(std::uint64_t));
    code_.push_back({BPF_JMP | BPF_JSET | BPF_K, 0, 1, mask});
    add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error));
    load(offsetof(seccomp_data, nr));
  }
  void refuse_others_than(std::uint32_t architecture) {
    code_.push_back({BPF_JMP | BPF_JEQ | BPF_K, 1, 0, architecture});
    add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
  }
  void refuse_from(std::uint32_t call) {
    code_.push_back({BPF_JMP | BPF_JGE | BPF_K, 0, 1, call});
    add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
  }
  bool install() {
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
  }

 private:
  void add(int code, std::uint32_t value) {
    code_.push_back({static_cast<std::uint16_t>(code), 0, 0, value});
  }
  std::vector<sock_filter> code_;
};

/// Those that a filter has room for, the first one among them.
std::vector<int> some_threads_of(int process) {
  constexpr std::size_t kMost = 256;  // five instructions each, of 4096
  std::vector<int> threads = threads_of(process);
  std::erase(threads, process);
  threads.insert(threads.begin(), process);
  if (threads.size() > kMost) threads.resize(kMost);
  return threads;
}

/// Rights of root that would reach the clock, the kernel's log, other users' processes; reading
/// files stays.
void drop_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (syscall(SYS_capget, &header, data) != 0) return;
  constexpr std::uint32_t kReadFiles = 1u << CAP_DAC_READ_SEARCH;
  for (auto& part : data) part.inheritable = 0;
  data[0].effective &= kReadFiles;
  data[0].permitted &= kReadFiles;
  data[1].effective = data[1].permitted = 0;
  syscall(SYS_capset, &header, data);
}

std::uint32_t no_processes(bool kept_to_fewer) {
  // A sanitizer starts processes of its own: a symbolizer, a leak check.
  if (kArchitecture == 0 || !build_info().sanitize.empty()) return 0;
  Filter filter;
  filter.load(offsetof(seccomp_data, arch));
  filter.refuse_others_than(kArchitecture);
  filter.load(offsetof(seccomp_data, nr));
#if defined(__x86_64__)
  filter.refuse_from(0x40000000);  // the 32-bit twins of all calls
#endif
#if defined(__NR_fork)
  filter.refuse(__NR_fork, EPERM);
  filter.refuse(__NR_vfork, EPERM);
#endif
  filter.refuse(435, ENOSYS);  // clone3, whose flags lie in memory: the C library then uses clone
  for (
      const long call :
      {__NR_execve, __NR_execveat, __NR_setsid, __NR_setpgid, __NR_ptrace, __NR_process_vm_readv,
       __NR_process_vm_writev, __NR_setpriority, __NR_sched_setscheduler, __NR_sched_setparam,
       __NR_sched_setattr, __NR_ioprio_set, __NR_fallocate, __NR_move_pages, __NR_migrate_pages,
       __NR_mbind, __NR_perf_event_open, __NR_bpf,
       // The clock that times it.
       __NR_adjtimex, __NR_clock_adjtime, __NR_clock_settime, __NR_settimeofday,
       // Rights that it does not have.
       __NR_unshare, __NR_setns, __NR_userfaultfd,
       // Whatever outlives it, or reaches who is not confined.
       __NR_shmget, __NR_semget, __NR_msgget, __NR_mq_open, __NR_add_key, __NR_request_key,
       __NR_keyctl, __NR_socket,
       // Memory files on their way through one are open nowhere.
       __NR_socketpair,
       // Pages in pipes, of which the system tells no more than the bytes that are to be read; and
       // memory that it shows to nobody.
       __NR_splice, __NR_tee, __NR_vmsplice, 447 /* memfd_secret */,
       // A signal from a timer or a queue continues a process that is stopped; and timers that run out
       // and reads that come in while it is stopped are served on a CPU on which the other side is timed.
       __NR_timer_create, __NR_timerfd_create, __NR_timerfd_settime, __NR_setitimer, __NR_io_setup,
       __NR_mq_notify, __NR_tkill, 424 /* pidfd_send_signal */, 425 /* io_uring_setup */,
       438 /* pidfd_getfd */, 440 /* process_madvise */,
       // What Landlock lets everybody do to files that are there: their modes, owners, times and
       // attributes.
       __NR_fchmod, __NR_fchmodat, 452 /* fchmodat2 */, __NR_fchown, __NR_fchownat, __NR_utimensat,
       __NR_setxattr, __NR_lsetxattr, __NR_fsetxattr, __NR_removexattr, __NR_lremovexattr,
       __NR_fremovexattr, 463 /* setxattrat */, 466 /* removexattrat */,
       // Filters of its own, whose listener can hold a thread where nothing stops it.
       __NR_seccomp})
    filter.refuse(call, EPERM);
#if defined(__NR_chmod)
  for (const long call :
       {__NR_chmod, __NR_chown, __NR_lchown, __NR_utime, __NR_utimes, __NR_futimesat})
    filter.refuse(call, EPERM);
#endif
  // Limits of other processes; and pages of the memory that all share, which whoever is timed next
  // would have to get back: MADV_REMOVE, MADV_COLD, MADV_PAGEOUT.
  filter.refuse_where(__NR_prlimit64, 0, 0, false, EPERM);
  for (const std::uint32_t advice : {9u, 20u, 21u})
    filter.refuse_where(__NR_madvise, 2, advice, true, EPERM);
  // Mapping gigabytes at once (MADV_POPULATE_READ, MADV_POPULATE_WRITE) is a wait that no stop ends.
  // An older kernel says the same of any: who asks for it does without.
  for (const std::uint32_t advice : {22u, 23u})
    filter.refuse_above(__NR_madvise, 2, advice, 1, kMostPopulated, EINVAL);
  // Signals to itself alone, also where Landlock does not see to that; none from a file that is
  // ready (F_SETSIG), nor to others (F_SETOWN, F_SETOWN_EX, FIOSETOWN, SIOCSPGRP), nor another than
  // SIGKILL when the command dies.
  const auto own = static_cast<std::uint32_t>(getpid());
  for (const long call : {__NR_kill, __NR_tgkill, __NR_rt_sigqueueinfo, __NR_rt_tgsigqueueinfo})
    filter.refuse_where(call, 0, own, false, EPERM);
  for (const std::uint32_t command : {8u, 10u, 15u})
    filter.refuse_where(__NR_fcntl, 1, command, true, EPERM);
  for (const std::uint32_t request : {0x8901u, 0x8902u})
    filter.refuse_where(__NR_ioctl, 1, request, true, EPERM);
  for (const std::uint32_t what :
       {static_cast<std::uint32_t>(PR_SET_PDEATHSIG), static_cast<std::uint32_t>(PR_SET_SECCOMP)})
    filter.refuse_where(__NR_prctl, 0, what, true, EPERM);
  // Typing into a terminal: TIOCSTI, TIOCLINUX.
  for (const std::uint32_t request : {0x5412u, 0x541cu})
    filter.refuse_where(__NR_ioctl, 1, request, true, EPERM);
  // A table of open files of one thread's own (CLOSE_RANGE_UNSHARE), as unshare would make it.
  filter.refuse_bits(436 /* close_range */, 2, 2, EPERM);
  // CPUs of the command's threads that there are; of later ones it looks itself.
  for (const int thread : some_threads_of(getppid()))
    filter.refuse_where(__NR_sched_setaffinity, 0, static_cast<std::uint32_t>(thread), true, EPERM);
  // Where both sides have fewer CPUs than the system would give, a thread could move to another; what
  // it asks for lies in memory, which a filter does not see. It hears that it was done, so that pools
  // that name a CPU for each thread work, and stays where it may run.
  if (kept_to_fewer) filter.refuse(__NR_sched_setaffinity, 0);
  // Threads alone: that share the table of open files, where memory files are counted, and none that
  // waits for another as vfork does, which cannot be stopped.
  constexpr std::uint32_t kThread = 0x10000, kFiles = 0x400, kWaits = 0x4000;  // CLONE_...
  filter.refuse_unless(__NR_clone, kThread | kFiles | kWaits, kThread | kFiles, EPERM);
  return filter.install() ? channel::kNoProcesses : 0;
}

}  // namespace

std::uint32_t confine(const std::filesystem::path& secret, bool kept_to_fewer) {
  // Both ask for it: no program that this one might start gains rights.
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return 0;
  const std::uint32_t files = landlock(secret);
  if (build_info().sanitize.empty()) drop_capabilities();  // a leak check traces its process
  return files | no_processes(kept_to_fewer);
}

bool keep_to(std::uint32_t threads) {
  cpu_set_t all, some, widest;
  CPU_ZERO(&all);
  CPU_ZERO(&some);
  if (sched_getaffinity(0, sizeof all, &all) != 0) return false;
  for (int cpu = 0;
       cpu < CPU_SETSIZE && (threads == 0 || CPU_COUNT(&some) < static_cast<int>(threads)); ++cpu)
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &some);
  // What the system makes of every CPU there could be is what a thread could get.
  std::memset(&widest, 0xff, sizeof widest);
  const bool asked = sched_setaffinity(0, sizeof widest, &widest) == 0 &&
                     sched_getaffinity(0, sizeof widest, &widest) == 0;
  sched_setaffinity(0, sizeof some, &some);
  return asked && CPU_COUNT(&widest) > CPU_COUNT(&some);
}

}  // namespace greenfast::workbench
