// Functions that host and device share, in files that a host compiler reads too.
#pragma once

#if defined(__CUDACC__)
#define GREENFAST_HOST_DEVICE __host__ __device__
// Before a loop that must not be unrolled, because registers are short.
#define GREENFAST_ROLLED _Pragma("unroll 1")
#else
#define GREENFAST_HOST_DEVICE
#define GREENFAST_ROLLED
#endif
