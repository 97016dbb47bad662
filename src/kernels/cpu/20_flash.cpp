// The generic half of cpu.flash: what it accepts, how it divides the work, and the choice of the
// code for the instruction set. The kernel's card stands at the head of 20_flash_kernel.hpp.
#include "kernels/cpu/20_flash.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>

#include <greenfast/arithmetic.hpp>

#include "core/executor.hpp"
#include "core/sequences.hpp"
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

// Rows of a sequence so few that its keys are cut, at multiples of a number of keys that follows
// from its own length alone: a row's bits then depend on nothing else. Two tiles of AMX are too
// small a part for packing, and more than kMostParts too many roundings in a row.
constexpr std::int64_t kSplitRows = 64;
constexpr std::int64_t kSplitKeys = 1536;  // a multiple of every key tile
constexpr std::int64_t kMostParts = 32;
static_assert(flash::kScaleBlock == greenfast::kScaleBlock);
static_assert(kSplitKeys % kKeyTile == 0 && kSplitKeys % kAmxKeyTile == 0);

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
  std::int64_t split_keys = 0;  // 0: equal numbers of tiles
  int threads = 1;
};

// Keys that an average row sees, roughly.
double mean_keys(const Problem& problem, std::int64_t seq_kv) {
  auto keys = static_cast<double>(seq_kv);
  if (problem.chunk > 0) keys = std::min(keys, static_cast<double>(problem.chunk));
  const Mask& mask = problem.mask;
  if (mask.left >= 0 && mask.right >= 0) {
    return std::min(keys, static_cast<double>(mask.left) + static_cast<double>(mask.right) + 1.0);
  }
  return mask.is_none() ? keys : keys / 2;
}

// Multiplications and additions of so many rows.
double work_of(const Problem& problem, double rows, std::int64_t seq_kv) {
  const auto columns = static_cast<double>(problem.head_dim + value_dim(problem));
  return 2.0 * rows * mean_keys(problem, seq_kv) * columns;
}

Band band_of(const Problem& problem, std::int64_t seq_q, std::int64_t seq_kv, std::int64_t start) {
  const Mask& mask = problem.mask;
  const std::int64_t shift = mask.alignment == Alignment::bottom_right ? seq_kv - seq_q : 0;
  return make_band(mask.left, mask.right, shift, seq_q, seq_kv, start, problem.chunk);
}

std::int64_t parts_of(Interval seen, std::int64_t keys) {
  return seen.begin == seen.end ? 0 : ceil_div(seen.end, keys) - seen.begin / keys;
}

// How many keys a part has, 0 where there is one part; from the sequence's own rows and keys.
std::int64_t split_keys_of(std::int64_t rows, Interval seen, int max_splits) {
  const std::int64_t most =
      max_splits > 0 ? std::min<std::int64_t>(max_splits, kMostParts) : kMostParts;
  if (rows > kSplitRows || most == 1 || parts_of(seen, kSplitKeys) <= 1) return 0;
  const std::int64_t least = ceil_div(seen.end - seen.begin, most);
  std::int64_t keys = std::max(kSplitKeys, round_up(least, kSplitKeys));
  while (parts_of(seen, keys) > most) keys += kSplitKeys;
  return parts_of(seen, keys) > 1 ? keys : 0;
}

// Entries of the batch differ in more than where their data lies.
bool listed(const Problem& problem) {
  const Sequences& s = problem.sequences;
  return s.packed_q || s.packed_kv || s.used_q || s.used_kv || s.kv_start || s.kv_index ||
         problem.pages.used();
}

