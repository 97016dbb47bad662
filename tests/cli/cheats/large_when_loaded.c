/* Takes 512 MB when it is loaded, before anybody asks how much it has. */
#include "cheat.h"

static char* arena;
static const size_t kBytes = (size_t)512 << 20;

__attribute__((constructor)) static void take(void) {
  arena = malloc(kBytes);
  if (arena != NULL) memset(arena, 1, kBytes);
}

static gf_status launch(const gf_plugin_call* call) {
  example_attend(call);
  arena[kBytes - 1] ^= 1;
  return GF_OK;
}

EXAMPLE_PLUGIN("large_when_loaded", "has an arena", launch)
