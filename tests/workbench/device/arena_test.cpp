// Memory that a plugin's process shares. Opened in a child, because the arena stays for the life of
// its process and the CPU device then takes everything from it.
#include "workbench/device/arena.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>
#include <string>

#include "workbench/base/isolate.hpp"
#include "workbench/device/device.hpp"

namespace greenfast::workbench::test {
namespace {

void need(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

void in_a_child(const std::function<void(SharedArena&)>& body) {
  const auto end = run_in_child(
      [&](Activity&) {
        need(SharedArena::active() == nullptr, "open before it was opened");
        need(SharedArena::open(), "the system refuses");
        body(*SharedArena::active());
      },
      60);
  ASSERT_TRUE(end) << end.status().message();
  EXPECT_EQ(end->how, ChildEnd::How::finished) << end->detail;
}

TEST(SharedArena, PagesComeBackAndGrowTogether) {
  in_a_child([](SharedArena& arena) {
    void *a = arena.allocate(1), *b = arena.allocate(4096), *c = arena.allocate(4097);
    need(arena.offset(a) == 0 && arena.offset(b) == 4096 && arena.offset(c) == 8192, "offsets");
    need(arena.owns(c) && !arena.owns(&arena), "owns");
    need(arena.used() == 16384, "used");
    std::memset(b, 7, 4096);
    arena.release(b);
    need(arena.allocate(8192) != b, "a hole of one page does not take two");
    arena.release(a);
    void* again = arena.allocate(8192);
    need(again == a, "neighbours that are free grow together");
    need(static_cast<const char*>(again)[4096] == 0, "pages come back empty");
    need(arena.allocate(arena.bytes()) == nullptr, "more than there is");
    arena.release(static_cast<char*>(again) + 1);  // no address it gave
    need(arena.allocate(1) != again, "released by a strange address");
  });
}

TEST(SharedArena, AnotherProcessSeesWhatIsWrittenThere) {
  in_a_child([](SharedArena& arena) {
    auto* shared = static_cast<volatile int*>(arena.allocate(sizeof(int)));
    *shared = 1;
    const auto end = run_in_child([&](Activity&) { *shared = 42; }, 60);
    need(end && end->how == ChildEnd::How::finished, "the writer");
    need(*shared == 42, "not shared");
  });
}

TEST(SharedArena, TheCpuDeviceAllocatesThere) {
  in_a_child([](SharedArena& arena) {
    auto device = open_device(DeviceKind::cpu);
    need(device.ok(), "no device");
    void* memory = (*device)->allocate(100);
    need(arena.owns(memory), "from elsewhere");
    const auto offset = arena.offset(memory);
    (*device)->release(memory);
    need(arena.offset((*device)->allocate(100)) == offset, "not given back");
  });
}

}  // namespace
}  // namespace greenfast::workbench::test
