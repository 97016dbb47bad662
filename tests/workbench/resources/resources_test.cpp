// Occupancy, limits, and that every plan of this build names a kernel that is in it.
#include "workbench/resources/resources.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace greenfast::workbench::test {
namespace {

TEST(Occupancy, CountsWhatHindersMost) {
  // By hand from the CUDA programming guide's table.
  const auto registers = occupancy(90, 128, 0, 128);
  ASSERT_TRUE(registers);
  EXPECT_EQ(registers->blocks, 4);
  EXPECT_EQ(registers->warps, 16);
  EXPECT_DOUBLE_EQ(registers->percent, 25);
  EXPECT_EQ(registers->limiter, "registers");
  const auto shared = occupancy(89, 32, 48 * 1024, 128);
  ASSERT_TRUE(shared);
  EXPECT_EQ(shared->blocks, 2);  // 100 KB, and 1 KB more of each block
  EXPECT_EQ(shared->limiter, "shared memory");
  EXPECT_EQ(occupancy(89, 32, 0, 1024)->blocks, 1);  // 1536 threads
  EXPECT_EQ(occupancy(80, 16, 0, 32)->limiter, "blocks");
  EXPECT_EQ(occupancy(80, 32, 0, 256)->limiter, "threads");
  EXPECT_FALSE(occupancy(90, 255, 0, 1024));  // does not fit
  EXPECT_FALSE(occupancy(70, 32, 0, 128));    // not in the table
}

ResourceReport report_of(const std::string& toml, int registers, std::int64_t stack) {
  DeviceCode code;
  KernelCode kernel;
  kernel.name = "v2c::kernel<64>";
  kernel.arch = "sm_89";
  kernel.registers = registers;
  kernel.stack = stack;
  code.kernels.push_back(kernel);
  const auto limits = parse_resource_limits("test", toml);
  EXPECT_TRUE(limits.ok()) << limits.status().message();
  return resource_report(code, *limits, {}, {});
}

TEST(ResourceLimits, ABrokenLimitNamesItselfAndItsReason) {
  const std::string toml =
      "[[limit]]\nkernel = 'cuda::v2c::'\narch = 'sm_89'\nregisters = 71\nreason = 'because'\n";
  const ResourceReport over = report_of(toml, 72, 0);
  ASSERT_EQ(over.rows.size(), 1u);
  ASSERT_EQ(over.rows[0].checks.size(), 1u);
  EXPECT_TRUE(over.rows[0].checks[0].broken());
  EXPECT_EQ(over.rows[0].checks[0].words(), "registers 72 > 71 (because)");
  EXPECT_FALSE(over.within_limits());
  EXPECT_TRUE(report_of(toml, 71, 0).within_limits());
  EXPECT_TRUE(report_of("", 255, 0).within_limits());
}

TEST(ResourceLimits, AWaiverLetsPassUpToItsOwnFigureAndIsNamed) {
  const std::string toml =
      "[[limit]]\nkernel = 'v2c'\nregisters = 71\nreason = 'because'\n"
      "[[waiver]]\nname = 'w'\nkernel = 'v2c'\nregisters = 80\nreason = 'tried'\n";
  const ResourceReport waived = report_of(toml, 80, 0);
  ASSERT_EQ(waived.rows[0].checks.size(), 1u);
  EXPECT_TRUE(waived.rows[0].checks[0].waived());
  EXPECT_EQ(waived.rows[0].checks[0].waiver, "w");
  EXPECT_EQ(waived.rows[0].checks[0].waived_because, "tried");
  EXPECT_TRUE(waived.within_limits());
  const ResourceReport over = report_of(toml, 81, 0);
  EXPECT_TRUE(over.rows[0].checks[0].broken()) << "a waiver binds too";
  EXPECT_FALSE(over.within_limits());
  const ResourceReport inside = report_of(toml, 71, 0);
  ASSERT_EQ(inside.unneeded.size(), 1u) << "nothing needs it any more";
  EXPECT_EQ(inside.unneeded[0].find("test: line 5: waiver 'w'"), 0u) << inside.unneeded[0];
  EXPECT_FALSE(inside.within_limits());
  // Of other code it says nothing.
  const std::string other = toml + "arch = 'sm_80'\n";
  EXPECT_FALSE(report_of(other, 72, 0).within_limits());
}

TEST(ResourceLimits, RowsThatNameNothingAreErrorsWithTheirLine) {
  DeviceCode code;
  code.kernels.resize(1);
  code.kernels[0].name = "v2c::kernel<64>";
  code.kernels[0].arch = "sm_89";
  const auto error = [&](const std::string& row, std::vector<std::string> others = {}) {
    const auto limits =
        parse_resource_limits("test", "\n" + row + "\nregisters = 1\nreason = 'x'\n");
    return check_names(*limits, code, others).message();
  };
  EXPECT_EQ(error("[[limit]]\nkernel = 'v2c::'"), "");
  EXPECT_EQ(error("[[limit]]\nvariant = 'cuda.v2c.*'"), "");
  EXPECT_EQ(error("[[limit]]\nkernel = 'v9'\narch = 'sm_80'"), "") << "no code that could be asked";
  EXPECT_EQ(error("[[limit]]\nvariant = 'mine'", {"mine"}), "");
  EXPECT_EQ(error("[[limit]]\nkernel = 'v9'").find("test: line 2: kernel 'v9': no kernel"), 0u);
  EXPECT_EQ(error("[[limit]]\nvariant = 'cuda.v9'").find("test: line 2: variant 'cuda.v9': no"),
            0u);
  EXPECT_EQ(error("[[limit]]\nvariant = 'cpu.flash'").find("test: line 2: variant"), 0u);
  EXPECT_EQ(error("[[waiver]]\nname = 'w'\nvariant = 'cuda.v9.*'").find("test: line 2: variant"),
            0u);
}

TEST(ResourceLimits, AnArchitectureThatNothingIsBuiltForBindsNobody) {
  DeviceCode one;  // a build for a single architecture, and one for a card of tomorrow
  one.kernels.resize(1);
  one.kernels[0].name = "v2c::kernel<64>";
  one.kernels[0].arch = "sm_120";
  const auto error = [&](const std::string& row, const std::string& arch,
                         std::vector<std::string> others = {}) {
    const auto limits = parse_resource_limits(
        "test", "\n[[limit]]\n" + row + "\narch = '" + arch + "'\nregisters = 1\nreason = 'x'\n");
    return check_names(*limits, one, others).message();
  };
  // The project's own, which this build lacks, and the build's.
  for (const char* arch : {"sm_80", "sm_89", "sm_90a", "sm_120"}) {
    EXPECT_EQ(error("kernel = 'v2c::'", arch), "") << arch;
    EXPECT_EQ(error("variant = 'cuda.v2c.*'", arch), "") << arch;
  }
  for (const char* arch : {"sm_90", "sm_70", "sm_86", "sm_89a"})
    for (const char* row : {"kernel = 'v2c::'", "variant = 'cuda.v2c.v8'"})
      EXPECT_EQ(
          error(row, arch).find("test: line 2: arch '" + std::string(arch) + "': no kernel is"), 0u)
          << error(row, arch);
  EXPECT_EQ(error("variant = 'mine'", "sm_90", {"mine"}), "")
      << "a plugin is built for what it likes";
  // Of the project, and not of that variant.
  EXPECT_EQ(error("variant = 'cuda.sm90.prefill'", "sm_90a"), "");
  for (const char* arch : {"sm_80", "sm_89", "sm_120"})
    EXPECT_NE(error("variant = 'cuda.sm90.prefill'", arch)
                  .find("arch '" + std::string(arch) + "': cuda.sm90.prefill is not built for it"),
              std::string::npos);
  EXPECT_EQ(error("variant = 'cuda.stage_c.fp8_mma'", "sm_89"), "");
  EXPECT_NE(error("variant = 'cuda.stage_c.fp8_mma'", "sm_80"), "");
  EXPECT_EQ(error("variant = 'cuda.stage_c.*'", "sm_80"), "") << "some of them are";
}

// A shared-memory row names exact ids, and what a rung is set back to or carries clocks in is no
// smaller for it.
TEST(ResourceLimits, WhatIsMadeFromARungIsHeldToARowOfItsOwn) {
  const auto limits = parse_resource_limits("policies/resources.toml", builtin_resource_limits());
  ASSERT_TRUE(limits.ok());
  const auto named = [&](const std::vector<KernelLimit>& rows, const std::string& id) {
    return std::any_of(rows.begin(), rows.end(), [&](const KernelLimit& row) {
      return row.shared &&
             (row.variant == id || (row.variant.ends_with('*') &&
                                    id.starts_with(row.variant.substr(0, row.variant.size() - 1))));
    });
  };
  for (const VariantInfo& variant : variants()) {
    if (variant.derived_from.empty()) continue;
    EXPECT_EQ(named(limits->limits, variant.id), named(limits->limits, variant.derived_from))
        << variant.id << " is made from " << variant.derived_from;
  }
}

TEST(ResourceLimits, APolicyMayHaveRowsBesideItsOtherTables) {
  const std::string text =
      "[fast]\ngate = 1.1\n[[limit]]\nvariant = 'v'\nshared = 1\nreason = 'x'\n";
  const auto limits = parse_policy_limits("policy", text);
  ASSERT_TRUE(limits.ok()) << limits.status().message();
  ASSERT_EQ(limits->limits.size(), 1u);
  EXPECT_EQ(limits->limits[0].place, "policy: line 3");
  EXPECT_FALSE(parse_resource_limits("alone", text).ok());
}

TEST(ResourceLimits, CodeOfOthersIsHeldToRowsThatNameItAlone) {
  const auto limits =
      parse_resource_limits("test",
                            "[[limit]]\nkernel = '.'\nregisters = 1\nreason = 'ours'\n"
                            "[[limit]]\nvariant = 'mine'\nshared = 99\nreason = 'its'\n");
  KernelCode code;
  code.arch = "sm_90a";
  code.registers = 50;
  code.static_shared = 60;
  code.stack = 8;
  const auto checks = check_foreign("mine", code, 40, *limits);
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].words(), "shared memory 100 > 99 (its)");
  EXPECT_TRUE(check_foreign("another", code, 40, *limits).empty());
}

