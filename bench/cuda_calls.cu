// What a call costs the host on a GPU, beside the launch of an empty kernel in the same run.
//
//   cmake --build build --target bench_cuda_calls && build/bin/bench_cuda_calls [--rounds 21]
//
// A round enqueues 200 calls without waiting and divides the time on the wall; engines take turns,
// medians over rounds are printed. 200 stay below the launch queue's 1024, which would make the
// host wait for the GPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <greenfast/attention.hpp>

namespace {

__global__ void empty_kernel() {}

constexpr int kCalls = 200;

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "bench_cuda_calls: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ? 3 : 4);
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + x.size() / 2, x.end());
  return x[x.size() / 2];
}

struct Case {
  const char* name;
  greenfast::Problem problem;
};

template <class Call>
double microseconds(cudaStream_t stream, Call&& call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) call();
  const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - begin;
  must(cudaStreamSynchronize(stream), "synchronise");
  return spent.count() / kCalls;
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 21;
  if (argc == 3 && std::strcmp(argv[1], "--rounds") == 0) rounds = std::atoi(argv[2]);
  if (rounds < 1 || (argc != 1 && argc != 3)) {
    std::fprintf(stderr, "usage: bench_cuda_calls [--rounds 21]\n");
    return 2;
  }
  using greenfast::DType;
  using greenfast::make_problem;
  Case cases[] = {{"1x8x512x64, small", make_problem(1, 8, 8, 512, 512, 64, DType::f16)},
                  {"4x8x512x64, prefill", make_problem(4, 8, 8, 512, 512, 64, DType::f16)},
                  {"4x8x512x64 causal", make_problem(4, 8, 8, 512, 512, 64, DType::f16)},
                  {"odd strides, mma", make_problem(1, 8, 8, 512, 512, 64, DType::f16)}};
  cases[2].problem.mask = greenfast::Mask::causal(greenfast::Alignment::top_left);
  cases[3].problem.q.alignment = 2;

  constexpr std::size_t kBytes = std::size_t{2} * 4 * 8 * 512 * 64;
  void* memory = nullptr;
  must(cudaMalloc(&memory, 4 * kBytes), "allocate");
  must(cudaMemset(memory, 0, 4 * kBytes), "clear");
  cudaStream_t stream;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create a stream");
  char* bytes = static_cast<char*>(memory);
  greenfast::Tensors tensors;
  tensors.q = bytes;
  tensors.k = bytes + kBytes;
  tensors.v = bytes + 2 * kBytes;
  tensors.o = bytes + 3 * kBytes;
  greenfast::Options options;
  options.device = greenfast::DeviceKind::cuda;
  options.stream = stream;

  std::vector<double> empty;
  std::vector<std::vector<double>> ours(std::size(cases));
  for (int round = -2; round < rounds; ++round) {  // two to warm up
    const double base = microseconds(stream, [&] { empty_kernel<<<1, 32, 0, stream>>>(); });
    must(cudaGetLastError(), "launch");
    if (round >= 0) empty.push_back(base);
    for (std::size_t i = 0; i < std::size(cases); ++i) {
      const double spent = microseconds(stream, [&] {
        const greenfast::Status status = greenfast::attention(cases[i].problem, tensors, options);
        if (!status.ok()) {
          std::fprintf(stderr, "bench_cuda_calls: %s: %s\n", cases[i].name,
                       std::string(status.message()).c_str());
          std::exit(4);
        }
      });
      if (round >= 0) ours[i].push_back(spent);
    }
  }
  std::printf("%-22s %8s %8s\n", "call", "host us", "- empty");
  std::printf("%-22s %8.2f\n", "empty kernel", median(empty));
  for (std::size_t i = 0; i < std::size(cases); ++i) {
    const double spent = median(ours[i]);
    std::printf("%-22s %8.2f %8.2f\n", cases[i].name, spent, spent - median(empty));
  }
  must(cudaFree(memory), "free");
  return 0;
}
