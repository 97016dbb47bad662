#include "workbench/cases/attributes.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <utility>

namespace greenfast::workbench {
namespace {

std::optional<std::int64_t> whole_number(std::string_view text, std::int64_t least) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < least ||
      value > (std::int64_t{1} << 30))
    return std::nullopt;
  return value;
}

bool set_mask(ProblemDefaults& p, std::string_view value) {
  const auto colon = value.find(':');
  const std::string_view kind = value.substr(0, colon);
  std::string_view dimensions = "bhqk";
  if (colon != std::string_view::npos) dimensions = value.substr(colon + 1);
  // In this order, each once, at least one.
  std::string_view left = "bhqk";
  for (const char dimension : dimensions) {
    const auto at = left.find(dimension);
    if (at == std::string_view::npos) return false;
    left.remove_prefix(at + 1);
  }
  if (dimensions.empty() || (kind != "bool" && kind != "float" && kind != "narrow")) return false;
  p.mask_kind = kind == "bool" ? MaskKind::boolean : MaskKind::additive;
  p.narrow_mask = kind == "narrow";
  p.mask_dimensions = dimensions;
  return true;
}

bool set_lengths(ProblemDefaults& p, std::string_view value) {
  if (value == "mixed" || value == "full") {
    p.lengths = {value == "full" ? Lengths::Kind::full : Lengths::Kind::mixed, 1};
    return true;
  }
  constexpr std::string_view kLog = "log-uniform";
  if (!value.starts_with(kLog)) return false;
  value.remove_prefix(kLog.size());
  std::optional<std::int64_t> least = 1;
  if (!value.empty())
    least = value.front() == ':' ? whole_number(value.substr(1), 1) : std::nullopt;
  if (!least) return false;
  p.lengths = {Lengths::Kind::log_uniform, *least};
  return true;
}

bool set_window(ProblemDefaults& p, std::string_view value) {
  const auto colon = value.find(':');
  const auto left = whole_number(value.substr(0, colon), -1);
  const auto right = colon == std::string_view::npos ? std::optional<std::int64_t>(0)
                                                     : whole_number(value.substr(colon + 1), -1);
  if (!left || !right) return false;
  // Not the whole mask: what else it may hide has an attribute of its own.
  p.mask.left = *left;
  p.mask.right = *right;
  // Without a bound it is no mask, and aligned as none is: what prints alike must be equal.
  const bool hides = *left >= 0 || *right >= 0;
  p.mask.alignment = hides ? Alignment::bottom_right : Mask{}.alignment;
  return true;
}

constexpr std::string_view kMask = "which keys a query sees";

