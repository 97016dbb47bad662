// The loops on a GPU. The fp64 reference gives a block to a row: simple, and apart from the
// library's kernels.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include <greenfast/arithmetic.hpp>

#include "fuzz/library/worker.hpp"

namespace greenfast::fuzz {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 2048;
// What a problem's tensors may take, and the scores of the rows that are being worked on.
constexpr std::size_t kArena = std::size_t{4} << 30, kScratch = std::size_t{2} << 30;

__device__ std::int64_t global_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ std::int64_t global_threads() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

__global__ void fill_kernel(std::uint32_t* to, std::int64_t words, std::uint32_t word) {
  for (std::int64_t i = global_thread(); i < words; i += global_threads()) to[i] = word;
}

struct Strides {
  std::int64_t b, h, s, d;
};

__global__ void write_kernel(View view, Which which, void* data, std::int64_t heads,
                             std::int64_t rows, Strides stride) {
  const std::int64_t entries = stride.b == 0 ? 1 : view.batch;
  const std::int64_t some_heads = stride.h == 0 ? 1 : heads;
  const std::int64_t all = entries * some_heads * rows * view.head_dim;
  for (std::int64_t n = global_thread(); n < all; n += global_threads()) {
    const std::int64_t d = n % view.head_dim, row = n / view.head_dim;
    const std::int64_t s = row % rows, h = row / rows % some_heads, b = row / rows / some_heads;
    const bool unseen =
        which == Which::q ? first_key(view, s) >= end_key(view, s) : !some_row_sees(view, s);
    if (unseen) continue;
    store_code(view.in, data, b * stride.b + h * stride.h + s * stride.s + d * stride.d,
               encode(view.in, element_at(view, which, stride.b, b, h, s, d)));
  }
}

__global__ void write_scales_kernel(View view, float* to, int tensor, std::int64_t count) {
  for (std::int64_t i = global_thread(); i < count; i += global_threads())
    to[i] = scale_at(view, tensor, i);
}

/// The same value in every thread of the block.
template <class Combine>
__device__ double reduced(double value, double* shared, Combine combine) {
  __syncthreads();
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half)
      shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + half]);
    __syncthreads();
  }
  return shared[0];
}
__device__ double sum_of(double value, double* shared) {
  return reduced(value, shared, [](double a, double b) { return a + b; });
}
__device__ double largest_of(double value, double* shared) {
  return reduced(value, shared, [](double a, double b) { return a > b ? a : b; });
}

