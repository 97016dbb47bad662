/* A kernel that never ends. Verdict: RED, "hung", exit code 24. */
#include "attention.cuh"

__global__ static void wait_for_ever(volatile int* flag) {
  while (*flag != 12345678) continue;
}

static gf_status launch(const gf_plugin_call* call) {
  wait_for_ever<<<1, 1, 0, static_cast<cudaStream_t>(call->stream)>>>(
      static_cast<volatile int*>(call->tensors->o));
  return cudaGetLastError() == cudaSuccess ? GF_OK : GF_DEVICE_ERROR;
}

EXAMPLE_CUDA_PLUGIN("hang_cuda", "never ends", launch)
