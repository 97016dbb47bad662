#include "fuzz/library/spec.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <sstream>

namespace greenfast::fuzz {
namespace {

/// A stream of random numbers that is the same on every machine, which <random>'s are not.
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t number)
      : state_(mixed(seed * 0x9e3779b97f4a7c15u + 1) ^ mixed(number + 0x632be59bd9b4e019u)) {}
  std::uint64_t bits() { return mixed(state_ += 0x9e3779b97f4a7c15u); }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool one_in(std::int64_t n) { return between(1, n) == 1; }
  bool percent(std::int64_t p) { return between(1, 100) <= p; }
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  /// Between the two, evenly over the exponents.
  double scaled(double low, double high) { return low * std::pow(high / low, unit()); }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[between(0, static_cast<std::int64_t>(values.size()) - 1)];
  }
  template <class T>
  T of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(
        between(0, static_cast<std::int64_t>(values.size()) - 1))];
  }

 private:
  std::uint64_t state_;
};

// Right at, below and above the lengths at which tiles end; else evenly over the exponents.
std::int64_t random_length(Random& random, std::int64_t most) {
  if (random.one_in(3)) {
    const auto edge =
        random.of<std::int64_t>({8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024});
    return std::clamp<std::int64_t>(edge * random.between(1, 3) + random.between(-1, 1), 1, most);
  }
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(random.scaled(1.0, most + 0.99)), 1,
                                  most);
}

Layout random_layout(Random& random, std::int64_t heads, std::int64_t seq, std::int64_t dim,
                     bool may_broadcast) {
  // Half of them in steps that TMA takes.
  const std::int64_t step = random.one_in(2) ? 8 : 1;
  const auto gap = [&] { return step * random.of<std::int64_t>({0, 0, 1, 3, 8}); };
  const bool rows_inside = random.one_in(2);
  const std::int64_t inner = dim + gap();
  const std::int64_t outer = (rows_inside ? seq : heads) * inner + gap();
  std::int64_t image = (rows_inside ? heads : seq) * outer + gap();
  if (random.one_in(4)) image += random.of<std::int64_t>({1, 2, 4, 7, 8});
  Layout layout;
  layout.stride = rows_inside ? std::array{image, outer, inner, std::int64_t{1}}
                              : std::array{image, inner, outer, std::int64_t{1}};
  if (may_broadcast && random.one_in(8)) layout.stride[0] = 0;
  if (may_broadcast && random.one_in(8)) layout.stride[1] = 0;
  return layout;
}

// Of V in e4m3: its keys one behind the other.
Layout random_transposed(Random& random, std::int64_t heads, std::int64_t seq, std::int64_t dim) {
  const std::int64_t step = random.one_in(4) ? 1 : 16;
  const auto gap = [&] { return step * random.of<std::int64_t>({0, 0, 1, 3}); };
  // Columns of one key apart by two, or their elements would be contiguous along the rows.
  const std::int64_t column = std::max<std::int64_t>((seq + step - 1) / step * step + gap(), 2);
  const std::int64_t head = dim * column + gap();
  Layout layout;
  layout.stride = {heads * head + gap(), head, 1, column};
  if (random.one_in(8)) layout.stride[0] = 0;
  if (random.one_in(8)) layout.stride[1] = 0;
  return layout;
}

std::int64_t all_elements(const Problem& p) {
  return std::max({extent(p.q, p.batch, p.heads_q, p.seq_q, p.head_dim),
                   extent(p.o, p.batch, p.heads_q, p.seq_q, p.head_dim),
                   extent(p.k, p.batch, p.heads_kv, p.seq_kv, p.head_dim),
                   extent(p.v, p.batch, p.heads_kv, p.seq_kv, p.head_dim)});
}

// Dense, except where asked otherwise.
void set_dense(Problem& p, Order order) {
  p.q = p.o = dense_layout(order, p.batch, p.heads_q, p.seq_q, p.head_dim);
  p.k = p.v = dense_layout(order, p.batch, p.heads_kv, p.seq_kv, p.head_dim);
}

