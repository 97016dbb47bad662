#include "fuzz/serving/draw.hpp"

#include <initializer_list>
#include <string_view>
#include <vector>

namespace greenfast::fuzz {
namespace {

using workbench::Distribution;
using workbench::ProblemDefaults;

/// The same on every machine, which <random>'s distributions are not.
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t number)
      : state_(mix(seed * 0x9e3779b97f4a7c15u + 11) ^ mix(number + 0x632be59bd9b4e019u)) {}
  std::uint64_t bits() { return mix(state_ += 0x9e3779b97f4a7c15u); }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool one_in(std::int64_t n) { return between(1, n) == 1; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[between(0, static_cast<std::int64_t>(values.size()) - 1)];
  }

 private:
  static std::uint64_t mix(std::uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
  }
  std::uint64_t state_;
};

// At an edge of tiles or beside it, or anything.
std::int64_t length(Random& random, std::int64_t most) {
  const auto edge = random.of<std::int64_t>({8, 16, 32, 64, 128, 256});
  const std::int64_t near = edge + random.between(-1, 1);
  return random.one_in(3) && near <= most ? near : random.between(1, most);
}

std::string shape_of(Random& random) {
  const std::int64_t kv = random.of<std::int64_t>({1, 1, 2, 3});
  const std::int64_t heads = kv * random.of<std::int64_t>({1, 2, 3, 4, 8});
  std::int64_t rows = random.one_in(2) ? random.between(1, 4) : length(random, 90);
  std::int64_t keys = random.one_in(4) ? rows : length(random, 300);
  if (random.one_in(25)) keys = random.between(1000, 3000);
  if (random.one_in(40)) keys = 0;
  if (random.one_in(80)) rows = 0;
  const std::int64_t dim = random.one_in(2) ? random.of<std::int64_t>({64, 128})
                                            : 8 * random.between(1, random.one_in(3) ? 32 : 10);
  const std::int64_t dim_v = random.one_in(4) ? 8 * random.between(1, 20) : dim;
  std::string text = std::to_string(random.between(1, 7));
  const auto field = [&text](std::int64_t a, std::int64_t b) {
    text.append("x").append(std::to_string(a));
    if (a != b) text.append("/").append(std::to_string(b));
  };
  field(heads, kv);
  field(rows, keys);
  field(dim, dim_v);
  return text;
}

std::string attributes_of(Random& random, bool narrow_allowed) {
  std::string text;
  const auto add = [&text](const std::string& attribute) { text.append(" ").append(attribute); };
  switch (random.between(0, 5)) {  // where rows and keys lie
    case 0:
    case 1:
      add("pages=" + std::to_string(random.one_in(3)
                                        ? random.between(1, 40)
                                        : random.of<std::int64_t>({1, 8, 16, 32, 64, 128})));
      break;
    case 2:
      add("packed-kv");
      break;
    case 3:
      add("kv-index");
      break;
    default:
      break;
  }
  if (random.one_in(3)) add("packed-q");
  if (random.one_in(4)) add("used-q");
  if (!random.one_in(3)) add("used-kv");
  if (random.one_in(4)) add("kv-start");
  if (random.one_in(4)) add("chunk=" + std::to_string(length(random, 100)));
  if (random.one_in(3)) add("sinks");
  if (random.one_in(6)) add(random.one_in(2) ? "alibi" : "alibi=per-batch-head");
  if (random.one_in(5)) {
    std::string dims;
    for (const char dim : std::string_view("bhqk"))
      if (random.one_in(2)) dims += dim;
    if (dims.empty()) dims = "qk";
    const std::string kind = random.one_in(2)                     ? "bool"
                             : narrow_allowed && random.one_in(2) ? "narrow"
                                                                  : "float";
    add("mask=" + kind + ":" + dims);
  }
  switch (random.between(0, 4)) {
    case 0:
    case 1:
      add(random.one_in(4) ? "causal=top-left" : "causal");
      break;
    case 2:
      add("window=" + std::to_string(length(random, 150)) + ":" +
          std::to_string(random.one_in(2) ? 0 : random.between(-1, 40)));
      break;
    default:
      break;
  }
  if (random.one_in(4)) add("lengths=full");
  return text;
}

}  // namespace

Drawn draw(std::uint64_t seed, std::uint64_t number) {
  for (std::uint64_t attempt = 0;; ++attempt) {
    Random random(seed + attempt * 0x2545f4914f6cdd1du, number);
    ProblemDefaults defaults;
    defaults.dtype = random.of({DType::f32, DType::f16, DType::bf16, DType::e4m3});
    const bool wide = defaults.dtype == DType::f32 || defaults.dtype == DType::e4m3;
    const std::string shape = shape_of(random) + attributes_of(random, !wide);
    std::string options = "--shapes '" + shape + "' --dtype ";
    options.append(name_of(defaults.dtype));
    std::vector<workbench::LayoutRow> layouts;
    for (const auto& row : workbench::layout_table())
      if (workbench::is_for(row.id, defaults.dtype)) layouts.push_back(row);
    const auto& layout = layouts[static_cast<std::size_t>(
        random.one_in(2) ? 0 : random.between(1, static_cast<std::int64_t>(layouts.size()) - 1))];
    defaults.layout = layout.id;
    options.append(" --layout ").append(layout.name);
    if (random.one_in(6)) {
      defaults.softcap = random.of({3.0f, 15.0f, 50.0f});
      options.append(" --softcap ").append(std::to_string(static_cast<int>(defaults.softcap)));
    }
    if ((defaults.lse = random.one_in(2))) options.append(" --lse");
    const auto problems = workbench::parse_shapes(shape, defaults);
    if (!problems) continue;  // pages and packed keys, a layout that no memory holds
    Drawn drawn;
    drawn.test.name = shape;
    drawn.test.problem = problems->front().problem;
    drawn.test.lengths = problems->front().lengths;
    drawn.test.distribution =
        random.of({Distribution::normal, Distribution::permutation, Distribution::permutation,
                   Distribution::outliers, Distribution::rising_max, Distribution::constant_v});
    drawn.test.seed = static_cast<std::uint64_t>(random.between(0, 999));
    options.append(" --seeds ").append(std::to_string(drawn.test.seed));
    drawn.options = std::move(options);
    return drawn;
  }
}

}  // namespace greenfast::fuzz