TEST(ResourceLimits, LocalMemoryNeedsARow) {
  EXPECT_FALSE(report_of("", 32, 8).within_limits());
  const std::string row = "[[limit]]\nkernel = 'v2c'\nstack = 8\nreason = 'an array'\n";
  EXPECT_TRUE(report_of(row, 32, 8).within_limits());
  EXPECT_FALSE(report_of(row, 32, 16).within_limits());
}

TEST(ResourceLimits, LocalMemoryIsAllowedByRowsThatNameTheKernel) {
  const auto limits = parse_resource_limits(
      "test",
      "[[limit]]\nkernel = 'cuda::v2c::'\nstack = 8\nreason = 'x'\n"
      "[[limit]]\nkernel = 'v2c'\narch = 'sm_90a'\nstack = 16\nreason = 'x'\n"
      "[[limit]]\nvariant = 'cuda.v2c.*'\nstack = 99\nreason = 'of plans alone'\n");
  KernelCode code;
  code.name = "v2c::kernel<64>";
  code.arch = "sm_89";
  EXPECT_EQ(allowed_stack(code, *limits), 8);
  code.arch = "sm_90a";
  EXPECT_EQ(allowed_stack(code, *limits), 16);
  code.name = "mine";
  EXPECT_EQ(allowed_stack(code, *limits), 0);
}

