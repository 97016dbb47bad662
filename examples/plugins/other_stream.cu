/* Works on a stream of its own: events on the given one see nothing of it. Verdict: RED, "not on
 * the given stream", exit code 21. */
#include "attention.cuh"

__global__ static void wait_a_while() {
  const long long begin = clock64();
  while (clock64() - begin < 20'000'000) continue;
}

static gf_status launch(const gf_plugin_call* call) {
  static cudaStream_t own = nullptr;
  if (own == nullptr && cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking) != cudaSuccess)
    return GF_DEVICE_ERROR;
  wait_a_while<<<1, 1, 0, own>>>();
  return example::attend_on(call, own);
}

EXAMPLE_CUDA_PLUGIN("other_stream", "works on a stream of its own", launch)
