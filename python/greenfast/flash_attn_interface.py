"""FlashAttention-3's names: code that imports flash_attn_interface imports greenfast.flash_attn_interface.

Parameters are FlashAttention-3's, one by one; what the library does not do is an error that names the parameter. Packed
sequences (flash_attn_varlen_func) and KV caches (flash_attn_with_kvcache) are not offered yet, so their names are not here.
"""

from __future__ import annotations

from typing import Any

import torch

from . import attention as _attention

__all__ = ["flash_attn_func", "flash_attn_qkvpacked_func"]


def _refuse(name: str, value: Any, possible: str) -> None:
    raise NotImplementedError(f"greenfast.flash_attn_interface: {name}={value!r} is not offered: {possible}")


def flash_attn_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softmax_scale: float | None = None, causal: bool = False,
                    qv: torch.Tensor | None = None, q_descale: torch.Tensor | None = None, k_descale: torch.Tensor | None = None,
                    v_descale: torch.Tensor | None = None, window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0,
                    softcap: float = 0.0, num_splits: int = 1, pack_gqa: bool | None = None, deterministic: bool = False,
                    sm_margin: int = 0, return_attn_probs: bool = False) -> Any:
    """q [B, Sq, Hq, D], k and v [B, Skv, Hkv, D] -> out [B, Sq, Hq, D], with return_attn_probs (out, lse [B, Hq, Sq]).

    softmax_scale  None: 1 / sqrt(D).
    causal         aligned bottom-right: the last query faces the last key; so is window_size (left, right), -1 for no bound.
    *_descale      for float8_e4m3fn: float32 [B, Hkv]; the output is bfloat16 then.
    num_splits     0 or 1: how the keys are divided is the library's to choose, and does not change from run to run.
    pack_gqa       any: a matter of speed that the library settles.
    deterministic  the forward pass always is. Gradients are PyTorch's: on CUDA, with torch.use_deterministic_algorithms(True).
    qv, attention_chunk, sm_margin: not offered.
    """
    if qv is not None:
        _refuse("qv", "a tensor", "only None")
    if attention_chunk != 0:
        _refuse("attention_chunk", attention_chunk, "only 0")
    if sm_margin != 0:
        _refuse("sm_margin", sm_margin, "only 0")
    if num_splits not in (0, 1):
        _refuse("num_splits", num_splits, "0 or 1")
    if deterministic and q.is_cuda and torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad) \
            and not torch.are_deterministic_algorithms_enabled():
        _refuse("deterministic", True, "call torch.use_deterministic_algorithms(True), which PyTorch's backward asks")
    if q_descale is not None and q.dim() == 4 and k.dim() == 4 and k.shape[2] > 0:
        q_descale = q_descale.repeat_interleave(q.shape[2] // k.shape[2], 1)
    left, right = window_size
    return _attention(q, k, v, scale=softmax_scale, causal=causal, window=None if left < 0 and right < 0 else (left, right),
                      align="bottom_right", softcap=softcap, layout="bshd", return_lse=return_attn_probs, q_scale=q_descale,
                      k_scale=k_descale, v_scale=v_descale, out_dtype=torch.bfloat16 if q.dtype == torch.float8_e4m3fn else None)


def flash_attn_qkvpacked_func(qkv: torch.Tensor, softmax_scale: float | None = None, causal: bool = False,
                              q_descale: torch.Tensor | None = None, k_descale: torch.Tensor | None = None,
                              v_descale: torch.Tensor | None = None, window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0,
                              softcap: float = 0.0, deterministic: bool = False, num_heads_q: int | None = None, sm_margin: int = 0,
                              return_attn_probs: bool = False) -> Any:
    """flash_attn_func on one tensor: qkv [B, S, 3, H, D], or [B, S, Hq + 2 Hkv, D] with num_heads_q."""
    if qkv.dim() == 5:
        if qkv.shape[2] != 3:
            raise ValueError(f"qkv has shape {list(qkv.shape)}: [B, S, 3, H, D] is expected")
        q, k, v = qkv.unbind(2)
    else:
        if qkv.dim() != 4 or num_heads_q is None or qkv.shape[2] <= num_heads_q or (qkv.shape[2] - num_heads_q) % 2:
            raise ValueError(f"qkv has shape {list(qkv.shape)} and num_heads_q is {num_heads_q}: [B, S, 3, H, D], or [B, S, Hq + 2 Hkv, D] "
                             "with num_heads_q = Hq, is expected")
        heads = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split([num_heads_q, heads, heads], 2)
    return flash_attn_func(q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size, attention_chunk, softcap,
                           deterministic=deterministic, sm_margin=sm_margin, return_attn_probs=return_attn_probs)
