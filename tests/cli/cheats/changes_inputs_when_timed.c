/* Leaves notes for later calls in its inputs, but only when timed. */
#include "cheat.h"

static gf_status launch(const gf_plugin_call* call) {
  example_attend(call);
  if (cheat_is_timed(call)) ((unsigned char*)call->tensors->q)[3] ^= 1;
  return GF_OK;
}

EXAMPLE_PLUGIN("changes_inputs_when_timed", "writes where it reads", launch)
