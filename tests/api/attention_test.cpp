// The public calls on the CPU: results, empty problems, refusals, threads, log.
#include <greenfast/attention.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace greenfast {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> noise(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Attention by its definition in double precision, for dense or strided fp32 tensors.
void expect_attention(const Problem& p, const Tensors& t) {
  const auto at = [](const void* data, const Layout& layout, std::int64_t b, std::int64_t h,
                     std::int64_t s, std::int64_t d) {
    const auto& stride = layout.stride;
    return static_cast<double>(
        static_cast<const float*>(data)[b * stride[0] + h * stride[1] + s * stride[2] + d]);
  };
  const std::int64_t shift =
      p.mask.alignment == Alignment::bottom_right ? p.seq_kv - p.seq_q : std::int64_t{0};
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads_q; ++h)
      for (std::int64_t i = 0; i < p.seq_q; ++i) {
        const std::int64_t kv = h / (p.heads_q / p.heads_kv);
        std::vector<double> weight(static_cast<std::size_t>(p.seq_kv), 0.0);
        double sum = 0.0;
        for (std::int64_t j = 0; j < p.seq_kv; ++j) {
          if (p.mask.left >= 0 && j < i + shift - p.mask.left) continue;
          if (p.mask.right >= 0 && j > i + shift + p.mask.right) continue;
          double score = 0.0;
          for (std::int64_t d = 0; d < p.head_dim; ++d)
            score += at(t.q, p.q, b, h, i, d) * at(t.k, p.k, b, kv, j, d);
          score *= p.scale;
          if (p.softcap > 0) score = p.softcap * std::tanh(score / p.softcap);
          sum += weight[static_cast<std::size_t>(j)] = std::exp(score);
        }
        for (std::int64_t d = 0; d < p.head_dim; ++d) {
          double expected = 0.0;
          for (std::int64_t j = 0; j < p.seq_kv && sum > 0; ++j)
            expected += weight[static_cast<std::size_t>(j)] / sum * at(t.v, p.v, b, kv, j, d);
          ASSERT_NEAR(at(t.o, p.o, b, h, i, d), expected, 1e-5)
              << to_string(p) << " at " << b << "," << h << "," << i << "," << d;
        }
        if (!p.lse) continue;
        const float lse = t.lse[(b * p.heads_q + h) * p.seq_q + i];
        if (sum > 0) {
          ASSERT_NEAR(lse, std::log(sum), 1e-5) << to_string(p);
        } else {
          ASSERT_EQ(lse, -kInf) << to_string(p);
        }
      }
}

struct Data {
  explicit Data(const Problem& p)
      : q(noise(static_cast<std::size_t>(p.batch * p.heads_q * p.seq_q * p.head_dim), 1)),
        k(noise(static_cast<std::size_t>(p.batch * p.heads_kv * p.seq_kv * p.head_dim), 2)),
        v(noise(k.size(), 3)),
        o(q.size(), std::numeric_limits<float>::quiet_NaN()),
        lse(static_cast<std::size_t>(p.batch * p.heads_q * p.seq_q),
            std::numeric_limits<float>::quiet_NaN()) {}
  Tensors tensors() {
    return {.q = q.data(), .k = k.data(), .v = v.data(), .o = o.data(), .lse = lse.data()};
  }
  std::vector<float> q, k, v, o, lse;
};

std::vector<std::string> cpu_variants() {
  std::vector<std::string> ids;
  for (const VariantInfo& info : variants())
    if (info.device == DeviceKind::cpu && info.built) ids.push_back(info.id);
  return ids;
}

class EachCpuVariant : public testing::TestWithParam<std::string> {};

TEST_P(EachCpuVariant, ComputesAttention) {
  for (const Order order : {Order::bhsd, Order::bshd})
    for (const Mask& mask :
         {Mask::none(), Mask::causal(Alignment::top_left), Mask::causal(Alignment::bottom_right),
          Mask::window(3, 2, Alignment::bottom_right)})
      for (const auto& [sq, skv] : {std::pair{1, 9}, {7, 7}, {19, 5}, {33, 70}}) {
        Problem p = make_problem(2, 4, 2, sq, skv, 24, DType::f32, order);
        p.mask = mask;
        p.lse = true;
        p.softcap = sq == 7 ? 2.0f : 0.0f;
        Data data(p);
        const Tensors tensors = data.tensors();
        const Status status = attention(p, tensors, {.variant = GetParam()});
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_NO_FATAL_FAILURE(expect_attention(p, tensors));
      }
}

