#include "workbench/base/isolate.hpp"

#include <fcntl.h>
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
#include <optional>
#include <string>

#include "workbench/base/clean_text.hpp"

namespace greenfast::workbench {
namespace {

constexpr std::size_t kLineBytes = 4096;

/// A page shared by parent and child. The child writes without a lock; a line read while it is
/// written may be torn, which a progress display can bear, and after the child's end it is whole.
struct Page {
  Actor actor;
  bool threw;
  StatusCode code;
  char line[kLineBytes];
  char thrown[kLineBytes];
  char subject[kLineBytes];
  char blame[kLineBytes];
};

void put(char* to, std::string_view text) noexcept {
  const std::size_t length = text.copy(to, kLineBytes - 1);
  to[length] = 0;
}

class SharedPage final : public Activity {
 public:
  SharedPage()
      : page_(static_cast<Page*>(mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE,
                                      MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedPage() override {
    if (ok()) munmap(page_, sizeof(Page));
  }
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;
  bool ok() const { return page_ != MAP_FAILED; }
  using Activity::set;
  void set(std::string_view what, Actor actor, std::string_view subject) noexcept override {
    page_->actor = actor;
    put(page_->subject, subject);
    put(page_->line, what);
  }
  void blame(std::string_view subject, std::string_view why) noexcept override {
    put(page_->subject, subject);
    put(page_->blame, why);
  }
  void threw(std::string_view what, StatusCode code) noexcept {
    page_->threw = true;
    page_->code = code;
    put(page_->thrown, what);
  }
  bool has_thrown() const { return page_->threw; }
  Actor actor() const { return page_->actor; }
  std::string text() const { return read(page_->line); }
  StatusCode code() const { return page_->code; }
  std::string thrown() const { return read(page_->thrown); }
  std::string subject() const { return read(page_->subject); }
  std::string blamed_for() const { return read(page_->blame); }

 private:
  static std::string read(const char* text) { return {text, strnlen(text, kLineBytes)}; }

  Page* page_;
};

/// What a child prints, line by line and cleaned.
class CleanOutput {
 public:
  bool open() {
    if (pipe2(ends_, O_CLOEXEC) != 0) return false;
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
    return true;
  }
  ~CleanOutput() {
    for (const int end : ends_)
      if (end >= 0) close(end);
  }
  CleanOutput() = default;
  CleanOutput(const CleanOutput&) = delete;
  CleanOutput& operator=(const CleanOutput&) = delete;

  /// In the child: both outputs are the pipe.
  void redirect() {
    dup2(ends_[1], STDOUT_FILENO);
    dup2(ends_[1], STDERR_FILENO);
    setvbuf(stdout, nullptr, _IOLBF, 0);
  }
  /// In the parent: the child's end is the child's.
  void close_child_end() {
    close(ends_[1]);
    ends_[1] = -1;
  }
  int descriptor() const { return ends_[0]; }
  /// Shows what is there; false once the child's end is closed.
  bool show() {
    char text[1 << 14];
    ssize_t count = 0;
    while ((count = read(ends_[0], text, sizeof text)) > 0) {
      unfinished_.append(text, static_cast<std::size_t>(count));
      for (std::size_t end; (end = unfinished_.find('\n')) != std::string::npos;) {
        line(unfinished_.substr(0, end));
        unfinished_.erase(0, end + 1);
      }
      // No line is that long; shown in pieces, it does not fill the memory.
      if (unfinished_.size() > kLongestLine) finish();
    }
    return count < 0 && (errno == EAGAIN || errno == EINTR);
  }
  void finish() {
    if (!unfinished_.empty()) line(unfinished_);
    unfinished_.clear();
  }

 private:
  static constexpr std::size_t kLongestLine = 1 << 16;
  static void line(const std::string& text) { fmt::print(stderr, "{}\n", clean_text(text)); }

  int ends_[2] = {-1, -1};
  std::string unfinished_;
};

std::string signal_name(int number) {
  const char* name = sigabbrev_np(number);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", number);
}

}  // namespace

Result<ChildEnd> run_in_child(const std::function<void(Activity&)>& work, double timeout_seconds,
                              const std::function<void(const std::string&)>& watch) {
  return run_in_child(work, ChildLimits{.seconds = timeout_seconds}, watch);
}

Result<ChildEnd> run_in_child(const std::function<void(Activity&)>& work, const ChildLimits& limits,
                              const std::function<void(const std::string&)>& watch) {
  SharedPage line;
  int ends[2];
  // Closed in whatever the child starts (a plugin's process): it would keep this one waiting.
  if (!line.ok() || pipe2(ends, O_CLOEXEC) != 0) {
    return Status(StatusCode::internal, fmt::format("no child process: {}", std::strerror(errno)));
  }
  std::optional<CleanOutput> output;
  if (limits.clean_output && !output.emplace().open()) {
    const int error = errno;
    close(ends[0]);
    close(ends[1]);
    return Status(StatusCode::internal, fmt::format("no child process: {}", std::strerror(error)));
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
    setpgid(0, 0);
    close(ends[0]);
    if (output) output->redirect();
    int code = 0;
    try {
      work(line);
    } catch (const StatusError& error) {
      line.threw(error.what(), error.code());
      code = 1;
    } catch (const std::exception& error) {
      line.threw(error.what(), StatusCode::internal);
      code = 1;
    }
    std::fflush(nullptr);
    _exit(code);
  }
  close(ends[1]);
  if (output) output->close_child_end();
  setpgid(child, child);  // whoever of both comes first

  // The pipe's other end closes with the child: waiting on it needs no signal handler.
  ChildEnd end;
  const auto start = std::chrono::steady_clock::now();
  std::string doing;
  auto since = start;
  for (;;) {
    // Of the output no more is expected once its other end is closed.
    pollfd waiting[] = {{ends[0], POLLIN, 0}, {output ? output->descriptor() : -1, POLLIN, 0}};
    const int ready = poll(waiting, 2, 100);
    if (output && waiting[1].revents != 0 && !output->show()) {
      output->finish();
      output.reset();
    }
    if (ready > 0 && waiting[0].revents != 0) break;
    // A process that it started may hold the pipe open, and the step would be a TIMEOUT.
    siginfo_t gone{};
    if (waitid(P_PID, static_cast<id_t>(child), &gone, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        gone.si_pid == child)
      break;
    if (watch) watch(line.text());
    if (limits.stop && limits.stop()) {
      end.how = ChildEnd::How::stopped;
      kill(-child, SIGKILL);
      break;
    }
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> elapsed = now - start;
    double limit = elapsed.count() > limits.seconds ? limits.seconds : 0;
    if (limits.stall_seconds) {
      if (std::string line_now = line.text(); line_now != doing) {
        doing = std::move(line_now);
        since = now;
      }
      const double allowed = limits.stall_seconds(line.subject());
      if (allowed > 0 && std::chrono::duration<double>(now - since).count() > allowed)
        limit = allowed;
    }
    if (limit > 0) {
      end.how = ChildEnd::How::timed_out;
      end.detail = fmt::format("no end after {:.0f} s", limit);
      kill(-child, SIGKILL);
      break;
    }
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  // Processes that whatever ran in it has started do not outlive it, to be timed beside the next.
  kill(-child, SIGKILL);
  if (output) {
    output->show();
    output->finish();
  }
  end.activity = line.text();
  end.actor = line.actor();
  end.subject = line.subject();
  end.blame = line.blamed_for();
  if (end.how != ChildEnd::How::finished) return end;
  if (WIFSIGNALED(status)) {
    end.how = ChildEnd::How::crashed;
    end.signal = WTERMSIG(status);
    end.detail = fmt::format("killed by {}", signal_name(end.signal));
  } else if (WEXITSTATUS(status) != 0) {
    // A plugin that calls exit(1) has not thrown.
    end.how = line.has_thrown() ? ChildEnd::How::failed : ChildEnd::How::crashed;
    if (line.has_thrown()) end.code = line.code();
    end.detail =
        line.has_thrown() ? line.thrown() : fmt::format("ended with code {}", WEXITSTATUS(status));
  }
  return end;
}

}  // namespace greenfast::workbench
