/* Reads through a null pointer in its third call. Verdict: RED, "crashed: killed by SIGSEGV", exit
 * code 24. */
#include "attention.h"

static gf_status launch(const gf_plugin_call* call) {
  static int calls = 0;
  volatile int* nowhere = NULL;
  if (++calls == 3) return *nowhere;
  example_attend(call);
  return GF_OK;
}

EXAMPLE_PLUGIN("crash", "crashes in its third call", launch)
