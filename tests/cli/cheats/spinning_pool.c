/* No malice: a pool whose threads spin while they wait for work, as some runtimes do by default. It
 * takes the other side's cores. */
#include "cheat.h"

static void* wait_for_work(void* unused) {
  (void)unused;
  for (volatile unsigned n = 0;;) n = n + 1;
  return NULL;
}

static gf_status launch(const gf_plugin_call* call) {
  static int started;
  for (; started < 4; ++started) {
    pthread_t thread;
    pthread_create(&thread, NULL, wait_for_work, NULL);
  }
  example_attend(call);
  return GF_OK;
}

EXAMPLE_PLUGIN("spinning_pool", "its threads never sleep", launch)
