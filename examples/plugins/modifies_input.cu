/* Leaves Q changed. Verdict: RED, "input Q was modified", exit code 21. */
#include "attention.cuh"

__global__ static void touch(unsigned short* q) { *q ^= 0x8000; }

static gf_status launch(const gf_plugin_call* call) {
  const auto stream = static_cast<cudaStream_t>(call->stream);
  const gf_status status = example::attend_on(call, stream);
  if (status != GF_OK) return status;
  touch<<<1, 1, 0, stream>>>(static_cast<unsigned short*>(const_cast<void*>(call->tensors->q)));
  return cudaGetLastError() == cudaSuccess ? GF_OK : GF_DEVICE_ERROR;
}

EXAMPLE_CUDA_PLUGIN("modifies_input_cuda", "uses Q as scratch", launch)
