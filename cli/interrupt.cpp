#include "cli/interrupt.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "workbench/base/build_info.hpp"
#include "workbench/base/exit_code.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/terminal.hpp"

namespace greenfast::cli {
namespace {

volatile std::sig_atomic_t caught = 0;
const volatile int* told = nullptr;
char running[160] = "starting";
char left_behind[160] = "";
const char* heard = "\ngreenfast: stopping after this step; once more stops at once\n";

// Only what is safe in a signal handler.
void end_at_once(int) {
  for (const char* text : {"\ngreenfast: interrupted", static_cast<const char*>(left_behind), "\n"})
    if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) break;
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
  if (::write(STDERR_FILENO, heard, std::strlen(heard)) < 0) errno = before;
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

void end_when_interrupted(std::string_view left) {
  std::string text = left.empty() ? std::string() : fmt::format("; {}", left);
  text.resize(std::min(text.size(), sizeof left_behind - 1));
  std::memcpy(left_behind, text.c_str(), text.size() + 1);
  on_interrupt(end_at_once);
}

void catch_interrupts() { on_interrupt(remember); }

EndSoonWhenInterrupted::EndSoonWhenInterrupted(std::string left) {
  heard = "\ngreenfast: stopping\n";
  catch_interrupts();
  watch_ = std::jthread([left = std::move(left)](const std::stop_token& ended) {
    using namespace std::chrono_literals;
    while (!ended.stop_requested() && !interrupted()) std::this_thread::sleep_for(20ms);
    for (int looks = 0; !ended.stop_requested() && looks < 15; ++looks)
      std::this_thread::sleep_for(20ms);
    if (ended.stop_requested()) return;
    workbench::ScratchFolder::remove_own();
    workbench::say(stderr, fmt::format("greenfast: interrupted; {}\n", left));
    ::_exit(workbench::kInterrupted);
  });
}

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