TEST_P(EachCpuVariant, SameCallSameBitsWhateverTheAlignment) {
  const Problem p = make_problem(1, 2, 1, 21, 40, 64, DType::f32);
  Data data(p);
  ASSERT_TRUE(attention(p, data.tensors(), {.variant = GetParam()}));
  const std::vector<float> first = data.o;
  ASSERT_TRUE(attention(p, data.tensors(), {.variant = GetParam()}));
  EXPECT_EQ(std::memcmp(first.data(), data.o.data(), first.size() * sizeof(float)), 0);
  data.k.insert(data.k.begin(), 0.0f);  // one element further
  Tensors shifted = data.tensors();
  shifted.k = data.k.data() + 1;
  ASSERT_TRUE(attention(p, shifted, {.variant = GetParam()}));
  EXPECT_EQ(std::memcmp(first.data(), data.o.data(), first.size() * sizeof(float)), 0);
}

TEST_P(EachCpuVariant, NoKeyMeansZeroAndMinusInfinity) {
  Problem p = make_problem(2, 2, 1, 3, 0, 8, DType::f32, Order::bshd);
  p.lse = true;
  Data data(p);
  ASSERT_TRUE(attention(p, data.tensors(), {.variant = GetParam()}));
  for (const float value : data.o) EXPECT_EQ(value, 0.0f);
  for (const float value : data.lse) EXPECT_EQ(value, -kInf);
  // In every output type, between rows that are not the output's.
  for (const DType out : {DType::f32, DType::f16, DType::bf16}) {
    Problem strided = make_problem(1, 2, 1, 3, 0, 8, DType::f16);
    strided.out_dtype = out;
    strided.o.stride = {96, 48, 16, 1};
    std::vector<unsigned char> o(96 * size_of(out), 0xee);
    ASSERT_TRUE(attention(strided, {.o = o.data()}, {.variant = GetParam()}));
    for (std::size_t at = 0; at < o.size(); ++at)
      ASSERT_EQ(o[at], at / size_of(out) % 16 < 8 ? 0 : 0xee) << at;
  }
}

