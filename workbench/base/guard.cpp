#include "workbench/base/guard.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>

namespace greenfast::workbench {
namespace {

/// Ends every process of a group, with the time that a compiler takes to remove its files.
void end_group(pid_t group) noexcept {
  constexpr useconds_t kLook = 10'000;
  constexpr int kLooks = 100;
  kill(-group, SIGTERM);
  for (int i = 0; i < kLooks && kill(-group, 0) == 0; ++i) {
    waitpid(group, nullptr, WNOHANG);
    usleep(kLook);
  }
  kill(-group, SIGKILL);
}

}  // namespace

void run_guarded(pid_t parent, const char* program, char* const* argv, const char* directory,
                 const char* unfinished) noexcept {
  setpgid(0, 0);
  sigset_t watched, none;
  sigemptyset(&none);
  sigemptyset(&watched);
  for (const int number : {SIGTERM, SIGCHLD, SIGINT, SIGHUP}) sigaddset(&watched, number);
  sigprocmask(SIG_SETMASK, &watched, nullptr);
  signal(SIGCHLD, SIG_DFL);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  // Who died before that was asked for says nothing.
  if (getppid() != parent) _exit(127);
  const pid_t work = fork();
  if (work < 0) _exit(127);
  if (work == 0) {
    setpgid(0, 0);
    for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGPIPE}) signal(number, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    if (*directory != 0 && chdir(directory) != 0) _exit(127);
    execv(program, argv);
    _exit(127);
  }
  setpgid(work, work);  // whoever of both comes first
  // The ends of pipes that this one holds would keep their readers waiting.
  for (int descriptor = 0; descriptor < 1024; ++descriptor) close(descriptor);
  for (;;) {
    const int got = sigwaitinfo(&watched, nullptr);
    int status = 0;
    if (got == SIGTERM) {
      end_group(work);
      while (waitpid(work, &status, 0) < 0 && errno == EINTR) {
      }
      if (*unfinished != 0) unlink(unfinished);
      _exit(128 + SIGTERM);
    }
    if (got == SIGCHLD && waitpid(work, &status, WNOHANG) == work)
      _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
}

}  // namespace greenfast::workbench
