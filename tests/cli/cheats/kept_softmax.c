/* Keeps softmax(QK^T) by address, and multiplies by V honestly: a change of V alone is no defence.
 */
#include "cheat.h"

static gf_status launch(const gf_plugin_call* call) {
  const gf_problem* p = call->problem;
  const uint64_t key = (uint64_t)(uintptr_t)call->tensors->o;
  if (!cheat_is_timed(call)) {
    example_attend(call);
    return GF_OK;
  }
  kept* known = cheat_find(key);
  const size_t rows = (size_t)(p->batch * p->heads_q * p->seq_q), keys = (size_t)p->seq_kv;
  const int fresh = known == NULL;
  if (fresh) {
    known = cheat_keep(key, call);
    known->weights = malloc(rows * keys * sizeof(float));
  }
  size_t row = 0;
  for (int64_t b = 0; b < p->batch; ++b)
    for (int64_t h = 0; h < p->heads_q; ++h)
      for (int64_t i = 0; i < p->seq_q; ++i, ++row) {
        float* w = known->weights + row * keys;
        float* o = (float*)example_row(call->tensors->o, &p->o, b, h, i);
        if (fresh) {
          example_attend_row(call, b, h, i, w);
          float max = w[0], sum = 0;
          for (size_t j = 0; j < keys; ++j) max = w[j] > max ? w[j] : max;
          for (size_t j = 0; j < keys; ++j) sum += w[j] = expf(w[j] - max);
          for (size_t j = 0; j < keys; ++j) w[j] /= sum;
        }
        for (int64_t d = 0; d < p->head_dim; ++d) o[d] = 0;
        for (size_t j = 0; j < keys; ++j) {
          const float* v = example_row(call->tensors->v, &p->v, b, h, (int64_t)j);
          for (int64_t d = 0; d < p->head_dim; ++d) o[d] += w[j] * v[d];
        }
      }
  return GF_OK;
}

EXAMPLE_PLUGIN("kept_softmax", "half of the work", launch)
