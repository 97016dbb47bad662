#include "workbench/device/cpu_peaks.hpp"

#include <pthread.h>
#include <sched.h>

#include <barrier>
#include <chrono>
#include <cstddef>
#include <exception>
#include <string_view>
#include <thread>

#include "workbench/base/seconds_since.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace greenfast::workbench {
namespace {

using Clock = std::chrono::steady_clock;
// Each loop returns a value that depends on every operation, so that none can be dropped. Independent
// accumulators hide the latency (4 to 6 cycles at two issues a cycle): 16 of them leave registers
// for the operands in every set.
constexpr int kAccumulators = 16;

// Vectors of the compiler's choice: NEON on aarch64, SSE on a bare x86-64.
float fma_portable(std::int64_t iterations) {
  typedef float Vector __attribute__((vector_size(16)));
  Vector sum[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) sum[i] = Vector{} + static_cast<float>(i);
  const Vector a = Vector{} + 0.999f, b = Vector{} + 1e-3f;
  for (std::int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 16
    for (int i = 0; i < kAccumulators; ++i) sum[i] = sum[i] * a + b;
  }
  Vector total = sum[0];
  for (int i = 1; i < kAccumulators; ++i) total += sum[i];
  return total[0] + total[1] + total[2] + total[3];
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) float fma_avx2(std::int64_t iterations) {
  constexpr int kLive = 12;  // of 16 registers
  __m256 sum[kLive];
  for (int i = 0; i < kLive; ++i) sum[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
  for (std::int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kLive; ++i) sum[i] = _mm256_fmadd_ps(sum[i], a, b);
  }
  __m256 total = sum[0];
  for (int i = 1; i < kLive; ++i) total = _mm256_add_ps(total, sum[i]);
  return _mm256_cvtss_f32(total);
}
constexpr double kAvx2Flops = 12 * 8 * 2;

__attribute__((target("avx512f"))) float fma_avx512(std::int64_t iterations) {
  __m512 sum[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
  for (std::int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 16
    for (int i = 0; i < kAccumulators; ++i) sum[i] = _mm512_fmadd_ps(sum[i], a, b);
  }
  __m512 total = sum[0];
  for (int i = 1; i < kAccumulators; ++i) total = _mm512_add_ps(total, sum[i]);
  return _mm512_cvtss_f32(total);
}

__attribute__((target("avx512f,avx512bf16"))) float dot_avx512bf16(std::int64_t iterations) {
  __m512 sum[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.25f));
  const __m512bh b = _mm512_cvtne2ps_pbh(_mm512_set1_ps(-0.5f), _mm512_set1_ps(0.25f));
  for (std::int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 16
    for (int i = 0; i < kAccumulators; ++i) sum[i] = _mm512_dpbf16_ps(sum[i], a, b);
  }
  __m512 total = sum[0];
  for (int i = 1; i < kAccumulators; ++i) total = _mm512_add_ps(total, sum[i]);
  return _mm512_cvtss_f32(total);
}

// Tiles are configured by thread, and Linux gives them to processes that ask.
__attribute__((target("amx-tile,amx-bf16"))) float dot_amx(std::int64_t iterations) {
  static constexpr struct alignas(64) {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config{};  // constant, because GCC's intrinsic only says that it reads the first 8 bytes
  alignas(64) float sums[16 * 16];
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (std::int64_t n = 0; n < iterations; ++n) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, sums, 64);
  _tile_release();
  return sums[0];
}
constexpr double kAmxFlops = 4.0 * 16 * 16 * 32 * 2;

bool has_amx() {
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
  constexpr std::uint32_t kBf16AndTile = 1u << 22 | 1u << 24;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16AndTile) != kBf16AndTile) {
    return false;
  }
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  static const bool given = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return given;
}
#endif

}  // namespace

std::vector<SpeedProbe> speed_probes() {
  std::vector<SpeedProbe> list;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (has_amx()) list.push_back({"avx512amx", DType::bf16, dot_amx, kAmxFlops});
  if (__builtin_cpu_supports("avx512bf16")) {
    list.push_back({"avx512bf16", DType::bf16, dot_avx512bf16, kAccumulators * 32 * 2});
  }
  if (__builtin_cpu_supports("avx512f")) {
    list.push_back({"avx512", DType::f32, fma_avx512, kAccumulators * 16 * 2});
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    list.push_back({"avx2", DType::f32, fma_avx2, kAvx2Flops});
  }
#endif
  list.push_back({"portable", DType::f32, fma_portable, kAccumulators * 4 * 2});
  return list;
}

std::vector<int> own_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

void on_each(const std::vector<int>& cpus, const std::function<void(int)>& work) {
  std::barrier start(static_cast<std::ptrdiff_t>(cpus.size()));
  std::vector<std::thread> threads;
  threads.reserve(cpus.size());
  const int count = static_cast<int>(cpus.size());
  for (int i = 0; i < count; ++i) {
    try {
      threads.emplace_back([&, i] {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpus[static_cast<std::size_t>(i)], &set);
        // A CPU taken offline meanwhile: the thread then runs where the system likes, which is
        // slower and never wrong.
        (void)pthread_setaffinity_np(pthread_self(), sizeof set, &set);
        start.arrive_and_wait();
        work(i);
      });
    } catch (const std::exception&) {  // no memory or no threads left: those that run must not wait
      for (; i < count; ++i) start.arrive_and_drop();
    }
  }
  for (std::thread& thread : threads) thread.join();
}

double run_probe(const SpeedProbe& probe, const std::vector<int>& cpus, double seconds) {
  std::vector<double> rates(cpus.size(), 0.0);
  on_each(cpus, [&](int i) {
    // Chunks of about 50 us; the best quarter of them would flatter a busy machine, so all count.
    const std::int64_t chunk = 10'000;
    std::int64_t done = 0;
    keep(probe.loop(chunk));
    const auto begin = Clock::now();
    double elapsed = 0;
    do {
      keep(probe.loop(chunk));
      done += chunk;
      elapsed = seconds_since(begin);
    } while (elapsed < seconds);
    rates[static_cast<std::size_t>(i)] = probe.flops * static_cast<double>(done) / elapsed;
  });
  double total = 0;
  for (const double rate : rates) total += rate;
  return total;
}

SpeedProbe best_probe(DType dtype) {
  static const std::vector<SpeedProbe> list = speed_probes();
  const auto first = [](DType wanted) {
    for (const SpeedProbe& probe : list) {
      if (probe.dtype == wanted) return probe;
    }
    return list.back();
  };
  const SpeedProbe fused = first(DType::f32), dots = first(DType::bf16);
  if (dtype == DType::f32 || dots.dtype != DType::bf16) return fused;
  if (std::string_view(dots.isa) == "avx512amx") return dots;
  if (dtype == DType::f16) return fused;
  static const bool dots_are_faster = [&] {
    const std::vector<int> here = {own_cpus().front()};
    return run_probe(dots, here, 0.002) > run_probe(fused, here, 0.002);
  }();
  return dots_are_faster ? dots : fused;
}

std::vector<std::string> cpu_probe_isas() {
  std::vector<std::string> names;
  for (const SpeedProbe& probe : speed_probes()) names.emplace_back(probe.isa);
  return names;
}

double probe_cpu_flops(const std::string& isa, DType dtype, const std::vector<int>& cpus,
                       double seconds) {
  for (const SpeedProbe& probe : speed_probes()) {
    if (isa == probe.isa && dtype == probe.dtype) return run_probe(probe, cpus, seconds);
  }
  return 0;
}

}  // namespace greenfast::workbench
