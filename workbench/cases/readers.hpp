// Tensors from files: .safetensors and .npy. Both parsers work on bytes alone, trust nothing they
// read, and allocate no more than a small multiple of the header.
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

/// One tensor inside a file: row-major, little-endian.
struct FileTensor {
  std::string name;  ///< empty for .npy
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;  ///< of the first element, in bytes from the start of the file
  std::uint64_t bytes = 0;
};

/// A tensor that a .safetensors header lists with an element type that attention does not take
/// (I64, F64, …) is kept by name, so that an error can say what it is.
struct SafetensorsIndex {
  std::vector<FileTensor> tensors;
  struct Other {
    std::string name, dtype;
  };
  std::vector<Other> others;
};

/// Reads the index of a .safetensors file of file_bytes bytes from its first bytes (all of the
/// header, or the whole file). Checks the whole header: a length within the file, JSON without
/// duplicate names, shapes that do not overflow, offsets in range that fit the shape and do not
/// overlap. Errors say which tensor and what was found.
Result<SafetensorsIndex> read_safetensors(std::span<const std::byte> head,
                                          std::uint64_t file_bytes);
inline Result<SafetensorsIndex> read_safetensors(std::span<const std::byte> file) {
  return read_safetensors(file, file.size());
}

/// Reads the header of an .npy file (format 1.0 to 3.0): '<f4' or '<f2', C order.
Result<FileTensor> read_npy(std::span<const std::byte> head, std::uint64_t file_bytes);
inline Result<FileTensor> read_npy(std::span<const std::byte> file) {
  return read_npy(file, file.size());
}

/// Tensors of one captured attention call, as stored.
struct Captured {
  struct Item {
    FileTensor tensor;
    std::filesystem::path file;
    std::vector<std::byte> data;
  };
  Item q, k, v;  // rank 4
  /// e4m3 only: fp32 descale values, one or one per (batch, head); empty when the file has none.
  std::vector<float> q_scale, k_scale, v_scale;
};

/// Reads Q, K and V from what --inputs names: one .safetensors file; "q.npy,k.npy,v.npy" in that
/// order; or a directory with q.npy, k.npy and v.npy. In a .safetensors file the tensors are called
/// q, k and v, or end so after a dot ("layer.3.q"), each once; q_scale, k_scale and v_scale are
/// optional. Rank 4, or rank 3 for a batch of one. Refuses more than `limit` bytes in all.
Result<Captured> read_captured(std::string_view inputs,
                               std::uint64_t limit = std::uint64_t{8} << 30);

}  // namespace greenfast::workbench
