// The generic half of the flash kernel: what it accepts, how it divides the work, and the choice
// of the code for the instruction set.
#include "kernels/cpu/20_flash.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "core/executor.hpp"
#include "core/text.hpp"
#include "core/variant.hpp"
#include "kernels/cpu/device/float_mode.hpp"

namespace greenfast::kernels {
namespace {

using flash::Call;
using flash::Code;

const Code& code_for(const DeviceFacts& facts) {
#if defined(__x86_64__)
  if (facts.isa == "avx512amx") return flash::avx512amx;
  if (facts.isa == "avx512bf16") return flash::avx512bf16;
  if (facts.isa == "avx512") return flash::avx512;
  if (facts.isa == "avx2") return flash::avx2;
#else
  (void)facts;
#endif
  return flash::portable;
}

constexpr int kKeyTile = 192;  // keys: a multiple of every register tile's
constexpr int kAmxRows = 32, kAmxKeyTile = 384;

// Keys of a row from where on its sums are kept in fp64 beside. Below, the tiles of a row are at
// most 86, and so are the roundings that its sums meet outside a tile.
constexpr std::int64_t kLongRow = 16384;

// Work below this many floating-point operations is done by the caller alone: waking threads would
// take longer than it saves.
constexpr double kWorthThreads = 2.0e6;
constexpr double kWorthThreadsAmx = 8.0e6;  // which are done in no more time

bool uses_amx(const Problem& problem, const Code& code) {
  return code.amx && problem.dtype != DType::f32;
}

int key_tile(const Problem& problem, const Code& code) {
  return uses_amx(problem, code) ? kAmxKeyTile : kKeyTile;
}

struct Division {
  int task_rows = 0;
  std::int64_t row_tasks = 0;  // of one KV head
  int splits = 1;
  int threads = 1;
};

// Keys that an average row sees, roughly.
double mean_keys(const Problem& problem) {
  const auto keys = static_cast<double>(problem.seq_kv);
  const Mask& mask = problem.mask;
  if (mask.left >= 0 && mask.right >= 0) {
    return std::min(keys, static_cast<double>(mask.left) + static_cast<double>(mask.right) + 1.0);
  }
  return mask.is_none() ? keys : keys / 2;
}

Division divide(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
  const Code& code = code_for(facts);
  const std::int64_t rows = problem.seq_q * (problem.heads_q / problem.heads_kv);
  const std::int64_t kv_heads = problem.batch * problem.heads_kv;
  const int threads = std::max(1, facts.multiprocessors);
  const auto tasks_of = [&](int task_rows) { return (rows + task_rows - 1) / task_rows; };

  Division division;
  // A task converts and fetches each tile of K and V once for all its rows; that matters most where
  // a head's K and V outgrow the L2 cache (256 rows: 4 to 16% faster at 1x2x4096x128, Zen 5).
  const std::int64_t kv_bytes =
      2 * problem.seq_kv * problem.head_dim * static_cast<std::int64_t>(size_of(problem.dtype));
  division.task_rows = kv_bytes > facts.l2_bytes / 2 ? 256 : 128;
  // Packing a tile of K and V for AMX costs as much as multiplying it by some 100 rows.
  const bool amx = uses_amx(problem, code);
  if (amx) division.task_rows = choice.batch_invariant ? 256 : 512;
  if (choice.batch_invariant) {
    division.threads = threads;
    division.row_tasks = tasks_of(division.task_rows);
    return division;
  }
  const double work = 4.0 * static_cast<double>(kv_heads * rows) * mean_keys(problem) *
                      static_cast<double>(problem.head_dim);
  division.threads = work < (amx ? kWorthThreadsAmx : kWorthThreads) ? 1 : threads;

  // Enough tasks that no thread waits long for the last one; none smaller than a vector, or a block
  // of AMX, which packs K and V once a task and so wants no more tasks than balance needs.
  const std::int64_t wanted =
      division.threads == 1 ? 1 : std::int64_t{amx ? 2 : 4} * division.threads;
  while (division.task_rows > (amx ? kAmxRows : std::max(16, code.min_rows)) &&
         kv_heads * tasks_of(division.task_rows) < wanted) {
    division.task_rows /= 2;
  }
  division.row_tasks = tasks_of(division.task_rows);

  // Still too few: cut the keys, into parts of two tiles at least.
  const std::int64_t tasks = kv_heads * division.row_tasks;
  if (tasks < std::int64_t{2} * division.threads && division.threads > 1) {
    const auto most = static_cast<std::int64_t>(mean_keys(problem)) / (2 * key_tile(problem, code));
    division.splits =
        static_cast<int>(std::max<std::int64_t>(1, std::min(most, (wanted + tasks - 1) / tasks)));
  }
  return division;
}

flash::Strides strides(const Layout& layout) {
  return {layout.stride[0], layout.stride[1], layout.stride[2]};
}

Call make_call(const Problem& problem, const DeviceFacts& facts, const Division& division) {
  const Code& code = code_for(facts);
  Call call;
  call.q_stride = strides(problem.q);
  call.k_stride = strides(problem.k);
  call.v_stride = strides(problem.v);
  call.o_stride = strides(problem.o);
  call.heads_q = problem.heads_q;
  call.heads_kv = problem.heads_kv;
  call.seq_q = problem.seq_q;
  call.group = problem.heads_q / problem.heads_kv;
  call.rows = problem.seq_q * call.group;
  call.head_dim = static_cast<int>(problem.head_dim);
  call.type = static_cast<flash::Type>(problem.dtype);
  call.out_type = static_cast<flash::Type>(problem.out_dtype);
  call.scale = problem.scale;
  call.softcap = problem.softcap;
  const Mask& mask = problem.mask;
  const std::int64_t shift =
      mask.alignment == Alignment::bottom_right ? problem.seq_kv - problem.seq_q : 0;
  call.band = make_band(mask.left, mask.right, shift, problem.seq_q, problem.seq_kv);

  call.task_rows = division.task_rows;
  // With a diagonal, rows beyond it are wasted work, of half a register tile on average; and fp32
  // does as well with 32 rows as with 64 (Zen 5).
  const bool narrow = !mask.is_none() || problem.dtype == DType::f32;
  call.tile_rows = std::min(code.tile_rows, narrow ? 32 : 64);
  if (uses_amx(problem, code)) call.tile_rows = kAmxRows;
  call.key_tile = key_tile(problem, code);
  call.splits = division.splits;
  call.fold = problem.seq_kv > kLongRow;
  call.row_tasks = division.row_tasks;
  call.kv_heads = problem.batch * problem.heads_kv;
  // The tasks that start last should be short. One head after another keeps its K and V in the
  // caches; with few tasks a thread, the long ones of all heads go first instead.
  call.head_by_head = call.kv_heads * call.row_tasks >= std::int64_t{16} * division.threads;
  call.last_rows_first = mask.right >= 0 && mask.left < 0;

  const std::int64_t tiles = (call.task_rows + call.tile_rows - 1) / call.tile_rows;
  const std::int64_t columns = (call.head_dim + 15) / 16 * 16 + 2;
  call.partial_floats = tiles * (call.tile_rows * columns + 48);
  return call;
}

// Partial results of split rows, of the calling thread; kept, so that only the first call
// allocates.
class Partials {
 public:
  Partials() = default;
  Partials(const Partials&) = delete;
  Partials& operator=(const Partials&) = delete;
  ~Partials() { std::free(data_); }
  float* get(std::size_t floats) noexcept {
    if (floats > floats_) {
      std::free(data_);
      const std::size_t bytes = (floats * sizeof(float) + 4095) / 4096 * 4096;
      data_ = static_cast<float*>(std::aligned_alloc(4096, bytes));
      floats_ = data_ == nullptr ? 0 : bytes / sizeof(float);
    }
    return data_;
  }

