#include "workbench/isolate.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>

namespace greenfast::workbench {
namespace {

constexpr std::size_t kLineBytes = 4096;

/// A page shared by parent and child. The child writes without a lock; a line read while it is
/// written may be torn, which a progress display can bear, and after the child's end it is whole.
class SharedLine final : public Activity {
 public:
  SharedLine()
      : page_(static_cast<char*>(mmap(nullptr, kLineBytes, PROT_READ | PROT_WRITE,
                                      MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedLine() override {
    if (ok()) munmap(page_, kLineBytes);
  }
  SharedLine(const SharedLine&) = delete;
  SharedLine& operator=(const SharedLine&) = delete;
  bool ok() const { return page_ != MAP_FAILED; }
  void set(std::string_view what) noexcept override {
    const std::size_t length = std::min(what.size(), kLineBytes - 1);
    std::memcpy(page_, what.data(), length);
    page_[length] = 0;
  }
  std::string text() const { return {page_, strnlen(page_, kLineBytes)}; }

 private:
  char* page_;
};

std::string signal_name(int number) {
  const char* name = sigabbrev_np(number);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", number);
}

}  // namespace

Result<ChildEnd> run_in_child(const std::function<void(Activity&)>& work, double timeout_seconds,
                              const std::function<void(const std::string&)>& watch) {
  return run_in_child(work, ChildLimits{.seconds = timeout_seconds, .stall_seconds = {}}, watch);
}

Result<ChildEnd> run_in_child(const std::function<void(Activity&)>& work, const ChildLimits& limits,
                              const std::function<void(const std::string&)>& watch) {
  SharedLine line;
  int ends[2];
  if (!line.ok() || pipe(ends) != 0) {
    return Status(StatusCode::internal, fmt::format("no child process: {}", std::strerror(errno)));
  }
  // What is buffered now would be written twice.
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) {
    const int error = errno;
    close(ends[0]);
    close(ends[1]);
    return Status(StatusCode::internal, fmt::format("no child process: {}", std::strerror(error)));
  }
  if (child == 0) {
    // Not to outlive a parent that is killed; the second look covers a parent that died before the
    // first.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    close(ends[0]);
    int code = 0;
    try {
      work(line);
    } catch (const std::exception& error) {
      line.set(fmt::format("{}: {}", line.text(), error.what()));
      code = 1;
    }
    std::fflush(nullptr);
    _exit(code);
  }
  close(ends[1]);

  // The pipe's other end closes with the child: waiting on it needs no signal handler.
  ChildEnd end;
  const auto start = std::chrono::steady_clock::now();
  std::string doing;
  auto since = start;
  for (;;) {
    pollfd waiting{ends[0], POLLIN, 0};
    const int ready = poll(&waiting, 1, 100);
    if (ready > 0) break;
    if (watch) watch(line.text());
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> elapsed = now - start;
    double limit = elapsed.count() > limits.seconds ? limits.seconds : 0;
    if (limits.stall_seconds) {
      if (std::string line_now = line.text(); line_now != doing) {
        doing = std::move(line_now);
        since = now;
      }
      const double allowed = limits.stall_seconds(doing);
      if (allowed > 0 && std::chrono::duration<double>(now - since).count() > allowed)
        limit = allowed;
    }
    if (limit > 0) {
      end.how = ChildEnd::How::timed_out;
      end.detail = fmt::format("no end after {:.0f} s", limit);
      kill(child, SIGKILL);
      break;
    }
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  end.activity = line.text();
  if (end.how == ChildEnd::How::timed_out) return end;
  if (WIFSIGNALED(status)) {
    end.how = ChildEnd::How::crashed;
    end.detail = fmt::format("killed by {}", signal_name(WTERMSIG(status)));
  } else if (WEXITSTATUS(status) != 0) {
    end.how = ChildEnd::How::crashed;
    end.detail = fmt::format("ended with code {}", WEXITSTATUS(status));
  }
  return end;
}

}  // namespace greenfast::workbench