constexpr std::array kAttributes{
    AttributeRow{"causal", "bottom-right or top-left", "bottom-right",
                 "a causal mask, aligned with the last key or with the first",
                 [](ProblemDefaults& p, std::string_view value) {
                   if (value != "bottom-right" && value != "top-left") return false;
                   p.mask.left = Mask::kUnbounded;
                   p.mask.right = 0;
                   p.mask.alignment =
                       value == "top-left" ? Alignment::top_left : Alignment::bottom_right;
                   return true;
                 },
                 true, kMask},
    AttributeRow{
        "window", "L or L:R", "",
        "a sliding window, aligned with the last key: L keys before a query's own, R after "
        "it, -1 is no bound",
        set_window, true, kMask},
    AttributeRow{"lse", "", "", "the log-sum-exp too",
                 [](ProblemDefaults& p, std::string_view) { return p.lse = true; }, true},
    AttributeRow{
        "packed", "", "", "Packed sequences of Q, O, K and V, one behind the other",
        [](ProblemDefaults& p, std::string_view) { return p.packed_q = p.packed_kv = true; }},
    AttributeRow{"packed-q", "", "", "Packed sequences of Q and O alone",
                 [](ProblemDefaults& p, std::string_view) { return p.packed_q = true; }},
    AttributeRow{"packed-kv", "", "", "Packed sequences of K and V alone",
                 [](ProblemDefaults& p, std::string_view) { return p.packed_kv = true; }},
    AttributeRow{"used-q", "", "", "An array says how many rows of Q each sequence has",
                 [](ProblemDefaults& p, std::string_view) { return p.used_q = true; }},
    AttributeRow{"used-kv", "", "", "An array says how many keys each sequence has",
                 [](ProblemDefaults& p, std::string_view) { return p.used_kv = true; }},
    AttributeRow{"lengths", "mixed, full or log-uniform:LEAST", "",
                 "How lengths are drawn by seed: mixed (default: the longest, none, one, edges of "
                 "tiles and between), full, or log-uniform from LEAST on",
                 set_lengths},
    AttributeRow{"kv-start", "", "", "Left padding: an array says which key is a sequence's first",
                 [](ProblemDefaults& p, std::string_view) { return p.kv_start = true; }},
    AttributeRow{"kv-index", "", "", "An array says which row of K and V a sequence reads",
                 [](ProblemDefaults& p, std::string_view) { return p.kv_index = true; }},
    AttributeRow{"pages", "N", "", "K and V in pages of N keys, in a random order",
                 [](ProblemDefaults& p, std::string_view value) {
                   const auto size = whole_number(value, 1);
                   if (size) p.page = *size;
                   return size.has_value();
                 }},
    AttributeRow{"chunk", "N", "", "A query sees keys of its own chunk of N positions alone",
                 [](ProblemDefaults& p, std::string_view value) {
                   const auto size = whole_number(value, 1);
                   if (size) p.chunk = *size;
                   return size.has_value();
                 }},
    AttributeRow{"sinks", "", "", "A sink for each query head joins the denominator",
                 [](ProblemDefaults& p, std::string_view) { return p.sinks = true; }},
    AttributeRow{"alibi", "per-head or per-batch-head", "per-head",
                 "ALiBi's slopes, one for each query head, or for each of each sequence",
                 [](ProblemDefaults& p, std::string_view value) {
                   if (value != "per-head" && value != "per-batch-head") return false;
                   p.alibi = value == "per-head" ? Alibi::per_head : Alibi::per_batch_head;
                   return true;
                 }},
    AttributeRow{"mask", "bool, float or narrow, then :DIMS", "",
                 "A mask element by element: bool, float (fp32) or narrow (of Q's type); DIMS of "
                 "bhqk names the dimensions that it has, the others are broadcast (bool:qk)",
                 set_mask},
    AttributeRow{"scales", "none, tensor, per-head or per-block", "",
                 "How far a descale factor of e4m3 reaches: per-head is the default",
                 [](ProblemDefaults& p, std::string_view value) {
                   constexpr std::pair<std::string_view, ScaleKind> kKinds[] = {
                       {"none", ScaleKind::none},
                       {"tensor", ScaleKind::tensor},
                       {"per-head", ScaleKind::per_head},
                       {"per-block", ScaleKind::per_block}};
                   for (const auto& [name, kind] : kKinds) {
                     if (value != name) continue;
                     p.scales = kind;
                     return true;
                   }
                   return false;
                 }},
    AttributeRow{"accuracy", "exact or fast", "",
                 "How near to the exact answer: fast lets e4m3 kernels take linear weights",
                 [](ProblemDefaults& p, std::string_view value) {
                   for (const Accuracy accuracy : {Accuracy::exact, Accuracy::fast}) {
                     if (value != name_of(accuracy)) continue;
                     p.accuracy = accuracy;
                     return true;
                   }
                   return false;
                 }},
};

}  // namespace

std::span<const AttributeRow> attribute_table() { return kAttributes; }

Status apply_attribute(ProblemDefaults& problem, std::string_view attribute) {
  const auto equals = attribute.find('=');
  const std::string_view name = attribute.substr(0, equals);
  const auto refuse = [&](const std::string& what) {
    return Status(StatusCode::invalid_argument,
                  "attribute '" + std::string(attribute.substr(0, 60)) + "': " + what);
  };
  for (const AttributeRow& row : kAttributes) {
    if (row.name != name) continue;
    const bool given = equals != std::string_view::npos;
    const std::string_view value = given ? attribute.substr(equals + 1) : row.bare;
    if (row.value.empty() && given) return refuse(std::string(name) + " takes no value");
    if (!row.value.empty() && value.empty())
      return refuse("needs a value: " + std::string(name) + "= " + std::string(row.value));
    if (row.apply(problem, value)) return {};
    if (row.value == "N")
      return refuse(std::string(name) + " is " + std::string(value.substr(0, 40)) +
                    ": it may be a whole number from 1 to 2^30; leave " + std::string(name) +
                    " out for none");
    return refuse("possible behind " + std::string(name) + "= is " + std::string(row.value));
  }
  std::string names;
  for (const AttributeRow& row : kAttributes)
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  return refuse("there is none of that name; possible are " + names);
}

Status check_beside(std::string_view attribute, std::span<const std::string_view> before) {
  const auto row_of = [](std::string_view text) {
    const std::string_view name = text.substr(0, text.find('='));
    return std::find_if(kAttributes.begin(), kAttributes.end(),
                        [&](const AttributeRow& row) { return row.name == name; });
  };
  const auto* const row = row_of(attribute);
  if (row == kAttributes.end()) return {};  // refused as unknown
  for (const std::string_view other : before) {
    const auto* const earlier = row_of(other);
    const bool same = earlier == row;
    if (!same && (row->says.empty() || earlier->says != row->says)) continue;
    return {StatusCode::invalid_argument,
            "attribute '" + std::string(attribute.substr(0, 60)) + "' stands behind '" +
                std::string(other.substr(0, 60)) + "', and " +
                (same ? "each may stand there once" : "both say " + std::string(row->says)) +
                ": keep one of them"};
  }
  return {};
}

}  // namespace greenfast::workbench
