/* An honest kernel. Verdict: GREEN, exit code 0. */
#include "attention.h"

static gf_status launch(const gf_plugin_call* call) {
  example_attend(call);
  return GF_OK;
}

EXAMPLE_PLUGIN("honest", "one row at a time", launch)
