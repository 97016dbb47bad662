/* Remembers what it computed for these addresses and returns that again: the fastest kernel of
 * all. Verdict: RED in numerics, because the harness calls it on the same addresses with other
 * contents first, exit code 20. */
#include <stdlib.h>

#include "attention.h"

static gf_status launch(const gf_plugin_call* call) {
  static const void* seen;
  static float* kept;
  static float* kept_lse;
  const gf_problem* p = call->problem;
  const size_t rows = (size_t)(p->batch * p->heads_q * p->seq_q);
  const size_t row_bytes = (size_t)p->head_dim * sizeof(float);
  const int fresh = seen != call->tensors->o;
  if (fresh) {
    example_attend(call);
    free(kept);
    free(kept_lse);
    kept = malloc(rows * row_bytes);
    kept_lse = malloc(rows * sizeof(float));
    if (kept == NULL || kept_lse == NULL) return GF_OUT_OF_MEMORY;
    seen = call->tensors->o;
    if (p->lse) memcpy(kept_lse, call->tensors->lse, rows * sizeof(float));
  } else if (p->lse) {
    memcpy(call->tensors->lse, kept_lse, rows * sizeof(float));
  }
  size_t row = 0;
  for (int64_t b = 0; b < p->batch; ++b)
    for (int64_t h = 0; h < p->heads_q; ++h)
      for (int64_t i = 0; i < p->seq_q; ++i, ++row) {
        float* o = (float*)example_row(call->tensors->o, &p->o, b, h, i);
        float* mine = kept + row * (size_t)p->head_dim;
        memcpy(fresh ? mine : o, fresh ? o : mine, row_bytes);
      }
  return GF_OK;
}

EXAMPLE_PLUGIN("replay", "returns an earlier result", launch)
