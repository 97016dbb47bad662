#include "scene.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include <greenfast/arithmetic.hpp>

#include "case.hpp"

namespace greenfast::test {
namespace {

constexpr double kEndless = std::numeric_limits<double>::infinity();
constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
constexpr std::int32_t kNoPage = std::numeric_limits<std::int32_t>::min();

std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::uint64_t hash(std::initializer_list<std::uint64_t> parts) {
  std::uint64_t state = 0x632be59bd9b4e019u;
  for (const std::uint64_t part : parts) state = mixed(state + part + 0x9e3779b97f4a7c15u);
  return state;
}

double unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

double rounded(DType dtype, double value) {
  std::byte element[4];
  encode(dtype, value, element);
  return decode(dtype, element);
}

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(std::floor(static_cast<double>(a) / static_cast<double>(b)));
}

// Rows with a gap behind each, heads inside or outside of them, and a gap behind each image.
Layout spaced(const Script& s, std::int64_t heads, std::int64_t rows, std::int64_t dim,
              std::uint64_t salt) {
  const auto gap = static_cast<std::int64_t>(hash({s.seed, salt}) % 4);
  Layout layout;
  const std::int64_t row = dim + gap;
  if (s.rows_between_heads)
    layout.stride = {heads * rows * row + gap, row, heads * row, 1};
  else
    layout.stride = {heads * rows * row + gap, rows * row, row, 1};
  return layout;
}

// Columns with a gap behind each, and a gap behind each head and image.
Layout spaced_columns(const Script& s, std::int64_t heads, std::int64_t rows, std::int64_t dim) {
  const auto gap = static_cast<std::int64_t>(hash({s.seed, 5}) % 4);
  const std::int64_t column = std::max<std::int64_t>(rows + gap, 2), head = dim * column + gap;
  Layout layout;
  layout.stride = {heads * head + gap, head, 1, column};
  return layout;
}

std::size_t extent_of(const Layout& layout, std::int64_t b, std::int64_t h, std::int64_t s,
                      std::int64_t d) {
  if (b == 0 || h == 0 || s == 0) return 1;
  return static_cast<std::size_t>((b - 1) * layout.stride[0] + (h - 1) * layout.stride[1] +
                                  (s - 1) * layout.stride[2] + (d - 1) * layout.stride[3] + 1);
}

std::vector<std::byte> nans(DType dtype, std::size_t count) {
  std::vector<std::byte> data(count * size_of(dtype));
  for (std::size_t n = 0; n < count; ++n) encode(dtype, kNothing, data.data() + n * size_of(dtype));
  return data;
}

void put(std::vector<std::byte>& data, DType dtype, std::int64_t at, double value) {
  encode(dtype, value, data.data() + static_cast<std::size_t>(at) * size_of(dtype));
}

}  // namespace