TEST(ResourceLimits, MisspeltRowsAreErrors) {
  const auto error = [](const std::string& toml) {
    return parse_resource_limits("test", toml).status().message();
  };
  EXPECT_NE(
      error("[[limit]]\nkernel = 'k'\nregister = 1\nreason = 'x'\n").find("register: unknown key"),
      std::string::npos);
  EXPECT_NE(
      error("[[limit]]\nkernel = 'k'\nvariant = 'v'\nshared = 1\nreason = 'x'\n").find("not both"),
      std::string::npos);
  EXPECT_NE(error("[[limit]]\nkernel = 'k'\nshared = 1\n").find("needs a reason"),
            std::string::npos);
  EXPECT_NE(error("[[limit]]\nkernel = '('\nshared = 1\nreason = 'x'\n").find("kernel '('"),
            std::string::npos);
  EXPECT_NE(error("[[limit]]\nkernel = 'k'\nshared = -1\nreason = 'x'\n").find("at least 0"),
            std::string::npos);
  EXPECT_NE(error("[[limits]]\n").find("[[limit]]"), std::string::npos);
  const std::string waiver = "\n[[waiver]]\nkernel = 'k'\nshared = 1\n";
  EXPECT_NE(error(waiver + "name = 'w'\n").find("line 2: waiver: needs a reason"),
            std::string::npos);
  EXPECT_NE(error(waiver + "name = 'w'\nreason = '  '\n").find("reason: expected a text"),
            std::string::npos);
  EXPECT_NE(error(waiver + "reason = 'x'\n").find("line 2: waiver: a waiver needs a name"),
            std::string::npos);
  EXPECT_NE(error("[[limit]]\nname = 'w'\n").find("name: unknown key"), std::string::npos);
  EXPECT_NE(error("x = [").find("line 1"), std::string::npos);
}

