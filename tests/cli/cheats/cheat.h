/* What the cheats share: each computes attention as examples/plugins does while GREEN looks, and
 * something cheaper when it believes to be timed. */
#ifndef GREENFAST_TESTS_CHEAT_H
#define GREENFAST_TESTS_CHEAT_H

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../examples/plugins/attention.h"

/* GREEN puts a page of one of two patterns before every output; the clock's ring has none. */
static inline int cheat_is_timed(const gf_plugin_call* call) {
  const unsigned char* o = (const unsigned char*)call->tensors->o;
  return !((o[-2] == 0xff && o[-1] == 0x7f) || (o[-2] == 0xfe && o[-1] == 0xff));
}

static inline size_t cheat_elements(const gf_plugin_call* call) {
  const gf_problem* p = call->problem;
  return (size_t)(p->batch * p->heads_q * p->seq_q * p->head_dim);
}

/* The command's request, as channel.hpp lays it out. */
typedef struct cheat_control {
  uint32_t magic;
  int32_t parent;
  uint32_t asked, answered, request;
  uint64_t arena_bytes, arena_used, memory_bytes;
  uint32_t kernel;
  gf_problem problem;
  uint64_t workspace, workspace_bytes;
  uint32_t threads, sets, count;
} cheat_control;

/* Where memory of that name is mapped; NULL where it is not. */
static inline char* cheat_mapped(const char* name, char** end) {
  char line[512], *found = NULL;
  FILE* maps = fopen("/proc/self/maps", "r");
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
    unsigned long from, to;
    if (strstr(line, name) == NULL || sscanf(line, "%lx-%lx", &from, &to) != 2) continue;
    found = (char*)from;
    if (end != NULL) *end = (char*)to;
  }
  if (maps != NULL) fclose(maps);
  return found;
}
static inline volatile cheat_control* cheat_request(void) {
  static volatile cheat_control* found;
  static int looked;
  if (!looked++) found = (volatile cheat_control*)cheat_mapped("greenfast-plugin-control", NULL);
  return found;
}

/* 72 values tell inputs of a random generator apart. */
static inline uint64_t cheat_digest(const gf_plugin_call* call) {
  const gf_tensors* t = call->tensors;
  const void* inputs[] = {t->q, t->k, t->v};
  uint64_t digest = 14695981039346656037u;
  for (int i = 0; i < 3; ++i)
    for (size_t n = 0; n < 24; ++n) {
      const uint32_t* words = (const uint32_t*)inputs[i];
      digest = (digest ^ words[n * (cheat_elements(call) / 24)]) * 1099511628211u;
    }
  return digest;
}

/* What is kept for a key. */
typedef struct kept {
  uint64_t key;
  float *o, *weights;
  gf_plugin_call call;
  gf_problem problem;
  gf_tensors tensors;
} kept;
static kept cheat_kept[4096];
static size_t cheat_count;

static inline kept* cheat_find(uint64_t key) {
  for (size_t i = 0; i < cheat_count; ++i)
    if (cheat_kept[i].key == key) return &cheat_kept[i];
  return NULL;
}
static inline kept* cheat_keep(uint64_t key, const gf_plugin_call* call) {
  kept* entry = &cheat_kept[cheat_count < 4095 ? cheat_count++ : 4095];
  entry->key = key;
  if (entry->o == NULL) entry->o = malloc(cheat_elements(call) * sizeof(float));
  memcpy(entry->o, call->tensors->o, cheat_elements(call) * sizeof(float));
  return entry;
}

/* Attention over the first `keys` keys. */
static inline void cheat_attend(const gf_plugin_call* call, int64_t keys) {
  gf_problem shorter = *call->problem;
  shorter.seq_kv = keys;
  gf_plugin_call other = *call;
  other.problem = &shorter;
  example_attend(&other);
}

#endif