void random_shape(Random& random, const Profile& profile, Problem& p) {
  p.heads_kv = random.of<std::int64_t>({1, 1, 1, 2, 3, 4, 8});
  p.heads_q = p.heads_kv * random.of<std::int64_t>({1, 1, 1, 2, 3, 4, 8});
  p.batch = random.of<std::int64_t>({1, 1, 1, 2, 3, 5, 16});
  const bool gpu = profile.device == DeviceKind::cuda;
  p.head_dim = random.percent(60)
                   ? random.of<std::int64_t>({64, 64, 128})
                   : 8 * (random.one_in(3) ? random.between(1, 32) : random.between(1, 16));
  const std::int64_t usual = gpu ? 2048 : 400;
  p.seq_q = random_length(random, usual);
  p.seq_kv = random.one_in(4) ? p.seq_q : random_length(random, usual);
  if (random.one_in(4)) p.seq_q = random.between(1, 5);
  if (random.one_in(12)) p.seq_kv = random.between(1, 5);
  if (random.one_in(60)) p.seq_q = 0;
  if (random.one_in(60)) p.seq_kv = 0;
  if (random.percent(gpu ? 5 : 2)) {  // a long row of keys
    p.seq_kv =
        static_cast<std::int64_t>(random.scaled(4096.0, static_cast<double>(profile.long_keys)));
    p.seq_q = random.of<std::int64_t>({1, 2, 16, 64});
    p.batch = 1;
  }
  const bool crowded =
      profile.property == Property::batch_invariant ? random.percent(30) : random.percent(2);
  if (crowded) {
    p.batch = static_cast<std::int64_t>(random.scaled(16.0, 100000.99));
    if (random.one_in(gpu ? 2 : 4))
      p.batch = random.of<std::int64_t>({65535, 65536, 70000, 100000});
    p.heads_kv = 1;
    p.heads_q = random.of<std::int64_t>({1, 1, 2});
    p.seq_q = random.between(1, 3);
    p.seq_kv = random.between(1, 20);
    p.head_dim = random.of<std::int64_t>({8, 16, 64});
  } else if (profile.property == Property::batch_invariant && p.batch == 1) {
    p.batch = random.between(2, 9);
  }
  // Halve what is largest until the problem is within the profile.
  const auto too_large = [&] {
    const double rows = static_cast<double>(p.batch * p.heads_q * p.seq_q);
    const double keys = static_cast<double>(p.batch * p.heads_kv * p.seq_kv);
    const double dim = static_cast<double>(p.head_dim);
    return rows * static_cast<double>(p.seq_kv) * dim > profile.pairs ||
           std::max(rows, keys) * dim > profile.elements;
  };
  while (too_large()) {
    if (!gpu && p.batch > 20000 && p.seq_kv * p.head_dim * p.seq_q * p.heads_q > 16) {
      // Many entries are what is asked, and a CPU has time for little in each.
      p.head_dim = 8;
      if (p.seq_kv > 2)
        p.seq_kv = (p.seq_kv + 1) / 2;
      else
        p.seq_q = p.heads_q = 1;
    } else if (p.batch > 1 && p.batch < 1000) {
      p.batch = (p.batch + 1) / 2;
    } else if (p.heads_kv > 1) {
      p.heads_q = p.heads_q / p.heads_kv * (p.heads_kv / 2);
      p.heads_kv /= 2;
    } else if (p.heads_q > 2) {
      p.heads_q = (p.heads_q + 1) / 2;
    } else if (p.seq_q > 16) {
      p.seq_q = p.seq_q * 2 / 3;
    } else if (p.head_dim > 64) {
      p.head_dim = 64;
    } else if (p.seq_kv > 64) {
      p.seq_kv = p.seq_kv * 2 / 3;
    } else {
      p.batch = (p.batch + 1) / 2;
    }
  }
}

void random_mask(Random& random, Problem& p) {
  const auto alignment = random.of({Alignment::top_left, Alignment::bottom_right});
  const std::int64_t keys = std::max<std::int64_t>(p.seq_kv, 2);
  switch (random.between(0, 6)) {
    case 0:
    case 1:
      p.mask = Mask::causal(alignment);
      break;
    case 2:
      p.mask = Mask::window(random.between(0, keys), random.between(-1, 30), alignment);
      break;
    case 3:
      p.mask = Mask::window(random.of<std::int64_t>({-1, 0, 1, 63, 64, 127, 128, 200}),
                            random.of<std::int64_t>({0, 0, 1, 64, 127}), alignment);
      break;
    default:
      break;
  }
}

