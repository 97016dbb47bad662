// What a fuzz target asserts: unlike assert it stays in every build, and libFuzzer reports it as a
// crash with its input.
#pragma once

#include <cstdio>
#include <cstdlib>

#define GREENFAST_EXPECT(condition)                                                 \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                 \
    }                                                                               \
  } while (false)
