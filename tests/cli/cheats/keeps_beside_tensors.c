/* Keeps every output, in that part of the memory shared with the command where no tensor lies. */
#include "cheat.h"

static gf_status launch(const gf_plugin_call* call) {
  static char *begin, *at;
  static int looked;
  const size_t bytes = cheat_elements(call) * sizeof(float);
  if (!looked++) begin = cheat_mapped("memfd:greenfast-plugin ", &at);
  example_attend(call);
  if (begin != NULL && cheat_is_timed(call)) memcpy(at -= bytes, call->tensors->o, bytes);
  return GF_OK;
}

EXAMPLE_PLUGIN("keeps_beside_tensors", "forgets nothing", launch)
