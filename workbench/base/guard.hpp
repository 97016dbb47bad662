// A process between this one and a program that it starts, so that the program ends with this
// process, however that ends: a program's own children (a compiler's passes) hear of nobody's death.
#pragma once

#include <sys/types.h>

namespace greenfast::workbench {

/// To be called in the child of a fork, with `parent` as getpid() was before it: runs the program in
/// a process group of its own, whose end (its code, or 128 + the signal) is this process's. On
/// SIGTERM, or when the thread that forked is gone, the group is asked to end, then made to, and the
/// file `unfinished` is removed. Only calls that are safe after a fork of a program with threads.
[[noreturn]] void run_guarded(pid_t parent, const char* program, char* const* argv,
                              const char* directory, const char* unfinished) noexcept;

}  // namespace greenfast::workbench
