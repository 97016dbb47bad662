#include "workbench/measure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "workbench/seconds_since.hpp"
#include "workbench/sha256.hpp"

namespace greenfast::workbench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kShortestCounted = 0.1;  // seconds

/// Scratch of one contestant, freed with it.
class Workspace {
 public:
  Workspace(Device& device, std::size_t bytes)
      : device_(device), bytes_(bytes), memory_(bytes != 0 ? device.allocate(bytes) : nullptr) {}
  ~Workspace() {
    if (memory_ != nullptr) device_.release(memory_);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  bool ok() const { return bytes_ == 0 || memory_ != nullptr; }
  void* data() const { return memory_; }
  std::size_t bytes() const { return bytes_; }

 private:
  Device& device_;
  std::size_t bytes_;
  void* memory_;
};

/// Calls shorter than this find the CPU pool asleep when they come out of nothing; a call off the
/// clock wakes it.
constexpr double kShortCall = 1e-3;
/// Calls longer than this are warm after the first outputs, and long enough for every timer:
/// seconds of warm-up would only spend the budget.
constexpr double kLongCall = 0.05;
/// Slots of a sample whose output is poisoned before and read back after. Which ones follows from
/// the seed.
constexpr int kVerifiedSlots = 4;

class Session {
 public:
  Session(Device& device, Ring& ring, std::span<const Timed> contestants,
          const MeasureOptions& options)
      : device_(device),
        ring_(ring),
        options_(options),
        random_(options.seed),
        start_(Clock::now()) {
    tick_ = device.tick();
    for (const Timed& timed : contestants) {
      // One tick for all: the longest of them bounds every sample.
      tick_ = std::max(tick_, timed.subject->overhead());
      Contestant contestant;
      contestant.timed = timed;
      contestants_.push_back(std::move(contestant));
    }
  }

  Result<Measurement> run() {
    describe();
    out_.peak = device_.peak(ring_.problem().dtype);
    for (std::size_t side = 0; side < contestants_.size(); ++side) {
      if (Status status = prepare(side); !status) return status;
    }
    sample_blocks();
    const Peak after = device_.peak(ring_.problem().dtype);
    out_.peak.flops = std::max(out_.peak.flops, after.flops);
    out_.peak.bytes_per_second = std::max(out_.peak.bytes_per_second, after.bytes_per_second);
    drop_slow_blocks();
    look_for_impossible();
    for (std::size_t side = 0; side < contestants_.size(); ++side) {
      Contestant& c = contestants_[side];
      Side& recorded = out_.samples.sides[side];
      if (!c.check.failure.empty()) recorded.refused = c.check.failure;
      if (!c.check.output.empty()) {
        recorded.output_sha256 = sha256_hex(c.check.output.data(), c.check.output.size());
      }
      out_.checks.push_back(std::move(c.check));
    }
    if (Status status = device_.synchronize(); !status) return status;
    return std::move(out_);
  }

 private:
  struct Contestant {
    Timed timed;
    std::unique_ptr<Workspace> workspace;
    std::vector<std::vector<std::byte>> expected;  // by content
    double estimate = 0;                           // seconds per call
    int batch = 1;
    SideCheck check;
  };

  bool cold() const { return options_.mode == CacheState::cold; }
  int active_slots() const { return cold() ? ring_.slots() : 1; }
  int next_slot() {
    // One counter for all sides: a call always meets the inputs that were used longest ago.
    const int slot = cursor_;
    cursor_ = (cursor_ + 1) % active_slots();
    return slot;
  }

  void describe() {
    Samples& s = out_.samples;
    const Problem& problem = ring_.problem();
    s.name = ring_.name();
    s.problem = to_string(problem);
    s.flops = flop_count(problem);
    s.device = device_.kind();
    s.device_name = device_.facts().name;
    s.timer = device_.timer();
    s.tick_seconds = tick_;
    s.cache = options_.mode;
    s.seed = options_.seed;
    for (const Contestant& c : contestants_) {
      Side side;
      side.id = c.timed.label.empty() ? c.timed.subject->id() : c.timed.label;
      s.sides.push_back(side);
    }
  }

  Status launch(Contestant& c, int slot) {
    return c.timed.subject->launch(ring_.problem(), ring_.tensors(slot), device_.stream(),
                                   c.workspace->data(), c.workspace->bytes());
  }

