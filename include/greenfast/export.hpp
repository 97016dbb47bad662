// Visibility of the shared library's symbols; everything else is hidden.
#pragma once

#if defined(_WIN32)
#error "greenfast: Windows is not supported"
#elif defined(GREENFAST_STATIC)
#define GREENFAST_API
#else
#define GREENFAST_API __attribute__((visibility("default")))
#endif
