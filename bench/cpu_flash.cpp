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
// bottom right). Each round runs the workbench's probe of the instruction that the kernel multiplies
// the type with, then the kernel, then the probe again; printed are medians over rounds, because the
// machine's clock and other load move both. Types that are widened are held against the fp32 peak;
// fp16 through AMX, which takes three or four products for one, against the peak of bf16.
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <greenfast/attention.hpp>
#include <greenfast/operands.hpp>

#include "workbench/base/exit_code.hpp"
#include "workbench/base/seconds_since.hpp"
#include "workbench/cases/operand_bytes.hpp"
#include "workbench/device/cpu_peaks.hpp"
#include "workbench/fast/measure.hpp"
#include "workbench/fast/statistics.hpp"

namespace {

using namespace greenfast;
using namespace greenfast::workbench;

constexpr double kProbeSeconds = 0.004, kCallSeconds = 0.02;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Seconds on the wall, or of the calling thread's CPU time.
class Stopwatch {
 public:
  explicit Stopwatch(bool cpu) : cpu_(cpu) {}
  double seconds() const { return cpu_ ? cpu_seconds() - begin_cpu_ : seconds_since(begin_); }

 private:
  bool cpu_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double begin_cpu_ = cpu_seconds();
};

// The loop of the instruction that a kernel of this instruction set multiplies the type with; the
// portable one where no other is that set's.
SpeedProbe probe_of(const std::string& isa, DType dtype) {
  const bool amx = isa == "avx512amx";
  const bool dots = (amx && dtype != DType::f32) ||
                    (isa == "avx512bf16" && (dtype == DType::bf16 || dtype == DType::e4m3));
  const std::string wanted = dots || !(amx || isa == "avx512bf16") ? isa : "avx512";
  const std::vector<SpeedProbe> all = speed_probes();
  for (const SpeedProbe& probe : all)
    if (probe.isa == wanted && probe.dtype == (dots ? DType::bf16 : DType::f32)) return probe;
  return all.back();
}

// FLOP/s of the calling thread in its CPU time.
double run_here(const SpeedProbe& probe) {
  constexpr std::int64_t kChunk = 10'000;
  keep(probe.loop(kChunk));
  const Stopwatch watch(true);
  std::int64_t done = 0;
  while (watch.seconds() < kProbeSeconds) {
    keep(probe.loop(kChunk));
    done += kChunk;
  }
  return probe.flops * static_cast<double>(done) / watch.seconds();
}

struct Row {
  double seconds = 0, peak = 0, share = 0, best_share = 0;
};

// Medians over rounds of which the first is not counted.
Result<Row> measure(const Problem& problem, const Tensors& tensors, const Options& options,
                    const SpeedProbe& probe, const std::vector<int>& cpus, bool one_thread,
                    int rounds) {
  const auto peak_now = [&] {
    return one_thread ? run_here(probe) : run_probe(probe, cpus, kProbeSeconds);
  };
  std::vector<double> times, peaks, shares;
  for (int round = -1; round < rounds; ++round) {
    const double before = peak_now();
    const Stopwatch watch(one_thread);
    int calls = 0;
    double time = 0;
    do {
      if (Status status = attention(problem, tensors, options); !status) return status;
      ++calls;
      time = watch.seconds();
    } while (time < kCallSeconds);
    const double peak = (before + peak_now()) / 2;
    if (round < 0) continue;
    times.push_back(time / calls);
    peaks.push_back(peak);
    shares.push_back(flop_count(problem) / times.back() / peak);
  }
  return Row{quantile(times, 0.5), quantile(peaks, 0.5), quantile(shares, 0.5),
             *std::max_element(shares.begin(), shares.end())};
}

int fail(int code, const std::string& message) {
  std::fprintf(stderr, "bench_cpu_flash: %s\n", message.c_str());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  std::string variant = "cpu.flash";
  std::vector<std::string> dtypes{"fp32", "bf16", "fp16", "e4m3"};
  std::vector<std::string> shapes{
      "1x8x512x64",         "1x8x512x64 causal",  "2x8x2048x64",
      "2x8x2048x64 causal", "1x32x4096x128",      "1x32x4096x128 causal",
      "1x12x128x32",        "1x12x128x32 causal", "1x32/8x1/8192x128"};
  int rounds = 9;
  bool one_thread = false;
  CLI::App app("How near the CPU kernels come to the peak that is measured beside them.");
  app.add_option("--variant", variant, "of the CPU")->capture_default_str();
  app.add_option("--dtype", dtypes, "fp32, fp16, bf16, e4m3")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_option("--rounds", rounds, "counted")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--one-thread", one_thread, "1: one thread, in its CPU time");
  app.add_option("shapes", shapes, "as for greenfast run")->allow_extra_args();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kPassed : kUsage;
  }

  if (one_thread) setenv("GREENFAST_THREADS", "1", 1);
  const Result<DeviceFacts> facts = device_facts(DeviceKind::cpu);
  if (!facts) return fail(kNoDevice, facts.status().message());
  std::vector<int> cpus = own_cpus();
  cpus.resize(std::min(cpus.size(), static_cast<std::size_t>(facts->multiprocessors)));
  std::printf("%s, %s, %d threads, %s\n", facts->name.c_str(), facts->isa.c_str(),
              facts->multiprocessors, variant.c_str());
  std::printf("%-22s %-5s %10s %10s %8s %8s %8s\n", "shape", "dtype", "ms", "GFLOP/s", "peak",
              "% peak", "best %");

  for (const std::string& shape : shapes) {
    for (const std::string& name : dtypes) {
      const std::optional<DType> dtype = parse_dtype(name);
      if (!dtype) return fail(kUsage, "dtype '" + name + "': fp32, fp16, bf16 or e4m3");
      ProblemDefaults defaults;
      defaults.dtype = *dtype;
      const auto parsed = parse_shapes(shape, defaults);
      if (!parsed) return fail(kUsage, parsed.status().message());
      if (parsed->size() != 1) return fail(kUsage, "'" + shape + "': one shape an argument");
      Case test;
      test.problem = parsed->front().problem;
      Inputs inputs = generate(test);
      Tensors tensors;
      std::vector<std::vector<std::byte>> outputs;
      for (const Operand& operand : operands_of(test.problem)) {
        if (!operand.present) continue;
        if (operand.role == Role::output)
          outputs.emplace_back(static_cast<std::size_t>(operand.bytes));
        set_data(tensors, operand.id,
                 operand.role == Role::output ? outputs.back().data()
                                              : bytes_of(inputs, operand.id).data());
      }
      Options options;
      options.variant = variant;
      const auto row = measure(test.problem, tensors, options, probe_of(facts->isa, *dtype), cpus,
                               one_thread, rounds);
      if (!row) return fail(exit_code_of(row.status().code()), row.status().message());
      std::printf("%-22s %-5s %10.3f %10.1f %8.1f %8.1f %8.1f\n", shape.c_str(), name.c_str(),
                  1e3 * row->seconds, 1e-9 * flop_count(test.problem) / row->seconds,
                  1e-9 * row->peak, 100 * row->share, 100 * row->best_share);
      std::fflush(stdout);
    }
  }
  return kPassed;
}
