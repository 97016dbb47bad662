#include "cli/interrupt.hpp"

#include <csignal>

namespace greenfast::cli {
namespace {

volatile std::sig_atomic_t caught = 0;

void remember(int number) { caught = number; }

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = remember;
  // After the first signal the default action is back.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int interrupt_signal() noexcept { return caught; }

}  // namespace greenfast::cli
