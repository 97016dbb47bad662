// The reader of compiled kernels: what it tells, what a digest depends on, and what damaged files
// do to it.
#include "workbench/resources/device_code.hpp"

#include <greenfast/attention.hpp>

#include <gtest/gtest.h>

#include <random>

#include "tests/workbench/resources/cubin.hpp"

namespace greenfast::workbench::test {
namespace {

KernelCode only(const Bytes& file) {
  const auto code = read_device_code(file);
  EXPECT_TRUE(code.ok()) << code.status().message();
  if (!code.ok() || code->kernels.empty()) return {};
  return code->kernels.front();
}

TEST(DeviceCode, TellsWhatTheCompilerGave) {
  const KernelCode kernel =
      only(make_cubin({{.registers = 122, .frame = 56, .shared = 1024 + 27136}}));
  EXPECT_EQ(kernel.symbol, "_ZN9greenfast4cuda1k4mainE");
  EXPECT_EQ(kernel.arch, "sm_90a");
  EXPECT_EQ(kernel.registers, 122);
  EXPECT_EQ(kernel.stack, 56);
  EXPECT_EQ(kernel.static_shared,
            27136);  // without the system's KB, which ptxas counts in from sm_90 on
  EXPECT_EQ(kernel.compiler, "13.0, V13.0.88");
  EXPECT_EQ(kernel.code_bytes, 16);
  EXPECT_EQ(only(make_cubin({{.shared = 27136}}, "sm_89")).static_shared, 27136);
}

TEST(DeviceCode, ReadsEveryArchitectureOfAHostFile) {
  const auto code = read_device_code(
      make_host_file({{.kind = 1, .arch = 80, .payload = bytes_of("ptx")},
                      {.arch = 80, .payload = make_cubin({{}}, "sm_80")},
                      {.arch = 90, .payload = make_cubin({{}, {.symbol = "two"}})}}));
  ASSERT_TRUE(code.ok()) << code.status().message();
  ASSERT_EQ(code->kernels.size(), 3u);
  EXPECT_EQ(code->kernels[0].arch, "sm_80");
  EXPECT_EQ(code->kernels[2].arch, "sm_90a");
  EXPECT_EQ(code->ptx, std::vector<std::string>{"compute_80"});
}

TEST(DeviceCode, DigestIsOfTheKernelAlone) {
  const FakeKernel kernel, other{.symbol = "other", .code = "other code"};
  const std::string digest = only(make_cubin({kernel})).sha256;
  EXPECT_EQ(digest.size(), 64u);
  // A comment moves lines; another kernel comes, changes, or stands elsewhere.
  EXPECT_EQ(only(make_cubin({kernel}, "sm_90a", "other lines, and more of them")).sha256, digest);
  EXPECT_EQ(only(make_cubin({kernel, other})).sha256, digest);
  EXPECT_EQ(read_device_code(make_cubin({other, kernel}))->kernels[1].sha256, digest);
  EXPECT_EQ(only(make_host_file({{.payload = make_cubin({kernel})}})).sha256, digest);

  EXPECT_NE(only(make_cubin({{.code = "sixteen bytes on"}})).sha256, digest);
  EXPECT_NE(only(make_cubin({{.constants = "3.14"}})).sha256, digest);
  const std::string referring = only(make_cubin({{.refers_to = "table"}})).sha256;
  EXPECT_NE(referring, digest);
  EXPECT_NE(only(make_cubin({{.refers_to = "elbat"}})).sha256, referring);
  EXPECT_EQ(read_device_code(make_cubin({other, {.refers_to = "table"}}))->kernels[1].sha256,
            referring)
      << "a symbol counts by its name, not by its index";
}

TEST(DeviceCode, DigestDoesNotDependOnThePathOfTheSource) {
  // nvcc names an anonymous namespace after a hash of the path.
  const auto digest = [](const char* symbol) {
    return only(make_cubin({{.refers_to = symbol}})).sha256;
  };
  EXPECT_EQ(digest("_ZN38_GLOBAL__N__9bf962de_6_v8x_cu_62d4de191tE"),
            digest("_ZN40_GLOBAL__N__11111111_8_other_cu_62d4de191tE"));
  EXPECT_NE(digest("_ZN38_GLOBAL__N__9bf962de_6_v8x_cu_62d4de191tE"),
            digest("_ZN38_GLOBAL__N__9bf962de_6_v8x_cu_62d4de191uE"));
}

TEST(DeviceCode, CompressedCodeIsTheCodeThatWasCompressed) {
  const Bytes cubin = make_cubin({{.registers = 99}, {.symbol = "two"}});
  const Bytes plain = make_host_file({{.payload = cubin}});
  const Bytes packed =
      make_host_file({compressed_entry(cubin), {.payload = make_cubin({{}}, "sm_80")}});
  const auto code = read_device_code(packed);
  ASSERT_TRUE(code.ok()) << code.status().message();
  ASSERT_EQ(code->kernels.size(), 3u);
  EXPECT_EQ(code->kernels[0].registers, 99);
  EXPECT_EQ(code->kernels[1].sha256, read_device_code(plain)->kernels[1].sha256);
  EXPECT_EQ(code->kernels[2].arch, "sm_80");
  const auto cubins = read_cubins(packed);
  ASSERT_TRUE(cubins.ok());
  ASSERT_EQ(cubins->size(), 2u);
  EXPECT_EQ(cubins->front(), cubin);

  // What the header says of sizes is not believed.
  for (const auto& [compressed, whole] :
       {std::pair<std::uint64_t, std::uint64_t>{1u << 20, cubin.size()},
        {0, cubin.size()},
        {compressed_entry(cubin).compressed, cubin.size() - 1},
        {compressed_entry(cubin).compressed, cubin.size() + 1},
        {compressed_entry(cubin).compressed, std::uint64_t{1} << 60}}) {
    FakeEntry entry = compressed_entry(cubin);
    entry.compressed = compressed;
    entry.whole = whole;
    const auto refused = read_device_code(make_host_file({entry}));
    ASSERT_FALSE(refused.ok()) << compressed << " " << whole;
    EXPECT_FALSE(refused.status().message().empty());
  }
}

TEST(DeviceCode, RefusesWhatItCannotRead) {
  EXPECT_NE(read_device_code(Bytes{}).status().message().find("not an ELF file"),
            std::string::npos);
  EXPECT_NE(read_device_code(bytes_of("!<arch>\nfoo.o/")).status().message().find("archive"),
            std::string::npos);
  // LZ4, by an older nvcc.
  const auto older = read_device_code(make_host_file({{.payload = bytes_of("\xf0 lz4 bytes")}}));
  ASSERT_FALSE(older.ok());
  EXPECT_NE(older.status().message().find("before 12.8"), std::string::npos);
  const auto nothing = read_device_code(make_host_file({}));
  EXPECT_TRUE(nothing.ok() && nothing->kernels.empty());
  EXPECT_FALSE(read_device_code(std::filesystem::path("/nonexistent/file")).ok());
}

TEST(DeviceCode, TruncatedAndDamagedFilesAreRefusedInWords) {
  const Bytes whole = make_host_file(
      {{.payload = make_cubin(
            {{.shared = 2048, .constants = "1234", .refers_to = "table"}, {.symbol = "two"}})}});
  ASSERT_TRUE(read_device_code(whole).ok());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto code = read_device_code(std::span(whole).first(size));
    ASSERT_FALSE(code.ok()) << size;  // the section table comes last
    ASSERT_FALSE(code.status().message().empty());
  }
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    Bytes damaged = whole;
    for (auto n = 1 + random() % 3; n > 0; --n)
      damaged[random() % damaged.size()] = static_cast<std::byte>(random());
    const auto code = read_device_code(damaged);
    if (!code.ok()) {
      ++refused;
      ASSERT_FALSE(code.status().message().empty());
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(KernelName, SaysTheSameOfHostAndDevice) {
  // As the device's compiler and as GCC name v2c::kernel<With<Config{64, scalar, false}>>.
  EXPECT_EQ(kernel_name("_ZN9greenfast4cuda3v2c47_GLOBAL__N__c7dbff76_14_12_sm80_v2c_cu_"
                        "d77aa0546kernelINS2_4WithIXtlNS2_"
                        "6ConfigELi64ELNS2_8MultiplyE1ELb0EEEEEEEvNS0_6ladder6ParamsE"),
            "v2c::kernel<With<Config{64, 1}>>");
  EXPECT_EQ(kernel_name("_ZN9greenfast4cuda6v2c_v850_GLOBAL__N__23e5c2b6_17_14_sm80_v2c_v8_cu_"
                        "62d4de196kernelILi128EEEvNS0_"
                        "6ladder6ParamsE"),
            "v2c_v8::kernel<128>");
  EXPECT_EQ(kernel_name("_ZN9greenfast4cuda5small16attention_kernelI13__nv_bfloat16Lm0EEEvNS1_"
                        "6ParamsE14CUtensorMap_stS5_S5_"),
            "small::attention_kernel<__nv_bfloat16, 0>");
  EXPECT_EQ(kernel_name("my_kernel"), "my_kernel");
  EXPECT_EQ(kernel_name("_Z"), "_Z");
  EXPECT_EQ(kernel_name(""), "");
}

TEST(FindKernel, TakesWhatTheDeviceWouldLoad) {
  DeviceCode code;
  for (const char* arch : {"sm_80", "sm_89", "sm_90a"}) {
    KernelCode kernel;
    kernel.name = "k";
    kernel.arch = arch;
    code.kernels.push_back(kernel);
  }
  EXPECT_EQ(find_kernel(code, "k", 90), &code.kernels[2]);
  EXPECT_EQ(find_kernel(code, "k", 89), &code.kernels[1]);
  EXPECT_EQ(find_kernel(code, "k", 86),
            &code.kernels[0]);                      // code runs on later GPUs of its generation
  EXPECT_EQ(find_kernel(code, "k", 100), nullptr);  // and on no other
  EXPECT_EQ(find_kernel(code, "other", 90), nullptr);
  KernelCode other;
  other.name = "other";
  other.arch = "sm_80";
  code.kernels.push_back(other);
  EXPECT_EQ(kernels_for(code, 90).size(), 1u);
  EXPECT_EQ(kernels_for(code, 86).size(), 2u);
  EXPECT_EQ(find_kernel(code, "other", 86), &code.kernels[3]);
  code.kernels.pop_back();
  code.kernels.erase(code.kernels.begin(), code.kernels.begin() + 2);
  code.kernels[0].arch = "sm_100a";
  EXPECT_EQ(find_kernel(code, "k", 103), nullptr);  // "a" code runs on its own architecture alone
}

}  // namespace
}  // namespace greenfast::workbench::test