TEST(ResourceLimits, BuiltinOnesParse) {
  const auto limits = parse_resource_limits("policies/resources.toml", builtin_resource_limits());
  ASSERT_TRUE(limits.ok()) << limits.status().message();
  EXPECT_FALSE(limits->limits.empty());
  EXPECT_FALSE(limits->waivers.empty());
  const auto& code = own_device_code();
  const Status named = check_names(*limits, code.ok() ? *code : DeviceCode());
  EXPECT_TRUE(named.ok()) << named.message();
}

// The table binds what is built, and the originals' rows hold for every architecture.
TEST(Resources, EveryKernelOfThisBuildIsInsideItsLimitsOrWaived) {
  const auto& code = own_device_code();
  ASSERT_TRUE(code.ok()) << code.status().message();
  if (code->kernels.empty()) GTEST_SKIP() << "this build has no CUDA kernels";
  const auto limits = parse_resource_limits("policies/resources.toml", builtin_resource_limits());
  ASSERT_TRUE(limits.ok());
  const ResourceReport report = resource_report(*code, *limits, {}, {});
  EXPECT_EQ(report.unneeded, std::vector<std::string>{});
  for (const ResourceRow& row : report.rows) {
    const bool original =
        row.variant.starts_with("cuda.v2c.") || row.variant.starts_with("cuda.stage_c.");
    EXPECT_TRUE(!original || !row.checks.empty()) << row.variant << " on " << row.code.arch;
    for (const LimitCheck& check : row.checks)
      EXPECT_FALSE(check.broken())
          << row.variant << " on " << row.code.arch << ": " << check.words();
  }
}

