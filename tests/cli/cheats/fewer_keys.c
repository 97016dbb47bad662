/* Uses a quarter of the keys when timed, always the same: outputs agree with each other. */
#include "cheat.h"

static gf_status launch(const gf_plugin_call* call) {
  cheat_attend(call, cheat_is_timed(call) ? call->problem->seq_kv / 4 : call->problem->seq_kv);
  return GF_OK;
}

EXAMPLE_PLUGIN("fewer_keys", "a quarter of the work", launch)