TEST_P(EachCpuVariant, ThreadsMayCallAtOnce) {
  const Problem p = make_problem(1, 3, 1, 40, 50, 32, DType::f32);
  Data reference(p);
  ASSERT_TRUE(attention(p, reference.tensors(), {.variant = GetParam()}));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&] {
      Data data(p);
      for (int call = 0; call < 20; ++call) {
        std::fill(data.o.begin(), data.o.end(), -1.0f);
        if (!attention(p, data.tensors(), {.variant = GetParam()}).ok() || data.o != reference.o)
          ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

INSTANTIATE_TEST_SUITE_P(Cpu, EachCpuVariant, testing::ValuesIn(cpu_variants()),
                         [](const auto& each) {
                           std::string name = each.param;
                           for (char& c : name) c = c == '.' ? '_' : c;
                           return name;
                         });

TEST(Attention, ViewsSayEverything) {
  Problem p = make_problem(2, 4, 2, 9, 13, 16, DType::f32, Order::bshd);
  p.mask = Mask::causal(Alignment::bottom_right);
  p.lse = true;
  Data data(p);
  const auto view = [](std::vector<float>& values, std::int64_t heads, std::int64_t seq) {
    return TensorView::dense(values.data(), DType::f32, {2, heads, seq, 16}, Order::bshd);
  };
  AttentionParams params;
  params.mask = p.mask;
  params.lse = data.lse.data();
  const TensorView q = view(data.q, 4, 9), k = view(data.k, 2, 13), v = view(data.v, 2, 13),
                   o = view(data.o, 4, 9);
  const Status status = attention(q, k, v, o, params);
  ASSERT_TRUE(status.ok()) << status.message();
  expect_attention(p, data.tensors());

  params.scale = p.scale = 0.75f;
  ASSERT_TRUE(attention(q, k, v, o, params));
  expect_attention(p, data.tensors());
}

// A refusal says the whole problem: here it is what the views and the parameters made of it.
TEST(Attention, EveryParameterOfACallWithViewsReachesTheProblem) {
  std::vector<float> data(1 << 14), output(1 << 14), lse(1 << 10);
  std::vector<std::int32_t> arrays(64);
  const auto view = [&data](DType dtype, std::array<std::int64_t, 4> shape) {
    return TensorView::dense(data.data(), dtype, shape);
  };
  const auto out = [&output](DType dtype, std::array<std::int64_t, 4> shape) {
    return TensorView::dense(output.data(), dtype, shape);
  };
  const auto problem = [](const TensorView& q, const TensorView& k, const TensorView& v,
                          const TensorView& o, const AttentionParams& params) {
    const Status status = attention(q, k, v, o, params, {.variant = "cuda.v2c.v3"});
    EXPECT_EQ(status.code(), StatusCode::unsupported);
    const std::string& message = status.message();
    const std::string begin = "cuda.v2c.v3 cannot take ";
    EXPECT_EQ(message.find(begin), 0u) << message;
    return message.substr(begin.size(), message.find(" on ") - begin.size());
  };
  AttentionParams params;
  params.scale = 0.5f;
  params.softcap = 30.0f;
  params.mask = Mask::window(5, 0, Alignment::bottom_right);
  params.lse = lse.data();
  params.scales = ScaleKind::per_head;
  params.q_scale = params.k_scale = params.v_scale = data.data();
  params.chunk = 7;
  params.accuracy = Accuracy::fast;
  const TensorView q8 = view(DType::e4m3, {2, 4, 3, 16}), kv8 = view(DType::e4m3, {2, 2, 9, 16});
  EXPECT_EQ(problem(q8, kv8, kv8, out(DType::f16, {2, 4, 3, 16}), params),
            "2x4/2x3/9x16 e4m3 scales(per-head) accuracy=fast window(5,0,bottom-right) scale=0.5 "
            "softcap=30 lse chunk=7");

  AttentionParams serving;
  serving.sequences = 3;
  serving.cu_q = serving.used_q = serving.used_kv = serving.kv_start = arrays.data();
  serving.max_q = 4;
  serving.page_table = arrays.data();
  serving.page_row_stride = 3;
  serving.max_kv = 10;
  serving.sinks = data.data();
  serving.slopes = data.data();
  serving.mask_view = {.data = data.data(), .kind = MaskKind::additive, .shape = {1, 1, 1, 10}};
  serving.mask_view.stride = {0, 0, 0, 1};
  const TensorView q = view(DType::f32, {1, 4, 5, 16}), pool = view(DType::f32, {6, 2, 4, 16});
  EXPECT_EQ(
      problem(q, pool, view(DType::f32, {6, 2, 4, 8}), out(DType::f32, {1, 4, 5, 8}), serving),
      "3x4/2x4/10x16 fp32 value-dim=8 packed-q(5) used-q used-kv kv-start pages(6x4,3) sinks "
      "alibi(per-head) mask(fp32,0,0,0,1)");
  serving.alibi = Alibi::per_batch_head;
  serving.page_table = nullptr;
  serving.cu_kv = arrays.data();
  serving.mask_view = {};
  const TensorView packed = view(DType::f32, {1, 2, 24, 16});
  EXPECT_EQ(problem(q, packed, packed, out(DType::f32, {1, 4, 5, 16}), serving),
            "3x4/2x4/10x16 fp32 packed-q(5) packed-kv(24) used-q used-kv kv-start sinks "
            "alibi(per-batch-head)");
  AttentionParams indexed;
  indexed.kv_index = arrays.data();
  const TensorView cache = view(DType::f32, {6, 2, 9, 16});
  EXPECT_EQ(problem(view(DType::f32, {2, 4, 3, 16}), cache, cache, out(DType::f32, {2, 4, 3, 16}),
                    indexed),
            "2x4/2x3/9x16 fp32 kv-index(6)");
}

TEST(Attention, ViewsThatDisagreeAreNamed) {
  std::vector<float> data(4096);
  const auto view = [&data](DType dtype, std::array<std::int64_t, 4> shape) {
    return TensorView::dense(data.data(), dtype, shape);
  };
  const TensorView q = view(DType::f32, {1, 2, 4, 8});
  const auto message = [&](const TensorView& k, const TensorView& v, const TensorView& o) {
    const Status status = attention(q, k, v, o);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    return status.message();
  };
  const TensorView kv = view(DType::f32, {1, 1, 6, 8});
  EXPECT_EQ(message(view(DType::f16, {1, 1, 6, 8}), kv, q),
            "Q, K, V are fp32, fp16, fp32: they must have one type; convert them");
  EXPECT_EQ(message(view(DType::f32, {2, 1, 6, 8}), kv, q),
            "K's shape is [2, 1, 6, 8]: [1, 1, 6, 8] is expected, [B, Hkv, Skv, D] with Q's batch "
            "and head_dim");
  EXPECT_NE(message(kv, view(DType::f32, {1, 1, 7, 8}), q).find("V's shape is [1, 1, 7, 8]"),
            std::string::npos);
  EXPECT_NE(message(kv, kv, view(DType::f32, {1, 2, 4, 16})).find("O's shape is [1, 2, 4, 16]"),
            std::string::npos);
}

// What is forgotten must not be taken for a batch of no sequences, or of no keys.
TEST(Attention, ForgottenCountsOfServingAreNamed) {
  std::vector<float> data(4096);
  const auto view = [&data](std::array<std::int64_t, 4> shape) {
    return TensorView::dense(data.data(), DType::f32, shape);
  };
  std::vector<float> output(1024, -7.0f);
  const TensorView q = view({1, 2, 10, 8}), kv = view({1, 1, 40, 8}),
                   o = TensorView::dense(output.data(), DType::f32, {1, 2, 10, 8});
  const std::int32_t cu_q[] = {0, 3, 3, 10}, cu_kv[] = {0, 13, 13, 40}, pages[] = {0, 1};
  AttentionParams params;
  params.cu_q = cu_q;
  params.cu_kv = cu_kv;
  Status status = attention(q, kv, kv, o, params);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("set sequences"), std::string::npos) << status.message();
  EXPECT_EQ(output, std::vector<float>(1024, -7.0f));
  params.sequences = 3;
  status = attention(q, kv, kv, o, params);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_NE(output[0], -7.0f);

  AttentionParams paged;
  paged.page_table = pages;
  const TensorView pool = view({2, 1, 16, 8});
  status = attention(q, pool, pool, o, paged);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("page_row_stride"), std::string::npos) << status.message();
  paged.max_kv = 32;
  EXPECT_TRUE(attention(q, pool, pool, o, paged).ok());
  paged.max_kv = 0;
  paged.page_row_stride = 2;
  EXPECT_TRUE(attention(q, pool, pool, o, paged).ok());
}