Script random_script(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  const auto chance = [&](int percent) { return pick(1, 100) <= percent; };
  const auto of = [&](std::initializer_list<std::int64_t> values) {
    return values.begin()[pick(0, static_cast<std::int64_t>(values.size()) - 1)];
  };
  Script s;
  s.seed = seed;
  s.heads_kv = pick(1, 3);
  s.heads_q = s.heads_kv * of({1, 1, 2, 3, 4, 5, 8, 12});
  s.head_dim = chance(50) ? of({64, 128}) : 8 * pick(1, 24);
  s.value_dim = chance(60) ? s.head_dim : 8 * pick(1, 24);
  s.dtype = static_cast<DType>(pick(0, 3));
  s.out_dtype = chance(70) ? default_out_dtype(s.dtype) : static_cast<DType>(pick(0, 2));
  if (s.dtype == DType::e4m3) s.scales = static_cast<ScaleKind>(pick(0, 3));
  s.scale = default_scale(s.head_dim) * (chance(10) ? -1.0f : 1.0f) * (chance(5) ? 0.0f : 1.0f);
  if (chance(20)) s.softcap = static_cast<float>(of({1, 5, 50}));
  const auto corner = chance(70) ? Alignment::bottom_right : Alignment::top_left;
  if (chance(50)) {
    s.mask = Mask::causal(corner);
  } else if (chance(40)) {
    s.mask = Mask::window(chance(70) ? pick(0, 150) : -1, chance(70) ? pick(0, 90) : -1, corner);
  } else {
    s.mask.alignment = corner;
  }
  if (chance(25)) s.chunk = of({1, 3, 16, 64, 100, 256});
  s.sinks = chance(30);
  if (chance(20)) s.alibi = static_cast<Alibi>(pick(1, 2));
  if (chance(25)) {
    s.mask_kind = static_cast<MaskKind>(pick(1, 2));
    s.mask_dtype = s.dtype == DType::e4m3 || chance(50) ? DType::f32 : s.dtype;
    s.mask_broadcast = static_cast<int>(pick(0, 15));
  }
  s.packed_q = chance(50);
  s.used_q = chance(25);
  s.used_kv = chance(60);
  s.kv_start = chance(25);
  s.keep = static_cast<Keep>(pick(0, 3));
  s.page = of({1, 2, 4, 7, 16, 64, 128});
  s.rows_between_heads = chance(50);
  s.looseness = chance(50) ? 0 : pick(1, 40);
  const auto length = [&](bool any) {
    const std::int64_t least = any ? 0 : 1;
    switch (pick(0, 4)) {
      case 0:
        return pick(least, 8);
      case 1:
        return pick(9, 70);
      case 2:
        return std::int64_t{64} * pick(1, 4) + pick(-1, 1);
      default:
        return pick(71, 420);
    }
  };
  const bool decode = chance(50);
  const bool own_q = s.packed_q || s.used_q, own_kv = s.used_kv || s.keep == Keep::packed;
  const std::int64_t same_q = decode ? pick(1, 3) : length(false);
  const std::int64_t same_kv = chance(5) ? pick(1600, 3300) : length(true);
  const std::int64_t count = chance(10) ? 0 : pick(1, 4);
  for (std::int64_t b = 0; b < count; ++b) {
    Script::One one{same_q, same_kv, 0};
    if (own_q) one.seq_q = decode ? pick(0, 3) : length(true);
    if (own_kv) one.seq_kv = chance(10) ? 0 : chance(4) ? pick(1600, 3300) : length(true);
    if (s.kv_start) one.kv_start = chance(40) ? 0 : pick(0, one.seq_kv);
    s.sequences.push_back(one);
  }
  s.transposed_v = s.dtype == DType::e4m3 && chance(40);
  return s;
}

const double* Scene::values(int tensor, std::size_t b, std::int64_t h, std::int64_t s) const {
  const Script::One& one = script.sequences[b];
  const std::int64_t rows = tensor == 0 ? one.seq_q : one.seq_kv;
  const std::int64_t dim = tensor == 2 ? script.value_dim : script.head_dim;
  return values_[tensor].data() + first_value_[tensor][b] +
         static_cast<std::size_t>((h * rows + s) * dim);
}

double Scene::drawn(int tensor, std::size_t b, std::int64_t h, std::int64_t s,
                    std::int64_t d) const {
  const auto at = [](auto n) { return static_cast<std::uint64_t>(n); };
  const std::uint64_t bits = hash({script.seed, at(tensor), script.first + b, at(h), at(s), at(d)});
  const double normal = unit(bits) + unit(mixed(bits + 1)) + unit(mixed(bits + 2)) - 1.5;
  return rounded(problem.dtype, std::clamp(2.0 * normal * script.spread, -400.0, 400.0));
}

bool Scene::visible(std::size_t b, std::int64_t i, std::int64_t j) const {
  const Script::One& one = script.sequences[b];
  const Mask& m = script.mask;
  const std::int64_t t = i + (m.alignment == Alignment::bottom_right ? one.seq_kv - one.seq_q : 0);
  if (j < one.kv_start || j >= one.seq_kv) return false;
  if (m.left >= 0 && j < t - m.left) return false;
  if (m.right >= 0 && j > t + m.right) return false;
  return script.chunk == 0 ||
         floor_div(t - one.kv_start, script.chunk) == floor_div(j - one.kv_start, script.chunk);
}

