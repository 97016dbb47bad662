// What is run: problems by name or shape, input distributions, and inputs as a pure function of a
// case.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/operands.hpp>
#include <greenfast/types.hpp>

namespace greenfast::workbench {

/// How the lengths of sequences are drawn, where arrays say them.
struct Lengths {
  enum class Kind {
    mixed,        // the longest, none, one, edges of tiles, and anything between
    full,         // as long as the longest
    log_uniform,  // from `least` to the longest, every octave as likely
  };
  Kind kind = Kind::mixed;
  std::int64_t least = 1;  // of log_uniform
  friend bool operator==(const Lengths&, const Lengths&) = default;
};
/// "mixed", "full", "log-uniform:128".
std::string to_string(const Lengths& lengths);

/// A problem and the name it goes by in tables: "mission", or its shape.
struct NamedProblem {
  std::string name;
  Problem problem;
  Lengths lengths = {};
};

/// Memory layouts that inputs are tried in; all but one have a contiguous last dimension.
enum class LayoutKind {
  bhsd,
  bshd,
  packed,  // Q, K, V as slices of one [B, S, Hq + 2 Hkv, D] projection; O dense BSHD
  padded,  // BHSD with a gap after every row and head; gaps hold NaN, in O they must stay as found
  broadcast,     // all KV heads read the same storage (stride 0); Q and O dense BHSD
  transposed_v,  // V as [B, H, D, S], rows padded to 16 elements, which is for e4m3; else dense BHSD
};
struct LayoutRow {
  LayoutKind id;
  std::string_view name, use;
};
std::span<const LayoutRow> layout_table();
std::optional<LayoutKind> parse_layout(std::string_view name);
/// Whether tensors of that type may lie so.
constexpr bool is_for(LayoutKind kind, DType dtype) {
  return kind != LayoutKind::transposed_v || dtype == DType::e4m3;
}
/// Sets the four layouts of a problem from its shape.
void set_layout(Problem& problem, LayoutKind kind);

/// Everything of a problem that the shape text does not say.
struct ProblemDefaults {
  DType dtype = DType::f16;
  std::optional<DType> out_dtype;
  std::optional<ScaleKind> scales;  // default: per_head for e4m3, none otherwise
  LayoutKind layout = LayoutKind::bhsd;
  Mask mask;
  std::optional<float> scale;  // default: 1 / sqrt(D)
  float softcap = 0.0f;
  bool lse = false;
  Accuracy accuracy = Accuracy::exact;

