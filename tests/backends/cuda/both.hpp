// One call twice: by the library's CPU code on the host's memory, and by a device on its own copy of
// the same bytes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/device/convert.hpp"
#include "workbench/device/device.hpp"

namespace greenfast::test {

/// Tests take the CPU too, against itself, so that what they do is run where no GPU is.
class OnDevices : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    auto opened = workbench::open_device(GetParam());
    if (opened.status().code() == StatusCode::no_device) GTEST_SKIP() << opened.status().message();
    ASSERT_TRUE(opened) << opened.status().message();
    device = std::move(*opened);
    there.device = GetParam();
    there.stream = device->stream();
    here.device = DeviceKind::cpu;
  }
  std::unique_ptr<workbench::Device> device;
  Options here, there;
};
inline std::string device_name(const ::testing::TestParamInfo<DeviceKind>& info) {
  return std::string(name_of(info.param));
}

/// Bytes on the host and on the device, where they begin `skew` bytes behind a boundary.
class Both {
 public:
  Both(workbench::Device& device, std::vector<std::byte> bytes, std::size_t skew = 0)
      : device_(device),
        bytes_(std::move(bytes)),
        memory_(device.allocate(bytes_.size() + skew + 1)),
        skew_(skew) {
    EXPECT_NE(memory_, nullptr);
    device.upload(there(), bytes_.data(), bytes_.size());
  }
  template <class T>
  Both(workbench::Device& device, const std::vector<T>& values) : Both(device, bytes_of(values)) {}
  ~Both() { device_.release(memory_); }
  Both(const Both&) = delete;
  Both& operator=(const Both&) = delete;

  template <class T = void>
  T* at(bool on_device) {
    return static_cast<T*>(on_device ? there() : static_cast<void*>(bytes_.data()));
  }
  const std::vector<std::byte>& host() const { return bytes_; }
  std::vector<std::byte> back() {
    std::vector<std::byte> copy(bytes_.size());
    device_.download(copy.data(), there(), copy.size());
    return copy;
  }

 private:
  template <class T>
  static std::vector<std::byte> bytes_of(const std::vector<T>& values) {
    std::vector<std::byte> bytes(std::max<std::size_t>(values.size(), 1) * sizeof(T));
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), values.size() * sizeof(T));
    return bytes;
  }
  void* there() const { return static_cast<std::byte*>(memory_) + skew_; }

  workbench::Device& device_;
  std::vector<std::byte> bytes_;
  void* const memory_;
  const std::size_t skew_;
};

/// What calls are drawn from.
class Dice {
 public:
  explicit Dice(std::mt19937& engine) : engine_(engine) {}
  std::int64_t upto(std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(0, most)(engine_);
  }
  bool coin() { return upto(1) == 1; }
  template <class T, std::size_t kCount>
  T one_of(const T (&all)[kCount]) {
    return all[upto(static_cast<std::int64_t>(kCount) - 1)];
  }

  /// Numbers of magnitude 1/8 to 4 of either sign; of e4m3 any but NaN.
  std::vector<std::byte> numbers(DType dtype, std::int64_t count) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size_of(dtype));
    std::byte* to = bytes.data();
    const auto put = [&to](auto bits) {
      std::memcpy(to, &bits, sizeof bits);
      to += sizeof bits;
    };
    for (std::int64_t i = 0; i < count; ++i) {
      const auto x = static_cast<std::uint32_t>(engine_());
      const std::uint32_t power = x >> 23 & 3, sign = x >> 31;
      if (dtype == DType::f32)
        put(sign << 31 | (124 + power) << 23 | (x & 0x7fffff));
      else if (dtype == DType::bf16)
        put(static_cast<std::uint16_t>(sign << 15 | (124 + power) << 7 | (x & 0x7f)));
      else if (dtype == DType::f16)
        put(static_cast<std::uint16_t>(sign << 15 | (12 + power) << 10 | (x & 0x3ff)));
      else
        put(static_cast<std::uint8_t>(sign << 7 | (x & 0x7f) % 0x7f));
    }
    return bytes;
  }

  /// Heads beside rows or inside them, rows padded by `padding` elements; the stride of a dimension
  /// of 1 is any number.
  Layout layout(const std::array<std::int64_t, 4>& shape, std::int64_t padding) {
    const auto [batch, heads, rows, dim] = shape;
    const std::int64_t row = dim + padding;
    Layout layout;
    layout.stride = {heads * rows * row, rows * row, row, 1};
    if (coin()) layout.stride = {heads * rows * row, row, heads * row, 1};
    for (std::size_t n = 0; n < 3; ++n)
      if (shape[n] == 1) layout.stride[n] = 1 + upto(99);
    return layout;
  }

 private:
  std::mt19937& engine_;
};

/// Elements from the first to behind the last; 1 for none, so that there is an address.
inline std::int64_t extent(const Layout& layout, const std::array<std::int64_t, 4>& shape) {
  std::int64_t last = (shape[3] - 1) * layout.stride[3];
  for (std::size_t n = 0; n < 3; ++n) {
    if (shape[n] == 0) return 1;
    last += (shape[n] - 1) * layout.stride[n];
  }
  return last + 1;
}

/// Element i of fp32, fp16 or bf16.
inline float number(const std::vector<std::byte>& bytes, std::size_t i, DType dtype) {
  const std::byte* const at = bytes.data() + i * size_of(dtype);
  const auto read = [at](auto bits) {
    std::memcpy(&bits, at, sizeof bits);
    return kernels::widen(bits);
  };
  if (dtype == DType::f16) return read(kernels::F16{});
  if (dtype == DType::bf16) return read(kernels::Bf16{});
  return read(0.0f);
}

}  // namespace greenfast::test
