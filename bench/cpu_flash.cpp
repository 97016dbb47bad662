// How near the CPU kernels come to the multiply-add peak that is measured beside them.
//
//   cmake --build build/cpu --target bench_cpu_flash && build/cpu/bin/bench_cpu_flash
//   bench_cpu_flash [--variant cpu.flash] [--rounds 9] [--dtype fp32,bf16,fp16,e4m3]
//                   [--one-thread 0] [SHAPE...]
//
// --one-thread 1 runs one thread and counts its CPU time, for kernel and probe alike: what a busy
// machine disturbs least. Otherwise all threads, by the clock on the wall.
//
// SHAPE is as for greenfast run: a name, BxHxSxD or BxHq/HkvxSq/SkvxD, "1x8x512x64 causal" (aligned
// bottom right). Each round runs the peak probe of the instruction that the kernel multiplies the type with, then the kernel;
// printed are medians over rounds, because the machine's clock and other load move both. Types that
// are widened are held against the fp32 peak; fp16 through AMX, which takes three or four products
// for one, against the peak of bf16.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <time.h>

#include <greenfast/attention.hpp>

#include "workbench/cases/operand_bytes.hpp"
#include "workbench/device/cpu_peaks.hpp"
#include "workbench/fast/measure.hpp"
#include "workbench/fast/statistics.hpp"

namespace {

double wall_seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

double median(const std::vector<double>& values) {
  return greenfast::workbench::quantile(values, 0.5);
}

// ---- the peak of one thread, in its CPU time ----

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

constexpr int kChains = 12;  // independent sums: latency 4 times two units, and some to spare
constexpr int kRepeats = 60000;

#if defined(__x86_64__)
// Twelve named registers: an array would be kept in memory.
#define GREENFAST_CHAINS(step)                                                                    \
  for (int i = 0; i < kRepeats; ++i) {                                                            \
    s0 = step(s0), s1 = step(s1), s2 = step(s2), s3 = step(s3), s4 = step(s4), s5 = step(s5);     \
    s6 = step(s6), s7 = step(s7), s8 = step(s8), s9 = step(s9), s10 = step(s10), s11 = step(s11); \
    __asm__ volatile(""                                                                           \
                     : "+v"(s0), "+v"(s1), "+v"(s2), "+v"(s3), "+v"(s4), "+v"(s5), "+v"(s6),      \
                       "+v"(s7), "+v"(s8), "+v"(s9), "+v"(s10), "+v"(s11));                       \
  }
#define GREENFAST_STEP_512(s) _mm512_fmadd_ps(s, b, b)
#define GREENFAST_STEP_BF16(s) _mm512_dpbf16_ps(s, (__m512bh)b, (__m512bh)b)
#define GREENFAST_STEP_256(s) _mm256_fmadd_ps(s, b, b)

[[gnu::target("avx512f")]] void chains_avx512() {
  const __m512 b = _mm512_set1_ps(0.5f);
  __m512 s0 = b, s1 = b, s2 = b, s3 = b, s4 = b, s5 = b, s6 = b, s7 = b, s8 = b, s9 = b, s10 = b,
         s11 = b;
  GREENFAST_CHAINS(GREENFAST_STEP_512)
}
[[gnu::target("avx512f,avx512bf16")]] void chains_bf16() {
  const __m512 b = _mm512_set1_ps(0.5f);
  __m512 s0 = b, s1 = b, s2 = b, s3 = b, s4 = b, s5 = b, s6 = b, s7 = b, s8 = b, s9 = b, s10 = b,
         s11 = b;
  GREENFAST_CHAINS(GREENFAST_STEP_BF16)
}
[[gnu::target("avx2,fma")]] void chains_avx2() {
  const __m256 b = _mm256_set1_ps(0.5f);
  __m256 s0 = b, s1 = b, s2 = b, s3 = b, s4 = b, s5 = b, s6 = b, s7 = b, s8 = b, s9 = b, s10 = b,
         s11 = b;
  GREENFAST_CHAINS(GREENFAST_STEP_256)
}

constexpr double kAmxFlops = 4.0 * 2 * 16 * 16 * 32;  // of four products
/// As many as take about as long as the others. The library has asked for the tiles.
[[gnu::target("amx-tile,amx-bf16")]] void chains_amx() {
  static constexpr struct alignas(64) {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config{};  // constant, because GCC's intrinsic only says that it reads the first 8 bytes
  _tile_loadconfig(&config);
  for (int i = 0; i < kRepeats / 10; ++i) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_release();
}
#endif

/// FLOP/s of one thread; 0 for an instruction set without a probe here.
double one_thread_peak([[maybe_unused]] std::string_view isa, [[maybe_unused]] bool bf16) {
#if defined(__x86_64__)
  if (isa == "avx512amx" && bf16) {
    const double start = cpu_seconds();
    chains_amx();
    return kAmxFlops * (kRepeats / 10) / (cpu_seconds() - start);
  }
  const bool wide = isa.starts_with("avx512");
  if (!wide && isa != "avx2") return 0.0;
  const double start = cpu_seconds();
  if (wide) {
    bf16 ? chains_bf16() : chains_avx512();
  } else {
    chains_avx2();
  }
  const double flops = 2.0 * kRepeats * kChains * (wide ? bf16 ? 32 : 16 : 8);
  return flops / (cpu_seconds() - start);
#else
  return 0.0;
#endif
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace greenfast;
  std::string_view variant = "cpu.flash", dtypes = "fp32,bf16,fp16,e4m3";
  int rounds = 9;
  bool one_thread = false;
  std::vector<std::string_view> shapes;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg.starts_with("--") && i + 1 < argc) {
      const std::string_view value = argv[++i];
      if (arg == "--variant") {
        variant = value;
      } else if (arg == "--dtype") {
        dtypes = value;
      } else if (arg == "--one-thread") {
        one_thread = value == "1";
      } else if (arg == "--rounds") {
        rounds = std::max(1, std::atoi(value.data()));
      } else {
        std::fprintf(stderr, "unknown option %s: --variant, --dtype, --rounds, --one-thread\n",
                     argv[i - 1]);
        return 2;
      }
    } else {
      shapes.push_back(arg);
    }
  }
  if (shapes.empty()) {
    shapes = {"1x8x512x64",         "1x8x512x64 causal",  "2x8x2048x64",
              "2x8x2048x64 causal", "1x32x4096x128",      "1x32x4096x128 causal",
              "1x12x128x32",        "1x12x128x32 causal", "1x32/8x1/8192x128"};
  }

