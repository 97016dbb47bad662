#include "workbench/fast/measure.hpp"

#include <fmt/format.h>

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <random>
#include <tuple>

#include "workbench/base/host.hpp"
#include "workbench/base/seconds_since.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/cases/placement.hpp"
#include "workbench/fast/draws.hpp"

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
/// clock wakes it. Only the library's: a plugin could use it for the next samples' work.
constexpr double kShortCall = 1e-3;
/// Calls longer than this are warm after the first outputs, and long enough for every timer:
/// seconds of warm-up would only spend the budget.
constexpr double kLongCall = 0.05;
/// Slots of a sample whose output is read back; all are poisoned, and which are read is drawn after
/// the calls. Of the first of them inputs are compared and rows held to the oracle.
constexpr int kVerifiedSlots = 4;
/// Shares of a plugin's CPU time in its calls, and seconds that are always free. Between calls it
/// is stopped, which takes effect when the system next runs it: some time passes for a pool that
/// spins. When inputs are renewed it stands still for long.
constexpr double kIdleShare = 1.0, kIdleSeconds = 0.5;
/// Share of a sample that a thread waits for a CPU on a machine that has one for it: it is woken.
constexpr double kUsualWait = 0.02;
/// Of a sample that waited all the time: a logarithm needs something.
constexpr double kLeastShare = 0.01;
constexpr double kStolenShare = 0.05, kStolenSeconds = 0.02;
/// A pool that spins runs on from its answer to its stop: some tens of microseconds a sample, on a
/// busy machine up to 0.08 of its time (OpenMP's on two cores, load 3, 2026-11-25).
constexpr double kLateShare = 0.25, kLateSeconds = 0.02;
/// CPU seconds in a second of its calls beyond the thread budget, relative. A process that stays on
/// the CPUs of its budget cannot use more than those: what it may be above is what it uses while this
/// process reads one clock after the other.
constexpr double kMoreThreads = 0.02, kMoreThreadSeconds = 0.005;

std::uint64_t entropy() {
  std::random_device source;
  const std::uint64_t high = source();
  const std::uint64_t draw = high << 32 | source();
  return draw != 0 ? draw : 1;
}

double own_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// A row's worth of NaN bytes somewhere: the pattern that poison() leaves.
bool holds_poison(std::span<const std::byte> output, std::size_t element) {
  std::size_t run = 0;
  for (std::size_t at = 0; at < output.size(); ++at) {
    run = output[at] == std::byte{0xff} ? run + 1 : 0;
    // Only whole elements: the end of one and the beginning of the next may look like one.
    if (run >= element && (at + 1) % element == 0) return true;
  }
  return false;
}

class Clocked {
 public:
  Clocked(Device& device, Ring& ring, std::span<const Timed> contestants,
          const MeasureOptions& options)
      : device_(device),
        ring_(ring),
        options_(options),
        random_(options.seed),
        drawn_(options.draw != 0 ? options.draw : entropy()),
        draws_(drawn_),
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
    if (options_.between) {
      neighbour_ = device_.neighbour();
      if (neighbour_.empty())
        return Status(
            StatusCode::unsupported,
            fmt::format("{} has no kernel to stand between calls: time them back to back, "
                        "or on a GPU",
                        device_.facts().name));
      tick_ *= 2;  // a difference of two readings
    }
    describe();
    for (Contestant& c : contestants_) c.timed.subject->pause();
    out_.peak = device_.peak(ring_.problem().dtype);
    for (std::size_t side = 0; side < contestants_.size(); ++side) {
      at_work(static_cast<int>(side));
      if (Status status = prepare(side); !status) return status;
      contestants_[side].timed.subject->pause();
      at_work(-1);
    }
    for (Contestant& c : contestants_) c.timed.subject->watch();
    sample_blocks();
    account();
    const Peak after = device_.peak(ring_.problem().dtype);
    out_.peak.flops = std::max(out_.peak.flops, after.flops);
    out_.peak.bytes_per_second = std::max(out_.peak.bytes_per_second, after.bytes_per_second);
    leave_noise_out();
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
    double estimate = 0;  // seconds per call
    int batch = 1;
    SideCheck check;
    // CPU time within timed stretches, of this after the answer; between them, and of this while
    // its next inputs lay there; and how long the stretches were.
    double cpu_inside = 0, cpu_late = 0, cpu_between = 0, cpu_stolen = 0, wall_inside = 0;
    // Of its process's own memory: before the subject was loaded, and before it was timed.
    std::optional<std::int64_t> bytes_loaded, bytes_warm;

