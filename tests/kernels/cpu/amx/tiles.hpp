// The tile instructions of AMX in software, for the calling thread: what stands in for them where a
// kernel's own source is compiled once more to run on a processor without tiles.
#pragma once

namespace greenfast::test::tiles {

/// Each ends the program with the reason where the processor would raise an exception.
void load_config(const void* config);
void store_config(void* config);
void release();
void zero(int tile);
void load(int tile, const void* from, long stride);
void store(int tile, void* to, long stride);
/// tdpbf16ps.
void dot(int sums, int a, int b);

}  // namespace greenfast::test::tiles
