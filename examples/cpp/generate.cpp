// A toy generation loop on the CPU, as a serving engine runs it: three sequences of different
// lengths share a cache in pages; each step appends their new keys and values, with rotary
// embedding, and attends to all keys so far. The same loop over one dense cache for each sequence
// gives the same bits, because Options::batch_invariant is set.
#include <greenfast/serving.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace gf = greenfast;

namespace {

constexpr std::int64_t kHeadsQ = 8, kHeadsKv = 2, kDim = 64, kPage = 16, kMostKeys = 256;
constexpr std::int64_t kQRow = kHeadsQ * kDim, kKvRow = kHeadsKv * kDim;  // floats of one token
constexpr int kSteps = 20;

void require(const gf::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

// Stands for the layers of a model that make Q, K and V of a token: [tokens, heads, D].
struct Token {
  std::vector<float> q = std::vector<float>(kQRow), k = std::vector<float>(kKvRow), v = k;
};
Token token(std::size_t sequence, std::int64_t position) {
  Token token;
  float x = static_cast<float>(sequence) + 0.37f * static_cast<float>(position);
  for (std::vector<float>* row : {&token.q, &token.k, &token.v})
    for (float& value : *row) value = std::sin(x += 1.7f);
  return token;
}

struct Rotary {
  std::vector<float> cos, sin;
  Rotary() {
    for (std::int64_t position = 0; position < kMostKeys; ++position)
      for (std::int64_t n = 0; n < kDim / 2; ++n) {
        const double angle = static_cast<double>(position) * std::pow(1e4, -2.0 * n / kDim);
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
  }
};

// Rows of some sequences, packed one behind the other, and where each begins.
struct Batch {
  std::vector<float> q, k, v, o;
  std::vector<std::int32_t> cu{0};
  void add(const Token& token) {
    q.insert(q.end(), token.q.begin(), token.q.end());
    k.insert(k.end(), token.k.begin(), token.k.end());
    v.insert(v.end(), token.v.begin(), token.v.end());
  }
  void end_sequence() { cu.push_back(static_cast<std::int32_t>(q.size() / kQRow)); }
};

gf::Options invariant() {
  gf::Options options;
  options.batch_invariant = true;
  return options;
}

// ---- the engine: pages -------------------------------------------------------------------------

class Engine {
 public:
  explicit Engine(std::size_t sequences) : used_(sequences, 0) {
    // Pages of one sequence lie anywhere in the pool.
    const std::int64_t row = kMostKeys / kPage, pages = row * static_cast<std::int64_t>(sequences);
    for (std::int64_t n = 0; n < pages; ++n)
      table_.push_back(static_cast<std::int32_t>((n * 7 + 3) % pages));
    k_.resize(static_cast<std::size_t>(pages * kPage * kKvRow));
    v_.resize(k_.size());
  }

  // Appends the batch's keys and values, then attends; the batch's O is written.
  void step(Batch& batch, const Rotary& rotary) {
    const auto sequences = static_cast<std::int64_t>(used_.size());
    const std::int64_t tokens = batch.cu.back(), pages = static_cast<std::int64_t>(table_.size());
    const gf::Pages facts{.size = kPage, .count = pages, .row_stride = pages / sequences};

    gf::AppendProblem append;
    append.batch = sequences;
    append.heads_q = kHeadsQ;
    append.heads_kv = kHeadsKv;
    append.seq_new = kMostKeys;
    append.seq_kv = kMostKeys;
    append.head_dim = kDim;
    append.dtype = gf::DType::f32;
    append.packed = true;
    append.total_new = tokens;
    append.pages = facts;
    append.rotary = gf::Rotary::neox;
    append.rotary_dim = kDim;
    append.positions = kMostKeys;
    append.k_new = append.v_new = gf::dense_layout(gf::Order::bshd, 1, kHeadsKv, tokens, kDim);
    append.k = append.v = gf::dense_layout(gf::Order::bshd, pages, kHeadsKv, kPage, kDim);
    append.q = append.q_out = gf::dense_layout(gf::Order::bshd, 1, kHeadsQ, tokens, kDim);
    gf::AppendTensors news;
    news.k_new = batch.k.data();
    news.v_new = batch.v.data();
    news.k = k_.data();
    news.v = v_.data();
    news.q = news.q_out = batch.q.data();
    news.cu_new = batch.cu.data();
    news.used_kv = used_.data();
    news.page_table = table_.data();
    news.cos = rotary.cos.data();
    news.sin = rotary.sin.data();
    require(gf::append(append, news));
    for (std::size_t b = 0; b < used_.size(); ++b) used_[b] += batch.cu[b + 1] - batch.cu[b];

    batch.o.resize(batch.q.size());
    const auto view = [](std::vector<float>& data, std::int64_t first, std::int64_t heads,
                         std::int64_t rows) {
      return gf::TensorView::dense(data.data(), gf::DType::f32, {first, heads, rows, kDim},
                                   gf::Order::bshd);
    };
    gf::AttentionParams params;
    params.mask = gf::Mask::causal(gf::Alignment::bottom_right);
    params.sequences = sequences;
    params.cu_q = batch.cu.data();
    params.max_q = kMostKeys;
    params.used_kv = used_.data();
    params.page_table = table_.data();
    params.page_row_stride = facts.row_stride;
    require(gf::attention(view(batch.q, 1, kHeadsQ, tokens), view(k_, pages, kHeadsKv, kPage),
                          view(v_, pages, kHeadsKv, kPage), view(batch.o, 1, kHeadsQ, tokens),
                          params, invariant()));
  }

 private:
  std::vector<std::int32_t> used_, table_;
  std::vector<float> k_, v_;
};

// ---- the same, one sequence alone over dense memory --------------------------------------------

class Alone {
 public:
  void step(Batch& batch, const Rotary& rotary) {
    const std::int64_t tokens = batch.cu.back();
    gf::AppendProblem append;
    append.heads_q = kHeadsQ;
    append.heads_kv = kHeadsKv;
    append.seq_new = tokens;
    append.seq_kv = kMostKeys;
    append.head_dim = kDim;
    append.dtype = gf::DType::f32;
    append.rotary = gf::Rotary::neox;
    append.rotary_dim = kDim;
    append.positions = kMostKeys;
    append.k_new = append.v_new = gf::dense_layout(gf::Order::bshd, 1, kHeadsKv, tokens, kDim);
    append.k = append.v = gf::dense_layout(gf::Order::bshd, 1, kHeadsKv, kMostKeys, kDim);
    append.q = append.q_out = gf::dense_layout(gf::Order::bshd, 1, kHeadsQ, tokens, kDim);
    gf::AppendTensors news;
    news.k_new = batch.k.data();
    news.v_new = batch.v.data();
    news.k = k_.data();
    news.v = v_.data();
    news.q = news.q_out = batch.q.data();
    news.used_kv = &used_;
    news.cos = rotary.cos.data();
    news.sin = rotary.sin.data();
    require(gf::append(append, news));
    used_ += static_cast<std::int32_t>(tokens);

    batch.o.resize(batch.q.size());
    gf::Problem problem = gf::make_problem(1, kHeadsQ, kHeadsKv, tokens, used_, kDim,
                                           gf::DType::f32, gf::Order::bshd);
    problem.mask = gf::Mask::causal(gf::Alignment::bottom_right);
    gf::Tensors tensors;
    tensors.q = batch.q.data();
    tensors.k = k_.data();
    tensors.v = v_.data();
    tensors.o = batch.o.data();
    require(gf::attention(problem, tensors, invariant()));
  }

 private:
  std::int32_t used_ = 0;
  std::vector<float> k_ = std::vector<float>(kMostKeys * kKvRow), v_ = k_;
};

}  // namespace

int main() {
  const Rotary rotary;
  const std::vector<std::int64_t> prompts{5, 83, 31};
  Engine engine(prompts.size());
  std::vector<Alone> alone(prompts.size());
  std::vector<std::int64_t> length(prompts.size(), 0);
  std::size_t compared = 0;
  for (int step = 0; step < kSteps; ++step) {
    // The first step takes the prompts, each later one a token of each sequence.
    Batch together;
    std::vector<Batch> one(prompts.size());
    for (std::size_t b = 0; b < prompts.size(); ++b) {
      for (std::int64_t n = step == 0 ? prompts[b] : 1; n > 0; --n) {
        const Token next = token(b, length[b]++);
        together.add(next);
        one[b].add(next);
      }
      together.end_sequence();
      one[b].end_sequence();
    }
    engine.step(together, rotary);
    for (std::size_t b = 0; b < prompts.size(); ++b) {
      alone[b].step(one[b], rotary);
      const auto first = together.o.begin() + together.cu[b] * kQRow;
      if (!std::equal(one[b].o.begin(), one[b].o.end(), first)) {
        std::fprintf(stderr, "step %d, sequence %zu: pages and dense memory differ\n", step, b);
        return 1;
      }
      compared += one[b].o.size();
    }
  }
  std::printf("%d steps of %zu sequences in pages: %zu floats, the same bits as dense\n", kSteps,
              prompts.size(), compared);
  return 0;
}
