#include "workbench/cases/problem_codec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "workbench/cases/workload.hpp"

namespace greenfast::workbench {
namespace {

using nlohmann::json;

constexpr std::pair<ScaleKind, std::string_view> kScaleNames[] = {
    {ScaleKind::none, "none"},
    {ScaleKind::tensor, "tensor"},
    {ScaleKind::per_head, "per_head"},
    {ScaleKind::per_block, "per_block"}};
constexpr std::pair<Accuracy, std::string_view> kAccuracyNames[] = {{Accuracy::exact, "exact"},
                                                                    {Accuracy::fast, "fast"}};
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

// ---- Text ----

/// One word behind a shape: "name", "name=value" or "name(value,value)".
struct Word {
  std::string_view name;
  std::vector<std::string_view> values;
};
Word word_of(std::string_view text) {
  Word word{text.substr(0, text.find_first_of("=(")), {}};
  std::string_view rest = text.substr(word.name.size());
  if (rest.starts_with('(') && rest.ends_with(')')) rest.remove_suffix(1);
  while (!rest.empty()) {
    rest.remove_prefix(1);
    word.values.push_back(rest.substr(0, rest.find(',')));
    rest.remove_prefix(word.values.back().size());
  }
  return word;
}

template <class Number>
bool read_number(std::string_view text, Number& to) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
  return error == std::errc{} && end == text.data() + text.size();
}
bool read_bound(std::string_view text, std::int64_t& to) {
  if (text != "inf") return read_number(text, to);
  to = Mask::kUnbounded;
  return true;
}

/// Sets what one word says; false: it says nothing that is known. What is read too leniently is
/// found when the problem is printed again.
bool apply_word(Problem& p, const Word& word) {
  // Every member by name, as in problem_json: a new one does not compile before it is read. Shape
  // and types stand before the words, the strides behind them.
  auto& [batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, dtype, out_dtype, scales, scale,
         softcap, mask, lse, q, k, v, o, head_dim_v, sequences, pages, chunk, sinks, alibi,
         array_mask, accuracy] = p;
  auto& [left, right, alignment] = mask;
  auto& [packed_q, packed_kv, used_q, used_kv, kv_start, kv_index, total_q, total_kv, kv_rows] =
      sequences;
  auto& [page_size, page_count, page_row_stride] = pages;
  auto& [mask_kind, mask_dtype, mask_stride] = array_mask;
  const auto& [name, values] = word;
  if (values.empty()) {
    for (const auto& [known, flag] : {std::pair<std::string_view, bool*>{"lse", &lse},
                                      {"used-q", &used_q},
                                      {"used-kv", &used_kv},
                                      {"kv-start", &kv_start},
                                      {"sinks", &sinks}})
      if (name == known) return *flag = true;
    return name == "bshd";
  }
  const std::string_view first = values.front();
  const auto align = [&to = alignment](std::string_view corner) {
    to = corner == "top-left" ? Alignment::top_left : Alignment::bottom_right;
  };
  if (name == "scale") return read_number(first, scale);
  if (name == "softcap") return read_number(first, softcap);
  if (name == "value-dim") return read_number(first, head_dim_v);
  if (name == "chunk") return read_number(first, chunk);
  if (name == "packed-q") return (packed_q = read_number(first, total_q));
  if (name == "packed-kv") return (packed_kv = read_number(first, total_kv));
  if (name == "kv-index") return (kv_index = read_number(first, kv_rows));
  if (name == "scales") {
    scales = first == "tensor"      ? ScaleKind::tensor
             : first == "per-block" ? ScaleKind::per_block
                                    : ScaleKind::per_head;
    return true;
  }
  if (name == "alibi") {
    alibi = first == "per-head" ? Alibi::per_head : Alibi::per_batch_head;
    return true;
  }
  if (name == "accuracy") {
    accuracy = first == name_of(Accuracy::fast) ? Accuracy::fast : Accuracy::exact;
    return true;
  }
  if (name == "causal") {
    right = 0;
    align(first);
    return true;
  }
  if (name == "window" && values.size() == 3) {
    align(values[2]);
    return read_bound(first, left) && read_bound(values[1], right);
  }
  if (name == "pages" && values.size() == 2) {
    const std::size_t x = first.find('x');
    return x != std::string_view::npos && read_number(first.substr(0, x), page_count) &&
           read_number(first.substr(x + 1), page_size) && read_number(values[1], page_row_stride);
  }
  if (name == "mask" && values.size() == 5) {
    const std::optional<DType> type = parse_dtype(first);
    mask_kind = type ? MaskKind::additive : MaskKind::boolean;
    if (type) mask_dtype = *type;
    for (std::size_t i = 0; i < 4; ++i)
      if (!read_number(values[i + 1], mask_stride[i])) return false;
    return true;
  }
  return false;
}

/// The storage of Q and of K and V can be laid out. The strides of an array mask are the text's own, and
/// check() says how far they may reach.
bool storage_fits(const Problem& p) {
  const Sequences& s = p.sequences;
  const std::int64_t heads = std::max(p.heads_q, p.heads_kv);
  const std::int64_t dim = std::max(p.head_dim, p.head_dim_v);
  for (const std::int64_t number :
       {p.head_dim_v, s.total_q, s.total_kv, s.kv_rows, p.pages.size, p.pages.count})
    if (number < 0) return false;
  return tensor_fits({s.total_q, heads, dim}) && tensor_fits({s.total_kv, heads, dim}) &&
         tensor_fits({p.batch, heads, p.seq_q, dim}) &&
         tensor_fits({std::max(p.batch, s.kv_rows), heads, p.seq_kv, dim}) &&
         tensor_fits({p.pages.size, p.pages.count, heads, dim});
}

}  // namespace

