#include "workbench/green/quantizer.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <limits>
#include <span>

#include <greenfast/quantize.hpp>

#include "workbench/base/numeric.hpp"

namespace greenfast::workbench {
namespace {

constexpr std::int64_t kDim = 64;

/// Device memory of a call.
class Buffer {
 public:
  Buffer(Device& device, std::size_t bytes) : device_(device), data_(device.allocate(bytes)) {}
  ~Buffer() {
    if (data_ != nullptr) device_.release(data_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() const { return data_; }

 private:
  Device& device_;
  void* data_;
};

std::uint8_t expected_code(double value) {
  return std::isnan(value) ? std::uint8_t{0x7f} : numeric::to_e4m3(value);
}

struct Job {
  std::string what;
  DType dtype = DType::f16;
  std::int64_t heads = 1;
  ScaleKind scales = ScaleKind::none;
  std::vector<std::byte> values;  // dense [1, heads, S, 64]
  bool rotated = false;
};

/// Values of rows multiplied by the matrix that the library says in core/rotate.hpp, in fp64.
std::vector<double> rotated(const Job& job, std::int64_t count) {
  constexpr std::int64_t kBlock = 32;
  std::vector<double> made(static_cast<std::size_t>(count));
  for (std::int64_t to = 0; to < count; ++to) {
    double sum = 0;
    for (std::int64_t column = 0; column < kBlock; ++column) {
      const double value =
          numeric::load(job.dtype, job.values.data(), to / kBlock * kBlock + column);
      const bool turned = column % 4 == 3;  // before it is multiplied
      const int common = std::popcount(static_cast<std::uint64_t>(to % kBlock & column));
      sum += (common % 2 == 1) == turned ? value : -value;
    }
    made[static_cast<std::size_t>(to)] = sum / std::sqrt(static_cast<double>(kBlock));
  }
  return made;
}

Result<QuantizerRow> run(Device& device, const Job& job) {
  const auto count = static_cast<std::int64_t>(job.values.size() / size_of(job.dtype));
  QuantizeProblem p;
  p.heads = job.heads;
  p.seq = count / job.heads / kDim;
  p.head_dim = kDim;
  p.dtype = job.dtype;
  p.scales = job.scales;
  p.rotate = job.rotated;
  p.from = p.to = dense_layout(Order::bhsd, 1, p.heads, p.seq, kDim);
  const auto groups = static_cast<std::size_t>(quantize_scales(p));
  // Values of the g-th scale, whose heads lie one behind the other.
  const auto range_of = [&](std::size_t g) {
    const auto n = static_cast<std::int64_t>(g), of_head = count / p.heads;
    if (job.scales == ScaleKind::per_head) return std::pair{n * of_head, (n + 1) * of_head};
    if (job.scales != ScaleKind::per_block) return std::pair{std::int64_t{0}, count};
    const std::int64_t blocks = static_cast<std::int64_t>(groups) / p.heads,
                       size = kScaleBlock * kDim;
    const std::int64_t head = n / blocks * of_head, from = n % blocks * size;
    return std::pair{head + from, head + std::min(from + size, of_head)};
  };

  const auto room = static_cast<std::size_t>(quantize_workspace_bytes(p));
  const Buffer from(device, job.values.size()), to(device, static_cast<std::size_t>(count)),
      scale(device, groups * sizeof(float)), scratch(device, room + 1);
  if (from.data() == nullptr || to.data() == nullptr || scale.data() == nullptr ||
      scratch.data() == nullptr)
    return Status(StatusCode::out_of_memory, "no device memory for the quantiser's check");
  device.upload(from.data(), job.values.data(), job.values.size());
  Options options;
  options.device = device.kind();
  options.stream = device.stream();
  QuantizerRow row{.what = job.what, .values = count, .wrong = 0, .first = {}};
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(count));
  std::vector<float> scales(groups, 1.0f);
  const auto wrong = [&](std::string text) {
    if (row.wrong++ == 0) row.first = std::move(text);
  };
  const std::vector<double> turned = job.rotated ? rotated(job, count) : std::vector<double>();
  // Sums in fp32 in an order of their own are as near the exact ones as this share of the largest.
  constexpr double kRounding = 2e-6;
  const auto compare_rotated = [&] {
    for (std::size_t g = 0; g < groups; ++g) {
      const auto [begin, end] = range_of(g);
      const auto first = static_cast<std::size_t>(begin);
      const auto group = std::span(turned).subspan(first, static_cast<std::size_t>(end) - first);
      double largest = 0;
      for (const double value : group) largest = std::max(largest, std::fabs(value));
      const double wanted = largest / 448, slack = kRounding * largest;
      if (std::fabs(static_cast<double>(scales[g]) - wanted) > kRounding * wanted)
        wrong(fmt::format("rotated, scale {} is {}, not {}", g, scales[g], wanted));
      for (std::size_t i = 0; i < group.size(); ++i) {
        const std::uint8_t code = codes[first + i];
        const double unit = static_cast<double>(scales[g]), got = numeric::from_e4m3(code);
        const double low = numeric::from_e4m3(expected_code((group[i] - slack) / unit)),
                     high = numeric::from_e4m3(expected_code((group[i] + slack) / unit));
        if (!(got >= low && got <= high))
          wrong(fmt::format("{} / {}, rotated, became {:#04x}, not {} to {}", group[i], unit, code,
                            low, high));
      }
    }
  };
  const auto compare = [&] {
    for (std::size_t g = 0; g < groups; ++g) {
      const auto [begin, end] = range_of(g);
      float largest = 0;
      for (std::int64_t i = begin; i < end; ++i) {
        const double magnitude = std::fabs(numeric::load(job.dtype, job.values.data(), i));
        if (std::isfinite(magnitude)) largest = std::max(largest, static_cast<float>(magnitude));
      }
      if (job.scales != ScaleKind::none) {
        const float wanted =
            largest > 0 ? std::max(largest / 448.0f, std::numeric_limits<float>::min()) : 1.0f;
        if (scales[g] != wanted) wrong(fmt::format("scale {} is {}, not {}", g, scales[g], wanted));
      }
      for (std::int64_t i = begin; i < end; ++i) {
        const double value = numeric::load(job.dtype, job.values.data(), i);
        const float quotient = static_cast<float>(value) / scales[g];
        const std::uint8_t wanted = expected_code(static_cast<double>(quotient));
        const std::uint8_t code = codes[static_cast<std::size_t>(i)];
        if (code != wanted)
          wrong(fmt::format("{} / {} became {:#04x}, not {:#04x}", value, scales[g], code, wanted));
      }
    }
  };
  // Without scratch, and with it, which is another kernel on some GPUs; where one is wrong, no more.
  for (const bool with : {false, true}) {
    if (with && (room == 0 || row.wrong != 0)) break;
    options.workspace = with ? scratch.data() : nullptr;
    options.workspace_bytes = with ? room : 0;
    const std::vector<std::uint8_t> nothing(codes.size(), 0xff);
    device.upload(to.data(), nothing.data(), nothing.size());
    if (Status status = quantize_e4m3(
            p, {.from = from.data(), .to = to.data(), .scale = static_cast<float*>(scale.data())},
            options);
        !status)
      return status;
    if (Status status = device.synchronize(); !status) return status;
    device.download(codes.data(), to.data(), codes.size());
    if (job.scales != ScaleKind::none)
      device.download(scales.data(), scale.data(), groups * sizeof(float));
    if (job.rotated)
      compare_rotated();
    else
      compare();
  }
  return row;
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::uint16_t> all_16_bits() {
  std::vector<std::uint16_t> bits(0x10000);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
  return bits;
}

/// Noise of two heads, of which two columns and single elements lie far above the rest.
std::vector<float> outliers() {
  std::vector<float> values;
  std::uint32_t state = 11;
  for (std::int64_t i = 0; i < 2 * 101 * kDim; ++i) {
    float sum = 0;
    for (int n = 0; n < 4; ++n) {
      state = state * 1664525u + 1013904223u;
      sum += static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
    }
    const bool large = i % kDim == 3 || i % kDim == 50 || i % 997 == 0;
    values.push_back(large ? 30 * sum : sum);
  }
  return values;
}

std::vector<std::uint16_t> cut_to_bf16(const std::vector<float>& values) {
  std::vector<std::uint16_t> bits;
  for (const float value : values)
    bits.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
  return bits;
}

/// Every midpoint between neighbouring codes, one float below it and one above, of both signs; then
/// bit patterns of every exponent.
std::vector<float> boundaries() {
  std::vector<float> values;
  for (int code = 0; code < 0x7f; ++code) {
    const double a = numeric::from_e4m3(static_cast<std::uint8_t>(code));
    const double b = code < 0x7e ? numeric::from_e4m3(static_cast<std::uint8_t>(code + 1)) : 480.0;
    const auto middle = static_cast<float>((a + b) / 2);
    for (const float x : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, 1e30f)})
      for (const float sign : {1.0f, -1.0f}) values.push_back(sign * x);
  }
  std::uint32_t state = 1;
  while (values.size() % kDim != 0 || values.size() < 65536) {
    state = state * 1664525u + 1013904223u;
    values.push_back(std::bit_cast<float>(state));
  }
  return values;
}

/// Heads of so many rows of 16 bits: made(head, row, random bits) of each value.
template <class Made>
std::vector<std::uint16_t> heads_of(int heads, std::int64_t rows, std::uint32_t seed,
                                    const Made& made) {
  std::vector<std::uint16_t> bits;
  for (int head = 0; head < heads; ++head)
    for (std::int64_t i = 0; i < rows * kDim; ++i) {
      seed = seed * 1664525u + 1013904223u;
      bits.push_back(static_cast<std::uint16_t>(made(head, i / kDim, seed >> 16)));
    }
  return bits;
}
/// Each block of 128 rows of another magnitude; finite and ordinary as fp16 and as bf16.
std::vector<std::uint16_t> long_heads() {
  return heads_of(2, 300, 5, [](int head, std::int64_t row, std::uint32_t random) {
    return 0x3c00 + (row / kScaleBlock * 3 + head) * 0x0100 + (random & 0x80ff);
  });
}
/// Of fp16: ordinary values, all zeros, magnitudes near the largest, subnormals.
std::vector<std::uint16_t> four_heads() {
  return heads_of(4, 33, 7, [](int head, std::int64_t, std::uint32_t random) {
    constexpr std::uint32_t kMasks[] = {0xbfff, 0x8000, 0xfbff,
                                        0x83ff};  // sign, then what may be set
    return random & kMasks[head];
  });
}

}  // namespace

Result<std::vector<QuantizerRow>> check_quantizer(Device& device) {
  const Job jobs[] = {
      {"all 65,536 values of fp16", DType::f16, 1, ScaleKind::none, bytes_of(all_16_bits())},
      {"all 65,536 values of bf16", DType::bf16, 1, ScaleKind::none, bytes_of(all_16_bits())},
      {"fp32 around every rounding boundary", DType::f32, 1, ScaleKind::none,
       bytes_of(boundaries())},
      {"fp16 with a scale for each head", DType::f16, 4, ScaleKind::per_head,
       bytes_of(four_heads())},
      {"fp16 with a scale for each block", DType::f16, 2, ScaleKind::per_block,
       bytes_of(long_heads())},
      {"bf16, rotated, with a scale for each block", DType::bf16, 2, ScaleKind::per_block,
       bytes_of(long_heads()), true},
      {"fp16 with one scale", DType::f16, 4, ScaleKind::tensor, bytes_of(four_heads())},
      {"fp32, rotated, with a scale for each head", DType::f32, 2, ScaleKind::per_head,
       bytes_of(outliers()), true},
      {"bf16, rotated, with one scale", DType::bf16, 2, ScaleKind::tensor,
       bytes_of(cut_to_bf16(outliers())), true},
  };
  std::vector<QuantizerRow> rows;
  for (const Job& job : jobs) {
    auto row = run(device, job);
    if (!row) return row.status();
    rows.push_back(std::move(*row));
  }
  return rows;
}

}  // namespace greenfast::workbench
