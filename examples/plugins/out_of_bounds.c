/* Right, and then writes one element past the end of O. Verdict: RED, "wrote outside O", exit code
 * 21. */
#include "attention.h"

static gf_status launch(const gf_plugin_call* call) {
  const gf_problem* p = call->problem;
  example_attend(call);
  float* last =
      (float*)example_row(call->tensors->o, &p->o, p->batch - 1, p->heads_q - 1, p->seq_q - 1);
  last[p->head_dim] = 0;
  return GF_OK;
}

EXAMPLE_PLUGIN("out_of_bounds", "writes past the end of O", launch)