__global__ void __launch_bounds__(kThreads)
    refer_kernel(View view, Reference to, double2* scratch, std::int64_t most_keys) {
  __shared__ float q[256];
  __shared__ double partial[3][kThreads];
  __shared__ double outputs[256];
  const int thread = static_cast<int>(threadIdx.x);
  const int dim = static_cast<int>(view.head_dim);
  const std::int64_t rows = view.batch * view.heads_q * view.seq_q;
  const double infinity = static_cast<double>(float_of(0x7f800000u));
  double2* const mine = scratch + blockIdx.x * most_keys;
  int columns = 8;
  while (columns < dim) columns *= 2;
  const int groups = kThreads / columns, column = thread % columns, group = thread / columns;

  for (std::int64_t slot = blockIdx.x; slot < to.slots; slot += gridDim.x) {
    const std::int64_t row = row_of_slot(slot, to.slots, rows);
    const std::int64_t i = row % view.seq_q, h = row / view.seq_q % view.heads_q,
                       b = row / view.seq_q / view.heads_q;
    const std::int64_t kv = h / (view.heads_q / view.heads_kv);
    const std::int64_t begin = first_key(view, i), end = end_key(view, i);
    const double q_factor = view.scale * descale(view, 0, b, h, i);
    __syncthreads();
    if (thread < dim && begin < end)
      q[thread] = load(view.in, view.q,
                       b * view.q_stride[0] + h * view.q_stride[1] + i * view.q_stride[2] + thread);
    __syncthreads();

    double top = -infinity, top_moved = -infinity, nan = 0.0, anything = 0.0;
    for (std::int64_t j = begin + thread; j < end; j += kThreads) {
      const std::int64_t at = b * view.k_stride[0] + kv * view.k_stride[1] + j * view.k_stride[2];
      double dot = 0.0;
      float magnitude = 0.0f;
      for (int d = 0; d < dim; ++d) {
        const float k = load(view.in, view.k, at + d);
        dot += static_cast<double>(q[d]) * static_cast<double>(k);
        magnitude += counted(view.in, q[d]) * counted(view.in, k);
      }
      const Score s = score_of(view, dot, magnitude, q_factor * descale(view, 1, b, kv, j));
      if (is_nan(s.value)) nan = 1.0;
      if (s.slack < 0.0 || s.value == infinity) anything = 1.0;
      if (s.value > top) top = s.value;
      if (s.value + s.slack > top_moved) top_moved = s.value + s.slack;
      mine[j - begin] = {s.value, s.slack};
    }
    nan = largest_of(nan, partial[0]);
    anything = largest_of(anything, partial[0]);
    top = largest_of(top, partial[0]);
    top_moved = largest_of(top_moved, partial[0]);
    if (anything > 0.0 || nan > 0.0 || top == -infinity) {
      const double bound = anything > 0.0 ? kAnything : nan > 0.0 ? kNan : 0.0;
      if (thread < dim) {
        to.o[slot * dim + thread] = 0.0;
        to.limit[slot * dim + thread] = bound;
      }
      if (thread == 0) {
        to.lse[slot] = -infinity;
        to.lse_limit[slot] = bound;
      }
      continue;
    }

    double sum = 0.0, sum_moved = 0.0;
    for (std::int64_t j = begin + thread; j < end; j += kThreads) {
      const double2 s = mine[j - begin];
      sum += exp(s.x - top);
      sum_moved += exp(s.x + s.y - top_moved);
    }
    sum = sum_of(sum, partial[0]);
    sum_moved = sum_of(sum_moved, partial[0]);
    // Apart from `top`, in which it vanishes where scores are large.
    const double log_sum = log(sum), lse = top + log_sum;
    const double shift = fmax(0.0, top_moved + log(sum_moved) - lse);
    double squares = 0.0;
    for (std::int64_t j = begin + thread; j < end; j += kThreads) {
      const double2 s = mine[j - begin];
      const double p = exp(s.x - top) / sum;
      squares += p * p;
      mine[j - begin] = {p, moved_by(s.x - top - log_sum, p, s.y + shift)};
    }
    squares = sum_of(squares, partial[0]);
    __syncthreads();

    const double keys = static_cast<double>(end - begin), top_weight = 1.0 / sum;
    const double least = weight_quantum(view) * top_weight;
    const std::int64_t v_at =
        b * view.v_stride[0] + kv * view.v_stride[1] + column * view.v_stride[3];
    double o = 0.0, magnitude = 0.0, smallest = 0.0, moved = 0.0;
    if (column < dim) {
      for (std::int64_t j = begin + group; j < end; j += groups) {
        const double p = mine[j - begin].x;
        const double value =
            static_cast<double>(load(view.in, view.v, v_at + j * view.v_stride[2])) *
            descale(view, 2, b, kv, j);
        o += p * value;
        magnitude += p * fabs(value);
        smallest += lost(view.in, p, least, value);
      }
    }
    partial[0][thread] = o;
    partial[1][thread] = magnitude;
    partial[2][thread] = smallest;
    __syncthreads();
    if (group == 0) {
      for (int g = 1; g < groups; ++g) {
        o += partial[0][g * columns + column];
        magnitude += partial[1][g * columns + column];
        smallest += partial[2][g * columns + column];
      }
      outputs[column] = o;
    }
    __syncthreads();
    if (column < dim) {
      for (std::int64_t j = begin + group; j < end; j += groups) {
        const double by = mine[j - begin].y;
        if (by == 0.0) continue;
        const double value =
            static_cast<double>(load(view.in, view.v, v_at + j * view.v_stride[2])) *
            descale(view, 2, b, kv, j);
        moved += by * fabs(value - outputs[column]);
      }
    }
    partial[0][thread] = moved;
    __syncthreads();
    if (group == 0 && column < dim) {
      for (int g = 1; g < groups; ++g) moved += partial[0][g * columns + column];
      to.o[slot * dim + column] = o;
      to.limit[slot * dim + column] =
          limit_of(view, {keys, top_weight, o, magnitude, smallest, moved});
    }
    if (thread == 0) {
      to.lse[slot] = lse;
      const double together = view.in == DType::f16 ? 5e-4 : 0.0;  // docs/numerics.md
      to.lse_limit[slot] = lse_limit(view, keys, lse, top, shift, squares, together);
    }
  }
}

