// A machine whose true times are known: clock drift, jitter with memory, a coarse timer, outliers.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>

#include "workbench/fast/samples.hpp"

namespace greenfast::workbench::test {

/// What disturbs a measurement. Defaults: the model of docs/measuring.md.
struct Weather {
  double base_seconds = 656e-6;
  double jitter = 0.004;        ///< relative, of each sample, independent
  double wander = 0.02;         ///< relative, stationary spread of the clock's AR(1) walk
  double wander_memory = 0.99;  ///< of one sample to the next
  double drift = 0.0;           ///< relative, linear over the whole run
  double tick = 1.024e-6;
  double outlier_rate = 0.0;  ///< share of samples that take outlier_factor times as long
  double outlier_factor = 1.5;
  /// Other work that comes and goes: share of the time, samples that one burst lasts on average, and
  /// the exponential tail of what it adds to each of them, relative.
  double burst_rate = 0.0, burst_length = 12, burst_tail = 0.3;
};

class SimulatedMachine {
 public:
  SimulatedMachine(const Weather& weather, std::uint64_t seed, int expected_samples)
      : weather_(weather), random_(seed), expected_(expected_samples) {
    wander_ = weather_.wander * normal_(random_);
  }

  /// Seconds that the timer shows for one call whose undisturbed time is `speed` times the base.
  double sample(double speed, int batch = 1) {
    const double memory = weather_.wander_memory;
    wander_ =
        memory * wander_ + std::sqrt(1 - memory * memory) * weather_.wander * normal_(random_);
    const double drift = weather_.drift * static_cast<double>(taken_++) / expected_;
    double seconds = weather_.base_seconds * speed * batch *
                     std::exp(wander_ + drift + weather_.jitter * normal_(random_));
    if (uniform_(random_) < weather_.outlier_rate) seconds *= weather_.outlier_factor;
    if (weather_.burst_rate > 0) {
      const double leave = 1 / weather_.burst_length,
                   enter = leave * weather_.burst_rate / (1 - weather_.burst_rate);
      burst_ = uniform_(random_) < (burst_ ? 1 - leave : enter);
      if (burst_) seconds *= 1 - weather_.burst_tail * std::log(1 - uniform_(random_));
    }
    // Both readings fall on the timer's grid, at a random phase.
    const double begin = uniform_(random_) * weather_.tick;
    const double ticks = std::floor((begin + seconds) / weather_.tick);
    return std::max(1.0, ticks) * weather_.tick / batch;
  }

  Samples paired(double speedup, int blocks, std::uint64_t order_seed, int batch = 1) {
    Samples samples = blank(batch);
    std::mt19937_64 order(order_seed);
    for (int i = 0; i < blocks; ++i) {
      Block block;
      const int first = static_cast<int>(order() & 1);
      for (const int side : {first, 1 - first, 1 - first, first}) {
        block.samples.push_back({side, sample(side == 0 ? speedup : 1.0, batch)});
      }
      samples.blocks.push_back(block);
    }
    return samples;
  }

  /// The same from several processes, each on a machine of its own, whose ratios differ by `spread`.
  static Samples processes(const Weather& weather, double speedup, int processes, int blocks,
                           double spread, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal{0.0, 1.0};
    Samples all;
    for (int process = 0; process < processes; ++process) {
      SimulatedMachine machine(weather, random(), 4 * blocks);
      Samples one = machine.paired(speedup * std::exp(spread * normal(random)), blocks, random());
      for (Block& block : one.blocks) block.process = process;
      if (process == 0)
        all = one;
      else
        all.blocks.insert(all.blocks.end(), one.blocks.begin(), one.blocks.end());
    }
    return all;
  }

  /// All samples of one side, as a run of its own: two in a row make a block.
  Samples alone(double speed, int blocks, int batch = 1) {
    Samples samples = blank(batch);
    samples.sides.resize(1);
    for (int i = 0; i < blocks; ++i) {
      Block block;
      for (int k = 0; k < 2; ++k) block.samples.push_back({0, sample(speed, batch)});
      samples.blocks.push_back(block);
    }
    return samples;
  }

 private:
  Samples blank(int batch) const {
    Samples samples;
    samples.name = "simulated";
    samples.problem = "simulated";
    samples.timer = "simulated";
    samples.device_name = "simulated";
    samples.tick_seconds = weather_.tick;
    for (const char* id : {"baseline", "candidate"}) {
      Side side;
      side.id = id;
      side.batch = batch;
      samples.sides.push_back(side);
    }
    return samples;
  }

  Weather weather_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_{0.0, 1.0};
  std::uniform_real_distribution<double> uniform_{0.0, 1.0};
  double wander_ = 0;
  bool burst_ = false;
  int taken_ = 0;
  int expected_;
};

}  // namespace greenfast::workbench::test