TEST(Attention, AnEmptyOutputNeedsNoPointer) {
  for (const Problem& p :
       {make_problem(0, 2, 1, 3, 4, 8, DType::f16), make_problem(2, 2, 1, 0, 4, 8, DType::e4m3)}) {
    EXPECT_TRUE(attention(p, {}));
    EXPECT_TRUE(prepare(p));
    EXPECT_EQ(attention(p, {}, {.variant = "cpu.nothing"}).code(), StatusCode::invalid_argument);
  }
}

TEST(Attention, RefusalsLeaveTheOutputAlone) {
  Problem p = make_problem(1, 2, 1, 4, 4, 8, DType::f32);
  Data data(p);
  std::fill(data.o.begin(), data.o.end(), 7.0f);
  const auto code = [&](const Problem& problem, const Options& options) {
    const Status status = attention(problem, data.tensors(), options);
    EXPECT_FALSE(status.message().empty());
    return status.code();
  };
  EXPECT_EQ(code(p, {.device_index = 3}), StatusCode::no_device);
  EXPECT_EQ(code(p, {.device = static_cast<DeviceKind>(8)}), StatusCode::invalid_argument);
  EXPECT_EQ(code(p, {.variant = "cpu.quick"}), StatusCode::invalid_argument);
  p.scale = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(code(p, {}), StatusCode::invalid_argument);
  p.scale = 1.0f;
  Tensors t = data.tensors();
  t.v = nullptr;
  EXPECT_EQ(attention(p, t).code(), StatusCode::invalid_argument);
  for (const float value : data.o) ASSERT_EQ(value, 7.0f);
}

