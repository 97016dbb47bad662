// Where a kernel spends its cycles, phase by phase. The kernel says where each phase ends; a probe
// that reads no clock leaves no instruction behind, so the timed kernel and its instrumented twin
// are one source.
#pragma once

namespace greenfast::cuda {

enum class Phase : int {
  loads,
  decode,
  transpose,
  free_stage,  // producers wait for the consumers
  full_stage,  // consumers wait for the producers
  scores,
  softmax,
  values,
  epilogue
};

__device__ __forceinline__ unsigned long long clock_now() {
  unsigned long long cycles;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
  return cycles;
}

struct NoProbe {
  __device__ __forceinline__ void end_of(Phase) {}
};

/// Adds up a thread's cycles by phase; what passes before the first mark counts as the phase that
/// ends there. Waiting at a barrier belongs to the phase before it, and waiting for a result to the
/// phase that reads it first. kOf: the phases that the kernel has, in the order of their names in
/// variants.def.
template <Phase... kOf>
class ClockProbeOf {
 public:
  static constexpr int kPhases = sizeof...(kOf);

  /// `slots`: kPhases words of this thread's warp; its first lane writes them.
  __device__ __forceinline__ explicit ClockProbeOf(unsigned long long* slots)
      : slots_(slots), last_(clock_now()) {}
  __device__ __forceinline__ void end_of(Phase phase) {
    const unsigned long long now = clock_now();
    const int slot = slot_of(phase);
    if (slot == kPhases) __trap();  // not in kOf; of a constant, nothing is left of this test
    spent_[slot] += static_cast<unsigned>(now - last_);
    last_ = now;
  }
  /// What has passed since the last mark was the epilogue.
  __device__ __forceinline__ void store() {
    end_of(Phase::epilogue);
    if (threadIdx.x % 32 != 0) return;
#pragma unroll
    for (int i = 0; i < kPhases; ++i) slots_[i] = spent_[i];
  }

 private:
  /// kPhases for a phase that the kernel does not have.
  __device__ static constexpr int slot_of(Phase phase) {
    int slot = 0;
    static_cast<void>(((kOf == phase ? true : (++slot, false)) || ...));
    return slot;
  }

  unsigned long long* slots_;
  unsigned long long last_;
  unsigned spent_[kPhases] = {};  // 2^32 cycles are two seconds
};

/// Of the rungs that decode raw tiles and multiply them, one after the other.
using ClockProbe = ClockProbeOf<Phase::loads, Phase::decode, Phase::scores, Phase::softmax,
                                Phase::values, Phase::epilogue>;

}  // namespace greenfast::cuda