    bool timed_on() const { return check.failure.empty() && check.noise.empty(); }
    void fail(Fault fault, std::string why) {
      check.fault = fault;
      check.failure = std::move(why);
    }
  };

  void at_work(int side) const {
    if (options_.at_work) options_.at_work(side);
  }
  bool cold() const { return options_.mode == CacheState::cold; }
  bool on_cpu() const { return device_.kind() == DeviceKind::cpu; }
  /// Whether one of the contestants is somebody else's, in a process of its own.
  bool foreign() const {
    return std::any_of(contestants_.begin(), contestants_.end(),
                       [](const Contestant& c) { return c.timed.subject->elsewhere(); });
  }
  /// Hot calls meet one slot again and again; beside somebody else's kernel as many in turn as lie in
  /// the outermost cache together.
  int active_slots() const {
    if (cold()) return ring_.slots();
    if (!foreign()) return 1;
    const std::size_t fit =
        device_.cache_bytes() / 4 / std::max<std::size_t>(ring_.slot_bytes(), 1);
    return static_cast<int>(
        std::clamp<std::size_t>(fit, 1, static_cast<std::size_t>(ring_.slots())));
  }
  /// Most calls of one sample. Beside somebody else's kernel none meets a slot twice: whoever found
  /// its answer there would be done.
  int most_calls() const {
    constexpr int kLargest = 1 << 20;
    return foreign() ? active_slots() : kLargest;
  }
  /// The slots of the next `count` calls. One counter for all sides: a call always meets the inputs
  /// that were used longest ago. Within a sample in random order, so that no call tells the next.
  std::vector<int> next_slots(int count) {
    const int slots = active_slots();
    std::vector<int> next(static_cast<std::size_t>(std::min(count, slots)));
    for (int& slot : next) {
      slot = cursor_;
      cursor_ = (cursor_ + 1) % slots;
    }
    for (std::size_t i = next.size(); i > 1; --i) std::swap(next[i - 1], next[draws_() % i]);
    return next;
  }

  void describe() {
    Samples& s = out_.samples;
    const Problem& problem = ring_.problem();
    s.name = ring_.name();
    s.problem = to_string(problem);
    s.flops = ring_.work().flops;
    s.device = device_.kind();
    s.device_name = device_.facts().name;
    s.timer = device_.timer();
    s.neighbour = neighbour_;
    if (options_.between) s.timer += ", less the neighbours alone";
    s.tick_seconds = tick_;
    s.cache = options_.mode;
    s.seed = options_.seed;
    s.draw = drawn_;
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
    (void)c.timed.subject->private_bytes();  // from here on it has a process
    c.bytes_loaded = c.timed.subject->bytes_before_load();
    c.workspace = std::make_unique<Workspace>(device_, bytes);
    if (!c.workspace->ok()) {
      return {StatusCode::out_of_memory,
              fmt::format("{} needs {} bytes of workspace for {}, which the device does not have",
                          c.timed.subject->id(), bytes, to_string(problem))};
    }
    if (Status status = c.timed.subject->prepare(problem, device_.stream()); !status) {
      c.fail(Fault::launch, status.message());
      return {};
    }
    for (int content = 0; content < ring_.distinct(); ++content) {
      // The same bits for every side: outputs can be compared.
      ring_.renew(content, 0);
      ring_.poison(content);
      const auto begin = Clock::now();
      if (Status status = launch(c, content); !status) {
        c.fail(Fault::launch, status.message());
        return {};
      }
      if (Status status = device_.synchronize(); !status) return status;
      const double seconds = seconds_since(begin);
      c.estimate = content == 0 ? seconds : std::min(c.estimate, seconds);
      std::vector<std::byte> output = ring_.read_output(content);
      if (options_.verify && c.timed.judge) {
        if (const auto wrong = c.timed.judge({.content = ring_.content(content),
                                              .inputs = ring_.inputs(content),
                                              .output = output,
                                              .draw = draws_(),
                                              .timed = false})) {
          c.fail(Fault::numerics, fmt::format("before timing: {}", *wrong));
          return {};
        }
      }
      if (content == 0) c.check.output = std::move(output);
    }

    if (c.estimate > kLongCall) {
      out_.samples.sides[index].batch = c.batch;
      return {};
    }
    const double allowed = 0.1 * options_.budget_seconds / static_cast<double>(contestants_.size());
    const auto begin = Clock::now();
    for (int i = 0; i < options_.warmup && seconds_since(begin) < allowed; ++i) {
      if (Status status = launch(c, next_slots(1).front()); !status) {
        c.fail(Fault::launch, status.message());
        return {};
      }
      if (Status status = device_.synchronize(); !status) return status;
    }
    choose_batch(c);
    out_.samples.sides[index].batch = c.batch;
    return {};
  }

  /// Seconds of `batch` calls on these slots in turn; ready is called when nothing but the calls
  /// themselves is left to do.
  double time(
      Contestant& c, int batch, const std::vector<int>& slots,
      const std::function<void()>& ready = [] {}) {
    // A subject in another process: this process's clock around one request for the whole batch.
    if (c.timed.subject->elsewhere()) {
      std::vector<Tensors> sets;
      for (const int slot : slots) sets.push_back(ring_.tensors(slot));
      ready();
      const auto timed = c.timed.subject->time(ring_.problem(), sets, batch, c.workspace->data(),
                                               c.workspace->bytes());
      if (timed) return *timed;
      c.fail(Fault::launch, timed.status().message());
      return 0;
    }
    Status failure;
    std::size_t next = 0;
    const double seconds = device_.time_ready(
        [&] {
          const int slot = slots[next];
          next = (next + 1) % slots.size();
          if (options_.between) device_.launch_neighbour();
          if (Status status = launch(c, slot); !status && failure) failure = status;
        },
        batch, ready);
    if (!failure) c.fail(Fault::launch, failure.message());
    return seconds;
  }

  /// Grows the batch until a sample is long enough for the timer, or has all the calls it may have.
  /// The calls that decide it are samples like any other to the subject, and judged as those are.
  void choose_batch(Contestant& c) {
    const double shortest = options_.min_ticks * tick_;
    int batch = 1;
    // The way to another process and back takes long now and then: the best of three is the calls'
    // own, lest one slow round trip be taken for a long batch.
    const int looks = c.timed.subject->overhead() > 0 ? 3 : 1;
    const auto look = [&] {
      double best = 0;
      for (int i = 0; i < looks && c.check.failure.empty(); ++i) {
        const Stretch seen = stretch(c, batch);
        if (!c.check.failure.empty() || (options_.verify && !verify(c, seen))) break;
        best = i == 0 ? seen.seconds : std::min(best, seen.seconds);
      }
      return best;
    };
    double seconds = look();
    while (seconds < shortest && batch < most_calls() && c.check.failure.empty()) {
      // A little more than proportional, at least twice: short measurements are not exact.
      const double grow = seconds > 0 ? std::clamp(1.2 * shortest / seconds, 2.0, 1024.0) : 1024.0;
      batch = static_cast<int>(std::min<double>(most_calls(), std::ceil(batch * grow)));
      seconds = look();
    }
    // A graph is replayed once untimed; only a batch that goes round the whole ring meets cold
    // inputs again.
    if (!on_cpu() && cold()) batch = std::max(batch, ring_.slots());
    c.batch = batch;
    c.estimate = seconds / batch;
  }

  /// Timed calls, and what a side and the machine did meanwhile.
  struct Stretch {
    std::vector<int> slots;
    double seconds = 0;
    std::optional<CpuUse> cpu_stopped, cpu_before, cpu_at_answer, cpu_after;
    std::map<int, double> waited_before, waited_after;
  };

  /// New inputs and poison off the clock, then `batch` calls.
  Stretch stretch(Contestant& c, int batch) {
    const bool wake = on_cpu() && c.estimate < kShortCall && !c.timed.subject->elsewhere();
    const int woken = wake ? next_slots(1).front() : 0;
    Stretch out;
    out.slots = next_slots(batch);
    const auto ready = [&] {
      out.cpu_stopped = cpu_use(c);
      out.waited_before = waited(c);
      // Drawn when everything is prepared: no work that a subject did until now is of use.
      for (const int slot : out.slots) {
        ring_.renew(slot, draws_());
        ring_.poison(slot);
      }
      if (cold()) {
        // Takes away what the other side left and what renewing brought in. Not the workspace's
        // lines: a kernel fills that itself.
        const bool evicted = std::all_of(out.slots.begin(), out.slots.end(),
                                         [&](int slot) { return ring_.evict(slot); });
        if (!evicted) device_.flush_cache();
      }
      if (wake)
        if (Status status = launch(c, woken); !status) c.fail(Fault::launch, status.message());
      out.cpu_before = cpu_use(c);
    };
    out.seconds = time(c, batch, out.slots, ready);
    // At once: whoever says that its calls have ended before they have computes on until it is stopped.
    c.timed.subject->pause();
    out.cpu_at_answer = c.timed.subject->cpu_at_answer();
    out.cpu_after = cpu_use(c);
    out.waited_after = waited(c);
    return out;
  }

  /// One sample, judged off the clock.
  void take(std::size_t index, Block& block) {
    Contestant& c = contestants_[index];
    if (!c.bytes_warm) c.bytes_warm = c.timed.subject->private_bytes();
    const Stretch seen = stretch(c, c.batch);
    const auto& [stopped, before, after] =
        std::tie(seen.cpu_stopped, seen.cpu_before, seen.cpu_after);
    if (!c.check.failure.empty()) return;
    double seconds = seen.seconds, alone = 0;
    if (stopped && before && after && before->process == after->process) {
      // Sides may share a process; whatever it computes between any of their calls is theirs.
      const auto [end, fresh] = cpu_at_end_.emplace(after->process, 0.0);
      if (!fresh && c.timed.subject->elsewhere()) c.cpu_between += before->seconds - end->second;
      end->second = after->seconds;
      c.cpu_stolen += before->seconds - stopped->seconds;
      c.cpu_inside += after->seconds - before->seconds;
      if (const auto& answer = seen.cpu_at_answer; answer && answer->process == after->process)
        c.cpu_late += after->seconds - answer->seconds;
      c.wall_inside += seconds;
    }
    if (options_.between) {
      // Before the outputs are looked at, while the clock is as the stretch left it.
      alone = device_.time_ready([&] { device_.launch_neighbour(); }, c.batch,
                                 [&] {
                                   if (cold()) device_.flush_cache();
                                 });
      seconds -= alone;
    }
    if (options_.verify && !verify(c, seen)) return;
    if (options_.between && !(seconds > 0)) {
      c.check.noise = fmt::format(
          "noise: less {} neighbours alone, which took {:.4g} us, as many with calls took {:.4g} "
          "us "
          "more",
          c.batch, 1e6 * alone, 1e6 * seconds);
      return;
    }
    // A reading of zero is below the timer's resolution; the tick is all that is known.
    const double taken = std::max(seconds, tick_);
    // What waited cannot have taken more than the sample less what its threads computed in it.
    const double computed = before && after ? after->seconds - before->seconds : 0;
    const double least = std::max(kLeastShare * taken, computed / device_.facts().multiprocessors);
    const double waiting = std::clamp(lost(seen.waited_before, seen.waited_after, taken), 0.0,
                                      std::max(0.0, taken - least));
    block.samples.push_back(
        {static_cast<int>(index), taken / c.batch, waiting / c.batch, alone / c.batch});
  }

  /// A side with a difference that is no time has none at all: what is left would be its longer ones.
  void leave_noise_out() {
    for (std::size_t side = 0; side < contestants_.size(); ++side) {
      const std::string& noise = contestants_[side].check.noise;
      if (noise.empty()) continue;
      out_.samples.sides[side].refused = noise;
      for (Block& block : out_.samples.blocks)
        std::erase_if(block.samples,
                      [&](const Sample& s) { return s.side == static_cast<int>(side); });
    }
    std::erase_if(out_.samples.blocks, [](const Block& block) { return block.samples.empty(); });
  }

  std::optional<CpuUse> cpu_use(Contestant& c) {
    if (device_.kind() != DeviceKind::cpu) return std::nullopt;
    if (c.timed.subject->elsewhere()) return c.timed.subject->cpu_use();
    return CpuUse{0, own_cpu_seconds()};
  }

  /// How long each thread that serves a side's calls was ready and had no CPU, so far: a plugin's,
  /// and this process's own, which its answer waits for.
  std::map<int, double> waited(Contestant& c) {
    if (device_.kind() != DeviceKind::cpu) return {};
    std::map<int, double> out = run_delays(0);
    if (c.timed.subject->elsewhere())
      if (const auto use = c.timed.subject->cpu_use()) out.merge(run_delays(use->process));
    return out;
  }
  /// What of a sample that took `seconds` was waiting, beyond what waking a thread takes.
  static double lost(const std::map<int, double>& before, const std::map<int, double>& after,
                     double seconds) {
    double sum = 0;
    for (const auto& [thread, delay] : after) {
      const auto was = before.find(thread);
      const double here = delay - (was == before.end() ? 0 : was->second);
      sum += std::max(0.0, here - kUsualWait * seconds);
    }
    return sum;
  }

  bool verify(Contestant& c, const Stretch& stretch) {
    const std::vector<int>& slots = stretch.slots;
    const auto wrong = [&](const std::string& what) {
      c.fail(Fault::integrity, fmt::format("a timed call went wrong: {}", what));
      return false;
    };
    std::vector<int> seen;
    for (int i = 0; i < kVerifiedSlots; ++i) seen.push_back(slots[draws_() % slots.size()]);
    for (std::size_t i = 0; i < seen.size(); ++i) {
      if (std::find(seen.begin(), seen.begin() + static_cast<std::ptrdiff_t>(i), seen[i]) !=
          seen.begin() + static_cast<std::ptrdiff_t>(i))
        continue;
      const int slot = seen[i];
      const std::vector<std::byte> output = ring_.read_output(slot);
      if (i > 0) {
        if (const auto name = unwritten(output))
          return wrong(fmt::format("elements of {} were not written", *name));
        continue;
      }
      const Inputs& inputs = ring_.inputs(slot);
      if (const auto changed = ring_.changed_input(slot, inputs)) return wrong(*changed);
      if (!c.timed.judge) {
        if (const auto name = unwritten(output))
          return wrong(fmt::format("elements of {} were not written", *name));
        continue;
      }
      ++c.check.judged;
      if (const auto why = c.timed.judge({.content = ring_.content(slot),
                                          .inputs = inputs,
                                          .output = output,
                                          .draw = draws_(),
                                          .timed = true,
                                          .seconds = stretch.seconds}))
        return wrong(*why);
    }
    return true;
  }

  /// Tiles that an array mask hides may be skipped, which no count of pairs tells.
  double floor() const {
    if (ring_.problem().array_mask.kind != MaskKind::none) return 0;
    return speed_of_light(ring_.work(), out_.peak, options_.mode);
  }

  /// An output that holds poison; one whose layout has gaps is not looked at.
  std::optional<std::string> unwritten(std::span<const std::byte> outputs) const {
    if (!is_dense(ring_.problem())) return std::nullopt;  // rows of no sequence stay as they were
    for (const Operand& operand : ring_.operands()) {
      if (operand.role != Role::output) continue;
      const auto output = outputs.first(static_cast<std::size_t>(operand.bytes));
      outputs = outputs.subspan(output.size());
      auto dense = static_cast<std::int64_t>(element_bytes(operand));
      for (const std::int64_t extent : operand.shape) dense *= extent;
      if (operand.bytes == dense && holds_poison(output, element_bytes(operand)))
        return shown_name(operand);
    }
    return std::nullopt;
  }

  /// What a side used of the machine beside what it was timed for, and what it may use.
  void account() {
    const double budget = device_.facts().multiprocessors;
    for (std::size_t side = 0; side < contestants_.size(); ++side) {
      Contestant& c = contestants_[side];
      Side& recorded = out_.samples.sides[side];
      const double until_answers = c.cpu_inside - c.cpu_late;
      if (c.wall_inside > 0) recorded.threads_used = until_answers / c.wall_inside;
      if (const auto now = c.timed.subject->private_bytes();
          now && c.bytes_loaded && c.bytes_warm) {
        recorded.held_bytes = std::max<std::int64_t>(0, *now - *c.bytes_loaded);
        recorded.grown_bytes = std::max<std::int64_t>(0, *now - *c.bytes_warm);
      }
      recorded.cpu_between_seconds = c.cpu_between;
      if (!c.check.failure.empty() || !c.timed.subject->elsewhere()) continue;
      if (const auto touched = c.timed.subject->touched()) {
        c.fail(Fault::integrity, *touched);
      } else if (c.cpu_stolen > kStolenShare * c.cpu_inside + kStolenSeconds) {
        c.fail(Fault::integrity,
               fmt::format("computed {:.3f} s while it was stopped and its next inputs were there, "
                           "beside {:.3f} s in its timed calls",
                           c.cpu_stolen, c.cpu_inside));
      } else if (c.cpu_late > kLateShare * c.cpu_inside + kLateSeconds) {
        c.fail(
            Fault::integrity,
            fmt::format("computed {:.3f} s from its answers until it was stopped, beside {:.3f} s "
                        "in its timed calls: what it does belongs before the answer",
                        c.cpu_late, until_answers));
      } else if (c.cpu_between > kIdleShare * c.cpu_inside + kIdleSeconds) {
        c.fail(Fault::integrity,
               fmt::format("computed {:.2f} s between its timed calls, beside {:.2f} s in them, "
                           "which slows the other side: let its threads sleep when a call returns",
                           c.cpu_between, c.cpu_inside));
      } else if (budget > 0 &&
                 until_answers > (1 + kMoreThreads) * budget * c.wall_inside + kMoreThreadSeconds) {
        c.fail(Fault::integrity,
               fmt::format("used {:.2f} threads in its timed calls, where both sides have {:.0f} "
                           "(GREENFAST_THREADS)",
                           recorded.threads_used, budget));
      }
    }
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
        if (contestants_[side].timed_on()) order.push_back(side);
      }
      if (order.empty()) break;
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_() % i]);
      Block block;
      block.process = options_.process;
      // There and back: what drifts linearly within the block cancels.
      const std::size_t n = order.size();
      for (std::size_t i = 0; i < 2 * n; ++i) {
        const std::size_t side = order[i < n ? i : 2 * n - 1 - i];
        if (!contestants_[side].timed_on()) continue;
        at_work(static_cast<int>(side));
        take(side, block);
        at_work(-1);
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
      if (!contestants_[side].timed_on()) continue;
      if (contestants_.size() == 1) {
        const Summary s = summarize(out_.samples, 0, quick);
        if (!(half(s.ci_lo, s.p50, s.ci_hi) <= options_.target_halfwidth)) return false;
      } else if (side != 0 && contestants_[0].timed_on()) {
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
      check.floor_seconds = floor();
      const Summary times = summarize(out_.samples, static_cast<int>(side), {.resamples = 0});
      if (times.n == 0 || times.p50 >= check.floor_seconds) continue;
      // A verdict that calls somebody impossible gets a second look at the ceilings first.
      for (int i = 0; again && i < 3; ++i) {
        const Peak peak = device_.peak(ring_.problem().dtype);
        out_.peak.flops = std::max(out_.peak.flops, peak.flops);
        out_.peak.bytes_per_second = std::max(out_.peak.bytes_per_second, peak.bytes_per_second);
      }
      again = false;
      check.floor_seconds = floor();
      check.impossible = times.p50 < check.floor_seconds;
    }
  }

  Device& device_;
  Ring& ring_;
  const MeasureOptions& options_;
  std::mt19937_64 random_;  // of the order: the seed's
  std::uint64_t drawn_;     // nobody's before
  Draws draws_;             // of signs, slots and rows
  std::vector<Contestant> contestants_;
  std::map<int, double> cpu_at_end_;  // by process, when its last timed call ended
  Measurement out_;
  int cursor_ = 0;
  double tick_ = 0;  // seconds that a sample can be off by
  std::string neighbour_;
  Clock::time_point start_;
};

