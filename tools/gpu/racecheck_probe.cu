// racecheck_probe KERNEL: whether compute-sanitizer's racecheck follows a way of ordering shared
// memory. Half of a block's warps fill a buffer, the other half reads it, the first half fills it
// again, and so on. tools/gpu/sanitize runs each kernel under racecheck, and takes a hazard for
// none only if racecheck says here what it then has to:
//   none      nothing orders them: must be reported
//   sync      both sides wait at named barriers: must not be reported
//   arrive    the side that goes on only arrives (bar.arrive), as in cuda.stage_c.warp_spec and
//             where cuda.sm90.prefill merges split tiles
//   mbarrier  a warp's first lane arrives for it after __syncwarp, the other side waits for the
//             phase, as in cuda.sm90.small
//   between   all wait at __syncthreads, and pairs of warps at a named barrier of their own before
//             they read what others wrote, some once, some three times, as cuda.sm80.mma does in pairs
// arrive and mbarrier are right by the PTX ISA's memory consistency model: bar.arrive synchronises with
// bar.sync, and mbarrier.arrive, a release, with the test that sees its phase completed.
//
// sm_90 and later. Exit codes: 0 the kernel ran and read what had been written (`none` may read
// anything), 1 it did not, 2 usage.
#include <cstdio>
#include <cstring>

#include "kernels/cuda/device/ptx_cp_async.cuh"
#include "kernels/cuda/device/ptx_mbarrier.cuh"