  /// Workspace, first outputs, warm-up, length of a sample.
  Status prepare(std::size_t index) {
    Contestant& c = contestants_[index];
    const Problem& problem = ring_.problem();
    std::size_t bytes = 0;
    if (const auto plan = c.timed.subject->plan(problem, device_.facts())) {
      bytes = static_cast<std::size_t>(std::max<std::int64_t>(0, plan->workspace_bytes));
    }
    c.workspace = std::make_unique<Workspace>(device_, bytes);
    if (!c.workspace->ok()) {
      return {StatusCode::out_of_memory,
              fmt::format("{} needs {} bytes of workspace for {}, which the device does not have",
                          c.timed.subject->id(), bytes, to_string(problem))};
    }
    if (Status status = c.timed.subject->prepare(problem, device_.stream()); !status) {
      c.check.failure = status.message();
      return {};
    }
    for (int content = 0; content < ring_.distinct(); ++content) {
      ring_.poison(content);
      const auto begin = Clock::now();
      if (Status status = launch(c, content); !status) {
        c.check.failure = status.message();
        return {};
      }
      if (Status status = device_.synchronize(); !status) return status;
      const double seconds = seconds_since(begin);
      c.estimate = content == 0 ? seconds : std::min(c.estimate, seconds);
      c.expected.push_back(ring_.read_output(content));
      if (!options_.verify || !c.timed.recheck) continue;
      if (const auto wrong = c.timed.recheck(ring_.content(content), c.expected.back())) {
        c.check.failure = fmt::format("before timing: {}", *wrong);
        return {};
      }
    }
    c.check.output = c.expected.front();

    if (c.estimate > kLongCall) {
      out_.samples.sides[index].batch = c.batch;
      return {};
    }
    const double allowed = 0.1 * options_.budget_seconds / static_cast<double>(contestants_.size());
    const auto begin = Clock::now();
    for (int i = 0; i < options_.warmup && seconds_since(begin) < allowed; ++i) {
      if (Status status = launch(c, next_slot()); !status) {
        c.check.failure = status.message();
        return {};
      }
      if (Status status = device_.synchronize(); !status) return status;
    }
    choose_batch(c);
    out_.samples.sides[index].batch = c.batch;
    return {};
  }

  double time(Contestant& c, int batch) {
    // A subject in another process: this process's clock around one request for the whole batch.
    const auto slots = ring_.all_tensors().first(static_cast<std::size_t>(active_slots()));
    if (const auto timed = c.timed.subject->time(ring_.problem(), slots, cursor_, batch,
                                                 c.workspace->data(), c.workspace->bytes())) {
      cursor_ = (cursor_ + batch) % active_slots();
      if (timed->ok()) return **timed;
      c.check.failure = timed->status().message();
      return 0;
    }
    Status failure;
    const double seconds = device_.time(
        [&] {
          if (Status status = launch(c, next_slot()); !status && failure) failure = status;
        },
        batch);
    if (!failure) c.check.failure = failure.message();
    return seconds;
  }

  /// Grows the batch until a sample is long enough for the timer.
  void choose_batch(Contestant& c) {
    const double shortest = options_.min_ticks * tick_;
    constexpr int kLargest = 1 << 20;
    int batch = 1;
    // The way to another process and back takes long now and then: the best of three is the calls'
    // own, lest one slow round trip be taken for a long batch.
    const int looks = c.timed.subject->overhead() > 0 ? 3 : 1;
    const auto look = [&] {
      double best = time(c, batch);
      for (int i = 1; i < looks && c.check.failure.empty(); ++i)
        best = std::min(best, time(c, batch));
      return best;
    };
    double seconds = look();
    while (seconds < shortest && batch < kLargest && c.check.failure.empty()) {
      // A little more than proportional, at least twice: short measurements are not exact.
      const double grow = seconds > 0 ? std::clamp(1.2 * shortest / seconds, 2.0, 1024.0) : 1024.0;
      batch = static_cast<int>(std::min<double>(kLargest, std::ceil(batch * grow)));
      seconds = look();
    }
    // A graph is replayed once untimed; only a batch that goes round the whole ring meets cold
    // inputs again.
    if (device_.kind() == DeviceKind::cuda && cold()) batch = std::max(batch, ring_.slots());
    c.batch = batch;
    c.estimate = seconds / batch;
  }

  /// One sample: poison off the clock, time, verify off the clock.
  void take(std::size_t index, Block& block) {
    Contestant& c = contestants_[index];
    // The ring already brings inputs that no cache holds; this takes away what the other side left,
    // the lines that it asked to persist among them.
    if (cold()) device_.flush_cache();
    if (device_.kind() == DeviceKind::cpu && c.estimate < kShortCall) {
      if (Status status = launch(c, next_slot()); !status) {
        c.check.failure = status.message();
        return;
      }
    }
    std::vector<int> watched;
    if (options_.verify) {
      const int calls = std::min(c.batch, active_slots());
      for (int i = 0; i < std::min(kVerifiedSlots, calls); ++i) {
        const int ahead = static_cast<int>(random_() % static_cast<std::uint64_t>(calls));
        watched.push_back((cursor_ + ahead) % active_slots());
      }
      std::sort(watched.begin(), watched.end());
      watched.erase(std::unique(watched.begin(), watched.end()), watched.end());
      for (const int slot : watched) ring_.poison(slot);
    }
    const double seconds = time(c, c.batch);
    if (!c.check.failure.empty()) return;
    for (const int slot : watched) {
      if (!verify(c, slot)) return;
    }
    // A reading of zero is below the timer's resolution; the tick is all that is known.
    block.samples.push_back({static_cast<int>(index), std::max(seconds, tick_) / c.batch});
  }