// A kernel without a plan has no problem, no shared memory and no occupancy in the report, and its
// limits are held to half of what it takes: the grid of problems must reach all that a variant can
// choose.
TEST(Resources, EveryKernelIsReachedByAPlanOrNamedHere) {
  const auto& code = own_device_code();
  ASSERT_TRUE(code.ok()) << code.status().message();
  if (code->kernels.empty()) GTEST_SKIP() << "this build has no CUDA kernels";
  struct Unreached {
    std::string kernel;  // its name begins so
    std::string arch;    // empty: any
  };
  std::vector<Unreached> named_kernels = {
      // Calls beside attention, which no variant plans.
      {"fill", ""},
      {"encode<", ""},
      {"encode_transposed<", ""},
      {"encode_rotated<", ""},
      {"largest_magnitude<", ""},
      {"largest_rotated<", ""},
      {"quantize_once<", ""},
      {"means_kernel<", ""},
      {"shift_kernel", ""},
      {"finish_scales", ""},
      {"append_kernel<", ""},
      {"merge_kernel<", ""},
      // Launched before or behind the kernel that the plan names.
      {"decode::merge_kernel", "sm_90a"},
      {"decode::general_merge_kernel", "sm_90a"},
      {"grouped::join_kernel<", "sm_90a"},
      {"sm80_mma::join_kernel", ""},
      {"decode::sm80_merge_kernel", ""},
      {"decode::sm80_general_merge_kernel", ""},
      {"fp8::transpose_kernel<", "sm_90a"},
      {"fp8::reorder_kernel<", "sm_90a"},
  };
  // Tiles for devices of another architecture: those with more or with less shared memory, or, of
  // sm_80's code, those of compute capability 8.6. By their number in sm80_mma's kConfigs.
  const std::pair<const char*, std::vector<int>> other_tiles[] = {
      {"sm_80", {7, 9, 10, 12}}, {"sm_89", {6, 7, 8, 10, 11}}, {"sm_90a", {8, 9, 11, 12}}};
  for (const char* type : {"__half", "__nv_bfloat16"})
    for (const auto& [arch, tiles] : other_tiles)
      for (const int tile : tiles)
        named_kernels.push_back(
            {std::string("sm80_mma::attention_kernel<") + type + ", " + std::to_string(tile) + ">",
             arch});
  std::set<std::string> archs;
  for (const KernelCode& kernel : code->kernels) archs.insert(kernel.arch);
  std::set<const Unreached*> seen;
  for (const ResourceRow& row : resource_report(*code, {}, {}, {}).rows) {
    if (!row.variant.empty()) continue;
    const auto named =
        std::find_if(named_kernels.begin(), named_kernels.end(), [&](const Unreached& other) {
          return row.code.name.starts_with(other.kernel) &&
                 (other.arch.empty() || row.code.arch == other.arch);
        });
    EXPECT_NE(named, named_kernels.end())
        << row.code.name << " on " << row.code.arch << ": no problem of the grid reaches it";
    if (named != named_kernels.end()) seen.insert(&*named);
  }
  for (const Unreached& other : named_kernels)
    EXPECT_TRUE(seen.contains(&other) || (!other.arch.empty() && !archs.contains(other.arch)))
        << other.kernel << " " << other.arch << " is reached, and need not be named";
}

// Of every variant, model and shape: a buffer that a table forgets or counts twice shows here.
TEST(Resources, BuffersOfEveryPlanAddUpToTheSharedMemoryThatTheLaunchAsksFor) {
  const auto& code = own_device_code();
  ASSERT_TRUE(code.ok()) << code.status().message();
  if (code->kernels.empty()) GTEST_SKIP() << "this build has no CUDA kernels";
  struct Size {
    std::int64_t batch, heads_q, heads_kv, seq_q, seq_kv;
  };
  constexpr Size kSizes[] = {{1, 8, 8, 32, 32},   {1, 8, 8, 512, 512}, {2, 32, 32, 4096, 4096},
                             {4, 32, 8, 1, 8192}, {1, 4, 2, 97, 517},  {16, 32, 8, 512, 512},
                             {1, 8, 8, 64, 2048}};
  std::set<std::string> asked;
  for (const auto& [model, arch] : {std::pair("a100", 80), {"l4", 89}, {"h200", 90}}) {
    const auto facts = model_facts(model);
    ASSERT_TRUE(facts.ok());
    for (const VariantInfo& variant : variants()) {
      if (variant.device != DeviceKind::cuda || !variant.built) continue;
      Options options;
      options.device = DeviceKind::cuda;
      options.variant = variant.id;
      for (const DType dtype : {DType::f16, DType::bf16, DType::e4m3}) {
        for (const std::int64_t head_dim : {40, 64, 96, 128, 192, 256}) {
          for (const Size& size : kSizes) {
            for (const Mask& mask : {Mask::none(), Mask::causal(Alignment::bottom_right)}) {
              Problem problem = make_problem(size.batch, size.heads_q, size.heads_kv, size.seq_q,
                                             size.seq_kv, head_dim, dtype);
              problem.mask = mask;
              if (variant.id == "cuda.sm90.fp8_fast") problem.accuracy = Accuracy::fast;
              const auto planned = plan(problem, *facts, options);
              if (!planned.ok()) continue;
              const std::string where = variant.id + " on " + model + " at " + to_string(problem);
              asked.insert(variant.id);
              std::int64_t sum = 0;
              std::set<std::string> names;
              for (const SharedBuffer& buffer : planned->shared) {
                EXPECT_GT(buffer.bytes, 0) << where << ": " << buffer.name;
                EXPECT_TRUE(names.insert(buffer.name).second) << where << ": " << buffer.name;
                // TMA's tiles begin at 1024 bytes, all others at 128 or less: what is more is a
                // buffer that the table forgets.
                if (buffer.name == "alignment") {
                  EXPECT_LE(buffer.bytes, variant.id.starts_with("cuda.sm90.") ? 1024 : 127)
                      << where;
                }
                sum += buffer.bytes;
              }
              const KernelCode* kernel = find_kernel(*code, planned->kernel, arch);
              if (kernel == nullptr) continue;
              EXPECT_EQ(sum,
                        planned->shared_bytes > 0 ? planned->shared_bytes : kernel->static_shared)
                  << where;
              EXPECT_GE(names.size(), 2u) << where;
            }
          }
        }
      }
    }
  }
  for (const VariantInfo& variant : variants())
    EXPECT_EQ(asked.contains(variant.id), variant.device == DeviceKind::cuda && variant.built)
        << variant.id;
  for (const ResourceRow& row : resource_report(*code, ResourceLimits(), {}, {}).rows) {
    std::int64_t sum = 0;
    for (const SharedBuffer& buffer : row.buffers) sum += buffer.bytes;
    if (!row.variant.empty()) {
      EXPECT_EQ(sum, row.shared()) << row.variant << " " << row.code.arch;
    }
  }
}

