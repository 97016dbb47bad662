// One serving call, its data wherever packing, pages, indices and lengths put it, and what an fp64
// evaluation by definition says of it. Nothing here asks the library where anything lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <greenfast/attention.hpp>

namespace greenfast::test {

/// How the keys of a scene are kept.
enum class Keep { dense, indexed, packed, paged };

/// What a scene is made of, before memory is laid out.
struct Script {
  std::int64_t heads_q = 1, heads_kv = 1, head_dim = 64, value_dim = 64;
  DType dtype = DType::f32, out_dtype = DType::f32;
  ScaleKind scales = ScaleKind::none;
  float scale = 0.125f, softcap = 0.0f;
  Mask mask;
  std::int64_t chunk = 0;
  bool sinks = false;
  Alibi alibi = Alibi::none;
  MaskKind mask_kind = MaskKind::none;
  DType mask_dtype = DType::f32;
  int mask_broadcast = 0;  // bit n: dimension n has stride 0
  struct One {
    std::int64_t seq_q = 0, seq_kv = 0, kv_start = 0;
  };
  std::vector<One> sequences;
  std::size_t first = 0;  // number of the first of them: their values follow from it

  bool packed_q = false, used_q = false, used_kv = false, kv_start = false;
  Keep keep = Keep::dense;
  std::int64_t page = 16;
  bool rows_between_heads = false;  // BSHD, NHD: heads inside rows
  bool transposed_v = false;        // keys of V one behind the other, in e4m3
  std::int64_t looseness = 0;       // how much longer maxima, slots and pools are than need be
  std::uint64_t seed = 0;
  double spread = 1.0;
};

/// A random one, legal, with every feature now and then.
Script random_script(std::uint64_t seed);

/// A call of it. Memory of no visible key is NaN, and so is all that lies between; entries of the
/// page table that nobody may read are no page; the output is poisoned.
struct Scene {
  Script script;
  Problem problem;
  Tensors tensors;
  std::vector<std::byte> q, k, v, o, mask;
  std::vector<float> lse, q_scale, k_scale, v_scale, sinks, slopes;
  std::vector<std::int32_t> cu_q, cu_kv, used_q, used_kv, kv_start, kv_index, page_table;

  explicit Scene(const Script& script);
  Scene(const Scene&) = delete;
  Scene& operator=(const Scene&) = delete;
  void poison_output();
  /// O and the LSE of one sequence, rows one behind the other, as bytes.
  std::vector<std::byte> bits_of(std::size_t sequence) const;
  /// Empty when O and LSE agree on every row and nothing else was written, else the first
  /// disagreement.
  std::string compare(double p_epsilon, double exp_epsilon) const;
  /// Where a row of O lies, in elements, and its LSE.
  std::int64_t o_at(std::size_t b, std::int64_t h, std::int64_t i) const;
  std::size_t lse_at(std::size_t b, std::int64_t h, std::int64_t i) const;

 private:
  // Values by sequence, head, position; drawn from the seed, wherever memory puts them.
  double drawn(int tensor, std::size_t b, std::int64_t h, std::int64_t s, std::int64_t d) const;
  const double* values(int tensor, std::size_t b, std::int64_t h, std::int64_t s) const;
  bool visible(std::size_t b, std::int64_t i, std::int64_t j) const;
  double bias(std::size_t b, std::int64_t h, std::int64_t i, std::int64_t j) const;
  std::int64_t q_at(std::size_t b, std::int64_t h, std::int64_t i) const;
  std::int64_t key_at(const Layout& layout, std::size_t b, std::int64_t h, std::int64_t j) const;
  void expect() const;  // once, when something is compared

  std::vector<double> values_[3];            // of Q, K, V, [head][position][dim] of each sequence
  std::vector<std::size_t> first_value_[3];  // of each sequence
  struct Row {
    bool empty = false;
    double magnitude = 0.0, lse = 0.0;
  };
  mutable std::vector<Row> rows_;              // of each sequence, [head][query]
  mutable std::vector<double> want_, weight_;  // O, and the same sums over |V|
};

}  // namespace greenfast::test