double Scene::bias(std::size_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
  double sum = 0.0;
  const Script::One& one = script.sequences[b];
  if (script.alibi != Alibi::none) {
    const std::int64_t shift =
        script.mask.alignment == Alignment::bottom_right ? one.seq_kv - one.seq_q : 0;
    const std::size_t row = script.alibi == Alibi::per_head ? 0 : b;
    sum -=
        double{
            slopes[row * static_cast<std::size_t>(script.heads_q) + static_cast<std::size_t>(h)]} *
        std::fabs(static_cast<double>(i + shift - j));
  }
  if (script.mask_kind != MaskKind::none) {
    const auto& stride = problem.array_mask.stride;
    const auto at = static_cast<std::size_t>(static_cast<std::int64_t>(b) * stride[0] +
                                             h * stride[1] + i * stride[2] + j * stride[3]);
    if (script.mask_kind == MaskKind::boolean)
      sum += mask[at] != std::byte{0} ? 0.0 : -kEndless;
    else
      sum += decode(script.mask_dtype, mask.data() + at * size_of(script.mask_dtype));
  }
  return sum;
}

std::int64_t Scene::q_at(std::size_t b, std::int64_t h, std::int64_t i) const {
  const auto& stride = problem.q.stride;
  if (script.packed_q) return h * stride[1] + (cu_q[b] + i) * stride[2];
  return static_cast<std::int64_t>(b) * stride[0] + h * stride[1] + i * stride[2];
}
std::int64_t Scene::o_at(std::size_t b, std::int64_t h, std::int64_t i) const {
  const auto& stride = problem.o.stride;
  if (script.packed_q) return h * stride[1] + (cu_q[b] + i) * stride[2];
  return static_cast<std::int64_t>(b) * stride[0] + h * stride[1] + i * stride[2];
}
std::size_t Scene::lse_at(std::size_t b, std::int64_t h, std::int64_t i) const {
  if (script.packed_q) return static_cast<std::size_t>(h * problem.sequences.total_q + cu_q[b] + i);
  return static_cast<std::size_t>(
      (static_cast<std::int64_t>(b) * script.heads_q + h) * problem.seq_q + i);
}
std::int64_t Scene::key_at(const Layout& layout, std::size_t b, std::int64_t h,
                           std::int64_t j) const {
  const auto& stride = layout.stride;
  std::int64_t image = static_cast<std::int64_t>(b), row = j;
  switch (script.keep) {
    case Keep::dense:
      break;
    case Keep::indexed:
      image = kv_index[b];
      break;
    case Keep::packed:
      image = 0;
      row = cu_kv[b] + j;
      break;
    case Keep::paged:
      image = page_table[b * static_cast<std::size_t>(problem.pages.row_stride) +
                         static_cast<std::size_t>(j / script.page)];
      row = j % script.page;
      break;
  }
  return image * stride[0] + h * stride[1] + row * stride[2];
}

