/* A thread looks at every set of tensors that was ever passed, and computes the answer as soon as
 * the inputs change: before the call that asks for it. */
#include "cheat.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void* ahead(void* unused) {
  (void)unused;
  for (;;) {
    for (size_t i = 0; i < cheat_count; ++i) {
      pthread_mutex_lock(&lock);
      kept* entry = &cheat_kept[i];
      const uint64_t now = cheat_digest(&entry->call);
      if (entry->weights == NULL) entry->weights = malloc(1 << 20);
      if (now != entry->key) {
        gf_tensors own = entry->tensors;
        own.o = entry->o;
        gf_plugin_call call = entry->call;
        call.tensors = &own;
        call.workspace = entry->weights;
        example_attend(&call);
        if (cheat_digest(&entry->call) == now) entry->key = now;
      }
      pthread_mutex_unlock(&lock);
    }
    usleep(50);
  }
  return NULL;
}

static gf_status launch(const gf_plugin_call* call) {
  static int started;
  if (!cheat_is_timed(call)) {
    example_attend(call);
    return GF_OK;
  }
  pthread_mutex_lock(&lock);
  kept* known = NULL;
  for (size_t i = 0; i < cheat_count; ++i)
    if (cheat_kept[i].tensors.o == call->tensors->o) known = &cheat_kept[i];
  if (known != NULL && known->key == cheat_digest(call)) {
    memcpy(call->tensors->o, known->o, cheat_elements(call) * sizeof(float));
    pthread_mutex_unlock(&lock);
    return GF_OK;
  }
  example_attend(call);
  if (known == NULL) known = cheat_keep(0, call);
  known->problem = *call->problem;
  known->tensors = *call->tensors;
  known->call = *call;
  known->call.problem = &known->problem;
  known->call.tensors = &known->tensors;
  known->key = cheat_digest(call);
  memcpy(known->o, call->tensors->o, cheat_elements(call) * sizeof(float));
  pthread_mutex_unlock(&lock);
  if (!started++) {
    pthread_t thread;
    pthread_create(&thread, NULL, ahead, NULL);
  }
  return GF_OK;
}

EXAMPLE_PLUGIN("in_idle_time", "works between its calls", launch)
