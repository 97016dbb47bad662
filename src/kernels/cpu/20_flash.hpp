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
};

enum class Type : int { f32 = 0, f16 = 1, bf16 = 2, e4m3 = 3 };  // as greenfast::DType

/// One call, resolved. The rows of one KV head are its queries times the query heads of its group,
/// query by query: row r is query r / group of head r % group within the group.
struct Call {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* o = nullptr;
  float* lse = nullptr;
  const float *q_scale = nullptr, *k_scale = nullptr, *v_scale = nullptr;  // null: all 1
  bool scale_per_head = false;
  Strides q_stride, k_stride, v_stride, o_stride;
  std::int64_t heads_q = 1, heads_kv = 1, seq_q = 0;
  std::int64_t group = 1;  // heads_q / heads_kv
  std::int64_t rows = 0;   // seq_q * group
  int head_dim = 0;
  Type type = Type::f32, out_type = Type::f32;
  float scale = 1.0f, softcap = 0.0f;
  Band band;

  // Division of the work: a task is task_rows rows of one KV head and one of `splits` parts of the
  // keys they see, which are cut at multiples of key_tile.
  int task_rows = 0;
  int tile_rows = 0;  // rows of a register tile, at most Code::tile_rows
  int key_tile = 0;
  int splits = 1;
  bool fold = false;           // rows may see so many keys that sums of fp32 are not enough
  std::int64_t row_tasks = 0;  // tasks of one KV head, without splits
  std::int64_t kv_heads = 0;   // over the batch
  bool head_by_head = true;    // order of tasks: else long ones of every head first
  bool last_rows_first = false;
  float* partials = nullptr;  // [kv_heads][row_tasks][splits] of partial_floats, when splits > 1
  std::int64_t partial_floats = 0;
};

/// The kernel for one instruction set.
struct Code {
  bool amx;       // all types but fp32 go through tiles of AMX
  int tile_rows;  // rows of the largest register tile, a power of two
  int min_rows;   // of the smallest: one vector
  std::size_t (*arena_bytes)(const Call&);
  void (*attend)(const Call&, std::int64_t task, void* arena);
  /// Puts the parts of the keys together; task in [0, kv_heads * row_tasks).
  void (*merge)(const Call&, std::int64_t task, void* arena);
};

extern const Code portable;
#if defined(__x86_64__)
extern const Code avx2, avx512, avx512bf16, avx512amx;
#endif

}  // namespace greenfast::kernels::flash