// Mostly 1; else evenly over the exponents up to the last value from which a normal element, at
// most 3.47 times as large, is still finite.
// V, which is summed before it is divided, ends at what docs/numerics.md promises.
float random_magnitude(Random& random, DType dtype, std::int64_t usual_percent,
                       double limit = kLargestFloat) {
  if (random.percent(usual_percent)) return 1.0f;
  const double last = dtype == DType::e4m3 ? 448.0 : dtype == DType::f16 ? 65504.0 : 3.38e38;
  const double most = std::min(last, limit) / 3.5;
  if (random.one_in(8)) return static_cast<float>(most);
  if (random.one_in(2)) return static_cast<float>(random.scaled(1e-8, most));
  return static_cast<float>(random.scaled(1e-2, std::min(most, 1e3)));
}

void random_values(Random& random, const Profile& profile, Spec& spec) {
  Problem& p = spec.problem;
  Values& v = spec.values;
  v.seed = random.bits();
  v.q = random_magnitude(random, p.dtype, 75);
  v.k = random_magnitude(random, p.dtype, 75);
  v.v = random_magnitude(random, p.dtype, 75, profile.largest_v);
  if (random.one_in(5)) p.softcap = static_cast<float>(random.scaled(0.5, 1e8));
  if (random.one_in(6)) {
    p.scale = static_cast<float>(random.scaled(1e-8, 1e10));
    if (random.one_in(6)) p.scale = -p.scale;
    if (random.one_in(12)) p.scale = 0.0f;
  }
  v.weighted = random.of({Weighted::normal, Weighted::normal, Weighted::normal, Weighted::constant,
                          Weighted::mean_one});
  const bool banded = random.one_in(2);
  if (random.percent(40)) {
    // The first column alone decides the scores, or beside the others' N(0, 1).
    p.scale = default_scale(p.head_dim);
    const float root = std::sqrt(p.scale);
    v.lead = 1.0f / root;
    v.nat = 1.0f / root;
    v.q = v.k = banded ? 1.0f : 0.0f;
    if (p.softcap > 0.0f && random.one_in(2)) p.softcap = 0.0f;
    const std::int64_t keys = std::max<std::int64_t>(p.seq_kv, 1);
    switch (random.between(0, 5)) {
      case 0:
      case 1:
      case 2:
        v.scores = Scores::dominated;
        v.gap = static_cast<float>(random.between(16, 240)) / 4.0f;
        v.count = random.of<std::int64_t>({1, 1, 1, 2, 64});
        v.first = random.of<std::int64_t>(
            {0, keys - v.count, keys - v.count, random.between(0, keys - 1),
             random.between(0, keys / 64) * 64, random.between(0, keys / 64) * 64 + 63});
        v.first = std::clamp<std::int64_t>(v.first, 0, keys - 1);
        v.weighted = random.of({Weighted::contrast, Weighted::contrast, Weighted::normal,
                                Weighted::mean_one, Weighted::constant});
        break;
      case 3:
      case 4:
        v.scores = Scores::ramp;
        v.gap = static_cast<float>(random.scaled(1.0, 100.0)) * random.of({1.0f, -1.0f});
        v.count = keys;
        break;
      default:
        if (p.dtype == DType::e4m3) break;  // it has no infinity
        v.scores = Scores::minus_inf;
        v.first = random.of<std::int64_t>({1, 2, 3, 7, 64});
        break;
    }
    if (p.dtype == DType::e4m3) v.gap = std::clamp(v.gap, -30.0f, 30.0f);
  }
  // The last value that is promised in every element of V.
  if (v.weighted == Weighted::constant && random.one_in(4))
    v.v = static_cast<float>(
        p.dtype == DType::e4m3 ? 448.0 : std::min(largest(p.dtype), profile.largest_v));
  if (v.scores != Scores::minus_inf && p.seq_q > 0 && p.seq_kv > 0 && random.percent(4)) {
    v.plant = random.of({Plant::nan_q, Plant::nan_k, Plant::nan_v, Plant::inf_v});
    if (p.dtype == DType::e4m3 && v.plant == Plant::inf_v) v.plant = Plant::nan_v;
    const bool in_q = v.plant == Plant::nan_q;
    v.plant_at[0] = random.between(0, p.batch - 1);
    v.plant_at[1] = random.between(0, (in_q ? p.heads_q : p.heads_kv) - 1);
    v.plant_at[2] = random.between(0, (in_q ? p.seq_q : p.seq_kv) - 1);
    v.plant_at[3] = random.between(0, p.head_dim - 1);
    // A broadcast element stands in every head, or in every entry.
    const Layout& layout = v.plant == Plant::nan_k ? p.k : p.v;
    if (!in_q && (layout.stride[0] == 0 || layout.stride[1] == 0)) v.plant = Plant::none;
  }
}