TEST(Attention, NegativeSplitsAreRefusedByEveryCall) {
  const Problem p = make_problem(1, 1, 1, 1, 64, 16, DType::f32);
  Data data(p);
  const Options options{.max_splits = -3};
  const DeviceFacts facts = *device_facts(DeviceKind::cpu);
  for (const std::string& message :
       {attention(p, data.tensors(), options).message(), prepare(p, options).message(),
        plan(p, facts, options).status().message(), explain(p, facts, options).refusal})
    EXPECT_EQ(message,
              "max_splits is -3: it may be 0, for as many parts as pay, or more; correct it");
  for (const float value : data.o) ASSERT_TRUE(std::isnan(value));
  EXPECT_TRUE(explain(p, facts, options).chosen.empty());
}

TEST(Devices, TheCpuIsAlwaysThere) {
  const Result<DeviceFacts> facts = device_facts(DeviceKind::cpu);
  ASSERT_TRUE(facts);
  EXPECT_EQ(facts->kind, DeviceKind::cpu);
  EXPECT_GE(facts->multiprocessors, 1);
  EXPECT_FALSE(facts->name.empty());
  EXPECT_FALSE(facts->isa.empty());
  EXPECT_EQ(device_facts(DeviceKind::cpu, 1).status().code(), StatusCode::no_device);
  EXPECT_EQ(device_facts(DeviceKind::cpu, -1).status().code(), StatusCode::no_device);
  EXPECT_EQ(device_facts(static_cast<DeviceKind>(2)).status().code(), StatusCode::invalid_argument);
}

TEST(Devices, AMissingGpuSaysWhatToDo) {
  const Result<DeviceFacts> facts = device_facts(DeviceKind::cuda, 0);
  if (facts) GTEST_SKIP() << "this machine has " << facts->name;
  EXPECT_EQ(facts.status().code(), StatusCode::no_device);
  EXPECT_NE(facts.status().message().find("cpu device"), std::string::npos);
  const Problem p = make_problem(1, 1, 1, 4, 4, 64, DType::f16);
  const std::vector<std::uint16_t> qkv(3 * 256);
  std::vector<std::uint16_t> o(256);
  const Tensors t{.q = qkv.data(), .k = qkv.data() + 256, .v = qkv.data() + 512, .o = o.data()};
  EXPECT_EQ(attention(p, t, {.device = DeviceKind::cuda}).code(), StatusCode::no_device);
  EXPECT_EQ(prepare(p, {.device = DeviceKind::cuda}).code(), StatusCode::no_device);
}

TEST(Devices, ModelsHavePublishedFacts) {
  const Result<DeviceFacts> h200 = model_facts("h200");
  ASSERT_TRUE(h200);
  EXPECT_EQ(h200->kind, DeviceKind::cuda);
  EXPECT_EQ(h200->arch, 90);
  EXPECT_EQ(h200->multiprocessors, 132);
  EXPECT_EQ(h200->shared_per_block, 227 * 1024);
  EXPECT_EQ(model_facts("l4")->arch, 89);
  EXPECT_EQ(model_facts("a100")->arch, 80);
  EXPECT_EQ(model_facts("h100")->arch, 90);
  EXPECT_EQ(model_facts("cpu")->kind, DeviceKind::cpu);
  const Status unknown = model_facts("h300").status();
  EXPECT_EQ(unknown.code(), StatusCode::invalid_argument);
  EXPECT_NE(unknown.message().find("h200"), std::string::npos);
}

TEST(Selecting, PlansAndReasonsNeedNoDevice) {
  const Problem p = make_problem(1, 8, 8, 512, 512, 64, DType::bf16);
  const Result<Plan> planned = plan(p, *model_facts("cpu"));
  ASSERT_TRUE(planned) << planned.status().message();
  const Selection selection = explain(p, *model_facts("cpu"));
  EXPECT_EQ(planned->variant, selection.chosen);
  EXPECT_EQ(selection.candidates.size(), variants().size());
  const Result<Plan> again = plan(p, *model_facts("cpu"));
  EXPECT_EQ(again->grid, planned->grid);
  EXPECT_EQ(again->kernel, planned->kernel);

  Problem wrong = p;
  wrong.head_dim = 12;
  EXPECT_EQ(plan(wrong, *model_facts("cpu")).status().code(), StatusCode::unsupported);
  const Selection refused = explain(wrong, *model_facts("cpu"));
  EXPECT_EQ(refused.chosen, "");
  EXPECT_NE(refused.refusal.find("head_dim is 12"), std::string::npos);
  for (const Candidate& candidate : refused.candidates) EXPECT_FALSE(candidate.accepted);
}

