/* Starts processes that take the other side's cores, in groups of their own. */
#include "cheat.h"

static gf_status launch(const gf_plugin_call* call) {
  static int started;
  for (; started < 4; ++started)
    if (fork() == 0) {
      setsid();
      alarm(20);
      for (volatile unsigned n = 0;;) n = n + 1;
    }
  example_attend(call);
  return GF_OK;
}

EXAMPLE_PLUGIN("burning_children", "its children never sleep", launch)
