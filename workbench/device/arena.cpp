#include "workbench/device/arena.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include <greenfast/arithmetic.hpp>

namespace greenfast::workbench {
namespace {

constexpr std::size_t kPage = 4096;

std::unique_ptr<SharedArena>& instance() {
  static std::unique_ptr<SharedArena> arena;
  return arena;
}

}  // namespace

SharedArena* SharedArena::active() { return instance().get(); }

bool SharedArena::open() {
  if (active() != nullptr) return true;
  const int made = memfd_create("greenfast-plugin", MFD_CLOEXEC);
  if (made < 0) return false;
  // Above the numbers that the plugin's process gets them under.
  const int descriptor = fcntl(made, F_DUPFD_CLOEXEC, 16);
  close(made);
  if (descriptor < 0) return false;
  auto bytes = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
               static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (; bytes >= std::size_t{1} << 28; bytes /= 2) {
    bytes = bytes / kPage * kPage;
    if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) continue;
    void* base =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
    if (base == MAP_FAILED) continue;
    instance().reset(new SharedArena(descriptor, static_cast<std::byte*>(base), bytes));
    return true;
  }
  close(descriptor);
  return false;
}

SharedArena::SharedArena(int descriptor, std::byte* base, std::size_t bytes)
    : descriptor_(descriptor), base_(base), bytes_(bytes) {
  free_[0] = bytes;
}

void* SharedArena::allocate(std::size_t bytes) {
  const std::size_t size = round_up(std::max<std::size_t>(bytes, 1), kPage);
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [offset, room] = *it;
    if (room < size) continue;
    free_.erase(it);
    if (room > size) free_[offset + size] = room - size;
    taken_[offset] = size;
    used_ = std::max(used_, offset + size);
    return base_ + offset;
  }
  return nullptr;
}

void SharedArena::release(void* memory) {
  const auto it = taken_.find(static_cast<std::size_t>(offset(memory)));
  if (it == taken_.end()) return;
  auto [offset, size] = *it;
  taken_.erase(it);
  // The pages go back to the system.
  madvise(base_ + offset, size, MADV_REMOVE);
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + size == next->first) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  free_[offset] = size;
}

std::int64_t SharedArena::bytes_beyond_use() const {
  for (const auto& [offset, size] : free_)
    if (offset < used_) madvise(base_ + offset, std::min(size, used_ - offset), MADV_REMOVE);
  std::int64_t sum = 0;
  for (auto at = static_cast<off_t>(used_);;) {
    const off_t data = lseek(descriptor_, at, SEEK_DATA);
    const off_t hole = data < 0 ? data : lseek(descriptor_, data, SEEK_HOLE);
    if (hole <= data) return sum;  // none is left
    sum += hole - data;
    at = hole;
  }
}

bool SharedArena::owns(const void* memory) const {
  const auto* byte = static_cast<const std::byte*>(memory);
  return byte >= base_ && byte < base_ + bytes_;
}

std::uint64_t SharedArena::offset(const void* memory) const {
  return static_cast<std::uint64_t>(static_cast<const std::byte*>(memory) - base_);
}

}  // namespace greenfast::workbench