void set_alignment(Spec& spec) {
  Problem& p = spec.problem;
  Layout* const layouts[] = {&p.q, &p.k, &p.v, &p.o};
  for (std::size_t i = 0; i < 4; ++i) {
    const auto bytes = static_cast<std::int64_t>(size_of(i == 3 ? p.out_dtype : p.dtype));
    const std::int64_t address = 256 + spec.offset[i] * bytes;
    layouts[i]->alignment = static_cast<std::int32_t>(address & -address);
  }
}

}  // namespace

Profile profile_of(DeviceKind device, Property property) {
  Profile profile;
  profile.device = device;
  profile.property = property;
  if (device == DeviceKind::cuda) {
    profile.dtypes = {DType::f16, DType::f16, DType::bf16};
    profile.pairs = property == Property::reference ? 4e9 : 1e9;
    profile.elements = 3.2e7;
    profile.long_keys = 1 << 20;
    profile.largest_v = 1e30;  // weights of up to 2^15 are summed before the division
  } else {
    profile.dtypes = {DType::f32, DType::f16, DType::bf16, DType::e4m3};
    profile.pairs = 3e6;
    profile.elements = 2e6;
    profile.long_keys = 1 << 16;
    profile.largest_v = kLargestFloat;
  }
  return profile;
}

Spec random_spec(const Profile& profile, std::uint64_t seed, std::uint64_t number) {
  for (std::uint64_t attempt = 0;; ++attempt) {
    Random random(seed + attempt * 0x2545f4914f6cdd1du, number);
    Spec spec;
    Problem& p = spec.problem;
    p.dtype = random.of(profile.dtypes);
    p.out_dtype = random.one_in(3) ? random.of({DType::f32, DType::f16, DType::bf16})
                                   : default_out_dtype(p.dtype);
    random_shape(random, profile, p);
    p.scale = default_scale(p.head_dim);
    random_mask(random, p);
    p.lse = random.one_in(2);
    if (p.dtype == DType::e4m3)
      p.scales = random.of(
          {ScaleKind::none, ScaleKind::tensor, ScaleKind::per_head, ScaleKind::per_block});
    if (random.one_in(3)) {
      p.q = random_layout(random, p.heads_q, p.seq_q, p.head_dim, false);
      p.k = random_layout(random, p.heads_kv, p.seq_kv, p.head_dim, true);
      p.v = random_layout(random, p.heads_kv, p.seq_kv, p.head_dim, true);
      p.o = random_layout(random, p.heads_q, p.seq_q, p.head_dim, false);
    } else {
      set_dense(p, random.of({Order::bhsd, Order::bshd}));
    }
    if (p.dtype == DType::e4m3 && random.one_in(3))
      p.v = random_transposed(random, p.heads_kv, p.seq_kv, p.head_dim);
    if (random.one_in(5)) {
      for (std::int64_t& offset : spec.offset) offset = random.of<std::int64_t>({0, 0, 1, 4, 8});
    }
    spec.unseen = random.of({Unseen::nan, Unseen::infinity});
    random_values(random, profile, spec);
    spec.batch_invariant = profile.property == Property::batch_invariant || random.one_in(8);
    set_alignment(spec);
    if (check(p) && static_cast<double>(all_elements(p)) <= 2.0 * profile.elements) return spec;
  }
}

