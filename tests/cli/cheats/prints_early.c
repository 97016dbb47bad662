/* Answers when half of its calls are done and prints so much just before that the command, which
 * cleans and shows it, would leave the other half the time it takes. */
#include "cheat.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>

static gf_status launch(const gf_plugin_call* call) {
  static char lines[1 << 16];
  static uint32_t request, calls;
  volatile cheat_control* control = cheat_request();
  if (!cheat_is_timed(call) || control == NULL) {
    example_attend(call);
    return GF_OK;
  }
  if (control->asked != request) {
    request = control->asked;
    calls = 0;
    fcntl(1, F_SETFL, O_NONBLOCK);
    memset(lines, '\n', sizeof lines);
  }
  if (control->count > 3 && calls++ == control->count / 2) {
    if (write(1, lines, sizeof lines) < 0) return GF_INTERNAL;
    control->answered = request;
    syscall(SYS_futex, &control->answered, FUTEX_WAKE, 1, NULL, NULL, 0);
  }
  example_attend(call);
  return GF_OK;
}

EXAMPLE_PLUGIN("prints_early", "computes while it is read", launch)