TEST(Selecting, BatchInvariantIgnoresBatchAndThreads) {
  DeviceFacts facts = *model_facts("cpu");
  const Options invariant{.batch_invariant = true};
  const auto planned = [&](std::int64_t batch, int threads) {
    facts.multiprocessors = threads;
    return *plan(make_problem(batch, 4, 4, 300, 300, 64, DType::f32), facts, invariant);
  };
  const Plan one = planned(1, 1);
  for (const std::int64_t batch : {1, 2, 64})
    for (const int threads : {1, 3, 96}) {
      const Plan other = planned(batch, threads);
      EXPECT_EQ(other.variant, one.variant);
      EXPECT_EQ(other.tile_q, one.tile_q);
      EXPECT_EQ(other.tile_kv, one.tile_kv);
      EXPECT_EQ(other.splits, one.splits);
    }
}

// A thread keeps what it found of its last call: nothing of that may answer another.
TEST(Selecting, ACallIsAnsweredForItselfWhateverWasAskedBefore) {
  std::vector<std::string> ran;
  const auto keep = [](const char* message, void* user) {
    const std::string line = message;
    static_cast<std::vector<std::string>*>(user)->push_back(line.substr(line.rfind(' ') + 1));
  };
  const Problem p = make_problem(1, 2, 2, 5, 7, 8, DType::f32);
  Problem other = p, wrong = p;
  other.mask = Mask::causal(Alignment::top_left);
  wrong.heads_kv = 3;
  Data data(p), masked(other);
  set_log_callback(keep, &ran);
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_TRUE(attention(p, data.tensors(), {}));
    ASSERT_TRUE(attention(p, data.tensors(), {.variant = "cpu.naive"}));
    ASSERT_TRUE(attention(p, data.tensors(), {}));
    EXPECT_EQ(attention(p, data.tensors(), {.max_splits = -1}).code(),
              StatusCode::invalid_argument);
    EXPECT_EQ(attention(wrong, data.tensors(), {}).code(), StatusCode::invalid_argument);
    EXPECT_EQ(attention(p, {}, {}).code(), StatusCode::invalid_argument);
    Tensors over = data.tensors();
    over.o = const_cast<void*>(over.q);
    EXPECT_EQ(attention(p, over, {}).code(), StatusCode::invalid_argument);
    ASSERT_TRUE(attention(other, masked.tensors(), {.batch_invariant = true}));
    ASSERT_TRUE(attention(other, masked.tensors(), {}));
    ASSERT_TRUE(attention(p, data.tensors(), {}));
  }
  set_log_callback(nullptr, nullptr);
  const std::vector<std::string> once{"cpu.flash", "cpu.naive", "cpu.flash",
                                      "cpu.flash", "cpu.flash", "cpu.flash"};
  ASSERT_EQ(ran.size(), 2 * once.size());
  for (std::size_t i = 0; i < ran.size(); ++i) EXPECT_EQ(ran[i], once[i % once.size()]) << i;
  expect_attention(p, data.tensors());
  expect_attention(other, masked.tensors());
}

TEST(Log, TellsWhichVariantRanAndIsSilentOtherwise) {
  struct Lines {
    std::mutex mutex;
    std::vector<std::string> all;
  } lines;
  const auto keep = [](const char* message, void* user) {
    auto& to = *static_cast<Lines*>(user);
    const std::lock_guard lock(to.mutex);
    to.all.push_back(message);
  };
  const Problem p = make_problem(1, 1, 1, 4, 4, 8, DType::f32);
  Data data(p);
  set_log_callback(keep, &lines);
  ASSERT_TRUE(attention(p, data.tensors(), {.variant = "cpu.naive"}));
  set_log_callback(nullptr, nullptr);
  ASSERT_TRUE(attention(p, data.tensors(), {.variant = "cpu.naive"}));
  ASSERT_EQ(lines.all.size(), 1u);
  EXPECT_NE(lines.all[0].find("1x1x4x8 fp32"), std::string::npos);
  EXPECT_NE(lines.all[0].find("cpu.naive"), std::string::npos);
}

TEST(Version, IsTheProjects) { EXPECT_EQ(version(), GREENFAST_PROJECT_VERSION); }

}  // namespace
}  // namespace greenfast
