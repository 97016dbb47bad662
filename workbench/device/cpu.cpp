// The CPU as the workbench sees it: memory of its own, steady_clock, caches flushed by writing past
// them, and ceilings measured by the loops of cpu_peaks.cpp. Shares no code with the library's CPU
// backend.
#include "workbench/device/cpu.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <new>
#include <sstream>
#include <string_view>
#include <utility>

#include <greenfast/arithmetic.hpp>

#include "workbench/base/seconds_since.hpp"
#include "workbench/device/arena.hpp"
#include "workbench/device/cpu_peaks.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace greenfast::workbench {
namespace {

using Clock = std::chrono::steady_clock;
// ---- caches
// -------------------------------------------------------------------------------------------------------

/// Bytes of the outermost cache, from sysfs or sysconf; 32 MiB where neither tells.
std::size_t outermost_cache() {
  std::size_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/size", index));
    std::size_t value = 0;
    char unit = 0;
    if (!(file >> value)) continue;
    file >> unit;
    largest = std::max(largest, value << (unit == 'M' ? 20 : unit == 'K' ? 10 : 0));
  }
#if defined(_SC_LEVEL3_CACHE_SIZE)
  if (largest == 0) {
    largest = static_cast<std::size_t>(std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE)));
  }
#endif
  return largest != 0 ? largest : std::size_t{32} << 20;
}

#if defined(__x86_64__)
bool has_clflushopt() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 23 & 1u) != 0;
}

/// Lines leave the caches beside each other, not one after the other.
__attribute__((target("clflushopt"))) void evict_unordered(const unsigned char* begin,
                                                           std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 64)
    _mm_clflushopt(const_cast<unsigned char*>(begin) + at);
}
#endif