/// What no kernel can leave out, as far as operands of that kind count beside the others.
bool must_be_read(OperandId id, bool all_keys) {
  switch (id) {
    case OperandId::q:
      return true;
    case OperandId::k:
    case OperandId::v:
      return all_keys;
    case OperandId::o:  // written: it may stay in a cache
    case OperandId::lse:
    case OperandId::q_scale:  // a few bytes
    case OperandId::k_scale:
    case OperandId::v_scale:
    case OperandId::cu_q:
    case OperandId::cu_kv:
    case OperandId::used_q:
    case OperandId::used_kv:
    case OperandId::kv_start:
    case OperandId::kv_index:
    case OperandId::page_table:
    case OperandId::sinks:
    case OperandId::mask:
    case OperandId::slopes:
      break;
  }
  return false;
}

}  // namespace

double flop_count(const Problem& problem) {
  return 2.0 * static_cast<double>(visible_pairs(problem)) *
         static_cast<double>(problem.head_dim + value_dim(problem));
}

double byte_count(const Problem& p) {
  if (!is_dense(p)) return 0;
  // Under a mask some keys may be seen by nobody; which ones is not worth an exact count for a
  // lower bound.
  const bool all_keys = (p.mask.is_none() || (p.mask.left < 0 && p.seq_q >= p.seq_kv)) &&
                        p.chunk == 0 && p.array_mask.kind == MaskKind::none;
  double total = 0;
  for (const Operand& operand : operands_of(p)) {
    if (!must_be_read(operand.id, all_keys)) continue;
    // A broadcast tensor is read once however often it is used.
    auto dense = static_cast<double>(element_bytes(operand));
    for (const std::int64_t extent : operand.shape) dense *= static_cast<double>(extent);
    total += std::min(dense, static_cast<double>(operand.bytes));
  }
  return total;
}

