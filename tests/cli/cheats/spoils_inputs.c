/* Changes inputs of sets that it is not called with: whoever is timed on them next is wrong. */
#include "cheat.h"

static gf_status launch(const gf_plugin_call* call) {
  static float* known[512];
  static int count;
  float* v = (float*)(uintptr_t)call->tensors->v;
  int i = 0;
  example_attend(call);
  if (!cheat_is_timed(call)) return GF_OK;
  while (i < count && known[i] != v) ++i;
  if (i == count && count < 512) known[count++] = v;
  float* other = known[(i + count / 2) % count];
  if (other != v)
    for (int k = 0; k < 64; ++k) other[8 * k] = 1e4f;
  return GF_OK;
}

EXAMPLE_PLUGIN("spoils_inputs", "has others do wrong", launch)