// The name a plan gives its kernel is how gate, resources and evidence find its code.
TEST(Resources, EveryPlanOfThisBuildNamesAKernelInIt) {
  const auto& code = own_device_code();
  ASSERT_TRUE(code.ok()) << code.status().message();
  if (code->kernels.empty()) GTEST_SKIP() << "this build has no CUDA kernels";
  const ResourceReport report = resource_report(*code, ResourceLimits(), {}, {});
  std::set<std::string> launched;
  for (const ResourceRow& row : report.rows) launched.insert(row.variant);
  for (const VariantInfo& variant : variants()) {
    const bool expected = variant.device == DeviceKind::cuda && variant.built;
    EXPECT_EQ(launched.contains(variant.id), expected) << variant.id;
  }
  std::set<std::string> built;
  for (const KernelCode& kernel : code->kernels) built.insert(kernel.arch);
  if (built.contains("sm_80") && built.contains("sm_90a")) {
    EXPECT_EQ(report.missing, std::vector<std::string>{});
  }
  // Without a plan: the backend's own for empty problems, append and merge, the second kernels of a
  // launch, and tiles for GPUs with less shared memory.
  const auto family = [](const ResourceRow& row) {
    return row.code.name.substr(0, row.code.name.find('<'));
  };
  std::set<std::string> families = {"fill",
                                    "largest_magnitude",
                                    "largest_rotated",
                                    "finish_scales",
                                    "encode",
                                    "encode_transposed",
                                    "encode_rotated",
                                    "quantize_once",
                                    "means_kernel",
                                    "shift_kernel",
                                    "append_kernel",
                                    "merge_kernel",
                                    "decode::merge_kernel",
                                    "decode::general_merge_kernel",
                                    "grouped::join_kernel",
                                    "sm80_mma::join_kernel",
                                    "decode::sm80_merge_kernel",
                                    "decode::sm80_general_merge_kernel",
                                    "fp8::transpose_kernel",
                                    "fp8::reorder_kernel"};
  for (const ResourceRow& row : report.rows) {
    if (!row.variant.empty()) families.insert(family(row));
  }
  for (const ResourceRow& row : report.rows)
    EXPECT_TRUE(families.contains(family(row))) << row.code.name;
}

}  // namespace
}  // namespace greenfast::workbench::test