  bool verify(Contestant& c, int slot) {
    const std::vector<std::byte> output = ring_.read_output(slot);
    const std::size_t content = static_cast<std::size_t>(slot % ring_.distinct());
    if (output == c.expected[content]) return true;
    std::optional<std::string> wrong;
    if (c.timed.recheck) {
      wrong = c.timed.recheck(ring_.content(slot), output);
      if (!wrong) return true;
    } else {
      std::size_t differing = 0;
      for (std::size_t i = 0; i < output.size(); ++i)
        differing += output[i] != c.expected[content][i];
      wrong = fmt::format("{} of {} output bytes are not those of the same call before timing",
                          differing, output.size());
    }
    c.check.failure = fmt::format("a timed call went wrong: {}", *wrong);
    c.check.integrity = true;
    return false;
  }

  void sample_blocks() {
    const auto pulse = [&] {
      // The best of three short looks: a preempted probe says nothing about the kernel's round.
      double best = 0;
      for (int i = 0; i < 3; ++i) best = std::max(best, device_.pulse(ring_.problem().dtype));
      out_.peak.flops = std::max(out_.peak.flops, best);
      return best;
    };
    double before = pulse();
    auto round = Clock::now();
    std::size_t round_begin = 0;
    std::vector<Block>& blocks = out_.samples.blocks;
    const auto close_round = [&] {
      const double after = pulse();
      for (std::size_t i = round_begin; i < blocks.size(); ++i) {
        blocks[i].pulse = std::min(before, after);
      }
      before = after;
      round_begin = blocks.size();
      round = Clock::now();
    };

    const int most = std::max(1, (options_.iters + 1) / 2);
    const int least = std::min(options_.min_blocks, most);
    out_.stopped = "iters";
    const auto others = device_.other_work();
    start_ = Clock::now();
    for (int taken = 0; taken < most; ++taken) {
      if (taken >= least && seconds_since(start_) > options_.budget_seconds) {
        out_.stopped = "budget";
        break;
      }
      if (taken >= least && taken % 5 == 0 && options_.target_halfwidth > 0 && narrow_enough()) {
        out_.stopped = "width";
        break;
      }
      std::vector<std::size_t> order;
      for (std::size_t side = 0; side < contestants_.size(); ++side) {
        if (contestants_[side].check.failure.empty()) order.push_back(side);
      }
      if (order.empty()) break;
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_() % i]);
      Block block;
      block.process = options_.process;
      // There and back: what drifts linearly within the block cancels.
      const std::size_t n = order.size();
      for (std::size_t i = 0; i < 2 * n; ++i) {
        const std::size_t side = order[i < n ? i : 2 * n - 1 - i];
        if (contestants_[side].check.failure.empty()) take(side, block);
      }
      block.telemetry = device_.telemetry();
      blocks.push_back(std::move(block));
      if (options_.progress) options_.progress(taken + 1, seconds_since(start_));
      if (seconds_since(round) > options_.round_seconds) close_round();
    }
    if (round_begin < blocks.size()) close_round();
    // Of the whole run: systems count in steps of 10 ms, and noise must not be clamped round by
    // round.
    const double took = seconds_since(start_);
    if (const auto now = device_.other_work(); others && now && took >= kShortestCounted) {
      const double share = std::clamp((*now - *others) / took, 0.0, 1.0);
      for (Block& block : blocks) block.other_work = share;
    }
  }

  bool narrow_enough() const {
    BootstrapOptions quick;
    quick.resamples = 1000;
    const auto half = [](double lo, double value, double hi) {
      return std::max(hi - value, value - lo) / value;
    };
    for (std::size_t side = 0; side < contestants_.size(); ++side) {
      if (!contestants_[side].check.failure.empty()) continue;
      if (contestants_.size() == 1) {
        const Summary s = summarize(out_.samples, 0, quick);
        if (!(half(s.ci_lo, s.p50, s.ci_hi) <= options_.target_halfwidth)) return false;
      } else if (side != 0 && contestants_[0].check.failure.empty()) {
        const auto ratio =
            paired_log_ratio(out_.samples, 0, static_cast<int>(side), Statistic::p50, quick);
        if (!ratio) return false;
        const Interval i = speedup(*ratio);
        if (!(half(i.lo, i.value, i.hi) <= options_.target_halfwidth)) return false;
      }
    }
    return true;
  }

  /// Leaves out blocks during which the device was slower than usual, unless that is most of them.
  /// The probe tells on a CPU, the clock on a GPU.
  void drop_slow_blocks() {
    std::vector<Block>& blocks = out_.samples.blocks;
    const auto speed = [](const Block& block) {
      return block.pulse > 0 ? block.pulse : block.telemetry.sm_mhz.value_or(0);
    };
    std::vector<double> speeds;
    for (const Block& block : blocks) speeds.push_back(speed(block));
    const double usual = quantile(speeds, 0.5);
    const double lowest = usual * (1 - options_.pulse_tolerance);
    const auto slow =
        std::count_if(speeds.begin(), speeds.end(), [&](double s) { return s < lowest; });
    if (!(usual > 0) || 2 * static_cast<std::size_t>(slow) > blocks.size() ||
        static_cast<int>(blocks.size()) - static_cast<int>(slow) < options_.min_blocks) {
      return;
    }
    for (Block& block : blocks) {
      if (speed(block) >= lowest) continue;
      block.dropped = fmt::format("the device's speed around it was {:.0f}% below the median",
                                  100 * (1 - speed(block) / usual));
    }
  }

  void look_for_impossible() {
    bool again = true;
    for (std::size_t side = 0; side < contestants_.size(); ++side) {
      SideCheck& check = contestants_[side].check;
      check.floor_seconds = speed_of_light(ring_.problem(), out_.peak, options_.mode);
      const Summary times = summarize(out_.samples, static_cast<int>(side), {.resamples = 0});
      if (times.n == 0 || times.p50 >= check.floor_seconds) continue;
      // A verdict that calls somebody impossible gets a second look at the ceilings first.
      for (int i = 0; again && i < 3; ++i) {
        const Peak peak = device_.peak(ring_.problem().dtype);
        out_.peak.flops = std::max(out_.peak.flops, peak.flops);
        out_.peak.bytes_per_second = std::max(out_.peak.bytes_per_second, peak.bytes_per_second);
      }
      again = false;
      check.floor_seconds = speed_of_light(ring_.problem(), out_.peak, options_.mode);
      check.impossible = times.p50 < check.floor_seconds;
    }
  }

  Device& device_;
  Ring& ring_;
  const MeasureOptions& options_;
  std::mt19937_64 random_;
  std::vector<Contestant> contestants_;
  Measurement out_;
  int cursor_ = 0;
  double tick_ = 0;  // seconds that a reading can be off by
  Clock::time_point start_;
};

}  // namespace