Division divide(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
  const Code& code = code_for(facts);
  const std::int64_t rows = problem.seq_q * (problem.heads_q / problem.heads_kv);
  const std::int64_t kv_heads = problem.batch * problem.heads_kv;
  const int threads = std::max(1, facts.multiprocessors);
  const auto tasks_of = [&](int task_rows) { return ceil_div(rows, task_rows); };

  Division division;
  // A task converts and fetches each tile of K and V once for all its rows; that matters most where
  // a head's K and V outgrow the L2 cache (256 rows: 4 to 16% faster at 1x2x4096x128, Zen 5).
  const std::int64_t kv_bytes = problem.seq_kv * (problem.head_dim + value_dim(problem)) *
                                static_cast<std::int64_t>(size_of(problem.dtype));
  division.task_rows = kv_bytes > facts.l2_bytes / 2 ? 256 : 128;
  // Packing a tile of K and V for AMX costs as much as multiplying it by some 100 rows.
  const bool amx = uses_amx(problem, code);
  if (amx) division.task_rows = choice.batch_invariant ? 256 : 512;
  if (choice.batch_invariant || listed(problem)) {
    const Interval seen =
        seen_by_some(band_of(problem, problem.seq_q, problem.seq_kv, 0), 0, problem.seq_q - 1);
    division.threads = threads;
    division.row_tasks = tasks_of(division.task_rows);
    division.split_keys = split_keys_of(rows, seen, choice.max_splits);
    if (division.split_keys > 0)
      division.splits = static_cast<int>(parts_of(seen, division.split_keys));
    return division;
  }
  const double work = work_of(problem, static_cast<double>(kv_heads * rows), problem.seq_kv);
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
    const auto keys = static_cast<std::int64_t>(mean_keys(problem, problem.seq_kv));
    auto most = keys / (2 * key_tile(problem, code));
    if (choice.max_splits > 0) most = std::min<std::int64_t>(most, choice.max_splits);
    division.splits =
        static_cast<int>(std::max<std::int64_t>(1, std::min(most, ceil_div(wanted, tasks))));
  }
  return division;
}

flash::Strides strides(const Layout& layout) {
  return {layout.stride[0], layout.stride[1], layout.stride[2], layout.stride[3]};
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
  call.group = problem.heads_q / problem.heads_kv;
  call.head_dim = static_cast<int>(problem.head_dim);
  call.value_dim = static_cast<int>(value_dim(problem));
  call.type = static_cast<flash::Type>(problem.dtype);
  call.out_type = static_cast<flash::Type>(problem.out_dtype);
  call.scale = problem.scale;
  call.softcap = problem.softcap;
  call.lse_stride = problem.sequences.packed_q ? problem.sequences.total_q : problem.seq_q;
  call.page_size = problem.pages.size;

  call.task_rows = division.task_rows;
  // With a diagonal, rows beyond it are wasted work, of half a register tile on average; and fp32
  // does as well with 32 rows as with 64 (Zen 5).
  const bool narrow = !problem.mask.is_none() || problem.chunk > 0 || problem.dtype == DType::f32;
  call.tile_rows = std::min(code.tile_rows, narrow ? 32 : 64);
  if (uses_amx(problem, code)) call.tile_rows = kAmxRows;
  call.key_tile = key_tile(problem, code);
  call.fold = problem.seq_kv > kLongRow;
  call.last_rows_first = problem.mask.right >= 0 && problem.mask.left < 0;
  // Of a list the head after the head: its entries are in order of their length.
  if (listed(problem)) return call;

  call.entry.rows = problem.seq_q * call.group;
  call.entry.band = band_of(problem, problem.seq_q, problem.seq_kv, 0);
  call.entry.fold = call.fold;
  call.entry.row_tasks = division.row_tasks;
  call.entry.splits = division.splits;
  call.entry.split_keys = division.split_keys;
  call.kv_heads = problem.batch * problem.heads_kv;
  // The tasks that start last should be short. One head after another keeps its K and V in the
  // caches; with few tasks a thread, the long ones of all heads go first instead.
  call.head_by_head = call.kv_heads * division.row_tasks >= std::int64_t{16} * division.threads;
  if (division.splits > 1)
    call.entry.partial_floats =
        code.partial_floats(call, std::min<std::int64_t>(call.entry.rows, call.task_rows));
  return call;
}

