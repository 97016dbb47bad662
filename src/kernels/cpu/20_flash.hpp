// What the flash kernel's generic half and its halves for each instruction set say to each other.
// Plain data only: the latter include no standard header whose inline functions, compiled with
// wide instructions, the linker could pick for everybody.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/device/band.hpp"

namespace greenfast::kernels::flash {

/// Strides of B, H and S in elements.
struct Strides {
  std::int64_t b = 0, h = 0, s = 0;
  std::int64_t d = 1;  // of V alone, in e4m3: its keys may be contiguous instead
};

inline constexpr std::int64_t kScaleBlock = 128;                 // as greenfast::kScaleBlock
enum class Type : int { f32 = 0, f16 = 1, bf16 = 2, e4m3 = 3 };  // as greenfast::DType

/// One entry of the batch: where its rows lie, in elements from the bases of the call, and what
/// they see. Its rows under one KV head are its queries times the query heads of its group, query
/// by query: row r is query r / group of head r % group within the group.
struct Entry {
  std::int64_t b = 0;
  std::int64_t q = 0, k = 0, v = 0, o = 0, lse = 0;
  const std::int32_t* pages = nullptr;  // its row of the page table
  std::int64_t rows = 0;
  Band band;
  bool fold = false;  // rows may see so many keys that sums of fp32 are not enough
  // A task is task_rows of the rows and one of `splits` parts of the keys they see. Parts are cut
  // at multiples of split_keys, or where that is 0 into equal numbers of tiles.
  std::int64_t row_tasks = 0;
  int splits = 1;
  std::int64_t split_keys = 0;
  std::int64_t partials = 0, partial_floats = 0;  // first of its parts, floats of one of them
  // Tasks of the entries before, with splits and without; for entries in a list.
  std::int64_t first_task = 0, first_whole = 0;
};

/// One call, resolved.
struct Call {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* o = nullptr;
  float* lse = nullptr;
  const float *q_scale = nullptr, *k_scale = nullptr, *v_scale = nullptr;  // null: all 1
  bool scale_per_head = false;
  std::int64_t q_blocks = 0, kv_blocks = 0;  // factors of a head; 0: not by block
  Strides q_stride, k_stride, v_stride, o_stride;
  std::int64_t lse_stride = 0;  // from one query head to the next
  std::int64_t heads_q = 1, heads_kv = 1;
  std::int64_t group = 1;  // heads_q / heads_kv
  int head_dim = 0, value_dim = 0;
  Type type = Type::f32, out_type = Type::f32;
  float scale = 1.0f, softcap = 0.0f;
  std::int64_t page_size = 0;  // 0: keys of an entry are rows one behind the other
  const float* sinks = nullptr;
  // Added to scores behind softcap. With either, as with softcap, scores are in natural units.
  const float* slopes = nullptr;
  std::int64_t slope_stride = 0;  // from one entry of the batch to the next
  const void* mask = nullptr;
  bool mask_is_bool = false;
  Type mask_type = Type::f32;
  std::int64_t mask_stride[4] = {};
  bool biased() const { return slopes != nullptr || mask != nullptr; }
  bool natural() const { return softcap > 0.0f || biased(); }

  // Division of the work. Entries that are alike are one, `entry`, `batch` times; others are a list.
  Entry entry;
  const Entry* entries = nullptr;
  std::int64_t entry_count = 0;
  int task_rows = 0;
  int tile_rows = 0;  // rows of a register tile, at most Code::tile_rows
  int key_tile = 0;
  bool fold = false;          // for some entry
  std::int64_t kv_heads = 0;  // over the batch, where entries are alike
  bool head_by_head = true;   // order of tasks: else long ones of every head first
  bool last_rows_first = false;
  float* partials = nullptr;  // of entries in parts, [kv head][row task][split] of partial_floats
};

/// The kernel for one instruction set.
struct Code {
  bool amx;       // all types but fp32 go through tiles of AMX
  int tile_rows;  // rows of the largest register tile, a power of two
  int min_rows;   // of the smallest: one vector
  std::size_t (*arena_bytes)(const Call&);
  /// Floats that `rows` rows of a task take as a part.
  std::int64_t (*partial_floats)(const Call&, std::int64_t rows);
  void (*attend)(const Call&, std::int64_t task, void* arena);
  /// Puts the parts of the keys together; task counts without splits.
  void (*merge)(const Call&, std::int64_t task, void* arena);
};

extern const Code portable;
#if defined(__x86_64__)
extern const Code avx2, avx512, avx512bf16, avx512amx;
#endif

}  // namespace greenfast::kernels::flash