namespace {

namespace ptx = greenfast::cuda::ptx;

constexpr int kGroup = 128, kThreads = 2 * kGroup, kRounds = 4, kManyRounds = 300;

enum class Order { none, sync, arrive, mbarrier };
enum Barrier : int { kFull = 1, kFree = 2 };  // 0 is __syncthreads

/// One direction of the exchange: what was done to the buffer before is handed to the other group.
template <Order kOrder>
__device__ void hand_over(int barrier, std::uint32_t mbarriers) {
  if constexpr (kOrder == Order::sync) ptx::named_barrier_sync<kThreads>(barrier);
  if constexpr (kOrder == Order::arrive) {
    __threadfence_block();
    ptx::named_barrier_arrive<kThreads>(barrier);
  }
  if constexpr (kOrder == Order::mbarrier) {
    __syncwarp();
    ptx::mbarrier_arrive_if(mbarriers + 8 * barrier, threadIdx.x % 32 == 0);
  }
}

template <Order kOrder>
__device__ void take_over(int barrier, std::uint32_t mbarriers, int phase) {
  if constexpr (kOrder == Order::sync || kOrder == Order::arrive)
    ptx::named_barrier_sync<kThreads>(barrier);
  if constexpr (kOrder == Order::mbarrier) ptx::mbarrier_wait(mbarriers + 8 * barrier, phase % 2);
}

template <Order kOrder>
__global__ void __launch_bounds__(kThreads) exchange(int* out) {
#if __CUDA_ARCH__ >= 900
  __shared__ int buffer[kGroup];
  __shared__ alignas(8) unsigned long long barriers[3];
  const auto mbarriers = static_cast<std::uint32_t>(__cvta_generic_to_shared(barriers));
  const int thread = static_cast<int>(threadIdx.x) % kGroup;
  if (kOrder == Order::mbarrier && threadIdx.x == 0) {
    ptx::mbarrier_init(mbarriers + 8 * kFull, kGroup / 32);
    ptx::mbarrier_init(mbarriers + 8 * kFree, kGroup / 32);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x < kGroup) {
    for (int round = 0; round < kRounds; ++round) {
      if (round > 0) take_over<kOrder>(kFree, mbarriers, round - 1);
      buffer[thread] = round * kGroup + thread;
      hand_over<kOrder>(kFull, mbarriers);
    }
  } else {
    for (int round = 0; round < kRounds; ++round) {
      take_over<kOrder>(kFull, mbarriers, round);
      out[round * kGroup + thread] = buffer[kGroup - 1 - thread];
      // An arrival that nobody waits for would be left over at the block's end.
      if (round + 1 < kRounds) hand_over<kOrder>(kFree, mbarriers);
    }
  }
#endif
}

/// Two stages of a buffer, each filled by all threads with copies while the other is read; what the
/// first barrier of a round orders is read behind the second, which pairs of warps share.
__global__ void __launch_bounds__(kThreads) between(const int* from, int* out) {
  __shared__ alignas(16) int buffer[2][4 * kThreads];
  __shared__ int scratch[kThreads];
  const auto thread = static_cast<int>(threadIdx.x);
  const auto fill = [&](int round) {
    ptx::cp_async_16(ptx::shared_address(&buffer[round % 2][4 * thread]),
                     from + 4 * (round * kThreads + thread));
    ptx::cp_async_commit();
  };
  fill(0);
  for (int round = 0; round < kManyRounds; ++round) {
    ptx::cp_async_wait<0>();
    __syncthreads();
    if (round + 1 < kManyRounds) fill(round + 1);
    // A vote, and where it says no two more meetings: of every other pair, in turn.
    const bool yes = (thread / 64 + round) % 2 == 0;
    if (!ptx::named_barrier_all<64>(1 + thread / 64, yes)) {
      scratch[thread] = round;
      ptx::named_barrier_sync<64>(1 + thread / 64);
      if (scratch[thread ^ 32] != round) return;
      ptx::named_barrier_sync<64>(1 + thread / 64);
    }
    out[round * kThreads + thread] = buffer[round % 2][4 * (kThreads - 1 - thread)];
  }
}

int run_between() {
  int *from = nullptr, *out = nullptr;
  static int host[kManyRounds * kThreads], source[4 * kManyRounds * kThreads];
  for (int i = 0; i < 4 * kManyRounds * kThreads; ++i) source[i] = i;
  cudaMalloc(&from, sizeof source);
  cudaMalloc(&out, sizeof host);
  cudaMemcpy(from, source, sizeof source, cudaMemcpyHostToDevice);
  between<<<1, kThreads>>>(from, out);
  if (const cudaError_t error = cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
      error != cudaSuccess) {
    std::printf("racecheck_probe: %s\n", cudaGetErrorString(error));
    return 1;
  }
  for (int i = 0; i < kManyRounds * kThreads; ++i)
    if (host[i] != 4 * (i / kThreads * kThreads + kThreads - 1 - i % kThreads)) return 1;
  return 0;
}

template <Order kOrder>
int run() {
  int *out = nullptr, host[kRounds * kGroup];
  cudaMalloc(&out, sizeof host);
  cudaMemset(out, 0xff, sizeof host);
  exchange<kOrder><<<1, kThreads>>>(out);
  if (const cudaError_t error = cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
      error != cudaSuccess) {
    std::printf("racecheck_probe: %s\n", cudaGetErrorString(error));
    return 1;
  }
  cudaFree(out);
  for (int i = 0; i < kRounds * kGroup; ++i) {
    const int wanted = i / kGroup * kGroup + kGroup - 1 - i % kGroup;
    if (kOrder != Order::none && host[i] != wanted) {
      std::printf("racecheck_probe: element %d is %d, not %d\n", i, host[i], wanted);
      return 1;
    }
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const char* name = count == 2 ? arguments[1] : "";
  int code = 2;
  if (std::strcmp(name, "none") == 0) code = run<Order::none>();
  if (std::strcmp(name, "sync") == 0) code = run<Order::sync>();
  if (std::strcmp(name, "arrive") == 0) code = run<Order::arrive>();
  if (std::strcmp(name, "mbarrier") == 0) code = run<Order::mbarrier>();
  if (std::strcmp(name, "between") == 0) code = run_between();
  if (code == 2) std::printf("usage: racecheck_probe none|sync|arrive|mbarrier|between\n");
  // A sanitizer that has found something replaces the exit code.
  if (code == 0) std::printf("%s ran\n", name);
  return code;
}
