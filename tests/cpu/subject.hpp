// Every CPU kernel with every instruction set of this machine, launched without selection.
#pragma once

#include <string>
#include <vector>

#include "backends/cpu/isa.hpp"
#include "backends/cpu/pool.hpp"
#include "case.hpp"
#include "core/executor.hpp"
#include "core/variant.hpp"

namespace greenfast::kernels {
extern const core::Kernel cpu_naive;
extern const core::Kernel cpu_flash;
}  // namespace greenfast::kernels

namespace greenfast::test {

struct Subject {
  const core::Kernel* kernel;
  std::string isa;
  std::string label;

  /// Whether it rounds softmax weights to bf16.
  bool rounds_weights(DType dtype) const {
    return (isa == "avx512bf16" || isa == "avx512amx") && kernel == &kernels::cpu_flash &&
           (dtype == DType::bf16 || dtype == DType::e4m3);
  }
};

inline std::vector<Subject> subjects() {
  std::vector<Subject> all{{&kernels::cpu_naive, "portable", "naive"}};
  for (int isa = 0; isa <= static_cast<int>(cpu::detect_isa()); ++isa) {
    const std::string name{cpu::name_of(static_cast<cpu::Isa>(isa))};
    all.push_back({&kernels::cpu_flash, name, "flash_" + name});
  }
  return all;
}

inline Status launch(const Subject& subject, const Case& call, int threads = 3,
                     bool batch_invariant = false) {
  cpu::ThreadPool pool({.threads = threads, .cpus = {}, .pin = false});
  DeviceFacts facts;
  facts.multiprocessors = threads;
  facts.isa = subject.isa;
  facts.l2_bytes = 1 << 20;
  core::Context context;
  context.facts = &facts;
  context.choice.batch_invariant = batch_invariant;
  context.executor = &pool;
  return subject.kernel->launch(call.problem, call.tensors, context);
}

}  // namespace greenfast::test
