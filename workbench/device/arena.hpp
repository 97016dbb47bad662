// Memory that a plugin's process shares with this one: where the CPU device's tensors lie while CPU
// plugins are loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace greenfast::workbench {

class SharedArena {
 public:
  /// The arena of this process; null until open() succeeded.
  static SharedArena* active();
  /// Makes it, sparse and as large as the machine's memory. False when the system refuses.
  static bool open();

  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  /// Page-aligned; null when exhausted.
  void* allocate(std::size_t bytes);
  void release(void* memory);
  bool owns(const void* memory) const;
  std::uint64_t offset(const void* memory) const;

  int descriptor() const { return descriptor_; }
  std::size_t bytes() const { return bytes_; }
  /// Up to where it has been used.
  std::size_t used() const { return used_; }
  /// What somebody has written behind that, where no tensor ever was. Free parts before it lose
  /// whatever they hold.
  std::int64_t bytes_beyond_use() const;

 private:
  SharedArena(int descriptor, std::byte* base, std::size_t bytes);

  int descriptor_;
  std::byte* base_;
  std::size_t bytes_, used_ = 0;
  std::map<std::size_t, std::size_t> free_, taken_;  // offset -> bytes
};

}  // namespace greenfast::workbench