json problem_json(const Problem& problem) {
  // Every member by name, here and where it is read: a new one does not compile before it has both.
  const auto& [batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, dtype, out_dtype, scales, scale,
               softcap, mask, lse, q, k, v, o, head_dim_v, sequences, pages, chunk, sinks, alibi,
               array_mask, accuracy] = problem;
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
  if (accuracy != Accuracy::exact) out["accuracy"] = name_in(kAccuracyNames, accuracy);
  return out;
}

Result<Problem> problem_of_json(const json& object) {
  Problem p;
  auto& [batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, dtype, out_dtype, scales, scale,
         softcap, mask, lse, q, k, v, o, head_dim_v, sequences, pages, chunk, sinks, alibi,
         array_mask, accuracy] = p;
  auto& [left, right, alignment] = mask;
  JsonReader reader(object, "problem");
  reader.read("batch", batch);
  reader.read("heads_q", heads_q);
  reader.read("heads_kv", heads_kv);
  reader.read("seq_q", seq_q);
  reader.read("seq_kv", seq_kv);
  reader.read("head_dim", head_dim);
  reader.read("dtype", dtype);
  reader.read("out_dtype", out_dtype);
  reader.read("scales", kScaleNames, scales);
  reader.read("scale", scale);
  reader.read("softcap", softcap);
  reader.read("lse", lse);
  JsonReader of_mask(reader.object("mask"), "mask");
  of_mask.read("left", left);
  of_mask.read("right", right);
  of_mask.read("alignment", kAlignmentNames, alignment);
  reader.keep(of_mask.status());
  JsonReader strides(reader.object("strides"), "strides");
  strides.read("q", q.stride);
  strides.read("k", k.stride);
  strides.read("v", v.stride);
  strides.read("o", o.stride);
  reader.keep(strides.status());
  if (reader.has("head_dim_v")) reader.read("head_dim_v", head_dim_v);
  if (reader.has("sequences")) {
    auto& [packed_q, packed_kv, used_q, used_kv, kv_start, kv_index, total_q, total_kv, kv_rows] =
        sequences;
    JsonReader lengths(reader.object("sequences"), "sequences");
    lengths.read("packed_q", packed_q);
    lengths.read("packed_kv", packed_kv);
    lengths.read("used_q", used_q);
    lengths.read("used_kv", used_kv);
    lengths.read("kv_start", kv_start);
    lengths.read("kv_index", kv_index);
    lengths.read("total_q", total_q);
    lengths.read("total_kv", total_kv);
    lengths.read("kv_rows", kv_rows);
    reader.keep(lengths.status());
  }
  if (reader.has("pages")) {
    auto& [size, count, row_stride] = pages;
    JsonReader of_pages(reader.object("pages"), "pages");
    of_pages.read("size", size);
    of_pages.read("count", count);
    of_pages.read("row_stride", row_stride);
    reader.keep(of_pages.status());
  }
  if (reader.has("chunk")) reader.read("chunk", chunk);
  if (reader.has("sinks")) reader.read("sinks", sinks);
  if (reader.has("alibi")) reader.read("alibi", kAlibiNames, alibi);
  if (reader.has("array_mask")) {
    auto& [kind, mask_dtype, stride] = array_mask;
    JsonReader of_mask_array(reader.object("array_mask"), "array_mask");
    of_mask_array.read("kind", kMaskNames, kind);
    of_mask_array.read("dtype", mask_dtype);
    of_mask_array.read("strides", stride);
    reader.keep(of_mask_array.status());
  }
  if (reader.has("accuracy")) reader.read("accuracy", kAccuracyNames, accuracy);
  if (!reader.status()) return reader.status();
  return p;
}