__device__ unsigned long long packed(float ratio, std::int64_t at) {
  return static_cast<unsigned long long>(bits_of(ratio)) << 32 | static_cast<std::uint32_t>(at);
}

__global__ void compare_kernel(View view, Reference with, Outputs got, Results* results) {
  const std::int64_t rows = view.batch * view.heads_q * view.seq_q;
  const double from = infinite_from(view);
  const double infinity = static_cast<double>(float_of(0x7f800000u));
  unsigned long long worst_o = 0, worst_lse = 0;
  for (std::int64_t n = global_thread(); n < with.slots * view.head_dim; n += global_threads()) {
    const std::int64_t d = n % view.head_dim, slot = n / view.head_dim;
    const std::int64_t row = row_of_slot(slot, with.slots, rows);
    const std::int64_t i = row % view.seq_q, h = row / view.seq_q % view.heads_q,
                       b = row / view.seq_q / view.heads_q;
    const bool may_be_nan = tainted(view, b, h);
    const std::int64_t at = b * view.o_stride[0] + h * view.o_stride[1] + i * view.o_stride[2] + d;
    const float ratio = off_by(static_cast<double>(load(view.out, got.o, at)), with.o[n],
                               with.limit[n], may_be_nan, from);
    if (packed(ratio, n) > worst_o) worst_o = packed(ratio, n);
    if (d != 0 || !view.has_lse) continue;
    const float lse_ratio = off_by(static_cast<double>(got.lse[row]), with.lse[slot],
                                   with.lse_limit[slot], may_be_nan, infinity);
    if (packed(lse_ratio, slot) > worst_lse) worst_lse = packed(lse_ratio, slot);
  }
  atomicMax(&results->worst_o, worst_o);
  atomicMax(&results->worst_lse, worst_lse);
}

__device__ void make_unwritten(DType type, void* data, std::int64_t at, unsigned long long& count) {
  const std::uint32_t poison = type == DType::f32 ? kUnwritten : kUnwritten & 0xffffu;
  if (load_code(type, data, at) == poison) ++count;
  store_code(type, data, at, poison);
}

__global__ void sweep_kernel(View view, Outputs outputs, Results* results) {
  const std::int64_t rows = view.batch * view.heads_q * view.seq_q;
  unsigned long long count = 0;
  for (std::int64_t n = global_thread(); n < rows * view.head_dim; n += global_threads()) {
    const std::int64_t d = n % view.head_dim, row = n / view.head_dim;
    const std::int64_t i = row % view.seq_q, h = row / view.seq_q % view.heads_q,
                       b = row / view.seq_q / view.heads_q;
    make_unwritten(view.out, outputs.o,
                   b * view.o_stride[0] + h * view.o_stride[1] + i * view.o_stride[2] + d, count);
    if (d == 0 && view.has_lse) make_unwritten(DType::f32, outputs.lse, row, count);
  }
  if (count > 0) atomicAdd(&results->unwritten, count);
}

