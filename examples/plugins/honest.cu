/* An honest CUDA kernel. Verdict: GREEN, exit code 0. */
#include "attention.cuh"

static gf_status launch(const gf_plugin_call* call) {
  return example::attend_on(call, static_cast<cudaStream_t>(call->stream));
}

EXAMPLE_CUDA_PLUGIN("honest_cuda", "one warp a query row", launch)
