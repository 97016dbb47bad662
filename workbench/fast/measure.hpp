// FAST's raw material: times subjects side by side, in random order, in ticks long enough for the
// timer, on inputs that are as cold or hot as asked, and checks off the clock that what was timed
// did the work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "workbench/base/fault.hpp"
#include "workbench/cases/operand_bytes.hpp"
#include "workbench/device/device.hpp"
#include "workbench/fast/samples.hpp"
#include "workbench/fast/statistics.hpp"
#include "workbench/subjects/subject.hpp"

namespace greenfast::workbench {

/// FLOP of a call, and the bytes of inputs that it cannot avoid reading.
struct CallWork {
  double flops = 0, bytes = 0;
};
/// Where sequences have lengths of their own: with those of the case.
CallWork work_of(const Case& c, const Inputs& inputs);

/// Device buffers for several calls of one problem, used in turn. With enough of them a call never
/// finds its inputs in a cache. Contents are generate() of the case with seeds seed, seed + 1, ...
/// ; after `distinct` of them they repeat in fresh memory. renew() then makes a slot's bits others
/// than any that were there before.
class Ring {
 public:
  struct Options {
    /// Of all slots together; 0: twice the device's outermost cache, or where the device can evict
    /// single buffers as much as a sample's calls go through.
    std::size_t min_bytes = 0;
    int min_slots = 2;
    /// 0: 4096 on a CPU, where a sample has no more calls than there are slots; 512 on a GPU.
    int max_slots = 0;
    int distinct = 3;
    /// Source of the inputs; empty: workload's generate.
    std::function<Inputs(const Case&)> generate{};
  };
  /// Slots for cold timing of a case; StatusCode::out_of_memory says how much was asked for.
  static Result<std::unique_ptr<Ring>> make(Device& device, const Case& first,
                                            const Options& options);
  static Result<std::unique_ptr<Ring>> make(Device& device, const Case& first) {
    return make(device, first, Options{});
  }
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  int slots() const noexcept { return static_cast<int>(slots_.size()); }
  std::size_t slot_bytes() const noexcept;
  const Tensors& tensors(int slot) const { return slots_[static_cast<std::size_t>(slot)]; }
  std::span<const Tensors> all_tensors() const { return slots_; }
  /// The case that a slot's inputs were generated from.
  const Case& content(int slot) const;
  int distinct() const noexcept { return static_cast<int>(cases_.size()); }
  /// The operands that the problem has, in the order of OperandId.
  std::span<const Operand> operands() const noexcept { return operands_; }
  /// Of a call, on average over the contents.
  CallWork work() const;
  const Problem& problem() const noexcept { return cases_.front().problem; }
  const std::string& name() const noexcept { return cases_.front().name; }

  /// Draws the signs of a slot's inputs anew: every bit of its answer changes, in place and on the
  /// device. On a CPU they are written from what they were generated as, so that whoever changed
  /// them before leaves nothing to who is timed next. Inputs from files keep their scores: of Q and K the same channels change their sign,
  /// of V others.
  void renew(int slot, std::uint64_t draw);
  /// What a slot's inputs are now, on the host. Valid until the next call.
  const Inputs& inputs(int slot);
  /// Which of a slot's inputs are not what inputs() says, and from which byte on.
  std::optional<std::string> changed_input(int slot, const Inputs& expected);

  /// Overwrites a slot's output with a pattern that no right answer has (NaNs).
  void poison(int slot);
  /// Takes a slot's buffers out of the caches; false where the device cannot.
  bool evict(int slot);
  /// A slot's outputs, one behind the other in the order of operands().
  std::vector<std::byte> read_output(int slot);

 private:
  explicit Ring(Device& device) : device_(device) {}

  void* data(int slot, const Operand& operand) const;
  /// Nothing for an operand whose values stay.
  std::optional<SignFlips> flips(OperandId id, std::uint64_t from, std::uint64_t to) const;

