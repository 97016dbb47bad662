// How near the CPU kernels come to the multiply-add peak that is measured beside them.
//
//   cmake --build build/cpu --target bench_cpu_flash && build/cpu/bin/bench_cpu_flash
//   bench_cpu_flash [--variant cpu.flash] [--rounds 9] [--dtype fp32,bf16,fp16,e4m3]
//                   [--one-thread 0] [SHAPE...]
//
// --one-thread 1 runs one thread and counts its CPU time, for kernel and probe alike: what a busy
// machine disturbs least. Otherwise all threads, by the clock on the wall.
//
// SHAPE is BxHxSxD or BxHq/HkvxSq/SkvxD, with :c for a causal mask aligned bottom right. Each round
// runs the peak probe of the instruction that the kernel multiplies the type with, then the kernel;
// printed are medians over rounds, because the machine's clock and other load move both. Types that
// are widened are held against the fp32 peak; fp16 through AMX, which takes three or four products
// for one, against the peak of bf16.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <time.h>

#include <greenfast/attention.hpp>

#include "workbench/device/cpu.hpp"

namespace {

double wall_seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
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

struct Shape {
  std::int64_t batch = 0, heads_q = 0, heads_kv = 0, seq_q = 0, seq_kv = 0, head_dim = 0;
  bool causal = false;
};

bool parse(std::string_view text, Shape& shape) {
  if (text.ends_with(":c")) {
    shape.causal = true;
    text.remove_suffix(2);
  }
  std::int64_t parts[4][2] = {};
  for (auto& part : parts) {
    for (int i = 0; i < 2; ++i) {
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), part[i]);
      if (error != std::errc{}) return false;
      text.remove_prefix(static_cast<std::size_t>(end - text.data()));
      if (i == 0) {
        part[1] = part[0];
        if (!text.starts_with('/')) break;
        text.remove_prefix(1);
      }
    }
    if (text.starts_with('x')) text.remove_prefix(1);
  }
  shape.batch = parts[0][0];
  shape.heads_q = parts[1][0];
  shape.heads_kv = parts[1][1];
  shape.seq_q = parts[2][0];
  shape.seq_kv = parts[2][1];
  shape.head_dim = parts[3][0];
  return text.empty();
}

// Bits of small normal numbers of any type: sign and mantissa random, exponent near 1.
std::vector<unsigned char> random_bytes(greenfast::DType dtype, std::size_t count,
                                        std::mt19937_64& random) {
  std::vector<unsigned char> bytes(count * greenfast::size_of(dtype));
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = normal(random);
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    switch (dtype) {
      case greenfast::DType::f32:
        std::memcpy(&bytes[4 * i], &bits, 4);
        break;
      case greenfast::DType::bf16:
        std::memcpy(&bytes[2 * i], reinterpret_cast<char*>(&bits) + 2, 2);
        break;
      case greenfast::DType::f16: {
        const int exponent = std::clamp(static_cast<int>(bits >> 23 & 255) - 112, 1, 30);
        const auto half = static_cast<std::uint16_t>(
            (bits >> 16 & 0x8000) | static_cast<unsigned>(exponent) << 10 | (bits >> 13 & 0x3ff));
        std::memcpy(&bytes[2 * i], &half, 2);
        break;
      }
      case greenfast::DType::e4m3: {
        const int exponent = std::clamp(static_cast<int>(bits >> 23 & 255) - 120, 1, 14);
        bytes[i] = static_cast<unsigned char>(
            (bits >> 24 & 0x80) | static_cast<unsigned>(exponent) << 3 | (bits >> 20 & 7));
        break;
      }
    }
  }
  return bytes;
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
    shapes = {"1x8x512x64",    "1x8x512x64:c",  "2x8x2048x64",
              "2x8x2048x64:c", "1x32x4096x128", "1x32x4096x128:c",
              "1x12x128x32",   "1x12x128x32:c", "1x32/8x1/8192x128"};
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
    Shape shape;
    if (!parse(text, shape)) {
      std::fprintf(stderr, "shape '%s': expected BxHxSxD or BxHq/HkvxSq/SkvxD\n",
                   std::string(text).c_str());
      return 2;
    }
    for (const std::string_view dtype_text : split(dtypes)) {
      const std::optional<DType> dtype = parse_dtype(dtype_text);
      if (!dtype) {
        std::fprintf(stderr, "dtype '%s': fp32, fp16, bf16 or e4m3\n",
                     std::string(dtype_text).c_str());
        return 2;
      }
      Problem problem = make_problem(shape.batch, shape.heads_q, shape.heads_kv, shape.seq_q,
                                     shape.seq_kv, shape.head_dim, *dtype);
      if (shape.causal) problem.mask = Mask::causal(Alignment::bottom_right);
      std::mt19937_64 random(1);
      const auto q_count =
          static_cast<std::size_t>(shape.batch * shape.heads_q * shape.seq_q * shape.head_dim);
      const auto kv_count =
          static_cast<std::size_t>(shape.batch * shape.heads_kv * shape.seq_kv * shape.head_dim);
      const auto q = random_bytes(*dtype, q_count, random),
                 k = random_bytes(*dtype, kv_count, random),
                 v = random_bytes(*dtype, kv_count, random);
      std::vector<unsigned char> o(q_count * 4);
      const Tensors tensors{.q = q.data(), .k = k.data(), .v = v.data(), .o = o.data()};
      Options options;
      options.variant = variant;

      const bool amx = facts->isa == "avx512amx";
      const bool bf16_products =
          (facts->isa == "avx512bf16" && (*dtype == DType::bf16 || *dtype == DType::e4m3)) ||
          (amx && *dtype != DType::f32);
      const std::string probe =
          (facts->isa == "avx512bf16" || amx) && !bf16_products ? "avx512" : facts->isa;
      const DType peak_dtype = bf16_products ? DType::bf16 : DType::f32;
      const double flops =
          4.0 * static_cast<double>(visible_pairs(problem)) * static_cast<double>(shape.head_dim);

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
