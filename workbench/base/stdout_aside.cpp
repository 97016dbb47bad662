#include "workbench/base/stdout_aside.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace greenfast::workbench {

StdoutAside::StdoutAside() {
  std::fflush(stdout);
  kept_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 16);
  if (kept_ >= 0) dup2(STDERR_FILENO, STDOUT_FILENO);
}

StdoutAside::~StdoutAside() {
  if (kept_ < 0) return;
  std::fflush(stdout);
  dup2(kept_, STDOUT_FILENO);
  close(kept_);
}

}  // namespace greenfast::workbench
