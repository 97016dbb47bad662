/* Leaves every eighth row to its neighbour's answer when timed. */
#include "cheat.h"

static gf_status launch(const gf_plugin_call* call) {
  const gf_problem* p = call->problem;
  for (int64_t b = 0; b < p->batch; ++b)
    for (int64_t h = 0; h < p->heads_q; ++h)
      for (int64_t i = 0; i < p->seq_q; ++i) {
        if (!cheat_is_timed(call) || i % 8 != 7) {
          example_attend_row(call, b, h, i, (float*)call->workspace);
        } else {
          memcpy((float*)example_row(call->tensors->o, &p->o, b, h, i),
                 example_row(call->tensors->o, &p->o, b, h, i - 1),
                 (size_t)p->head_dim * sizeof(float));
        }
      }
  return GF_OK;
}

EXAMPLE_PLUGIN("some_rows", "seven rows of eight", launch)
