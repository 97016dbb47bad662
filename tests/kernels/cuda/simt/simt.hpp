// CUDA kernels on a CPU, for tests: the threads of a block are fibers, and what a warp, a block or a
// cluster does together is a place where they wait for each other. Kernels are compiled as they
// stand; the headers beside this one stand in for src/kernels/cuda/device and for CUDA's own.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

// ---- what the kernels' sources take for granted ----
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
/// Four bytes of eight, those of x before those of y, each by a hexadecimal digit of `pick`.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned pick) {
  const std::uint64_t both = std::uint64_t{y} << 32 | x;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i)
    out |= static_cast<unsigned>(both >> 8 * (pick >> 4 * i & 7) & 0xff) << 8 * i;
  return out;
}
/// Of two signed halfwords each.
inline unsigned __vmaxs2(unsigned x, unsigned y) {
  const auto larger = [](unsigned a, unsigned b) {
    return static_cast<std::int16_t>(a) < static_cast<std::int16_t>(b) ? b & 0xffff : a & 0xffff;
  };
  return larger(x, y) | larger(x >> 16, y >> 16) << 16;
}
inline unsigned __vimax3_s16x2(unsigned x, unsigned y, unsigned z) {
  return __vmaxs2(__vmaxs2(x, y), z);
}
/// Where the lowest bit is that is set, from 1 on; 0: none is.
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline float __log2f(float x) { return std::log2(x); }
using std::fabs, std::floor, std::ceil;
template <class A>
A min(A a, A b) {
  return b < a ? b : a;
}
template <class A>
A max(A a, A b) {
  return a < b ? b : a;
}
template <class A>
A __ldg(const A* from) {
  return *from;
}
using std::isnan;

namespace simt {

struct Dim {
  unsigned x = 1, y = 1, z = 1;
};

/// When copies of cp.async arrive: as late as they may, at once, or half of those on their way at each barrier
/// of the block. A kernel must stand all three.
enum class Copies { late, early, between };

struct Launch {
  Dim grid;
  unsigned threads = 1, cluster = 1;
  Copies copies = Copies::late;
  unsigned char* shared = nullptr;  // the kernel's shared memory, of the block that runs
  std::size_t shared_bytes = 0;
  /// A warp goes on as long as it can before the next one runs; otherwise all threads go in turn.
  bool warp_by_warp = false;
};
/// Runs the kernel for all blocks, cluster by cluster. Throws std::runtime_error when threads wait
/// for what nobody does.
void run(const Launch& launch, const std::function<void()>& kernel);

/// Memory that copies may read; a copy from elsewhere throws.
void allow(const void* data, std::size_t bytes);
void forget_allowed();

// ---- what the stand-ins are made of ----
unsigned lane();
std::uint32_t shared_address(const void* pointer);
unsigned char* at(std::uint32_t shared);
/// Every lane gives 32 bytes and sees those of all 32.
struct Given {
  std::uint32_t word[8] = {};
};
const Given* exchange(const Given& mine);
void sync_block();
/// Of so many threads of the block; whether all of them said yes.
bool sync_named(int barrier, int threads, bool yes);
/// 16 bytes, of which so many are copied and the rest are zeros.
void copy_16(std::uint32_t shared, const void* global, int kept);
void commit();
void wait_copies(int pending);
void barrier_init(std::uint32_t barrier, int arrivals);
void barrier_arrive_expect(std::uint32_t barrier, int bytes);
void barrier_wait(std::uint32_t barrier, std::uint32_t parity);
void cluster_arrive();
void cluster_wait();
std::uint32_t in_block(std::uint32_t shared, std::uint32_t rank);
void send_16(std::uint32_t to, uint4 value, std::uint32_t barrier);

}  // namespace simt

extern simt::Dim threadIdx, blockIdx, gridDim;

inline void __syncthreads() { simt::sync_block(); }
inline void __syncwarp() { simt::exchange({}); }
template <class A>
A simt_shuffle(A value, unsigned from) {
  static_assert(sizeof(A) == 4);
  simt::Given mine;
  std::memcpy(mine.word, &value, 4);
  A out;
  std::memcpy(&out, simt::exchange(mine)[from].word, 4);
  return out;
}
template <class A>
A __shfl_sync(unsigned, A value, int from) {
  return simt_shuffle(value, static_cast<unsigned>(from) % 32);
}
template <class A>
A __shfl_xor_sync(unsigned, A value, int lanes) {
  return simt_shuffle(value, simt::lane() ^ static_cast<unsigned>(lanes));
}
template <class A>
A __shfl_up_sync(unsigned, A value, int lanes) {
  const int from = static_cast<int>(simt::lane()) - lanes;
  return simt_shuffle(value, from < 0 ? simt::lane() : static_cast<unsigned>(from));
}
inline bool __any_sync(unsigned, bool value) {
  simt::Given mine;
  mine.word[0] = value;
  const simt::Given* all = simt::exchange(mine);
  for (int i = 0; i < 32; ++i)
    if (all[i].word[0] != 0) return true;
  return false;
}
inline bool __all_sync(unsigned warp, bool value) { return !__any_sync(warp, !value); }
