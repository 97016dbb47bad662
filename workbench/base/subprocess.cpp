#include "workbench/base/subprocess.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "workbench/base/guard.hpp"

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostOutput = std::size_t{256} << 20;

// Both ends of a pipe, closed with the object and in every program that is started.
struct Pipe {
  std::array<int, 2> fd{-1, -1};
  Pipe() {
    if (::pipe2(fd.data(), O_CLOEXEC) != 0) fd = {-1, -1};
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_end(std::size_t end) {
    if (fd[end] >= 0) ::close(fd[end]);
    fd[end] = -1;
  }
};

Status failed(const std::string& program, const char* what) {
  return Status(StatusCode::internal, fmt::format("{}: {}: {}", program, what, strerror(errno)));
}

}  // namespace

std::optional<fs::path> find_program(std::string_view name) {
  const char* path = std::getenv("PATH");
  std::string_view rest = path != nullptr ? path : "";
  while (!rest.empty()) {
    const std::size_t end = rest.find(':');
    const fs::path candidate = fs::path(rest.substr(0, end)) / name;
    std::error_code error;
    if (::access(candidate.c_str(), X_OK) == 0 && fs::is_regular_file(candidate, error))
      return candidate;
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  }
  return std::nullopt;
}

Result<ProgramEnd> run_program(std::span<const std::string> argv, double timeout_seconds,
                               const fs::path& directory) {
  RunLimits limits;
  limits.seconds = timeout_seconds;
  limits.directory = directory;
  return run_program(argv, limits);
}

Result<ProgramEnd> run_program(std::span<const std::string> argv, const RunLimits& limits) {
  const std::string& name = argv[0];
  fs::path program = name;
  if (name.find('/') == std::string::npos) {
    const auto found = find_program(name);
    if (!found) return Status(StatusCode::no_device, fmt::format("{} is not installed", name));
    program = *found;
  }
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);

  Pipe out, err;
  if (out.fd[0] < 0 || err.fd[0] < 0) return failed(name, "no pipe");
  const std::string in = limits.directory.string(), unfinished = limits.unfinished.string();
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return failed(name, "no process");
  if (child == 0) {
    const int nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, 0);
    ::dup2(out.fd[1], 1);
    ::dup2(err.fd[1], 2);
    run_guarded(parent, program.c_str(), words.data(), in.c_str(), unfinished.c_str());
  }
  out.close_end(1);
  err.close_end(1);

  ProgramEnd end;
  const auto limit =
      std::chrono::steady_clock::now() +
      std::chrono::milliseconds(static_cast<long long>(std::min(limits.seconds, 1e9) * 1e3));
  std::array<pollfd, 2> streams{{{out.fd[0], POLLIN, 0}, {err.fd[0], POLLIN, 0}}};
  std::array<std::string*, 2> texts{&end.out, &end.err};
  bool too_much = false;
  while (streams[0].fd >= 0 || streams[1].fd >= 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        limit - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      end.timed_out = true;
      break;
    }
    if (limits.stop && limits.stop()) {
      end.stopped = true;
      break;
    }
    const long look = limits.stop ? 100 : 1000;
    if (::poll(streams.data(), streams.size(), static_cast<int>(std::min(left.count(), look))) <
            0 &&
        errno != EINTR)
      break;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (streams[i].fd < 0 || streams[i].revents == 0) continue;
      std::array<char, 65536> buffer;
      const ssize_t got = ::read(streams[i].fd, buffer.data(), buffer.size());
      if (got > 0)
        texts[i]->append(buffer.data(), static_cast<std::size_t>(got));
      else if (got == 0 || errno != EINTR)
        streams[i].fd = -1;
    }
    if (end.out.size() + end.err.size() > kMostOutput) {
      too_much = true;
      break;
    }
  }
  if (end.timed_out || end.stopped || too_much) ::kill(child, SIGTERM);  // its guard does the rest
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  end.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (too_much)
    return Status(StatusCode::internal, fmt::format("{} printed more than 256 MiB", name));
  return end;
}

std::string last_line(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
    text.remove_suffix(1);
  const std::size_t start = text.rfind('\n');
  return std::string(start == std::string_view::npos ? text : text.substr(start + 1));
}

}  // namespace greenfast::workbench