CallWork work_of(const Case& c, const Inputs& inputs) {
  const Problem& p = c.problem;
  if (is_dense(p)) return {flop_count(p), byte_count(p)};
  const Placement placement(p, index_arrays(inputs));
  const auto per_pair = 2.0 * static_cast<double>(p.head_dim + value_dim(p));
  CallWork work{per_pair * placement.pairs(), 0};
  const auto element = static_cast<double>(size_of(p.dtype));
  const bool all_keys = p.mask.is_none() && p.chunk == 0 && p.array_mask.kind == MaskKind::none;
  // What sequences share, a head or a row of the cache, is read once at least.
  const bool shared = p.k.stride[1] == 0 || p.v.stride[1] == 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence& own = placement.sequence(b);
    if (own.start < own.keys)
      work.bytes += element * static_cast<double>(p.heads_q * own.rows * p.head_dim);
    if (all_keys && own.rows > 0 && !shared)
      work.bytes += element * static_cast<double>(p.heads_kv * (own.keys - own.start) *
                                                  (p.head_dim + value_dim(p)));
  }
  return work;
}

double speed_of_light(const CallWork& work, const Peak& peak, CacheState mode) {
  double seconds = peak.flops > 0 ? work.flops / peak.flops : 0;
  if (mode == CacheState::cold && peak.bytes_per_second > 0)
    seconds = std::max(seconds, work.bytes / peak.bytes_per_second);
  return 0.95 * seconds;
}

double speed_of_light(const Problem& problem, const Peak& peak, CacheState mode) {
  // How much there is to do is not known without the arrays.
  if (!is_dense(problem) || problem.array_mask.kind != MaskKind::none) return 0;
  return speed_of_light(CallWork{flop_count(problem), byte_count(problem)}, peak, mode);
}

Result<Measurement> measure(Device& device, Ring& ring, std::span<const Timed> contestants,
                            const MeasureOptions& options) {
  if (contestants.empty()) {
    return Status(StatusCode::invalid_argument, "nothing to time: no subject was given");
  }
  return Clocked(device, ring, contestants, options).run();
}

}  // namespace greenfast::workbench
