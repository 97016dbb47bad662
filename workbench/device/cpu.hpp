// The machine's CPU behind open_device(DeviceKind::cpu).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "workbench/device/device.hpp"

namespace greenfast::workbench {

Result<std::unique_ptr<Device>> open_cpu_device();

/// Arithmetic this CPU can be probed for, widest first: "avx512amx", "avx512bf16", "avx512",
/// "avx2", "portable" as far as it has them.
std::vector<std::string> cpu_probe_isas();
/// FLOP/s of all `cpus` together, one pinned thread on each, running nothing but fused
/// multiply-adds (fp32) or bf16 dot products of one instruction set for about `seconds`. 0 where
/// the set has no such instruction.
double probe_cpu_flops(const std::string& isa, DType dtype, const std::vector<int>& cpus,
                       double seconds);

}  // namespace greenfast::workbench