Scene::Scene(const Script& given) : script(given) {
  const Script& s = script;
  const std::size_t count = s.sequences.size();
  std::mt19937_64 random(hash({s.seed, 77}));
  const auto below = [&](std::int64_t end) {
    return std::uniform_int_distribution<std::int64_t>(0, end - 1)(random);
  };
  Problem& p = problem;
  p.batch = static_cast<std::int64_t>(count);
  p.heads_q = s.heads_q;
  p.heads_kv = s.heads_kv;
  p.head_dim = s.head_dim;
  p.head_dim_v = s.value_dim == s.head_dim ? 0 : s.value_dim;
  p.dtype = s.dtype;
  p.out_dtype = s.out_dtype;
  p.scales = s.scales;
  p.scale = s.scale;
  p.softcap = s.softcap;
  p.mask = s.mask;
  p.chunk = s.chunk;
  p.sinks = s.sinks;
  p.alibi = s.alibi;
  p.lse = true;
  for (const Script::One& one : s.sequences) {
    p.seq_q = std::max(p.seq_q, one.seq_q);
    p.seq_kv = std::max(p.seq_kv, one.seq_kv);
  }
  if (s.packed_q || s.used_q) p.seq_q += s.looseness;
  if (s.used_kv || s.keep == Keep::packed) p.seq_kv += s.looseness;

  // A slot is as long as what is used of it, or longer where lengths say how much that is.
  const auto pack = [&](std::vector<std::int32_t>& cu, bool used, auto length) {
    std::int64_t at = s.looseness > 0 ? below(5) : 0;
    cu.push_back(static_cast<std::int32_t>(at));
    for (const Script::One& one : s.sequences) {
      at += length(one) + (used ? s.looseness : 0);
      cu.push_back(static_cast<std::int32_t>(at));
    }
    return at + s.looseness;
  };
  Sequences& facts = p.sequences;
  facts.packed_q = s.packed_q;
  facts.used_q = s.used_q;
  facts.used_kv = s.used_kv;
  facts.kv_start = s.kv_start;
  std::int64_t q_images = p.batch, q_rows = p.seq_q, kv_images = p.batch, kv_rows = p.seq_kv;
  if (s.packed_q) {
    q_images = 1;
    q_rows = facts.total_q = pack(cu_q, s.used_q, [](const Script::One& one) { return one.seq_q; });
  }
  if (s.keep == Keep::packed) {
    facts.packed_kv = true;
    kv_images = 1;
    kv_rows = facts.total_kv =
        pack(cu_kv, s.used_kv, [](const Script::One& one) { return one.seq_kv; });
  } else if (s.keep == Keep::indexed) {
    facts.kv_index = true;
    kv_images = facts.kv_rows = p.batch + 1 + s.looseness % 3;
    std::vector<std::int32_t> rows(static_cast<std::size_t>(kv_images));
    std::iota(rows.begin(), rows.end(), 0);
    std::shuffle(rows.begin(), rows.end(), random);
    kv_index.assign(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(count));
  } else if (s.keep == Keep::paged) {
    const std::int64_t width = ceil_div(p.seq_kv, s.page);
    p.pages = {.size = s.page, .count = 0, .row_stride = width + s.looseness % 3};
    page_table.assign(static_cast<std::size_t>(p.batch * p.pages.row_stride), kNoPage);
    std::vector<std::int32_t*> wanted;
    for (std::size_t b = 0; b < count; ++b) {
      const Script::One& one = s.sequences[b];
      std::int32_t* const row =
          page_table.data() + b * static_cast<std::size_t>(p.pages.row_stride);
      for (std::int64_t n = one.kv_start / s.page; n * s.page < one.seq_kv; ++n)
        wanted.push_back(row + n);
    }
    kv_images = p.pages.count = static_cast<std::int64_t>(wanted.size()) + 2;
    kv_rows = s.page;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(kv_images));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random);
    for (std::size_t n = 0; n < wanted.size(); ++n) *wanted[n] = ids[n];
  }
  p.q = spaced(s, s.heads_q, q_rows, s.head_dim, 1);
  p.k = spaced(s, s.heads_kv, kv_rows, s.head_dim, 2);
  p.v = s.transposed_v ? spaced_columns(s, s.heads_kv, kv_rows, s.value_dim)
                       : spaced(s, s.heads_kv, kv_rows, s.value_dim, 3);
  p.o = spaced(s, s.heads_q, q_rows, s.value_dim, 4);
  q = nans(s.dtype, extent_of(p.q, q_images, s.heads_q, q_rows, s.head_dim));
  k = nans(s.dtype, extent_of(p.k, kv_images, s.heads_kv, kv_rows, s.head_dim));
  v = nans(s.dtype, extent_of(p.v, kv_images, s.heads_kv, kv_rows, s.value_dim));
  o.resize(extent_of(p.o, q_images, s.heads_q, q_rows, s.value_dim) * size_of(s.out_dtype));
  lse.resize(static_cast<std::size_t>(q_images * s.heads_q * q_rows));
  for (const Script::One& one : s.sequences) {
    if (s.used_q) used_q.push_back(static_cast<std::int32_t>(one.seq_q));
    if (s.used_kv) used_kv.push_back(static_cast<std::int32_t>(one.seq_kv));
    if (s.kv_start) kv_start.push_back(static_cast<std::int32_t>(one.kv_start));
  }

  for (int tensor = 0; tensor < 3; ++tensor) {
    const std::int64_t heads = tensor == 0 ? s.heads_q : s.heads_kv;
    const std::int64_t dim = tensor == 2 ? s.value_dim : s.head_dim;
    for (std::size_t b = 0; b < count; ++b) {
      first_value_[tensor].push_back(values_[tensor].size());
      const Script::One& one = s.sequences[b];
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t n = 0; n < (tensor == 0 ? one.seq_q : one.seq_kv); ++n)
          for (std::int64_t d = 0; d < dim; ++d)
            values_[tensor].push_back(drawn(tensor, b, h, n, d));
    }
  }
  for (std::size_t b = 0; b < count; ++b) {
    const Script::One& one = s.sequences[b];
    for (std::int64_t h = 0; h < s.heads_q; ++h)
      for (std::int64_t i = 0; i < one.seq_q; ++i)
        for (std::int64_t d = 0; d < s.head_dim; ++d)
          put(q, s.dtype, q_at(b, h, i) + d, values(0, b, h, i)[d]);
    for (std::int64_t j = one.kv_start; j < one.seq_kv; ++j) {
      bool seen = false;
      for (std::int64_t i = 0; i < one.seq_q && !seen; ++i) seen = visible(b, i, j);
      if (!seen) continue;
      for (std::int64_t h = 0; h < s.heads_kv; ++h) {
        for (std::int64_t d = 0; d < s.head_dim; ++d)
          put(k, s.dtype, key_at(p.k, b, h, j) + d, values(1, b, h, j)[d]);
        for (std::int64_t d = 0; d < s.value_dim; ++d)
          put(v, s.dtype, key_at(p.v, b, h, j) + d * p.v.stride[3], values(2, b, h, j)[d]);
      }
    }
  }

  std::uniform_real_distribution<float> factor(0.25f, 2.0f), bias_of(-3.0f, 3.0f);
  // Each from a stream of its own, so that they are the same wherever keys are kept.
  std::uint64_t streams = 100;
  const auto draw = [&](std::vector<float>& to, std::int64_t size, auto& from) {
    std::mt19937_64 stream(hash({s.seed, ++streams}));
    to.resize(static_cast<std::size_t>(size));
    for (float& x : to) x = from(stream);
  };
  if (s.scales != ScaleKind::none) {
    const auto factors = [&](std::int64_t heads, std::int64_t seq) {
      if (s.scales == ScaleKind::tensor) return std::int64_t{1};
      return p.batch * heads * (s.scales == ScaleKind::per_block ? (seq + 127) / 128 : 1);
    };
    draw(q_scale, factors(s.heads_q, p.seq_q), factor);
    draw(k_scale, factors(s.heads_kv, p.seq_kv), factor);
    draw(v_scale, factors(s.heads_kv, p.seq_kv), factor);
  }
  if (s.sinks) {
    draw(sinks, s.heads_q, bias_of);
    if (hash({s.seed, 5}) % 4 == 0) sinks[0] = -std::numeric_limits<float>::infinity();
  }
  if (s.alibi != Alibi::none) {
    draw(slopes, (s.alibi == Alibi::per_head ? 1 : p.batch) * s.heads_q, factor);
    for (float& x : slopes) x *= 0.05f;
  }
  if (s.mask_kind != MaskKind::none && count > 0) {
    p.array_mask.kind = s.mask_kind;
    const bool number = s.mask_kind == MaskKind::additive;
    if (number) p.array_mask.dtype = s.mask_dtype;
    const std::int64_t shape[4] = {p.batch, s.heads_q, p.seq_q, p.seq_kv};
    std::int64_t stride = 1;
    for (int dim = 3; dim >= 0; --dim) {
      const bool broadcast = (s.mask_broadcast >> dim & 1) != 0;
      p.array_mask.stride[static_cast<std::size_t>(dim)] = broadcast ? 0 : stride;
      if (!broadcast) stride = stride * shape[dim] + (dim == 3 ? 3 : 0);
    }
    const auto size = static_cast<std::size_t>(stride);
    mask.resize(size * (number ? size_of(s.mask_dtype) : 1));
    for (std::size_t n = 0; n < size; ++n) {
      const bool hidden = below(4) == 0;
      if (!number)
        mask[n] = hidden ? std::byte{0} : static_cast<std::byte>(below(255) + 1);
      else
        encode(s.mask_dtype, hidden ? -kEndless : double{bias_of(random)},
               mask.data() + n * size_of(s.mask_dtype));
    }
  }
  poison_output();

  const auto at = [](const auto& vector) { return vector.empty() ? nullptr : vector.data(); };
  tensors = {.q = q.data(),
             .k = k.data(),
             .v = v.data(),
             .o = o.data(),
             .lse = lse.data(),
             .q_scale = at(q_scale),
             .k_scale = at(k_scale),
             .v_scale = at(v_scale),
             .cu_q = at(cu_q),
             .cu_kv = at(cu_kv),
             .used_q = at(used_q),
             .used_kv = at(used_kv),
             .kv_start = at(kv_start),
             .kv_index = at(kv_index),
             .page_table = at(page_table),
             .sinks = at(sinks),
             .mask = at(mask),
             .slopes = at(slopes)};
}

