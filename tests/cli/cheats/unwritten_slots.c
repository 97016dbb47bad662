/* Does nothing in every third timed call: what the output held before may be right. */
#include "cheat.h"

static gf_status launch(const gf_plugin_call* call) {
  static int calls;
  if (!cheat_is_timed(call) || ++calls % 3 != 0 || calls < 40) example_attend(call);
  return GF_OK;
}

EXAMPLE_PLUGIN("unwritten_slots", "two calls of three", launch)
