"""Benchmarks beside other engines, and the C ABI through ctypes that they load builds of the library with."""