  // Serving, as attributes.hpp spells it.
  bool packed_q = false, packed_kv = false, used_q = false, used_kv = false;
  bool kv_start = false, kv_index = false, sinks = false;
  std::int64_t page = 0, chunk = 0;
  Alibi alibi = Alibi::none;
  MaskKind mask_kind = MaskKind::none;
  bool narrow_mask = false;              // additive, of the type of Q
  std::string mask_dimensions = "bhqk";  // those in which the array mask is not broadcast
  Lengths lengths;
};

/// Parses "small,mission,4x32/8x1/8192x128": names of shapes and suites from the tables, or BxHxSxD
/// with Hq/Hkv, Sq/Skv and D/Dv. Attributes may follow a shape, " causal" (bottom-right) or
/// " pages=16 used-kv sinks" (attributes.hpp); what an item does not say the defaults do. Errors name
/// the offending item and what would be accepted.
Result<std::vector<NamedProblem>> parse_shapes(std::string_view text,
                                               const ProblemDefaults& defaults);

/// Whether a tensor of these extents has at most 2^56 elements, which leaves room for sizes in bytes
/// and for the padding of layouts. None may be negative.
bool tensor_fits(std::initializer_list<std::int64_t> extents);

/// The table of named shapes: name, shape text, one line of use.
struct ShapeRow {
  std::string_view name, shape, use;
};
std::span<const ShapeRow> shape_table();

/// A named list of shapes, as parse_shapes accepts it.
struct SuiteRow {
  std::string_view name, shapes, use;
};
std::span<const SuiteRow> suite_table();

/// Input distributions; each exists because some wrong kernel passes under all others.
enum class Distribution {
  normal,        // N(0, 1)
  permutation,   // near one-hot retrieval: q_i = 3 k_pi(i), every key decisive for some row
  outliers,      // channel outliers in K and V, nonzero mean
  rising_max,    // the running maximum changes in every tile
  large_logits,  // scores far beyond exp's range in fp16
  constant_v,    // only the normaliser is visible
  small_normal,  // N(0, 0.1^2): what the V2c originals used
  // The ends of the range, each on a small problem of its own (problems_of):
  faint_tail,     // one key 8 to 16 nats above thousands that weigh as much as it in the output
  recent_keys,    // the last 64 keys 8 to 15 nats above the rest
  one_key,        // one key 60 nats up: its V, and nothing else
  far_offsets,    // each row far from 0 and from the others, hidden keys above the visible ones
  huge_scores,    // up to 2e38
  large_softcap,  // a softcap of 1e8 over scores around 1
  long_rows,      // 98,305 keys of nearly one weight, V of mean 1
  dead_rows,      // scores of -inf, in some rows all of them
  extreme_v,      // V at the last number of the type
  tiny_values,    // subnormal K and V
  nan_value,      // one NaN in V: rows of the tiles that see it, and no other
  serving,        // each feature of serving on a batch of a few short sequences
  shared_top,     // 128 keys together 12 to 15 nats above those before and behind them
  huge_heads,     // huge_scores at one end of every third KV head of many, N(0, 1) in the others
  file,           // read from files, not generated: in no policy and not in the table
};
struct DistributionRow {
  Distribution id;
  std::string_view name, catches;
};
std::span<const DistributionRow> distribution_table();
std::string_view name_of(Distribution distribution);
std::optional<Distribution> parse_distribution(std::string_view name);

/// One thing to validate. Inputs are a pure function of it.
struct Case {
  std::string name;  // of the problem
  Problem problem;
  Distribution distribution = Distribution::normal;
  std::uint64_t seed = 0;
  /// K and V of keys that no query can see hold NaN: such a slot must never reach the output.
  bool poison_unseen = true;
  Lengths lengths = {};
  friend bool operator==(const Case&, const Case&) = default;
};
/// "mission 1x8x512x64 fp16, permutation, seed 2".
std::string to_string(const Case& c);

/// Whether its problems are others than the asked one: a kernel may refuse those and be GREEN.
bool has_own_problem(Distribution distribution);

/// The problems that a distribution asks of a kernel that claims `asked`. Most: that one. Those of
/// the ends of the range have few rows, one or two heads and lengths of their own, with dtypes,
/// head dim, mask, softcap and LSE of `asked`, so that they cost little; none where `asked` has
/// nothing that they are about (no softcap, no causal mask, a type without infinities, rows too
/// short to be summed for long).
std::vector<Problem> problems_of(Distribution distribution, const Problem& asked);

/// Whether a distribution that places scores can at this problem's scale, of either sign; else its values are N(0, 1), and
/// limits of its own say nothing.
bool places_scores(const Problem& problem, Distribution distribution);

/// Which values of an e4m3 case the definition is applied to.
enum class Truth {
  decoded,      ///< the bits that a kernel reads
  unquantised,  ///< the values before e4m3
};

/// What serving adds to Q, K and V; empty where the problem has it not.
struct Arrays {
  std::vector<std::int32_t> cu_q, cu_kv, used_q, used_kv, kv_start, kv_index, page_table;
  std::vector<float> sinks, slopes;
  std::vector<std::byte> mask;
};

/// Host copies of one case's inputs, in exactly the bits and the layout that a kernel reads.
struct Inputs {
  std::vector<std::byte> q, k, v;
  std::vector<float> q_scale, k_scale, v_scale;  // e4m3 only, as Problem::scales says
  // Values before quantisation in dense BHSD, kept for e4m3 cases only: policy legacy.stage_c
  // compares with them.
  std::vector<float> q_exact, k_exact, v_exact;
  Arrays arrays;
};
/// The same bytes on every machine, and for any layout the same values.
Inputs generate(const Case& c);
/// Inputs from values of the caller's, dense BHSD: converts to the problem's type (e4m3: with
/// scales from the largest magnitude) and layout. Gaps hold NaN.
Inputs make_inputs(const Problem& problem, std::vector<float> q, std::vector<float> k,
                   std::vector<float> v);
/// Lowercase hex SHA-256 over all of it, for records and tests.
std::string digest(const Inputs& inputs);

/// Host memory that validating a problem takes: inputs, outputs, reference. Saturates on overflow.
std::uint64_t host_bytes(const Problem& problem);

/// One of a problem's operands: its shape in storage and its bytes.
Operand operand_of(const Problem& problem, OperandId id);

/// Bytes from the base address to the end of the last element of a strided [B, H, S, D] tensor.
std::size_t extent_bytes(const Layout& layout, std::int64_t batch, std::int64_t heads,
                         std::int64_t seq, std::int64_t head_dim, DType dtype);

}  // namespace greenfast::workbench