/// Zeros in pages of 2 MB, where the system has them: of 4 KB a buffer of twice a server's cache, a gigabyte, takes half a
/// second to get, and longer to read.
class HugePages {
 public:
  HugePages() = default;
  explicit HugePages(std::size_t bytes)
      : data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
        size_(bytes) {
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    (void)madvise(data_, bytes, MADV_HUGEPAGE);  // a wish
  }
  ~HugePages() {
    if (size_ != 0) munmap(data_, size_);
  }
  HugePages(const HugePages&) = delete;
  HugePages& operator=(HugePages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  unsigned char* data() const { return static_cast<unsigned char*>(data_); }
  std::size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

// ---- other work
// -----------------------------------------------------------------------------------------------------

double seconds_of(const timeval& t) {
  return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
}

/// CPU seconds of this process, and of its children, alive or not.
double own_seconds() {
  double total = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage use{};
    getrusage(who, &use);
    total += seconds_of(use.ru_utime) + seconds_of(use.ru_stime);
  }
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream children(task.path() / "children");
    for (int child = 0; children >> child;) {
      std::ifstream file(fmt::format("/proc/{}/stat", child));
      const std::string text(std::istreambuf_iterator<char>(file), {});
      // The name, in parentheses, may hold blanks; user and system time are the 12th and 13th
      // fields after it.
      std::istringstream fields(text.substr(std::min(text.rfind(')') + 1, text.size())));
      std::string skipped;
      for (int i = 0; i < 11; ++i) fields >> skipped;
      double user = 0, system = 0;
      if (fields >> user >> system)
        total += (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
    }
  }
  return total;
}

/// CPU seconds that these CPUs have computed for anybody, a hypervisor's other guests included;
/// nothing where the kernel does not tell.
std::optional<double> busy_seconds(const std::vector<int>& cpus) {
  std::ifstream file("/proc/stat");
  double ticks = 0;
  std::size_t seen = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name;
    double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, softirq = 0, steal = 0;
    if (!(fields >> name >> user >> nice >> system >> idle >> wait >> irq >> softirq >> steal))
      continue;
    int cpu = -1;  // the line "cpu" alone is the sum of the others
    if (name.starts_with("cpu")) std::from_chars(name.data() + 3, name.data() + name.size(), cpu);
    if (std::find(cpus.begin(), cpus.end(), cpu) == cpus.end()) continue;
    ticks += user + nice + system + irq + softirq + steal;
    ++seen;
  }
  if (seen != cpus.size()) return std::nullopt;
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

/// The shortest step that two readings of the clock can be apart.
double measure_tick() {
  double tick = 1;
  for (int i = 0; i < 2000; ++i) {
    const auto first = Clock::now();
    auto second = Clock::now();
    while (second == first) second = Clock::now();
    tick = std::min(tick, std::chrono::duration<double>(second - first).count());
  }
  return tick;
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(DeviceFacts facts) : facts_(std::move(facts)) {
    cpus_ = allowed_ = own_cpus();
    // As many threads as the library uses, on the first CPUs it may use.
    const auto threads = static_cast<std::size_t>(std::max(1, facts_.multiprocessors));
    if (cpus_.size() > threads) cpus_.resize(threads);
    cache_bytes_ = outermost_cache();
    tick_ = measure_tick();
  }

  DeviceKind kind() const override { return DeviceKind::cpu; }
  const DeviceFacts& facts() const override { return facts_; }

  void* allocate(std::size_t bytes) override {
    // A plugin's process sees the shared memory alone.
    if (SharedArena* arena = SharedArena::active()) return arena->allocate(bytes);
    // Rounded up as aligned_alloc asks, and never 0.
    return std::aligned_alloc(256, round_up<std::size_t>(std::max<std::size_t>(bytes, 1), 256));
  }
  void release(void* memory) override {
    SharedArena* arena = SharedArena::active();
    if (arena != nullptr && arena->owns(memory)) {
      arena->release(memory);
    } else {
      std::free(memory);
    }
  }
  void upload(void* to, const void* from, std::size_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) override { copy(to, from, bytes); }
  void download_on_stream(void* to, const void* from, std::size_t bytes) override {
    copy(to, from, bytes);
  }

  void fill(void* to, std::byte value, std::size_t bytes) override {
    if (bytes != 0) std::memset(to, static_cast<int>(value), bytes);
  }
  void flip_signs(void* data, std::size_t bytes, const SignFlips& flips) override {
    greenfast::workbench::flip_signs(static_cast<std::byte*>(data), bytes, flips);
  }
  bool write_flipped(void* to, const void* from, std::size_t bytes,
                     const SignFlips& flips) override {
    greenfast::workbench::write_flipped(static_cast<std::byte*>(to),
                                        static_cast<const std::byte*>(from), bytes, flips);
    return true;
  }

  void* stream() override { return nullptr; }
  Status synchronize() override { return {}; }

  std::size_t cache_bytes() const override { return cache_bytes_; }
  bool evict([[maybe_unused]] const void* memory, [[maybe_unused]] std::size_t bytes) override {
    constexpr std::size_t kLine = 64;  // the instruction takes out the line that an address lies in
    const auto* begin = static_cast<const unsigned char*>(memory);
#if defined(__x86_64__)
    static const bool unordered = has_clflushopt();
    if (unordered) {
      evict_unordered(begin, bytes);
    } else {
      for (std::size_t at = 0; at < bytes; at += kLine) _mm_clflush(begin + at);
    }
    if (bytes != 0) _mm_clflush(begin + bytes - 1);
    _mm_mfence();
    return true;
#elif defined(__aarch64__)
    for (std::size_t at = 0; at < bytes; at += kLine)
      asm volatile("dc civac, %0" : : "r"(begin + at) : "memory");
    if (bytes != 0) asm volatile("dc civac, %0" : : "r"(begin + bytes - 1) : "memory");
    asm volatile("dsb ish" : : : "memory");
    return true;
#else
    return false;
#endif
  }

  void flush_cache() override {
    // Twice the outermost cache, each thread its part, so that the private caches of every core are
    // evicted too. Read, not written: dirty lines would have to go to memory while a call is timed.
    const bool is_new = flush_.size() == 0;
    if (is_new) flush_ = HugePages(2 * cache_bytes_);
    const std::size_t part = flush_.size() / cpus_.size() / 64 * 64;
    on_each(cpus_, [&](int i) {
      unsigned char* const from = flush_.data() + static_cast<std::size_t>(i) * part;
      if (is_new) std::memset(from, 1, part);  // pages that nobody wrote to are one page of zeros
      keep(read_all(from, part));
    });
  }

  double time(const std::function<void()>& launch, int batch) override {
    const auto begin = Clock::now();
    for (int i = 0; i < batch; ++i) launch();
    return seconds_since(begin);
  }
  double tick() const override { return tick_; }
  std::string timer() const override { return "steady_clock"; }

  Telemetry telemetry() override {
    // The clock that the kernel last set for the first CPU; absent in most virtual machines.
    Telemetry now;
    std::ifstream file(
        fmt::format("/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq", cpus_.front()));
    double khz = 0;
    if (file >> khz) now.sm_mhz = khz * 1e-3;
    return now;
  }

  double pulse(DType dtype) override { return run_probe(best_probe(dtype), cpus_, 0.004); }

  std::optional<double> other_work() override {
    // All that this process may run on, since what it used cannot be told by core.
    const auto busy = busy_seconds(allowed_);
    if (!busy) return std::nullopt;
    return (*busy - own_seconds()) / static_cast<double>(allowed_.size());
  }

  Peak peak(DType dtype) override {
    Peak peak;
    const SpeedProbe probe = best_probe(dtype);
    // Best of five: a ceiling is what the machine can do, not what a neighbour leaves.
    for (int i = 0; i < 5; ++i) peak.flops = std::max(peak.flops, run_probe(probe, cpus_, 0.008));
    peak.bytes_per_second = bandwidth();
    peak.method = fmt::format(
        "{} {} on {} pinned threads; best of a large read and a large copy", probe.isa,
        probe.dtype == DType::bf16 ? "bf16 dot products" : "fp32 multiply-adds", cpus_.size());
    return peak;
  }

 private:
  static std::uint64_t read_all(const unsigned char* from, std::size_t bytes) {
    std::uint64_t sum = 0;
    for (std::size_t offset = 0; offset < bytes; offset += 64) {
      std::uint64_t words[8];
      std::memcpy(words, from + offset, sizeof words);
      for (const std::uint64_t word : words) sum += word;
    }
    return sum;
  }

  static void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }

