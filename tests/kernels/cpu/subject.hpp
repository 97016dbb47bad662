// Every CPU kernel with every instruction set of this machine, launched without selection. With
// GREENFAST_AMX_IN_SOFTWARE: cpu.flash's code for AMX alone, on tiles in software (amx/).
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
extern const core::Kernel cpu_flash_amx_in_software;
}  // namespace greenfast::kernels

namespace greenfast::test {

struct Subject {
  const core::Kernel* kernel;
  std::string isa;
  std::string label;

  /// The relative error of a softmax weight that is multiplied as bf16, or as two of them, and of
  /// its exponential; fp32's is no error here.
  double weight_error(DType dtype) const {
    if (kernel == &kernels::cpu_naive || dtype == DType::f32) return 0.0;
    if (dtype == DType::f16) return isa == "avx512amx" ? 0x1p-16 : 0.0;
    return isa == "avx512bf16" || isa == "avx512amx" ? 0x1p-8 : 0.0;
  }
  double exp_error(DType dtype) const { return weight_error(dtype) == 0x1p-8 ? 4.0e-6 : 0.0; }
};

inline std::vector<Subject> subjects() {
#if defined(GREENFAST_AMX_IN_SOFTWARE)
  return {{&kernels::cpu_flash_amx_in_software, "avx512amx", "flash_avx512amx_in_software"}};
#else
  std::vector<Subject> all{{&kernels::cpu_naive, "portable", "naive"}};
  for (int isa = 0; isa <= static_cast<int>(cpu::detect_isa()); ++isa) {
    const std::string name{cpu::name_of(static_cast<cpu::Isa>(isa))};
    all.push_back({&kernels::cpu_flash, name, "flash_" + name});
  }
  return all;
#endif
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
