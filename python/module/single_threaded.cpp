// glibc 2.32's flag, which libstdc++ reads to leave atomic operations out. Older ones have none, and
// threads are what this module has: never single.
extern "C" {
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
}
