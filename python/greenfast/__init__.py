"""Greenfast attention from Python: a thin package over the C ABI."""
