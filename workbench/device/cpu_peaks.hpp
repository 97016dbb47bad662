// Ceilings of a CPU's arithmetic: loops of nothing but multiply-adds on pinned threads. Needs the
// standard library alone, so that bench/cpu_peaks.cpp runs wherever the C++ runtime does.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <greenfast/types.hpp>

namespace greenfast::workbench {

/// Makes the compiler believe that somebody reads the value.
template <class T>
void keep(T value) {
  volatile T sink = value;
  (void)sink;
}

struct SpeedProbe {
  const char* isa;
  DType dtype;  // fp32 for multiply-add, bf16 for dot products
  float (*loop)(std::int64_t iterations);
  double flops;  // per iteration
};
/// Those that this processor can run, widest first; fp32 is among them.
std::vector<SpeedProbe> speed_probes();
/// The loop that an honest kernel of this dtype cannot outrun: bf16 and e4m3 widen to bf16 exactly
/// where the CPU multiplies it, fp16 to fp32, or to sums of two bf16 where tiles multiply those.
/// Fusing may be faster than dot products (Sapphire Rapids without AMX, twice).
SpeedProbe best_probe(DType dtype);
/// FLOP/s of all `cpus` together, one pinned thread on each, for about `seconds`.
double run_probe(const SpeedProbe& probe, const std::vector<int>& cpus, double seconds);

/// CPUs that the calling thread may use; 0 where the system does not tell.
std::vector<int> own_cpus();
/// Runs work(i) on one thread per CPU, pinned there, all starting together. Threads live only here,
/// so nothing of the workbench's competes with the library's pool while that is timed.
void on_each(const std::vector<int>& cpus, const std::function<void(int)>& work);

/// Arithmetic this CPU can be probed for, widest first: "avx512amx", "avx512bf16", "avx512",
/// "avx2", "portable" as far as it has them.
std::vector<std::string> cpu_probe_isas();
/// run_probe by names; 0 where the set has no such instruction.
double probe_cpu_flops(const std::string& isa, DType dtype, const std::vector<int>& cpus,
                       double seconds);

}  // namespace greenfast::workbench