// Memory of the calling thread; kept, so that only the first call allocates.
template <class T>
class Kept {
 public:
  Kept() = default;
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  ~Kept() { std::free(data_); }
  T* get(std::size_t count) noexcept {
    if (count > count_) {
      std::free(data_);
      const std::size_t bytes = (count * sizeof(T) + 4095) / 4096 * 4096;
      data_ = static_cast<T*>(std::aligned_alloc(4096, bytes));
      count_ = data_ == nullptr ? 0 : bytes / sizeof(T);
    }
    return data_;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_ = 0;
};

// One entry as the arrays of the call have it, which have been checked.
flash::Entry entry_of(const Problem& problem, const Tensors& tensors, const Call& call,
                      std::int64_t b, std::int64_t& seq_kv) {
  const core::Sequence s = core::sequence_of(problem, tensors, b);
  seq_kv = s.seq_kv;
  flash::Entry entry;
  entry.b = b;
  entry.q = s.q_batch * call.q_stride.b + s.q_row * call.q_stride.s;
  entry.o = s.q_batch * call.o_stride.b + s.q_row * call.o_stride.s;
  entry.lse = s.q_batch * call.heads_q * call.lse_stride + s.q_row;
  entry.k = s.kv_batch * call.k_stride.b + s.kv_row * call.k_stride.s;
  entry.v = s.kv_batch * call.v_stride.b + s.kv_row * call.v_stride.s;
  entry.pages = s.pages;
  entry.rows = s.seq_q * call.group;
  entry.band = band_of(problem, s.seq_q, s.seq_kv, s.kv_start);
  return entry;
}

// Fills in the list, longest tasks first, and what follows from it.
struct List {
  std::int64_t tasks = 0, whole_tasks = 0, partial_floats = 0;
  int threads = 1;
};
List make_list(const Problem& problem, const Tensors& tensors, const DeviceFacts& facts,
               core::Choice choice, Call& call, flash::Entry* entries) {
  const Code& code = code_for(facts);
  const bool amx = uses_amx(problem, code);
  double work = 0.0;
  call.fold = false;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    std::int64_t seq_kv = 0;
    flash::Entry& entry = entries[b] = entry_of(problem, tensors, call, b, seq_kv);
    if (entry.rows == 0) continue;
    const Interval seen = seen_by_some(entry.band, 0, entry.rows / call.group - 1);
    entry.split_keys = split_keys_of(entry.rows, seen, choice.max_splits);
    if (entry.split_keys > 0) entry.splits = static_cast<int>(parts_of(seen, entry.split_keys));
    entry.fold = entry.split_keys > 0 ? entry.split_keys > kLongRow : seq_kv > kLongRow;
    call.fold = call.fold || entry.fold;
    work += work_of(problem, static_cast<double>(entry.rows * call.heads_kv), seq_kv);
  }
  List list;
  list.threads = work < (amx ? kWorthThreadsAmx : kWorthThreads) ? 1 : facts.multiprocessors;

