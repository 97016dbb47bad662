// Where a kernel spends its cycles, phase by phase. The kernel says where each phase ends; a probe
// that reads no clock leaves no instruction behind, so the timed kernel and its instrumented twin
// are one source.
#pragma once

namespace greenfast::cuda {

enum class Phase : int { loads, decode, scores, softmax, values, epilogue };
inline constexpr int kPhases = 6;

__device__ __forceinline__ unsigned long long clock_now() {
  unsigned long long cycles;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
  return cycles;
}

struct NoProbe {
  __device__ __forceinline__ void end_of(Phase) {}
};

/// Adds up a thread's cycles by phase; what passes before the first mark counts as the phase that
/// ends there. Waiting at a barrier belongs to the phase before it.
class ClockProbe {
 public:
  /// `slots`: kPhases words of this thread's warp; its first lane writes them.
  __device__ __forceinline__ explicit ClockProbe(unsigned long long* slots)
      : slots_(slots), last_(clock_now()) {}
  __device__ __forceinline__ void end_of(Phase phase) {
    const unsigned long long now = clock_now();
    spent_[static_cast<int>(phase)] += static_cast<unsigned>(now - last_);
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
  unsigned long long* slots_;
  unsigned long long last_;
  unsigned spent_[kPhases] = {};  // 2^32 cycles are two seconds
};

}  // namespace greenfast::cuda