View view_of(const Spec& spec) {
  const Problem& p = spec.problem;
  View view{};
  view.batch = p.batch;
  view.heads_q = p.heads_q;
  view.heads_kv = p.heads_kv;
  view.seq_q = p.seq_q;
  view.seq_kv = p.seq_kv;
  view.head_dim = p.head_dim;
  for (int i = 0; i < 4; ++i) {
    const auto at = static_cast<std::size_t>(i);
    view.q_stride[i] = p.q.stride[at];
    view.k_stride[i] = p.k.stride[at];
    view.v_stride[i] = p.v.stride[at];
    view.o_stride[i] = p.o.stride[at];
  }
  view.in = p.dtype;
  view.out = p.out_dtype;
  view.scales = p.scales;
  view.has_lse = p.lse;
  view.scale = static_cast<double>(p.scale);
  view.softcap = static_cast<double>(p.softcap);
  const std::int64_t shift = p.mask.alignment == Alignment::bottom_right ? p.seq_kv - p.seq_q : 0;
  constexpr std::int64_t kFar = std::int64_t{1} << 40;
  view.below = p.mask.left < 0 ? -kFar : shift - p.mask.left;
  view.above = p.mask.right < 0 ? kFar : shift + p.mask.right;
  view.values = spec.values;
  // The largest sum of products that these values can give, with descale factors of up to 4.
  const double q = 3.5 * static_cast<double>(spec.values.q) + static_cast<double>(spec.values.lead);
  const double k = 3.5 * static_cast<double>(spec.values.k) +
                   std::fabs(static_cast<double>(spec.values.gap * spec.values.nat));
  const double sum = static_cast<double>(p.head_dim) * q * k;
  view.spoilt = sum * std::max(1.0, 16.0 * std::fabs(view.scale)) > 1e38;
  return view;
}

std::int64_t extent(const Layout& layout, std::int64_t batch, std::int64_t heads, std::int64_t seq,
                    std::int64_t head_dim) {
  if (batch == 0 || heads == 0 || seq == 0) return 0;
  return (batch - 1) * layout.stride[0] + (heads - 1) * layout.stride[1] +
         (seq - 1) * layout.stride[2] + (head_dim - 1) * layout.stride[3] + 1;
}

// ---- Text ----

namespace {

// One list of names and fields for both directions. Not the codec of workbench/cases/problem_codec:
// what that reads and to_string writes is a problem as people say it, without strides that are no
// Order's, and a case to be run again needs those, its offsets and values, and every float to the
// last bit. And nothing of the workbench is linked here, so that no mistake of it can hide.
template <class SpecType, class Visit>
void each_field(SpecType& s, Visit visit) {
  auto& p = s.problem;
  auto& v = s.values;
  visit("b", p.batch);
  visit("hq", p.heads_q);
  visit("hkv", p.heads_kv);
  visit("sq", p.seq_q);
  visit("skv", p.seq_kv);
  visit("d", p.head_dim);
  visit("dtype", p.dtype);
  visit("out", p.out_dtype);
  visit("scales", p.scales);
  visit("scale", p.scale);
  visit("softcap", p.softcap);
  visit("left", p.mask.left);
  visit("right", p.mask.right);
  visit("align", p.mask.alignment);
  visit("lse", p.lse);
  const char* const names[4] = {"q", "k", "v", "o"};
  decltype(&p.q) const layouts[4] = {&p.q, &p.k, &p.v, &p.o};
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::size_t dim = 0; dim < (layouts[i] == &p.v ? 4u : 3u); ++dim)
      visit(std::string(names[i]) + "s" + std::to_string(dim), layouts[i]->stride[dim]);
    visit(std::string(names[i]) + "off", s.offset[i]);
  }
  visit("inv", s.batch_invariant);
  visit("unseen", s.unseen);
  visit("seed", v.seed);
  visit("qmag", v.q);
  visit("kmag", v.k);
  visit("vmag", v.v);
  visit("scores", v.scores);
  visit("gap", v.gap);
  visit("lead", v.lead);
  visit("nat", v.nat);
  visit("first", v.first);
  visit("count", v.count);
  visit("weighted", v.weighted);
  visit("plant", v.plant);
  for (std::size_t dim = 0; dim < 4; ++dim) visit("at" + std::to_string(dim), v.plant_at[dim]);
}

template <class T>
std::string text_of_number(T value) {
  char text[40];
  const auto result = std::to_chars(text, text + sizeof text, value);
  return {text, result.ptr};
}

}  // namespace

