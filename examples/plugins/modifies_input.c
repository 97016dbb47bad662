/* Scales Q in place and leaves it so. Verdict: RED, "input Q was modified", exit code 21. */
#include "attention.h"

static gf_status launch(const gf_plugin_call* call) {
  const gf_problem* p = call->problem;
  example_attend(call);
  float* q = (float*)example_row(call->tensors->q, &p->q, 0, 0, 0);
  q[0] *= 2;
  return GF_OK;
}

EXAMPLE_PLUGIN("modifies_input", "uses Q as scratch", launch)