  if (one_thread) setenv("GREENFAST_THREADS", "1", 1);
  const Result<DeviceFacts> facts = device_facts(DeviceKind::cpu);
  if (!facts) {
    std::fprintf(stderr, "%s\n", facts.status().message().c_str());
    return 3;
  }
  std::vector<int> cpus;
  for (int cpu = 0; cpu < facts->multiprocessors; ++cpu) cpus.push_back(cpu);
  std::printf("%s, %s, %d threads, %s\n", facts->name.c_str(), facts->isa.c_str(),
              facts->multiprocessors, std::string(variant).c_str());
  std::printf("%-22s %-5s %10s %10s %8s %8s %8s\n", "shape", "dtype", "ms", "GFLOP/s", "peak",
              "% peak", "best %");

  for (const std::string_view text : shapes) {
    for (const std::string_view dtype_text : split(dtypes)) {
      const std::optional<DType> dtype = parse_dtype(dtype_text);
      if (!dtype) {
        std::fprintf(stderr, "dtype '%s': fp32, fp16, bf16 or e4m3\n",
                     std::string(dtype_text).c_str());
        return 2;
      }
      workbench::ProblemDefaults defaults;
      defaults.dtype = *dtype;
      const auto parsed = workbench::parse_shapes(text, defaults);
      if (!parsed) {
        std::fprintf(stderr, "%s\n", parsed.status().message().c_str());
        return 2;
      }
      if (parsed->size() != 1) {
        std::fprintf(stderr, "'%s': one shape an argument\n", std::string(text).c_str());
        return 2;
      }
      workbench::Case test;
      test.problem = parsed->front().problem;
      const Problem& problem = test.problem;
      workbench::Inputs inputs = workbench::generate(test);
      Tensors tensors;
      std::vector<std::vector<std::byte>> outputs;
      for (const Operand& operand : operands_of(problem)) {
        if (!operand.present) continue;
        if (operand.role == Role::output)
          outputs.emplace_back(static_cast<std::size_t>(operand.bytes));
        set_data(tensors, operand.id,
                 operand.role == Role::output ? outputs.back().data()
                                              : workbench::bytes_of(inputs, operand.id).data());
      }
      Options options;
      options.variant = variant;

      const bool amx = facts->isa == "avx512amx";
      const bool bf16_products =
          (facts->isa == "avx512bf16" && (*dtype == DType::bf16 || *dtype == DType::e4m3)) ||
          (amx && *dtype != DType::f32);
      const std::string probe =
          (facts->isa == "avx512bf16" || amx) && !bf16_products ? "avx512" : facts->isa;
      const DType peak_dtype = bf16_products ? DType::bf16 : DType::f32;
      const double flops = workbench::flop_count(problem);

      std::vector<double> times, peaks, ratios;
      const auto peak_now = [&] {
        return one_thread ? one_thread_peak(facts->isa, bf16_products)
                          : workbench::probe_cpu_flops(probe, peak_dtype, cpus, 0.004);
      };
      for (int round = -1; round < rounds; ++round) {
        const double before = peak_now();
        const auto now = [&] { return one_thread ? cpu_seconds() : wall_seconds(); };
        int calls = 0;
        const double start = now();
        double time = 0.0;
        do {
          const Status status = attention(problem, tensors, options);
          if (!status.ok()) {
            std::fprintf(stderr, "%s\n", status.message().c_str());
            return 1;
          }
          ++calls;
          time = now() - start;
        } while (time < 0.02);
        time /= calls;
        const double after = peak_now();
        if (round < 0) continue;
        const double peak = (before + after) / 2;
        times.push_back(time);
        peaks.push_back(peak);
        ratios.push_back(flops / time / peak);
      }
      std::printf("%-22s %-5s %10.3f %10.1f %8.1f %8.1f %8.1f\n", std::string(text).c_str(),
                  std::string(dtype_text).c_str(), 1e3 * median(times),
                  1e-9 * flops / median(times), 1e-9 * median(peaks), 100 * median(ratios),
                  100 * *std::max_element(ratios.begin(), ratios.end()));
      std::fflush(stdout);
    }
  }
  return 0;
}