__global__ void stray_kernel(std::uint32_t* words, std::int64_t count, Results* results) {
  unsigned long long stray = 0;
  for (std::int64_t i = global_thread(); i < count; i += global_threads()) {
    if (words[i] == kUnwritten) continue;
    ++stray;
    words[i] = kUnwritten;
  }
  if (stray > 0) atomicAdd(&results->stray, stray);
}

__global__ void digest_kernel(const std::uint32_t* words, std::int64_t count, Results* results) {
  unsigned long long sum = 0;
  for (std::int64_t i = global_thread(); i < count; i += global_threads())
    sum += digest_of(words[i], static_cast<std::uint64_t>(i));
  atomicAdd(&results->digest, sum);
}

__global__ void same_bits_kernel(View view, Outputs in_order, Outputs arranged,
                                 std::int64_t first_row, std::int64_t rows, Results* results) {
  unsigned long long differing = 0;
  for (std::int64_t n = global_thread(); n < rows * view.head_dim; n += global_threads()) {
    const std::int64_t d = n % view.head_dim, row = first_row + n / view.head_dim;
    const std::int64_t i = row % view.seq_q, h = row / view.seq_q % view.heads_q,
                       place = row / view.seq_q / view.heads_q, entry = entry_at(view, place);
    const std::int64_t inside = h * view.o_stride[1] + i * view.o_stride[2] + d;
    differing += load_code(view.out, in_order.o, entry * view.o_stride[0] + inside) !=
                 load_code(view.out, arranged.o, place * view.o_stride[0] + inside);
    if (d == 0 && view.has_lse)
      differing +=
          load_code(DType::f32, in_order.lse, (entry * view.heads_q + h) * view.seq_q + i) !=
          load_code(DType::f32, arranged.lse, row);
  }
  if (differing > 0) atomicAdd(&results->differing, differing);
}

unsigned blocks_for(std::int64_t count) {
  return static_cast<unsigned>(std::clamp<std::int64_t>(ceil_div(count, kThreads), 1, kBlocks));
}

