// What nvcc made of the kernels, read from the file that carries them: an executable, a shared
// library or an object with .nv_fatbin sections, or a bare cubin. Needs neither a GPU nor a CUDA
// toolkit. Formats: the ELF specification, and for what NVIDIA adds to it (fat binaries, .nv.info)
// the files nvcc 13.0 writes and `cuobjdump -elf` names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/types.hpp>

namespace greenfast::workbench {

/// One kernel function in one cubin.
struct KernelCode {
  std::string symbol;              ///< mangled
  std::string name;                ///< kernel_name(symbol); empty when read from bytes alone
  std::string arch;                ///< "sm_90a"
  int registers = 0;               ///< a thread
  std::int64_t static_shared = 0;  ///< bytes a block, without what the system reserves
  /// Local memory of a thread, bytes. What a kernel spills lies there, so 0 means that it spills
  /// nothing.
  std::int64_t stack = 0;
  int max_threads = 0;          ///< __launch_bounds__; 0: none
  std::int64_t code_bytes = 0;  ///< of the machine code
  std::string sha256;           ///< of the machine code, see machine_code_digest in the .cpp
  std::string compiler;         ///< "13.0, V13.0.88": the ptxas that wrote it; empty: not told
};

struct DeviceCode {
  std::string file;  ///< where it was read from; empty for bytes
  std::vector<KernelCode> kernels;
  std::vector<std::string> ptx;  ///< "compute_80", for GPUs without machine code; each once
};

/// Trusts nothing: every offset is checked, and a file that contradicts itself is refused in words.
/// Reads what nvcc compressed (zstd, from 12.8 on).
/// Kernels come in the order of the file. No device code at all is no error: `kernels` is empty.
Result<DeviceCode> read_device_code(std::span<const std::byte> file);
Result<DeviceCode> read_device_code(const std::filesystem::path& file);
/// The cubins in it, in the order of the file, for disassemblers.
Result<std::vector<std::vector<std::byte>>> read_cubins(std::span<const std::byte> file);
/// Of the program that runs, read once.
const Result<DeviceCode>& own_device_code();

/// The kernels that a device of compute capability `arch` (90) loads, each once: that
/// architecture's own code, else the newest of the same generation below it.
std::vector<const KernelCode*> kernels_for(const DeviceCode& code, int arch);
/// That of them with this name, as kernel_name gives it. Null: the driver would compile PTX.
const KernelCode* find_kernel(const DeviceCode& code, std::string_view name, int arch);

/// 90 of "sm_90a"; 0 for anything else than "sm_" and digits with one letter at most.
int arch_number(std::string_view arch);

}  // namespace greenfast::workbench