Result<Problem> problem_of_text(std::string_view text) {
  const auto refuse = [&](const std::string& why) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("problem '{}': {}; expected is what a problem is printed as, such as "
                              "'1x8x512x64 fp16 causal(top-left)'",
                              text.substr(0, 200), why));
  };
  std::vector<std::string_view> words;
  for (std::string_view rest = text;;) {
    words.push_back(rest.substr(0, rest.find(' ')));
    if (words.back().size() == rest.size()) break;
    rest.remove_prefix(words.back().size() + 1);
  }
  if (words.size() < 2) return refuse("a type is missing");
  const std::size_t arrow = words[1].find("->");
  const std::optional<DType> dtype = parse_dtype(words[1].substr(0, arrow));
  if (!dtype) return refuse(fmt::format("'{}' is no type", words[1]));
  ProblemDefaults defaults;
  defaults.dtype = *dtype;
  defaults.scales = ScaleKind::none;
  if (arrow != std::string_view::npos) {
    defaults.out_dtype = parse_dtype(words[1].substr(arrow + 2));
    if (!defaults.out_dtype) return refuse(fmt::format("'{}' is no type", words[1]));
  }
  const auto shapes = parse_shapes(words[0], defaults);
  if (!shapes) return shapes.status();
  if (shapes->size() != 1) return refuse("names several shapes");
  Problem p = shapes->front().problem;
  bool transposed = false;
  for (std::size_t i = 2; i < words.size(); ++i) {
    if (words[i] == "strided") return refuse("does not say its strides");
    if (words[i] == "transposed-v") {
      transposed = true;
      continue;
    }
    if (!apply_word(p, word_of(words[i]))) return refuse(fmt::format("'{}' is unknown", words[i]));
  }
  if (!storage_fits(p)) return refuse("has a tensor of more than 2^56 elements");
  set_layout(p, words.back() == "bshd" ? LayoutKind::bshd : LayoutKind::bhsd);
  if (transposed) {
    const auto shape = operand_of(p, OperandId::v).shape;
    p.v = transposed_layout(shape[0], shape[1], shape[2], shape[3]);
  }
  if (Status status = check(p); !status) return status;
  if (const std::string again = to_string(p); again != text)
    return refuse(fmt::format("would be printed as '{}'", again));
  return p;
}

std::string shape_text(const Problem& problem) {
  const std::string text = to_string(problem);
  return text.substr(0, text.find(' '));
}

json plan_json(const Plan& plan) {
  const auto& [variant, grid, block, cluster, shared_bytes, workspace_bytes, tile_q, tile_kv,
               stages, splits, kernel, note, shared] = plan;
  // The same for everybody who plans with this build, so records do without: `resources` shows it.
  static_cast<void>(shared);
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
  auto& [variant, grid, block, cluster, shared_bytes, workspace_bytes, tile_q, tile_kv, stages,
         splits, kernel, note, shared] = plan;
  JsonReader reader(object, "plan");
  reader.read("variant", variant);
  reader.read("grid", grid);
  reader.read("block", block);
  reader.read("cluster", cluster);
  reader.read("shared_bytes", shared_bytes);
  reader.read("workspace_bytes", workspace_bytes);
  reader.read("tile_q", tile_q);
  reader.read("tile_kv", tile_kv);
  reader.read("stages", stages);
  reader.read("splits", splits);
  reader.read("kernel", kernel);
  reader.read("note", note);
  if (!reader.status()) return reader.status();
  return plan;
}

}  // namespace greenfast::workbench
