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
};

Result<QuantizerRow> run(Device& device, const Job& job) {
  const auto count = static_cast<std::int64_t>(job.values.size() / size_of(job.dtype));
  QuantizeProblem p;
  p.heads = job.heads;
  p.seq = count / job.heads / kDim;
  p.head_dim = kDim;
  p.dtype = job.dtype;
  p.scales = job.scales;
  p.from = p.to = dense_layout(Order::bhsd, 1, p.heads, p.seq, kDim);
  const std::size_t groups =
      job.scales == ScaleKind::per_head ? static_cast<std::size_t>(p.heads) : std::size_t{1};

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
  const auto compare = [&] {
    const std::int64_t per_group = count / static_cast<std::int64_t>(groups);
    for (std::size_t g = 0; g < groups; ++g) {
      const auto begin = static_cast<std::int64_t>(g) * per_group;
      float largest = 0;
      for (std::int64_t i = begin; i < begin + per_group; ++i) {
        const double magnitude = std::fabs(numeric::load(job.dtype, job.values.data(), i));
        if (std::isfinite(magnitude)) largest = std::max(largest, static_cast<float>(magnitude));
      }
      if (job.scales != ScaleKind::none) {
        const float wanted =
            largest > 0 ? std::max(largest / 448.0f, std::numeric_limits<float>::min()) : 1.0f;
        if (scales[g] != wanted)
          wrong(fmt::format("scale of head {} is {}, not {}", g, scales[g], wanted));
      }
      for (std::int64_t i = begin; i < begin + per_group; ++i) {
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

/// Four heads of fp16: ordinary values, all zeros, magnitudes near the largest, subnormals.
std::vector<std::uint16_t> four_heads() {
  std::vector<std::uint16_t> bits;
  std::uint32_t state = 7;
  for (int head = 0; head < 4; ++head)
    for (std::int64_t i = 0; i < 33 * kDim; ++i) {
      state = state * 1664525u + 1013904223u;
      const auto random = static_cast<std::uint16_t>(state >> 16);
      const std::uint16_t masks[] = {0xbfff, 0x8000, 0xfbff, 0x83ff};  // sign, then what may be set
      bits.push_back(static_cast<std::uint16_t>(random & masks[head]));
    }
  return bits;
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
      {"fp16 with one scale", DType::f16, 4, ScaleKind::tensor, bytes_of(four_heads())},
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
