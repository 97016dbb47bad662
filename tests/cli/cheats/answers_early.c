/* Tells the command that a timed call has ended when it begins, and computes then. */
#include "cheat.h"

#include <linux/futex.h>
#include <sys/syscall.h>

static gf_status launch(const gf_plugin_call* call) {
  volatile cheat_control* control = cheat_request();
  if (cheat_is_timed(call) && control != NULL) {
    control->answered = control->asked;
    syscall(SYS_futex, &control->answered, FUTEX_WAKE, 1, NULL, NULL, 0);
  }
  example_attend(call);
  return GF_OK;
}

EXAMPLE_PLUGIN("answers_early", "is done before it begins", launch)
