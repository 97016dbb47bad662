#include "workbench/cases/problem_codec.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace greenfast::workbench {
namespace {

using nlohmann::json;

constexpr std::pair<ScaleKind, std::string_view> kScaleNames[] = {
    {ScaleKind::none, "none"}, {ScaleKind::tensor, "tensor"}, {ScaleKind::per_head, "per_head"}};
constexpr std::pair<Alignment, std::string_view> kAlignmentNames[] = {
    {Alignment::top_left, "top-left"}, {Alignment::bottom_right, "bottom-right"}};

constexpr std::pair<Alibi, std::string_view> kAlibiNames[] = {
    {Alibi::none, "none"},
    {Alibi::per_head, "per_head"},
    {Alibi::per_batch_head, "per_batch_head"}};
constexpr std::pair<MaskKind, std::string_view> kMaskNames[] = {
    {MaskKind::none, "none"}, {MaskKind::boolean, "bool"}, {MaskKind::additive, "additive"}};

template <class Value, std::size_t N>
json name_in(const std::pair<Value, std::string_view> (&table)[N], Value value) {
  for (const auto& [known, name] : table)
    if (known == value) return name;
  return nullptr;  // a value without a name is not written as another
}

json finite(float value) { return std::isfinite(value) ? json(value) : json(nullptr); }

/// Reads members into variables and remembers the first that cannot be read.
class JsonReader {
 public:
  JsonReader(const json& object, std::string_view noun) : object_(object), noun_(noun) {}

  template <class Value>
  void read(const char* key, Value& to) {
    const json* found = find(key);
    if (found == nullptr) return;
    if constexpr (std::is_same_v<Value, bool>) {
      if (!found->is_boolean()) return wrong(key);
    } else if constexpr (std::is_same_v<Value, std::string>) {
      if (!found->is_string()) return wrong(key);
    } else if constexpr (std::is_integral_v<Value>) {
      if (!found->is_number_integer()) return wrong(key);
    } else {
      if (!found->is_number()) return wrong(key);
    }
    to = found->get<Value>();
  }
  template <class Value, std::size_t N>
  void read(const char* key, std::array<Value, N>& to) {
    const json* found = find(key);
    if (found == nullptr) return;
    if (!found->is_array() || found->size() != N) return wrong(key);
    for (std::size_t i = 0; i < N; ++i) {
      if (!(*found)[i].is_number_integer()) return wrong(key);
      to[i] = (*found)[i].get<Value>();
    }
  }
  template <class Value, std::size_t N>
  void read(const char* key, const std::pair<Value, std::string_view> (&table)[N], Value& to) {
    std::string name;
    read(key, name);
    if (!status_) return;
    for (const auto& [value, known] : table) {
      if (known != name) continue;
      to = value;
      return;
    }
    wrong(key);
  }
  void read(const char* key, DType& to) {
    std::string name;
    read(key, name);
    if (!status_) return;
    const std::optional<DType> dtype = parse_dtype(name);
    if (!dtype) return wrong(key);
    to = *dtype;
  }
  bool has(const char* key) const { return object_.is_object() && object_.contains(key); }
  /// The object that is a member; empty, with the failure kept, when there is none.
  const json& object(const char* key) {
    static const json kNone = json::object();
    const json* found = find(key);
    if (found != nullptr && found->is_object()) return *found;
    if (found != nullptr) wrong(key);
    return kNone;
  }
  void keep(const Status& status) {
    if (status_) status_ = status;
  }
  const Status& status() const { return status_; }

 private:
  const json* find(const char* key) {
    if (!status_) return nullptr;
    const auto found = object_.is_object() ? object_.find(key) : object_.end();
    if (!object_.is_object() || found == object_.end()) {
      status_ = {StatusCode::invalid_argument, fmt::format("{}: '{}' is missing", noun_, key)};
      return nullptr;
    }
    return &*found;
  }
  void wrong(const char* key) {
    status_ = {StatusCode::invalid_argument,
               fmt::format("{}: '{}' is {}, which no {} has", noun_, key,
                           object_.at(key).dump().substr(0, 60), noun_)};
  }

  const json& object_;
  std::string_view noun_;
  Status status_;
};

}  // namespace