double flop_count(const Problem& problem) {
  return 4.0 * static_cast<double>(visible_pairs(problem)) * static_cast<double>(problem.head_dim);
}

double byte_count(const Problem& p) {
  const auto bytes = [&](const Layout& layout, std::int64_t heads, std::int64_t seq, DType dtype) {
    // A broadcast tensor is read once however often it is used.
    const double dense = static_cast<double>(p.batch) * static_cast<double>(heads) *
                         static_cast<double>(seq) * static_cast<double>(p.head_dim) *
                         static_cast<double>(size_of(dtype));
    return std::min(
        dense, static_cast<double>(extent_bytes(layout, p.batch, heads, seq, p.head_dim, dtype)));
  };
  double total = bytes(p.q, p.heads_q, p.seq_q, p.dtype);
  // Under a mask some keys may be seen by nobody; which ones is not worth an exact count for a
  // lower bound.
  const bool all_keys = p.mask.is_none() || (p.mask.left < 0 && p.seq_q >= p.seq_kv);
  if (all_keys) {
    total += bytes(p.k, p.heads_kv, p.seq_kv, p.dtype) + bytes(p.v, p.heads_kv, p.seq_kv, p.dtype);
  }
  return total;
}

double speed_of_light(const Problem& problem, const Peak& peak, CacheState mode) {
  double seconds = peak.flops > 0 ? flop_count(problem) / peak.flops : 0;
  if (mode == CacheState::cold && peak.bytes_per_second > 0) {
    seconds = std::max(seconds, byte_count(problem) / peak.bytes_per_second);
  }
  return 0.95 * seconds;
}

Result<Measurement> measure(Device& device, Ring& ring, std::span<const Timed> contestants,
                            const MeasureOptions& options) {
  if (contestants.empty()) {
    return Status(StatusCode::invalid_argument, "nothing to time: no subject was given");
  }
  return Session(device, ring, contestants, options).run();
}

}  // namespace greenfast::workbench
