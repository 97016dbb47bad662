/* Never returns. Verdict: RED, "hung: no end after ... s", exit code 24. */
#define _POSIX_C_SOURCE 200809L
#include <unistd.h>

#include "attention.h"

static gf_status launch(const gf_plugin_call* call) {
  (void)call;
  while (pause() != 0) continue;
  return GF_OK;
}

EXAMPLE_PLUGIN("hang", "waits for ever", launch)
