"""vLLM: the attention backend GREENFAST.

    pip install greenfast                                   # where vLLM is: the package's entry point makes the name known
    vllm serve MODEL --attention-backend GREENFAST

Decoder layers, prompts and single tokens mixed in one call over vLLM's pages, sliding windows, softcap, grouped heads, sinks, ALiBi,
encoder-only layers; float16 and bfloat16, the cache of the same type, or on Hopper of e4m3 (--kv-cache-dtype fp8). What is not taken is refused when
vLLM selects a backend, or by an error that names it: other quantized caches, MLA, cascade attention, cross-attention, PrefixLM, R-SWA, context parallelism. Written for
vLLM 0.33's interface, which changes between releases. Neither vLLM nor PyTorch is imported here: vLLM does it when it
takes the backend.
"""

from __future__ import annotations

import warnings

__all__ = ["register"]

NAME = "GREENFAST"
BACKEND = "greenfast.vllm_backend.GreenfastBackend"


def register() -> None:
    """Makes the name GREENFAST known to vLLM, which calls this itself: the entry point `greenfast` of `vllm.general_plugins`.
    Again: no change. A vLLM without a register of backends is left alone, with a warning: it may be used without Greenfast."""
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
        known = NAME in AttentionBackendEnum.__members__
        if not known:
            register_backend(NAME, BACKEND)
    except Exception as error:  # whatever it is, it must not stop an engine that does not ask for this backend
        warnings.warn(f"greenfast: vLLM does not take the attention backend {NAME} ({type(error).__name__}: {error}); "
                      "greenfast.vllm is written for vLLM 0.33", RuntimeWarning, stacklevel=2)