void Scene::poison_output() {
  o = nans(problem.out_dtype, o.size() / size_of(problem.out_dtype));
  std::fill(lse.begin(), lse.end(), std::numeric_limits<float>::quiet_NaN());
  tensors.o = o.data();
}

std::vector<std::byte> Scene::bits_of(std::size_t b) const {
  std::vector<std::byte> out;
  const auto row_bytes = static_cast<std::size_t>(script.value_dim) * size_of(problem.out_dtype);
  for (std::int64_t h = 0; h < script.heads_q; ++h)
    for (std::int64_t i = 0; i < script.sequences[b].seq_q; ++i) {
      const auto at = static_cast<std::size_t>(o_at(b, h, i)) * size_of(problem.out_dtype);
      out.insert(out.end(), o.begin() + static_cast<std::ptrdiff_t>(at),
                 o.begin() + static_cast<std::ptrdiff_t>(at + row_bytes));
      const auto* const bytes = reinterpret_cast<const std::byte*>(&lse[lse_at(b, h, i)]);
      out.insert(out.end(), bytes, bytes + sizeof(float));
    }
  return out;
}

void Scene::expect() const {
  if (!rows_.empty()) return;
  const Script& s = script;
  const auto dim = static_cast<std::size_t>(s.value_dim);
  for (std::size_t b = 0; b < s.sequences.size(); ++b) {
    const Script::One& one = s.sequences[b];
    const auto scale_at = [&](const std::vector<float>& scales, std::int64_t heads, std::int64_t h,
                              std::int64_t seq, std::int64_t row) {
      if (scales.empty()) return 1.0;
      std::size_t at = 0;
      if (s.scales != ScaleKind::tensor)
        at = b * static_cast<std::size_t>(heads) + static_cast<std::size_t>(h);
      if (s.scales == ScaleKind::per_block)
        at = at * static_cast<std::size_t>((seq + 127) / 128) + static_cast<std::size_t>(row / 128);
      return double{scales[at]};
    };
    const std::int64_t longest_q = problem.seq_q, longest_kv = problem.seq_kv;
    for (std::int64_t h = 0; h < s.heads_q; ++h) {
      const std::int64_t h_kv = h / (s.heads_q / s.heads_kv);
      for (std::int64_t i = 0; i < one.seq_q; ++i) {
        std::vector<double> score, want(dim, 0.0), weight(dim, 0.0);
        std::vector<std::int64_t> keys;
        double max = -kEndless, magnitude = 0.0, sum = 0.0;
        const double* const query = values(0, b, h, i);
        for (std::int64_t j = 0; j < one.seq_kv; ++j) {
          if (!visible(b, i, j)) continue;
          const double added = bias(b, h, i, j);
          if (added == -kEndless) continue;
          double x = 0.0, m = 0.0;
          const double* const key = values(1, b, h_kv, j);
          for (std::int64_t d = 0; d < s.head_dim; ++d) {
            x += query[d] * key[d];
            m += std::fabs(query[d] * key[d]);
          }
          const double scale = double{s.scale} * scale_at(q_scale, s.heads_q, h, longest_q, i) *
                               scale_at(k_scale, s.heads_kv, h_kv, longest_kv, j);
          x *= scale;
          m *= std::fabs(scale);
          if (s.softcap > 0.0f) x = double{s.softcap} * std::tanh(x / double{s.softcap});
          magnitude = std::max(magnitude, m + std::fabs(added));
          score.push_back(x + added);
          keys.push_back(j);
          max = std::max(max, x + added);
        }
        const bool empty = keys.empty();
        for (std::size_t n = 0; n < keys.size(); ++n) {
          const double w = std::exp(score[n] - max);
          sum += w;
          const double* const row = values(2, b, h_kv, keys[n]);
          const double value_scale = scale_at(v_scale, s.heads_kv, h_kv, longest_kv, keys[n]);
          for (std::size_t d = 0; d < dim; ++d) {
            const double x = w * value_scale * row[d];
            want[d] += x;
            weight[d] += std::fabs(x);
          }
        }
        double whole = empty ? -kEndless : max + std::log(sum);
        if (s.sinks) {
          const double sink = double{sinks[static_cast<std::size_t>(h)]};
          const double high = std::max(whole, sink);
          if (high > -kEndless)
            whole = high + std::log(std::exp(whole - high) + std::exp(sink - high));
          magnitude = std::max(magnitude, std::fabs(sink) < kEndless ? std::fabs(sink) : 0.0);
        }
        const double share = empty ? 0.0 : std::exp(max - whole);
        rows_.push_back({empty, magnitude, whole});
        for (std::size_t d = 0; d < dim; ++d) {
          want_.push_back(want[d] * share);
          weight_.push_back(weight[d] * share);
        }
      }
    }
  }
}

