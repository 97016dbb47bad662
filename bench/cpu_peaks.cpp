// What processors reach in each type: what greenfast_bench.ab_cpu asks between its rows.
//
//   bench_cpu_peaks CPU,CPU... [SECONDS]
//
// One thread on the first processor, then one on each: fp32 multiply-adds of the widest set, and bf16 dot
// products of each set that has them. The best of five turns of SECONDS / 5 (default: 0.05), because a
// ceiling is what the machine can do and not what a neighbour leaves. Prints an array of JSON;
// links nothing but the C++ runtime.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>
#include <system_error>
#include <vector>

#include "workbench/device/cpu_peaks.hpp"

namespace {

using greenfast::DType;
using greenfast::workbench::SpeedProbe;

constexpr int kTurns = 5;

template <class Number>
bool read(std::string_view text, Number& value) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && stop == text.data() + text.size() && value >= 0;
}

bool read_list(std::string_view text, std::vector<int>& cpus) {
  while (true) {
    const auto comma = text.find(',');
    if (!read(text.substr(0, comma), cpus.emplace_back())) return false;
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

std::vector<SpeedProbe> wanted() {
  std::vector<SpeedProbe> probes;
  bool fused = false;
  for (const SpeedProbe& probe : greenfast::workbench::speed_probes()) {
    if (probe.dtype == DType::f32 && fused) continue;
    fused = fused || probe.dtype == DType::f32;
    probes.push_back(probe);
  }
  return probes;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> cpus;
  double seconds = 0.05;
  if (argc < 2 || argc > 3 || !read_list(argv[1], cpus) || (argc == 3 && !read(argv[2], seconds))) {
    std::fprintf(stderr,
                 "usage: bench_cpu_peaks CPU,CPU... [SECONDS], as in bench_cpu_peaks 0,1\n");
    return 2;
  }
  std::vector<std::vector<int>> sets{{cpus.front()}};
  if (cpus.size() > 1) sets.push_back(cpus);
  const char* separator = "[";
  for (const SpeedProbe& probe : wanted()) {
    for (const std::vector<int>& set : sets) {
      double best = 0;
      for (int turn = 0; turn < kTurns; ++turn)
        best = std::max(best, greenfast::workbench::run_probe(probe, set, seconds / kTurns));
      std::printf("%s{\"dtype\": \"%s\", \"isa\": \"%s\", \"threads\": %zu, \"flops\": %.6g}",
                  separator, probe.dtype == DType::bf16 ? "bf16" : "fp32", probe.isa, set.size(),
                  best);
      separator = ",\n ";
    }
  }
  std::printf("]\n");
  return 0;
}
