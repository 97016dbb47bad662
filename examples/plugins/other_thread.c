/* Hands the work to a thread and returns before it is done: on the CPU what work on another stream
 * is on a GPU. Its calls look as if they cost nothing. Verdict: RED, "output changed after the
 * stream's work was done", exit code 21. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "attention.h"

typedef struct job {
  gf_plugin_call call;
  gf_problem problem;
  gf_tensors tensors;
} job;

static void* work(void* argument) {
  job* todo = (job*)argument;
  const struct timespec later = {0, 5 * 1000 * 1000};
  nanosleep(&later, NULL);
  example_attend(&todo->call);
  free(todo);
  return NULL;
}

static gf_status launch(const gf_plugin_call* call) {
  job* todo = malloc(sizeof *todo);
  if (todo == NULL) return GF_OUT_OF_MEMORY;
  todo->call = *call;
  todo->problem = *call->problem;
  todo->tensors = *call->tensors;
  todo->call.problem = &todo->problem;
  todo->call.tensors = &todo->tensors;
  /* A small stack: threads that a busy machine lets wait would use up --plugin-memory by theirs. */
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 128 * 1024);
  pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const int error = pthread_create(&thread, &small, work, todo);
  pthread_attr_destroy(&small);
  if (error == 0) return GF_OK;
  free(todo);
  return GF_INTERNAL;
}

EXAMPLE_PLUGIN("other_thread", "returns before the work is done", launch)
