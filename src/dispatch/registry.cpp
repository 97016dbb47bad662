// Builds the table of variants from variants.def.
#include "dispatch/registry.hpp"

#include <algorithm>
#include <charconv>
#include <vector>

#include "core/text.hpp"
#include "dispatch/prefer.hpp"
#include "dispatch/takes.hpp"
#include "greenfast_built.hpp"  // generated: GREENFAST_BUILT_<object> for each compiled CUDA kernel

// Picks `yes` where the macro GREENFAST_BUILT_<object> exists and `no` where it does not: an
// existing one expands to a comma and so shifts the arguments (as the Linux kernel's IS_ENABLED).
#define GREENFAST_THIRD(first, second, third, ...) third
#define GREENFAST_SHIFT(...) GREENFAST_THIRD(__VA_ARGS__)
#define GREENFAST_IF_BUILT(object, yes, no) GREENFAST_SHIFT(GREENFAST_BUILT_##object, yes, no, )
#define GREENFAST_LOWEST(object) GREENFAST_IF_BUILT(object, GREENFAST_LOWEST_ARCH_##object, 0)
#define GREENFAST_EXACT(object) GREENFAST_IF_BUILT(object, GREENFAST_EXACT_ARCH_##object, false)

namespace greenfast {

namespace kernels {
#define GREENFAST_CPU_VARIANT(kernel, ...) extern const core::Kernel kernel;
#define GREENFAST_CUDA_VARIANT(object, kernel, ...) extern const core::Kernel kernel;
#include "dispatch/variants.def"
#undef GREENFAST_CPU_VARIANT
#undef GREENFAST_CUDA_VARIANT
}  // namespace kernels

namespace dispatch {
namespace {

[[maybe_unused]] constexpr core::Variant cpu_row(core::Variant row, const core::Kernel* kernel) {
  row.device = DeviceKind::cpu;
  row.kernel = kernel;
  return row;
}

[[maybe_unused]] constexpr core::Variant cuda_row(core::Variant row, const core::Kernel* kernel,
                                                  int lowest, bool exact) {
  row.device = DeviceKind::cuda;
  row.kernel = kernel;
  row.lowest_code = lowest;
  row.exact_code = exact;
  return row;
}

constexpr core::Variant kRows[] = {
#define GREENFAST_CPU_VARIANT(symbol, ...) cpu_row({__VA_ARGS__}, &kernels::symbol),
#define GREENFAST_CUDA_VARIANT(object, symbol, ...)                              \
  cuda_row({__VA_ARGS__}, GREENFAST_IF_BUILT(object, &kernels::symbol, nullptr), \
           GREENFAST_LOWEST(object), GREENFAST_EXACT(object)),
#include "dispatch/variants.def"
#undef GREENFAST_CPU_VARIANT
#undef GREENFAST_CUDA_VARIANT
    {}};  // ends the table, which therefore may be empty
constexpr std::span<const core::Variant> kTable(kRows, std::size(kRows) - 1);

constexpr bool ids_are_unique() {
  for (std::size_t i = 0; i < kTable.size(); ++i)
    for (std::size_t j = i + 1; j < kTable.size(); ++j)
      if (kTable[i].id == kTable[j].id) return false;
  return true;
}
static_assert(ids_are_unique(), "variants.def: two rows have the same id");

constexpr bool predecessors_exist() {
  for (const core::Variant& row : kTable) {
    bool found = row.predecessor.empty(), origin = row.derived_from.empty();
    for (const core::Variant& other : kTable) {
      found = found || other.id == row.predecessor;
      origin = origin || other.id == row.derived_from;
    }
    if (!found || !origin) return false;
  }
  return true;
}
static_assert(predecessors_exist(),
              "variants.def: a predecessor or an origin is not an id of the table");

// A row that says nothing of features, or of them nothing of accuracy, would refuse every problem,
// and an automatic one needs its place among the others.
constexpr bool rows_say_what_they_take() {
  for (const core::Variant& row : kTable)
    if ((!row.takes.hold(Feature::exact_accuracy) && !row.takes.hold(Feature::fast_accuracy)) ||
        (row.prefer != nullptr) != row.automatic)
      return false;
  return true;
}
static_assert(rows_say_what_they_take(),
              "variants.def: a row lacks .takes (takes.hpp) or the accuracy in it, or is automatic "
              "and lacks .prefer (prefer.hpp), or runs by name and has one");

// Levenshtein distance: what a typing slip costs.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::span<const core::Variant> registry() noexcept { return kTable; }

const core::Variant* find(std::span<const core::Variant> rows, std::string_view id) noexcept {
  for (const core::Variant& row : rows)
    if (row.id == id) return &row;
  return nullptr;
}

std::string unknown_variant(std::span<const core::Variant> rows, std::string_view id) {
  constexpr std::size_t kShown = 3;
  const std::string_view asked = id.substr(0, 64);  // an id is short; whatever this is need not be
  std::vector<std::pair<std::size_t, std::string_view>> near;
  for (const core::Variant& row : rows) {
    // A part of an id is near: "flash" means cpu.flash.
    const bool part = !asked.empty() && row.id.find(asked) != std::string_view::npos;
    near.emplace_back(part ? 0 : edit_distance(asked, row.id), row.id);
  }
  std::stable_sort(near.begin(), near.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string out = core::concat("variant '", asked, "' does not exist; nearest: ");
  for (std::size_t i = 0; i < std::min(kShown, near.size()); ++i)
    out += core::concat(i ? ", " : "", near[i].second);
  out += "; greenfast::variants() has all";
  return out;
}

VariantInfo describe(const core::Variant& row) {
  VariantInfo info;
  info.id = row.id;
  info.idea = row.idea;
  info.device = row.device;
  info.min_arch = row.min_arch;
  info.built = row.kernel != nullptr;
  info.automatic = row.automatic;
  info.predecessor = row.predecessor;
  info.derived_from = row.derived_from;
  info.takes = row.takes;
  for (std::string_view rest = row.phases; !rest.empty();) {
    const std::string_view phase = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(phase.size() + 1, rest.size()));
    info.phases.emplace_back(phase);
  }
  for (std::string_view rest = row.toggles; !rest.empty();) {
    const std::string_view pair = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(pair.size() + 1, rest.size()));
    const std::size_t equals = pair.find('=');
    if (equals == std::string_view::npos) continue;
    Toggle toggle{std::string(pair.substr(0, equals)), 0};
    const std::string_view value = pair.substr(equals + 1);
    std::from_chars(value.data(), value.data() + value.size(), toggle.value);
    info.toggles.push_back(std::move(toggle));
  }
  return info;
}

}  // namespace dispatch
}  // namespace greenfast
