/* Computes where the output holds the command's poison, and finds its answer there else: a sample
 * with more calls than sets of inputs comes to the same sets again. */
#include "cheat.h"

static gf_status launch(const gf_plugin_call* call) {
  const uint32_t* o = (const uint32_t*)call->tensors->o;
  if (!cheat_is_timed(call) || o[0] == 0xffffffffu) {
    example_attend(call);
    return GF_OK;
  }
  /* As long as the ceiling asks at least. */
  for (volatile int i = 0; i < 2000; ++i) {
  }
  return GF_OK;
}

EXAMPLE_PLUGIN("repeats", "is done where it was before", launch)