std::string to_text(const Spec& spec) {
  std::string text;
  const Spec nothing;
  Spec dense = spec;
  set_dense(dense.problem, Order::bhsd);
  std::map<std::string, std::string> usual;
  const auto write = [](const auto& value) {
    using T = std::decay_t<decltype(value)>;
    if constexpr (std::is_enum_v<T>) {
      return text_of_number(static_cast<std::int32_t>(value));
    } else if constexpr (std::is_same_v<T, bool>) {
      return std::string(value ? "1" : "0");
    } else {
      return text_of_number(value);
    }
  };
  // Dense strides ("qs0" to "os2", "vs3") go without saying.
  each_field(nothing,
             [&](const std::string& name, const auto& value) { usual[name] = write(value); });
  each_field(dense, [&](const std::string& name, const auto& value) {
    if (name.size() == 3 && name[1] == 's' && name[2] != 'e') usual[name] = write(value);
  });
  each_field(spec, [&](const std::string& name, const auto& value) {
    const std::string written = write(value);
    if (written != usual[name]) text += (text.empty() ? "" : ",") + name + "=" + written;
  });
  return text;
}

std::optional<Spec> parse_spec(const std::string& text, std::string* why) {
  std::map<std::string, std::string> given;
  std::stringstream stream(text);
  for (std::string piece; std::getline(stream, piece, ',');) {
    const std::size_t equals = piece.find('=');
    if (equals == std::string::npos) {
      *why = "'" + piece + "' is not NAME=VALUE";
      return std::nullopt;
    }
    given[piece.substr(0, equals)] = piece.substr(equals + 1);
  }
  Spec spec;
  const auto take = [&](const std::string& name, auto& value) {
    const auto found = given.find(name);
    if (found == given.end()) return;
    const std::string& word = found->second;
    using T = std::decay_t<decltype(value)>;
    const char* const end = word.data() + word.size();
    const auto read = [&](auto number) {
      const auto result = std::from_chars(word.data(), end, number);
      if (result.ec != std::errc() || result.ptr != end) *why = name + "=" + word;
      return number;
    };
    if constexpr (std::is_enum_v<T>) {
      value = static_cast<T>(read(std::int32_t{}));
    } else if constexpr (std::is_same_v<T, bool>) {
      value = read(std::int32_t{}) != 0;
    } else {
      value = read(T{});
    }
  };
  // Twice: dense strides follow from the lengths, others replace them.
  each_field(spec, take);
  set_dense(spec.problem, Order::bhsd);
  each_field(spec, take);
  each_field(spec, [&](const std::string& name, auto&) { given.erase(name); });
  if (!why->empty()) {
    *why = "'" + *why + "' is no number";
    return std::nullopt;
  }
  if (!given.empty()) {
    *why = "there is no field '" + given.begin()->first + "'";
    return std::nullopt;
  }
  if (spec.values.scores == Scores::minus_inf && spec.values.first < 1) {
    *why = "scores=3 needs first of at least 1";
    return std::nullopt;
  }
  set_alignment(spec);
  if (const Status legal = check(spec.problem); !legal) {
    *why = legal.message();
    return std::nullopt;
  }
  return spec;
}

std::string distribution_of(const Spec& spec) {
  const char* const scores[] = {"normal", "dominated", "ramp", "minus_inf"};
  const char* const weighted[] = {"", "/constant_v", "/mean_one_v", "/contrast_v"};
  const char* const plants[] = {"", "+nan_q", "+nan_k", "+nan_v", "+inf_v"};
  return std::string(scores[static_cast<int>(spec.values.scores)]) +
         weighted[static_cast<int>(spec.values.weighted)] +
         plants[static_cast<int>(spec.values.plant)];
}

std::string describe(const Spec& spec) {
  const Values& v = spec.values;
  std::string text = to_string(spec.problem) + ", " + distribution_of(spec);
  if (v.scores != Scores::normal) text += " gap " + text_of_number(v.gap);
  text +=
      ", magnitudes " + text_of_number(v.q) + " " + text_of_number(v.k) + " " + text_of_number(v.v);
  if (spec.batch_invariant) text += ", batch_invariant";
  return text;
}

// ---- Simpler problems ----

