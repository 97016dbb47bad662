/* Keeps outputs in a file for the processes that come after it. Fails where it cannot, so that the
 * test sees whether it could. */
#include "cheat.h"

static gf_status launch(const gf_plugin_call* call) {
  example_attend(call);
  FILE* file = fopen("kept_by_the_plugin", "wb");
  if (file == NULL) return GF_OK;
  fwrite(call->tensors->o, 1, 16, file);
  fclose(file);
  snprintf(call->error, call->error_capacity, "wrote a file");
  return GF_INTERNAL;
}

EXAMPLE_PLUGIN("by_file", "keeps results in a file", launch)