json problem_json(const Problem& problem) {
  // Every member by name: a new one does not compile before it is written, and read below.
  const auto& [batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, dtype, out_dtype, scales, scale,
               softcap, mask, lse, q, k, v, o, head_dim_v, sequences, pages, chunk, sinks, alibi,
               array_mask] = problem;
  const auto& [left, right, alignment] = mask;
  json out = {
      {"batch", batch},
      {"heads_q", heads_q},
      {"heads_kv", heads_kv},
      {"seq_q", seq_q},
      {"seq_kv", seq_kv},
      {"head_dim", head_dim},
      {"dtype", name_of(dtype)},
      {"out_dtype", name_of(out_dtype)},
      {"scales", name_in(kScaleNames, scales)},
      {"scale", finite(scale)},
      {"softcap", finite(softcap)},
      {"mask",
       {{"left", left}, {"right", right}, {"alignment", name_in(kAlignmentNames, alignment)}}},
      {"lse", lse},
      {"strides", {{"q", q.stride}, {"k", k.stride}, {"v", v.stride}, {"o", o.stride}}},
  };
  // What came later stands there where a problem has it: the others' records are what they were.
  if (head_dim_v != 0) out["head_dim_v"] = head_dim_v;
  if (!(sequences == Sequences{})) {
    const auto& [packed_q, packed_kv, used_q, used_kv, kv_start, kv_index, total_q, total_kv,
                 kv_rows] = sequences;
    out["sequences"] = {{"packed_q", packed_q}, {"packed_kv", packed_kv}, {"used_q", used_q},
                        {"used_kv", used_kv},   {"kv_start", kv_start},   {"kv_index", kv_index},
                        {"total_q", total_q},   {"total_kv", total_kv},   {"kv_rows", kv_rows}};
  }
  if (!(pages == Pages{})) {
    const auto& [size, count, row_stride] = pages;
    out["pages"] = {{"size", size}, {"count", count}, {"row_stride", row_stride}};
  }
  if (chunk != 0) out["chunk"] = chunk;
  if (sinks) out["sinks"] = sinks;
  if (alibi != Alibi::none) out["alibi"] = name_in(kAlibiNames, alibi);
  if (!(array_mask == ArrayMask{})) {
    const auto& [kind, mask_dtype, stride] = array_mask;
    out["array_mask"] = {
        {"kind", name_in(kMaskNames, kind)}, {"dtype", name_of(mask_dtype)}, {"strides", stride}};
  }
  return out;
}

Result<Problem> problem_of_json(const json& object) {
  Problem p;
  JsonReader reader(object, "problem");
  reader.read("batch", p.batch);
  reader.read("heads_q", p.heads_q);
  reader.read("heads_kv", p.heads_kv);
  reader.read("seq_q", p.seq_q);
  reader.read("seq_kv", p.seq_kv);
  reader.read("head_dim", p.head_dim);
  reader.read("dtype", p.dtype);
  reader.read("out_dtype", p.out_dtype);
  reader.read("scales", kScaleNames, p.scales);
  reader.read("scale", p.scale);
  reader.read("softcap", p.softcap);
  reader.read("lse", p.lse);
  JsonReader mask(reader.object("mask"), "mask");
  mask.read("left", p.mask.left);
  mask.read("right", p.mask.right);
  mask.read("alignment", kAlignmentNames, p.mask.alignment);
  reader.keep(mask.status());
  JsonReader strides(reader.object("strides"), "strides");
  strides.read("q", p.q.stride);
  strides.read("k", p.k.stride);
  strides.read("v", p.v.stride);
  strides.read("o", p.o.stride);
  reader.keep(strides.status());
  if (reader.has("head_dim_v")) reader.read("head_dim_v", p.head_dim_v);
  if (reader.has("sequences")) {
    Sequences& s = p.sequences;
    JsonReader sequences(reader.object("sequences"), "sequences");
    sequences.read("packed_q", s.packed_q);
    sequences.read("packed_kv", s.packed_kv);
    sequences.read("used_q", s.used_q);
    sequences.read("used_kv", s.used_kv);
    sequences.read("kv_start", s.kv_start);
    sequences.read("kv_index", s.kv_index);
    sequences.read("total_q", s.total_q);
    sequences.read("total_kv", s.total_kv);
    sequences.read("kv_rows", s.kv_rows);
    reader.keep(sequences.status());
  }
  if (reader.has("pages")) {
    JsonReader pages(reader.object("pages"), "pages");
    pages.read("size", p.pages.size);
    pages.read("count", p.pages.count);
    pages.read("row_stride", p.pages.row_stride);
    reader.keep(pages.status());
  }
  if (reader.has("chunk")) reader.read("chunk", p.chunk);
  if (reader.has("sinks")) reader.read("sinks", p.sinks);
  if (reader.has("alibi")) reader.read("alibi", kAlibiNames, p.alibi);
  if (reader.has("array_mask")) {
    JsonReader array_mask(reader.object("array_mask"), "array_mask");
    array_mask.read("kind", kMaskNames, p.array_mask.kind);
    array_mask.read("dtype", p.array_mask.dtype);
    array_mask.read("strides", p.array_mask.stride);
    reader.keep(array_mask.status());
  }
  if (!reader.status()) return reader.status();
  return p;
}

json plan_json(const Plan& plan) {
  const auto& [variant, grid, block, cluster, shared_bytes, workspace_bytes, tile_q, tile_kv,
               stages, splits, kernel, note] = plan;
  return {{"variant", variant},
          {"grid", grid},
          {"block", block},
          {"cluster", cluster},
          {"shared_bytes", shared_bytes},
          {"workspace_bytes", workspace_bytes},
          {"tile_q", tile_q},
          {"tile_kv", tile_kv},
          {"stages", stages},
          {"splits", splits},
          {"kernel", kernel},
          {"note", note}};
}

Result<Plan> plan_of_json(const json& object) {
  Plan plan;
  JsonReader reader(object, "plan");
  reader.read("variant", plan.variant);
  reader.read("grid", plan.grid);
  reader.read("block", plan.block);
  reader.read("cluster", plan.cluster);
  reader.read("shared_bytes", plan.shared_bytes);
  reader.read("workspace_bytes", plan.workspace_bytes);
  reader.read("tile_q", plan.tile_q);
  reader.read("tile_kv", plan.tile_kv);
  reader.read("stages", plan.stages);
  reader.read("splits", plan.splits);
  reader.read("kernel", plan.kernel);
  reader.read("note", plan.note);
  if (!reader.status()) return reader.status();
  return plan;
}

}  // namespace greenfast::workbench