  double bandwidth() {
    if (flush_.size() == 0) flush_cache();
    const std::size_t part = flush_.size() / cpus_.size() / 128 * 128;
    double best = 0;
    for (int round = 0; round < 2; ++round) {
      std::vector<double> reads(cpus_.size()), copies(cpus_.size());
      on_each(cpus_, [&](int i) {
        unsigned char* base = flush_.data() + static_cast<std::size_t>(i) * part;
        auto begin = Clock::now();
        keep(read_all(base, part));
        reads[static_cast<std::size_t>(i)] = static_cast<double>(part) / seconds_since(begin);
        begin = Clock::now();
        std::memcpy(base, base + part / 2, part / 2);
        copies[static_cast<std::size_t>(i)] = static_cast<double>(part) / seconds_since(begin);
      });
      double read = 0, copied = 0;
      for (const double rate : reads) read += rate;
      for (const double rate : copies) copied += rate;
      best = std::max({best, read, copied});
    }
    return best;
  }

  DeviceFacts facts_;
  std::vector<int> cpus_;     // threads are pinned to
  std::vector<int> allowed_;  // by the affinity mask
  std::size_t cache_bytes_ = 0;
  double tick_ = 0;
  HugePages flush_;
};

}  // namespace

Result<std::unique_ptr<Device>> open_cpu_device() {
  Result<DeviceFacts> facts = device_facts(DeviceKind::cpu);
  if (!facts) return facts.status();
  return std::unique_ptr<Device>(std::make_unique<CpuDevice>(*facts));
}

}  // namespace greenfast::workbench