class CudaWorker final : public Worker {
 public:
  ~CudaWorker() override {
    cudaFree(arena_);
    cudaFree(scratch_);
    cudaFree(results_);
    cudaFreeHost(host_results_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  cudaError_t open() {
    cudaError_t error = cudaSetDevice(0);
    const auto then = [&](auto call) {
      if (error == cudaSuccess) error = call();
    };
    then([&] { return cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); });
    then([&] { return cudaMalloc(reinterpret_cast<void**>(&arena_), kArena); });
    then([&] { return cudaMalloc(reinterpret_cast<void**>(&scratch_), kScratch); });
    then([&] { return cudaMalloc(reinterpret_cast<void**>(&results_), sizeof(Results)); });
    then([&] { return cudaMallocHost(reinterpret_cast<void**>(&host_results_), sizeof(Results)); });
    then([&] { return cudaMemsetAsync(results_, 0, sizeof(Results), stream_); });
    then([&] { return cudaStreamSynchronize(stream_); });
    return error;
  }

  void* stream() const override { return stream_; }
  double budget() const override { return 2e8; }
  char* arena(std::size_t bytes) override { return bytes <= kArena ? arena_ : nullptr; }

  void fill(void* to, std::size_t bytes, std::uint32_t word) override {
    const auto words = static_cast<std::int64_t>(bytes / 4);
    fill_kernel<<<blocks_for(words), kThreads, 0, stream_>>>(static_cast<std::uint32_t*>(to), words,
                                                             word);
  }

  void write_inputs(const View& view, const Inputs& to) override {
    const auto write = [&](Which which, void* data, std::int64_t heads, std::int64_t rows,
                           const std::int64_t* stride) {
      const std::int64_t all = view.batch * heads * rows * view.head_dim;
      if (all == 0) return;
      write_kernel<<<blocks_for(all), kThreads, 0, stream_>>>(
          view, which, data, heads, rows, Strides{stride[0], stride[1], stride[2], stride[3]});
    };
    write(Which::q, to.q, view.heads_q, view.seq_q, view.q_stride);
    write(Which::k, to.k, view.heads_kv, view.seq_kv, view.k_stride);
    write(Which::v, to.v, view.heads_kv, view.seq_kv, view.v_stride);
    float* const scales[] = {to.q_scale, to.k_scale, to.v_scale};
    for (int tensor = 0; tensor < 3; ++tensor)
      if (const std::int64_t count = scale_count(view, tensor); count > 0)
        write_scales_kernel<<<blocks_for(count), kThreads, 0, stream_>>>(view, scales[tensor],
                                                                         tensor, count);
  }

  void refer(const View& view, const Reference& to) override {
    const std::int64_t keys = std::max<std::int64_t>(view.seq_kv, 1);
    const std::int64_t fitting = static_cast<std::int64_t>(kScratch / sizeof(double2)) / keys;
    const auto blocks =
        static_cast<unsigned>(std::clamp<std::int64_t>(std::min(to.slots, fitting), 1, kBlocks));
    refer_kernel<<<blocks, kThreads, 0, stream_>>>(view, to, scratch_, keys);
  }

  void compare(const View& view, const Reference& with, const Outputs& got) override {
    compare_kernel<<<blocks_for(with.slots * view.head_dim), kThreads, 0, stream_>>>(view, with,
                                                                                     got, results_);
  }

  void sweep(const View& view, const Outputs& outputs) override {
    const std::int64_t all = view.batch * view.heads_q * view.seq_q * view.head_dim;
    sweep_kernel<<<blocks_for(all), kThreads, 0, stream_>>>(view, outputs, results_);
    const auto words = static_cast<std::int64_t>(outputs.bytes / 4);
    stray_kernel<<<blocks_for(words), kThreads, 0, stream_>>>(
        static_cast<std::uint32_t*>(outputs.begin), words, results_);
  }

  void digest(const void* data, std::size_t bytes) override {
    const auto words = static_cast<std::int64_t>(bytes / 4);
    digest_kernel<<<blocks_for(words), kThreads, 0, stream_>>>(
        static_cast<const std::uint32_t*>(data), words, results_);
  }

  void same_bits(const View& view, const Outputs& in_order, const Outputs& arranged,
                 std::int64_t first, std::int64_t count) override {
    const std::int64_t rows = view.heads_q * view.seq_q;
    same_bits_kernel<<<blocks_for(count * rows * view.head_dim), kThreads, 0, stream_>>>(
        view, in_order, arranged, first * rows, count * rows, results_);
  }

  void read(const void* from, std::size_t bytes, void* to) override {
    cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_);
    cudaStreamSynchronize(stream_);
  }

  Status collect(Results* results) override {
    cudaMemcpyAsync(host_results_, results_, sizeof(Results), cudaMemcpyDeviceToHost, stream_);
    cudaMemsetAsync(results_, 0, sizeof(Results), stream_);
    const cudaError_t waited = cudaStreamSynchronize(stream_);
    const cudaError_t launched = cudaGetLastError();
    const cudaError_t error = waited != cudaSuccess ? waited : launched;
    if (error != cudaSuccess)
      return {StatusCode::device_error, std::string(cudaGetErrorName(error)) + " (" +
                                            cudaGetErrorString(error) + ") on the device"};
    *results = *host_results_;
    return {};
  }

 private:
  cudaStream_t stream_ = nullptr;
  char* arena_ = nullptr;
  double2* scratch_ = nullptr;
  Results *results_ = nullptr, *host_results_ = nullptr;
};

}  // namespace

std::unique_ptr<Worker> open_cuda_worker(std::string* why) {
  auto worker = std::make_unique<CudaWorker>();
  const cudaError_t error = worker->open();
  if (error == cudaSuccess) return worker;
  *why = std::string("cannot reserve 6 GiB on CUDA device 0: ") + cudaGetErrorString(error);
  return nullptr;
}

}  // namespace greenfast::fuzz
