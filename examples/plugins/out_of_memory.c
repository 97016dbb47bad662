/* Wants more memory than its process may have (--plugin-memory). Verdict: RED, "out of memory",
 * exit code 24. */
#include <stdlib.h>

#include "attention.h"

static gf_status launch(const gf_plugin_call* call) {
  const size_t block = (size_t)64 << 20;
  for (;;) {
    char* more = malloc(block);
    if (more == NULL) {
      snprintf(call->error, call->error_capacity, "malloc of 64 MiB failed");
      return GF_OUT_OF_MEMORY;
    }
    more[0] = 1;
  }
}

EXAMPLE_PLUGIN("out_of_memory", "allocates without end", launch)
