/* Puts the command, and so the other side, on one core and at the lowest priority. */
#include "cheat.h"

static gf_status launch(const gf_plugin_call* call) {
  if (cheat_is_timed(call)) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    sched_setaffinity(getppid(), sizeof one, &one);
    setpriority(PRIO_PROCESS, (id_t)getppid(), 19);
  }
  example_attend(call);
  return GF_OK;
}

EXAMPLE_PLUGIN("holds_others_back", "makes the command slow", launch)