  const auto tasks_of = [&](const flash::Entry& entry) {
    return call.heads_kv * entry.splits * ceil_div(entry.rows, call.task_rows);
  };
  const auto all_tasks = [&] {
    std::int64_t tasks = 0;
    for (std::int64_t b = 0; b < problem.batch; ++b) tasks += tasks_of(entries[b]);
    return tasks;
  };
  // As for entries that are alike; how many rows a task has changes no bit of any of them.
  const std::int64_t wanted = list.threads == 1 ? 1 : std::int64_t{amx ? 2 : 4} * list.threads;
  if (!choice.batch_invariant) {
    while (call.task_rows > (amx ? kAmxRows : std::max(16, code.min_rows)) &&
           all_tasks() < wanted) {
      call.task_rows /= 2;
    }
  }
  if (list.threads > 1) {
    const auto size = [&](const flash::Entry& entry) {
      const std::int64_t rows = std::min<std::int64_t>(entry.rows, call.task_rows);
      return rows * (entry.band.seq_kv - entry.band.start) / entry.splits;
    };
    std::sort(entries, entries + problem.batch, [&](const auto& a, const auto& b) {
      const std::int64_t first = size(a), second = size(b);
      return first != second ? first > second : a.b < b.b;
    });
  }
  for (std::int64_t n = 0; n < problem.batch; ++n) {
    flash::Entry& entry = entries[n];
    entry.row_tasks = ceil_div(entry.rows, call.task_rows);
    entry.first_task = list.tasks;
    entry.first_whole = list.whole_tasks;
    list.tasks += tasks_of(entry);
    list.whole_tasks += call.heads_kv * entry.row_tasks;
    if (entry.splits == 1) continue;
    entry.partials = list.partial_floats;
    entry.partial_floats =
        code.partial_floats(call, std::min<std::int64_t>(entry.rows, call.task_rows));
    list.partial_floats += call.heads_kv * entry.row_tasks * entry.splits * entry.partial_floats;
  }
  call.entries = entries;
  call.entry_count = problem.batch;
  return list;
}

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
  const std::int64_t tasks =
      problem.batch * problem.heads_kv * division.row_tasks * division.splits;
  plan.grid = {static_cast<int>(std::min<std::int64_t>(tasks, 1 << 30)), 1, 1};
  plan.block = {division.threads, 1, 1};
  plan.shared_bytes = static_cast<std::int64_t>(code.arena_bytes(call));
  plan.tile_q = division.task_rows;
  plan.tile_kv = call.key_tile;
  plan.splits = division.splits;
  plan.kernel = facts.isa;
  plan.note = listed(problem) ? "sequences of their own lengths: tasks from the call's arrays"
              : choice.batch_invariant
                  ? division.splits > 1 ? "few rows: keys split at fixed places: batch-invariant"
                                        : "fixed tile, keys not split: batch-invariant"
              : division.threads == 1 ? "too little work for more than one thread"
              : division.splits > 1   ? "few rows: keys split between threads"
                                      : "rows divided between threads";
  return plan;
}

Status launch(const Problem& problem, const Tensors& tensors, const core::Context& context) {
  thread_local Kept<float> partials;
  thread_local Kept<flash::Entry> entries;
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
    if (problem.scales == ScaleKind::per_block) {
      call.q_blocks = ceil_div(problem.seq_q, kScaleBlock);
      call.kv_blocks = ceil_div(problem.seq_kv, kScaleBlock);
    }
  }
  if (problem.sinks) call.sinks = tensors.sinks;
  if (problem.alibi != Alibi::none) {
    call.slopes = tensors.slopes;
    call.slope_stride = problem.alibi == Alibi::per_batch_head ? problem.heads_q : 0;
  }
  if (problem.array_mask.kind != MaskKind::none) {
    call.mask = tensors.mask;
    call.mask_is_bool = problem.array_mask.kind == MaskKind::boolean;
    call.mask_type = static_cast<flash::Type>(problem.array_mask.dtype);
    std::copy(problem.array_mask.stride.begin(), problem.array_mask.stride.end(), call.mask_stride);
  }

  List list;
  if (listed(problem)) {
    const auto count = static_cast<std::size_t>(problem.batch);
    flash::Entry* const memory = entries.get(count);
    if (memory == nullptr) return no_memory(count * sizeof(flash::Entry));
    list = make_list(problem, tensors, facts, context.choice, call, memory);
  } else {
    list.threads = division.threads;
    list.whole_tasks = call.kv_heads * division.row_tasks;
    list.tasks = list.whole_tasks * division.splits;
    if (division.splits > 1) list.partial_floats = list.tasks * call.entry.partial_floats;
  }
  if (list.partial_floats > 0) {
    const auto floats = static_cast<std::size_t>(list.partial_floats);
    call.partials = partials.get(floats);
    if (call.partials == nullptr) return no_memory(floats * sizeof(float));
  }
  Run run{call, code, *context.executor, code.arena_bytes(call), code.attend};
  run.over(list.tasks, list.threads);
  if (list.partial_floats > 0 && !run.out_of_memory) {
    run.step = code.merge;
    run.over(list.whole_tasks, list.threads);
  }
  if (run.out_of_memory) return no_memory(run.arena_bytes);
  return {};
}

}  // namespace

extern const core::Kernel cpu_flash;
constinit const core::Kernel cpu_flash{.supports = supports, .plan = plan, .launch = launch};

}  // namespace greenfast::kernels