  Device& device_;
  std::vector<Case> cases_;
  std::vector<Inputs> contents_;  // beside cases_
  std::vector<Tensors> slots_;
  std::vector<std::uint64_t> draws_;  // beside slots_
  std::vector<void*> memory_;
  std::vector<Operand> operands_;
  Inputs now_;
};

/// An output and the inputs that it must be the answer to.
struct TimedOutput {
  const Case& content;
  const Inputs& inputs;
  std::span<const std::byte> output;  ///< as Ring::read_output has it: O, then LSE
  std::uint64_t draw = 0;             ///< for choices that the subject must not foresee
  bool timed = false;                 ///< false: an output from before timing
  double seconds = 0;                 ///< of the sample that it is one of, if it was timed
};
/// What is wrong with an output; nothing when it is right. TimedJudge (timed_judge.hpp) asks the
/// oracle.
using Judge = std::function<std::optional<std::string>(const TimedOutput&)>;

/// One contestant. All of a measurement share one ring, hence one problem.
struct Timed {
  Subject* subject = nullptr;
  std::string label{};  ///< the side's id; empty: the subject's. An A/A run times one subject under
                        ///< two labels
  Judge judge{};        ///< empty: outputs must be written, whatever they hold
};

struct MeasureOptions {
  int iters = 100;         ///< samples of each side, at most; two a block
  int warmup = 10;         ///< untimed calls of each side first, within a tenth of the budget
  std::uint64_t seed = 1;  ///< of the order
  std::uint64_t draw = 0;  ///< of the inputs' signs and of what is judged; 0: the system's entropy
  CacheState mode = CacheState::cold;
  double budget_seconds = 10;
  /// Stop as soon as the p50 interval of every side's ratio to the first (of p50 itself for a
  /// single side) is at most this wide to each side, relative. 0: take all iters.
  double target_halfwidth = 0;
  int min_blocks = 6;             ///< taken whatever the budget says
  int min_ticks = 200;            ///< a sample is at least this many ticks long
  double round_seconds = 0.3;     ///< blocks between two probes of the device's speed
  double pulse_tolerance = 0.05;  ///< a block whose probe or clock is this much below the median is
                                  ///< left out
  bool verify = true;  ///< judge the outputs of timed calls, and of those that choose the batch
  /// Each call stands behind the device's neighbour, and a sample is the stretch less the neighbours
  /// alone, which are timed right behind it.
  bool between = false;
  int process = 0;  ///< recorded with every block
  std::function<void(int blocks, double seconds)> progress{};
  /// Whose calls come now, by place among the contestants; -1: nobody's. Whoever watches this process
  /// from outside can then say whose crash or hang it was.
  std::function<void(int side)> at_work{};
};

/// What was seen of one side besides its times.
struct SideCheck {
  std::string failure;  ///< in words; empty when there is none
  Fault fault = Fault::none;
  /// Behind a neighbour: why its differences are no times, and it has no samples; empty when they are.
  std::string noise;
  double floor_seconds =
      0;  ///< no honest call is faster: 0.95 * max(flops / peak, bytes / bandwidth)
  bool impossible = false;  ///< p50 is below the floor, confirmed by a second look at the ceilings
  std::vector<std::byte> output;  ///< on the ring's first contents, before signs were drawn
  int judged = 0;                 ///< timed outputs that were held to the oracle
};

struct Measurement {
  Samples samples;
  Peak peak;  ///< the best seen while measuring
  std::vector<SideCheck> checks;
  std::string stopped;  ///< "width", "iters", "budget": why no more samples were taken
};

/// Times every contestant on the ring's problem. Contestants must accept the problem. Fails when
/// the workspace cannot be had or the device reports an error that no side owns.
Result<Measurement> measure(Device& device, Ring& ring, std::span<const Timed> contestants,
                            const MeasureOptions& options);

/// FLOP of one call, and the bytes of inputs it cannot avoid reading. Where arrays say how long
/// sequences are, the FLOP are those of the longest that the problem allows, and no byte is certain.
double flop_count(const Problem& problem);
double byte_count(const Problem& problem);
/// Seconds below which a time is IMPOSSIBLE. A hot call may find its inputs in a cache, so only
/// arithmetic counts.
double speed_of_light(const Problem& problem, const Peak& peak, CacheState mode);
double speed_of_light(const CallWork& work, const Peak& peak, CacheState mode);

}  // namespace greenfast::workbench
