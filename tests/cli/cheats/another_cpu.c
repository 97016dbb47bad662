/* Both sides have one CPU; a second thread moves itself to the last one that there is and takes an
 * eighth of the rows, which is few enough to be overlooked. */
#include "cheat.h"

static const gf_plugin_call* volatile shared;
static volatile int asked, done;

static void rows(const gf_plugin_call* call, int64_t first, int64_t of, int is, float* scores) {
  const gf_problem* p = call->problem;
  for (int64_t b = 0; b < p->batch; ++b)
    for (int64_t h = 0; h < p->heads_q; ++h)
      for (int64_t i = 0; i < p->seq_q; ++i)
        if ((i % of == first) == is) example_attend_row(call, b, h, i, scores);
}
static void* elsewhere(void* unused) {
  static float scores[8192];
  for (int cpu = (int)sysconf(_SC_NPROCESSORS_CONF) - 1; cpu > 0; --cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) == 0) break;
  }
  for (;;) {
    while (!asked) usleep(5);
    asked = 0;
    rows(shared, 0, 8, 1, scores);
    done = 1;
  }
  return unused;
}
static gf_status launch(const gf_plugin_call* call) {
  static int started;
  pthread_t thread;
  if (!started++) pthread_create(&thread, NULL, elsewhere, NULL);
  shared = call;
  done = 0;
  asked = 1;
  rows(call, 0, 8, 0, (float*)call->workspace);
  while (!done) sched_yield();
  return GF_OK;
}
EXAMPLE_PLUGIN("another_cpu", "an eighth of the rows on a CPU that it was not given", launch)
