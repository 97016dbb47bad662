/* Writes to an address that nobody owns, which ends the device's context. Verdict: RED, "the device
 * reports", exit code 24; other variants of the command get their results. */
#include "attention.cuh"

__global__ static void write_nowhere(float* nowhere) { *nowhere = 1; }

static gf_status launch(const gf_plugin_call* call) {
  write_nowhere<<<1, 1, 0, static_cast<cudaStream_t>(call->stream)>>>(
      reinterpret_cast<float*>(0x10));
  return cudaGetLastError() == cudaSuccess ? GF_OK : GF_DEVICE_ERROR;
}

EXAMPLE_CUDA_PLUGIN("bad_address", "writes where nothing is", launch)
