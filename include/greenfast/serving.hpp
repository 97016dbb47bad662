// What a serving engine does around attention: append new keys and values to a cache, merge the
// parts of a row. docs/serving.md says how they go together.
#pragma once

#include <greenfast/attention.hpp>

namespace greenfast {

/// Two parts of the same attention, over disjoint keys, made into one: with w = exp(lse) a part's
/// weight, O = (w_a a + w_b b) / (w_a + w_b) and LSE = log(w_a + w_b). A part whose LSE is -inf or
/// +inf is empty: its O is not read. Both empty: O = 0, LSE = -inf. NaN is not empty: the row's LSE is
/// NaN, and its O is NaN as well, or, where the other part is empty, what this one's is. Sinks belong
/// into one part only.
struct MergeProblem {
  std::int64_t batch = 1, heads = 1, seq = 0, head_dim = 64;  ///< head_dim: that of O
  DType dtype = DType::f32;                                   ///< of a and b: fp32, fp16, bf16
  DType out_dtype = DType::f32;                               ///< of o
  Layout a = {}, b = {}, o = {};                              ///< packed O is [1, H, total, D]
};
/// The caller owns every buffer. o and lse may be those of a part, with its type and strides.
struct MergeTensors {
  const void* a = nullptr;
  const float* lse_a = nullptr;  ///< fp32 [B, H, S], contiguous, natural log
  const void* b = nullptr;
  const float* lse_b = nullptr;
  void* o = nullptr;
  float* lse = nullptr;  ///< may be null
};
/// Merges on Options::device. Sums are fp64 on the CPU and fp32 on CUDA. Of Options only device,
/// device_index and stream count. The order of the parts changes no bit.
GREENFAST_API Status merge(const MergeProblem& problem, const MergeTensors& tensors,
                           const Options& options = {});

/// Which elements of a head a rotary embedding turns together. Values are stable.
enum class Rotary : std::int32_t {
  none = 0,
  interleaved = 1,  ///< 2 n and 2 n + 1
  neox = 2,         ///< n and n + rotary_dim / 2
};

/// New keys and values, [B, Hkv, S, D], and the cache they go to: token t of sequence b becomes key
/// used_kv[b] + t. Then attend with used_kv of as many more. The cache is [B, Hkv, Skv, D], or
/// [kv_rows, Hkv, Skv, D] with kv_index, or in pages as Problem says. Packed new tensors are
/// [1, Hkv, total_new, D].
struct AppendProblem {
  std::int64_t batch = 1;
  std::int64_t heads_q = 0;  ///< of Q, which is turned as well; 0: there is no Q
  std::int64_t heads_kv = 1;
  std::int64_t seq_new = 0;  ///< new tokens of each sequence, or of the longest
  std::int64_t seq_kv = 0;   ///< keys that a sequence may have in the cache
  std::int64_t head_dim = 64;
  std::int64_t head_dim_v = 0;  ///< 0: head_dim
  DType dtype = DType::f16;     ///< of all tensors; e4m3 without rotary

  bool packed = false;         ///< new tensors are packed, as cu_new says
  std::int64_t total_new = 0;  ///< packed: their rows
  bool used_new = false;       ///< used_new [B] says how many new tokens each sequence has
  bool kv_start = false;       ///< positions count from kv_start
  bool kv_index = false;
  std::int64_t kv_rows = 0;
  Pages pages = {};

  /// The first rotary_dim elements of K's and Q's heads are turned by the angle of their position,
  /// which is that of the key in the cache (less kv_start): x cos - y sin, y cos + x sin, in fp32.
  Rotary rotary = Rotary::none;
  std::int64_t rotary_dim = 0;  ///< even, at most head_dim
  std::int64_t positions = 0;   ///< rows of the tables cos and sin

  Layout k_new = {}, v_new = {};  ///< what is appended
  Layout k = {}, v = {};          ///< the cache
  Layout q = {}, q_out = {};      ///< [B, Hq, S, D] of the new tokens, packed with them
};
/// The caller owns every buffer. q_out may be q with its strides.
struct AppendTensors {
  const void* k_new = nullptr;
  const void* v_new = nullptr;
  void* k = nullptr;
  void* v = nullptr;
  const void* q = nullptr;
  void* q_out = nullptr;
  const std::int32_t* cu_new = nullptr;      ///< [B + 1]
  const std::int32_t* used_new = nullptr;    ///< [B]
  const std::int32_t* used_kv = nullptr;     ///< [B]: keys before the call; null: none
  const std::int32_t* kv_start = nullptr;    ///< [B]
  const std::int32_t* kv_index = nullptr;    ///< [B]
  const std::int32_t* page_table = nullptr;  ///< [B, pages]
  const float* cos = nullptr;                ///< [positions, rotary_dim / 2]
  const float* sin = nullptr;
};
/// Appends on Options::device; of Options only device, device_index, stream and validate count.
/// Nothing is written when a Status comes back. On the CPU, and on CUDA with Options::validate, it
/// names a sequence that grows past seq_kv or past the pool, a page or row that does not exist, two
/// sequences that would write the same page. Else nobody reads the arrays on CUDA before: with Status
/// ok tokens without a place in the cache, or a row of the tables, are dropped, their rows of q_out stay as they are, and of two
/// sequences that write the same page either may win.
GREENFAST_API Status append(const AppendProblem& problem, const AppendTensors& tensors,
                            const Options& options = {});

}  // namespace greenfast
