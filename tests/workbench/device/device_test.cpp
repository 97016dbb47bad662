// The workbench's own view of the CPU: memory, the order of its clock, signs drawn anew.
#include "workbench/device/device.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "workbench/device/cpu.hpp"
#include "workbench/device/cpu_peaks.hpp"

namespace greenfast::workbench::test {
namespace {

class CpuDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_device(DeviceKind::cpu);
    ASSERT_TRUE(opened) << opened.status().message();
    device = std::move(*opened);
  }
  std::unique_ptr<Device> device;
};

TEST_F(CpuDeviceTest, MemoryIsAlignedAndKeepsWhatIsPutIntoIt) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{5000}}) {
    void* memory = device->allocate(bytes);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 256, 0u);
    std::vector<std::byte> in(bytes), out(bytes);
    for (std::size_t i = 0; i < bytes; ++i) in[i] = static_cast<std::byte>(i * 7);
    device->upload(memory, in.data(), bytes);
    device->download(out.data(), memory, bytes);
    EXPECT_EQ(in, out);
    device->fill(memory, std::byte{0xcd}, bytes);
    device->download_on_stream(out.data(), memory, bytes);
    EXPECT_EQ(out, std::vector<std::byte>(bytes, std::byte{0xcd}));
    device->release(memory);
  }
}

TEST_F(CpuDeviceTest, EvictingAndFlushingChangeNothing) {
  std::vector<float> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const std::vector<float> before = values;
  device->flush_cache();
  device->evict(values.data() + 1, 999 * sizeof(float));
  EXPECT_EQ(values, before);
  EXPECT_GT(device->cache_bytes(), 0u);
}

TEST_F(CpuDeviceTest, TimesEveryCallAndSaysReadyBeforeTheFirst) {
  std::vector<int> order;
  const double seconds =
      device->time_ready([&] { order.push_back(1); }, 3, [&] { order.push_back(0); });
  EXPECT_EQ(order, (std::vector<int>{0, 1, 1, 1}));
  EXPECT_GE(seconds, 0);
  EXPECT_GT(device->tick(), 0);
  EXPECT_EQ(device->timer(), "steady_clock");
}

TEST_F(CpuDeviceTest, IsTheMachineThatTheLibrarySees) {
  EXPECT_EQ(device->kind(), DeviceKind::cpu);
  EXPECT_EQ(device->facts().isa, device_facts(DeviceKind::cpu)->isa);
  ASSERT_FALSE(cpu_probe_isas().empty());
  EXPECT_EQ(cpu_probe_isas().back(), "portable") << "widest first; every CPU has the last";
  EXPECT_EQ(probe_cpu_flops("no such set", DType::f32, {0}, 0.001), 0);
}

SignFlips flips_of_f16(std::uint64_t from, std::uint64_t to) {
  return {.sign_bits = 0x8000800080008000u, .from = from, .to = to};
}

TEST_F(CpuDeviceTest, SignsAreDrawnAnewAndComeBack) {
  std::vector<std::uint16_t> values(4096, 0x3c00);  // 1.0 as fp16
  const auto bytes = values.size() * 2;
  device->flip_signs(values.data(), bytes, flips_of_f16(0, 7));
  std::map<std::uint16_t, int> seen;
  for (const std::uint16_t value : values) ++seen[value];
  ASSERT_EQ(seen.size(), 2u) << "signs alone change";
  EXPECT_GT(seen[0xbc00], 1800);
  EXPECT_LT(seen[0xbc00], 2300);

  const std::vector<std::uint16_t> seven = values;
  device->flip_signs(values.data(), bytes, flips_of_f16(7, 8));
  EXPECT_NE(values, seven) << "another draw, other inputs";
  device->flip_signs(values.data(), bytes, flips_of_f16(8, 0));
  EXPECT_EQ(values, std::vector<std::uint16_t>(4096, 0x3c00));
}

TEST_F(CpuDeviceTest, RowsChangeAlikeWhereAPeriodAsksForIt) {
  std::vector<std::uint16_t> values(5 * 64, 0x3c00);
  SignFlips flips = flips_of_f16(0, 7);
  flips.period = 16;  // words of 8 bytes: a row of 64
  device->flip_signs(values.data(), values.size() * 2, flips);
  for (std::size_t row = 1; row < 5; ++row)
    EXPECT_EQ(std::memcmp(&values[0], &values[row * 64], 128), 0) << row;
}

TEST_F(CpuDeviceTest, ARestOfLessThanAWordStays) {
  std::vector<std::uint16_t> values(3, 0x3c00);
  for (std::uint64_t draw = 1; draw < 20; ++draw)
    device->flip_signs(values.data(), 6, flips_of_f16(0, draw));
  EXPECT_EQ(values, std::vector<std::uint16_t>(3, 0x3c00));
}

TEST(OpenDevice, SaysWhatIsMissing) {
  const auto none = open_device(DeviceKind::cuda, 4096);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.status().code(), StatusCode::no_device) << none.status().message();
  EXPECT_FALSE(none.status().message().empty());
}

}  // namespace
}  // namespace greenfast::workbench::test
