/* Tells the command that a timed call has ended when it begins, and computes then. */
#include "cheat.h"

#include <linux/futex.h>
#include <stdio.h>
#include <sys/syscall.h>

/* Counts of requests and of answers, as channel.hpp lays them out. */
static volatile uint32_t* block(void) {
  static uint32_t* found;
  static int looked;
  char line[512];
  if (looked++) return found;
  FILE* maps = fopen("/proc/self/maps", "r");
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
    unsigned long from;
    if (strstr(line, "greenfast-plugin-control") != NULL && sscanf(line, "%lx-", &from) == 1)
      found = (uint32_t*)from;
  }
  if (maps != NULL) fclose(maps);
  return found;
}

static gf_status launch(const gf_plugin_call* call) {
  volatile uint32_t* control = block();
  if (cheat_is_timed(call) && control != NULL) {
    control[3] = control[2];
    syscall(SYS_futex, &control[3], FUTEX_WAKE, 1, NULL, NULL, 0);
  }
  example_attend(call);
  return GF_OK;
}

EXAMPLE_PLUGIN("answers_early", "is done before it begins", launch)
