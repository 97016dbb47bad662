// Tiles and parameters of cuda.sm80.serving: what its host part and its kernels agree on.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/cuda/device/sequences.hpp"
#include "kernels/cuda/device/strided_tensor.hpp"
#include "kernels/cuda/device/tile_schedule.hpp"

namespace greenfast::cuda::sm80_serving {

/// One compiled kernel: four warps of 16 rows each. A block of keys is one loop step.
struct Config {
  int head_dim = 64;  // of Q·K and of V; smaller ones are padded with zeros in shared memory
  int keys = 64;
  bool q_in_registers = true;  // otherwise its fragments are read again for each block
  int blocks_per_sm = 2;       // for the register budget
  int bytes = 2;               // of an element of Q, K and V; 1: e4m3
  bool spread_copies = true;   // between products, where rows follow each other

  static constexpr int kStages = 2, kWarps = 4;

  constexpr int threads() const { return 32 * kWarps; }
  constexpr int rows() const { return 16 * kWarps; }
  /// Bytes from one row to the next in shared memory. The 16-byte chunks of a line of 128 bytes are
  /// exchanged by the row's number, so that the eight rows of an 8x8 matrix lie in different banks; between
  /// padded rows a copy would straddle two lines (docs/kernels/sm80-mma.md).
  constexpr int pitch() const { return bytes * head_dim; }
  /// Elements of 16 bytes.
  constexpr int of_chunk() const { return 16 / bytes; }
  constexpr int stage_bytes() const { return 2 * keys * pitch(); }  // K, then V
  /// Q that goes to registers lends its place to the second stage.
  constexpr int q_offset() const { return (q_in_registers ? 1 : kStages) * stage_bytes(); }
  constexpr int shared_bytes() const {
    const int after_q = q_offset() + rows() * pitch();
    return after_q > kStages * stage_bytes() ? after_q : kStages * stage_bytes();
  }
  constexpr bool valid() const {
    return head_dim % 64 == 0 && keys % 16 == 0 && shared_bytes() <= 99 * 1024;
  }
};

/// In order of head dim. The last takes 96 of the 99 KB that sm_86 and sm_89 give a block.
inline constexpr std::array kConfigs{
    Config{.head_dim = 64},
    Config{.head_dim = 128},
    Config{.head_dim = 256, .keys = 32, .q_in_registers = false, .blocks_per_sm = 1},
};

/// An element of e4m3 tensors.
struct E4m3 {
  std::uint8_t bits;
};

/// The configuration `index` for elements of so many bytes.
constexpr Config config_of(std::size_t index, std::size_t bytes) {
  Config config = kConfigs[index];
  config.bytes = static_cast<int>(bytes);
  // Decoding wants registers, and half as many bytes leave Q a place of its own.
  if (bytes == 1 && config.head_dim > 64) config.q_in_registers = false;
  if (bytes == 1 && config.head_dim > 128) config.spread_copies = false;
  return config;
}

struct Params {
  StridedTensor q, k, v;
  void* o = nullptr;
  std::int64_t o_batch = 0, o_head = 0, o_row = 0;
  float* lse = nullptr;  // [B, Hq, Sq], or packed [Hq, total]
  SequenceArrays sequences;
  std::int32_t head_dim = 0, value_dim = 0;
  std::uint32_t heads_q = 1, heads_kv = 1;
  std::uint32_t group = 1;  // query heads per KV head
  std::uint32_t tiles = 1;  // of one KV head: rows are queries times the heads of its group
  std::uint32_t batch = 1;
  float scale_log2 = 0.0f;  // applied inside the exponent, when no transform is needed
  // Scores that the exponent's fma cannot scale are transformed first: x = s * transform_scale, then
  // transform_cap * tanh, if transform_cap > 0, then biases. The result is in log2 units.
  bool transform = false;
  float transform_scale = 0.0f;
  float transform_cap = 0.0f;
  // Of e4m3: one a tensor, or one a head of each entry of the batch; null for 1.
  const float *q_scale = nullptr, *k_scale = nullptr, *v_scale = nullptr;
  bool scales_per_head = false;
  const float* sinks = nullptr;       // [Hq]
  const float* slopes = nullptr;      // [Hq], or [B, Hq]
  std::uint32_t slopes_of_entry = 0;  // from one entry of the batch to the next
  const void* mask = nullptr;
  bool bool_mask = false;
  ElementType mask_type = ElementType::f32;
  std::int64_t mask_batch = 0, mask_head = 0, mask_row = 0, mask_key = 0;  // strides in elements
  /// Neighbouring keys whose elements one load may take, from a multiple of so many on: 1, 2, or 16 of a
  /// boolean mask.
  std::int32_t mask_run = 1;
  // Of a page; without pages there is one of more rows than there are keys.
  Divisor by_page;
  std::int32_t page_rows = 1 << 30;
  bool aligned = false;     // rows of Q, K and V start at 16-byte boundaries
  bool wide_store = false;  // output rows allow one vector store a lane
  ElementType output = ElementType::f16;
};

/// The compiled kernels of an element type, in the order of kConfigs.
template <class T>
const std::array<const void*, kConfigs.size()>& entries();

}  // namespace greenfast::cuda::sm80_serving