 private:
  float* data_ = nullptr;
  std::size_t floats_ = 0;
};

struct Run {
  const Call& call;
  const Code& code;
  core::Executor& executor;
  std::size_t arena_bytes;
  void (*step)(const Call&, std::int64_t task, void* arena);
  bool out_of_memory = false;  // only ever set, by any task

  void over(std::int64_t tasks, int threads) {
    executor.run(
        tasks,
        [](void* context, std::int64_t task, int worker) {
          auto& run = *static_cast<Run*>(context);
          void* const arena = run.executor.arena(worker, run.arena_bytes);
          if (arena == nullptr) {
            __atomic_store_n(&run.out_of_memory, true, __ATOMIC_RELAXED);
            return;
          }
          const DefaultFloatMode mode;
          run.step(run.call, task, arena);
        },
        this, threads);
  }
};

Status no_memory(std::size_t bytes) {
  return {StatusCode::out_of_memory,
          core::concat("cpu.flash needs ", bytes, " bytes of scratch a thread and got none; ",
                       "free memory or set GREENFAST_THREADS lower")};
}

bool supports(const Problem& /*problem*/, const DeviceFacts& facts, core::Choice /*choice*/,
              std::string* why) {
  if (why != nullptr) *why = core::concat("takes every problem; code for ", facts.isa);
  return true;
}

Plan plan(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
  const Division division = divide(problem, facts, choice);
  const Call call = make_call(problem, facts, division);
  const Code& code = code_for(facts);
  Plan plan;
  const std::int64_t tasks = call.kv_heads * call.row_tasks * call.splits;
  plan.grid = {static_cast<int>(std::min<std::int64_t>(tasks, 1 << 30)), 1, 1};
  plan.block = {division.threads, 1, 1};
  plan.shared_bytes = static_cast<std::int64_t>(code.arena_bytes(call));
  plan.tile_q = division.task_rows;
  plan.tile_kv = call.key_tile;
  plan.splits = division.splits;
  plan.kernel = facts.isa;
  plan.note = choice.batch_invariant  ? "fixed tile, keys not split: batch-invariant"
              : division.threads == 1 ? "too little work for more than one thread"
              : division.splits > 1   ? "few rows: keys split between threads"
                                      : "rows divided between threads";
  return plan;
}

Status launch(const Problem& problem, const Tensors& tensors, const core::Context& context) {
  thread_local Partials partials;
  const DeviceFacts& facts = *context.facts;
  const Division division = divide(problem, facts, context.choice);
  const Code& code = code_for(facts);
  Call call = make_call(problem, facts, division);
  call.q = tensors.q;
  call.k = tensors.k;
  call.v = tensors.v;
  call.o = tensors.o;
  call.lse = problem.lse ? tensors.lse : nullptr;
  if (problem.scales != ScaleKind::none) {
    call.q_scale = tensors.q_scale;
    call.k_scale = tensors.k_scale;
    call.v_scale = tensors.v_scale;
    call.scale_per_head = problem.scales == ScaleKind::per_head;
  }

  const std::int64_t tasks = call.kv_heads * call.row_tasks;
  if (call.splits > 1) {
    const auto floats = static_cast<std::size_t>(tasks * call.splits * call.partial_floats);
    call.partials = partials.get(floats);
    if (call.partials == nullptr) return no_memory(floats * sizeof(float));
  }
  Run run{call, code, *context.executor, code.arena_bytes(call), code.attend};
  run.over(tasks * call.splits, division.threads);
  if (call.splits > 1 && !run.out_of_memory) {
    run.step = code.merge;
    run.over(tasks, division.threads);
  }
  if (run.out_of_memory) return no_memory(run.arena_bytes);
  return {};
}

}  // namespace

extern const core::Kernel cpu_flash;
constinit const core::Kernel cpu_flash{.supports = supports, .plan = plan, .launch = launch};

}  // namespace greenfast::kernels
