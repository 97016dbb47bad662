#include "cli/interrupt.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "workbench/base/build_info.hpp"
#include "workbench/base/exit_code.hpp"

namespace greenfast::cli {
namespace {

volatile std::sig_atomic_t caught = 0;
const volatile int* told = nullptr;
char running[160] = "starting";

// Only what is safe in a signal handler.
void end_at_once(int) {
  constexpr char kEnded[] = "\ngreenfast: interrupted\n";
  if (::write(STDERR_FILENO, kEnded, sizeof kEnded - 1) < 0) ::_exit(workbench::kInterrupted);
  ::_exit(workbench::kInterrupted);
}

void on_interrupt(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    struct sigaction before {};
    sigaction(number, nullptr, &before);
    // nohup asks for that.
    if (number == SIGHUP && before.sa_handler == SIG_IGN) continue;
    sigaction(number, &action, nullptr);
  }
}

// Only what is safe in a signal handler, and errno as it was.
void remember(int number) {
  const int before = errno;
  caught = number;
  on_interrupt(end_at_once);
  // A step can take minutes: who pressed Ctrl-C shall see that it was heard.
  constexpr char kHeard[] = "\ngreenfast: stopping after this step; once more stops at once\n";
  if (::write(STDERR_FILENO, kHeard, sizeof kHeard - 1) < 0) errno = before;
  errno = before;
}

// Only what is safe in a signal handler: write and _exit.
void report_crash(int number) {
  auto say = [](const char* text) {
    if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
  };
  say("\ngreenfast: crash (");
  say(number == SIGSEGV   ? "SIGSEGV"
      : number == SIGBUS  ? "SIGBUS"
      : number == SIGILL  ? "SIGILL"
      : number == SIGFPE  ? "SIGFPE"
      : number == SIGABRT ? "SIGABRT"
                          : "signal");
  say(") in ");
  say(running);
  say("; nothing was written\n");
  ::_exit(workbench::kCrash);
}

}  // namespace

void end_when_interrupted() { on_interrupt(end_at_once); }

void catch_interrupts() { on_interrupt(remember); }

bool interrupted() noexcept { return caught != 0 || (told != nullptr && *told != 0); }

void watch_for_interrupt(const volatile int* shared) noexcept { told = shared; }

void catch_crashes() {
  if (!workbench::build_info().sanitize.empty()) return;
  struct sigaction action {};
  action.sa_handler = report_crash;
  for (int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) sigaction(number, &action, nullptr);
}

void now_running(std::string_view what) noexcept {
  const std::size_t length = std::min(what.size(), sizeof running - 1);
  std::memcpy(running, what.data(), length);
  running[length] = '\0';
}

}  // namespace greenfast::cli