std::string Scene::compare(double p_epsilon, double exp_epsilon) const {
  expect();
  const Script& s = script;
  const std::size_t size = size_of(problem.out_dtype);
  const int mantissa = problem.out_dtype == DType::f32   ? 23
                       : problem.out_dtype == DType::f16 ? 10
                                                         : 7;
  const double out_epsilon = std::ldexp(1.0, -mantissa - 1) * 1.001;
  const auto dim = static_cast<std::size_t>(s.value_dim);
  std::size_t rows = 0;
  for (std::size_t b = 0; b < s.sequences.size(); ++b) {
    for (std::int64_t h = 0; h < s.heads_q; ++h) {
      for (std::int64_t i = 0; i < s.sequences[b].seq_q; ++i, ++rows) {
        const Row& row = rows_[rows];
        const double fp32_epsilon = (row.magnitude + 8.0) * 4.0e-7;
        const auto where = [&] {
          return " at sequence " + std::to_string(b) + " h=" + std::to_string(h) +
                 " i=" + std::to_string(i);
        };
        for (std::size_t d = 0; d < dim; ++d) {
          const double got = decode(
              problem.out_dtype, o.data() + (static_cast<std::size_t>(o_at(b, h, i)) + d) * size);
          const double right = want_[rows * dim + d];
          const double limit =
              row.empty ? 0.0
                        : (fp32_epsilon + p_epsilon + exp_epsilon) * weight_[rows * dim + d] +
                              out_epsilon * std::fabs(right) + 3.0e-8;
          if (!(std::fabs(got - right) <= limit))
            return "O is " + std::to_string(got) + ", not " + std::to_string(right) + " +- " +
                   std::to_string(limit) + where() + " d=" + std::to_string(d);
        }
        const double got = double{lse[lse_at(b, h, i)]};
        if (!(got == row.lse || std::fabs(got - row.lse) <= fp32_epsilon + exp_epsilon))
          return "LSE is " + std::to_string(got) + ", not " + std::to_string(row.lse) + where();
      }
    }
  }
  std::size_t touched = 0, touched_lse = 0;
  for (std::size_t at = 0; at + size <= o.size(); at += size)
    touched += std::isnan(decode(problem.out_dtype, o.data() + at)) ? 0 : 1;
  for (const float x : lse) touched_lse += std::isnan(x) ? 0 : 1;
  if (touched != rows * dim || touched_lse != rows)
    return std::to_string(touched) + " elements of O and " + std::to_string(touched_lse) +
           " of the LSE written, not " + std::to_string(rows * dim) + " and " +
           std::to_string(rows);
  return {};
}

}  // namespace greenfast::test
