/* Keeps every output, in memory that is shared with nobody and yet is not private: what counts a
 * process's private pages does not see it. */
#include "cheat.h"

#include <sys/mman.h>

static gf_status launch(const gf_plugin_call* call) {
  static char *kept, *end;
  const size_t bytes = cheat_elements(call) * sizeof(float), room = (size_t)256 << 20;
  if (kept == NULL) {
    kept = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    end = kept;
  }
  example_attend(call);
  if (kept != MAP_FAILED && end + bytes <= kept + room) {
    memcpy(end, call->tensors->o, bytes);
    end += bytes;
  }
  return GF_OK;
}

EXAMPLE_PLUGIN("keeps_in_shared_memory", "forgets nothing", launch)
