// Functions that host and device share, in files that a host compiler reads too.
#pragma once

#if defined(__CUDACC__)
#define GREENFAST_HOST_DEVICE __host__ __device__
#else
#define GREENFAST_HOST_DEVICE
#endif