std::vector<Spec> simpler(const Spec& spec) {
  std::vector<Spec> list;
  const Problem& p = spec.problem;
  const auto is_dense = [](const Problem& problem) {
    Problem dense = problem;
    set_dense(dense, Order::bhsd);
    return dense.q.stride == problem.q.stride && dense.k.stride == problem.k.stride &&
           dense.v.stride == problem.v.stride && dense.o.stride == problem.o.stride;
  };
  const bool dense = is_dense(p);
  // Other lengths keep strides that were chosen, and renew those that were dense.
  const auto with = [&](auto change) {
    Spec other = spec;
    change(other);
    if (dense) set_dense(other.problem, Order::bhsd);
    Values& v = other.values;
    if (v.scores == Scores::dominated)
      v.first =
          std::clamp<std::int64_t>(v.first, 0, std::max<std::int64_t>(other.problem.seq_kv, 1) - 1);
    const std::int64_t heads =
        v.plant == Plant::nan_q ? other.problem.heads_q : other.problem.heads_kv;
    const std::int64_t rows = v.plant == Plant::nan_q ? other.problem.seq_q : other.problem.seq_kv;
    if (v.plant != Plant::none &&
        (v.plant_at[0] >= other.problem.batch || v.plant_at[1] >= heads || v.plant_at[2] >= rows ||
         v.plant_at[3] >= other.problem.head_dim))
      return;
    set_alignment(other);
    if (check(other.problem)) list.push_back(other);
  };
  const auto shrink = [&](std::int64_t Problem::*size, std::int64_t least, std::int64_t step) {
    const std::int64_t now = p.*size;
    for (std::int64_t to : {least, now / 4, now / 2, now * 3 / 4, now - step}) {
      to = std::max(least, to / step * step);
      if (to < now) with([&](Spec& s) { s.problem.*size = to; });
    }
  };
  if (!dense) with([](Spec& s) { set_dense(s.problem, Order::bhsd); });
  shrink(&Problem::batch, 1, 1);
  if (p.heads_q > p.heads_kv) with([&](Spec& s) { s.problem.heads_q = p.heads_kv; });
  if (p.heads_kv > 1)
    with([&](Spec& s) {
      s.problem.heads_kv = 1;
      s.problem.heads_q = p.heads_q / p.heads_kv;
    });
  shrink(&Problem::seq_q, 1, 1);
  shrink(&Problem::seq_kv, 1, 1);
  shrink(&Problem::head_dim, 8, 8);
  if (p.head_dim > 64) with([](Spec& s) { s.problem.head_dim = 64; });
  if (!p.mask.is_none()) with([](Spec& s) { s.problem.mask = Mask::none(); });
  if (p.mask.left >= 0) with([](Spec& s) { s.problem.mask.left = -1; });
  if (p.softcap > 0) with([](Spec& s) { s.problem.softcap = 0; });
  if (p.lse) with([](Spec& s) { s.problem.lse = false; });
  if (p.scales == ScaleKind::per_block)
    with([](Spec& s) { s.problem.scales = ScaleKind::per_head; });
  if (p.scales != ScaleKind::none) with([](Spec& s) { s.problem.scales = ScaleKind::none; });
  if (p.out_dtype != default_out_dtype(p.dtype))
    with([](Spec& s) { s.problem.out_dtype = default_out_dtype(s.problem.dtype); });
  if (p.scale != default_scale(p.head_dim))
    with([](Spec& s) { s.problem.scale = default_scale(s.problem.head_dim); });
  for (std::size_t i = 0; i < 4; ++i) {
    if (spec.offset[i] != 0) with([i](Spec& s) { s.offset[i] = 0; });
  }
  const Values& v = spec.values;
  if (v.plant != Plant::none) with([](Spec& s) { s.values.plant = Plant::none; });
  if (v.scores == Scores::normal && v.q != 1.0f) with([](Spec& s) { s.values.q = 1.0f; });
  if (v.scores == Scores::normal && v.k != 1.0f) with([](Spec& s) { s.values.k = 1.0f; });
  if (v.scores != Scores::normal && (v.q != 0.0f || v.k != 0.0f))
    with([](Spec& s) { s.values.q = s.values.k = 0.0f; });
  if (v.count > 1 && v.scores == Scores::dominated) with([](Spec& s) { s.values.count = 1; });
  if (v.v != 1.0f) with([](Spec& s) { s.values.v = 1.0f; });
  if (v.weighted == Weighted::normal || v.weighted == Weighted::mean_one)
    with([](Spec& s) { s.values.weighted = Weighted::constant; });
  if (spec.batch_invariant) with([](Spec& s) { s.batch_invariant = false; });
  if (spec.unseen != Unseen::nan) with([](Spec& s) { s.unseen = Unseen::nan; });
  return list;
}

}  // namespace greenfast::fuzz
