"""FlashAttention-3's names: code that imports flash_attn_interface imports greenfast.flash_attn_interface.

Parameters are FlashAttention-3's, one by one and in its order; behind them what its forks call sinks (s_aux, learnable_sink), pages
of flash_attn_varlen_func (page_table, block_table) and out. What the library does not do is an error that names the parameter.
Masks are aligned bottom-right: the last query faces the last key. What is a matter of speed (pack_gqa, scheduler_metadata) is the
library's to settle, and any value is taken.
"""

from __future__ import annotations

from typing import Any

import torch

from . import append as _append
from . import attention as _attention
from . import merge as _merge

__all__ = ["flash_attn_combine", "flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]


def _refuse(name: str, value: Any, possible: str) -> None:
    raise NotImplementedError(f"greenfast.flash_attn_interface: {name}={value!r} is not offered: {possible}")


def _one_of(name: str, value: Any, alias: str, other: Any) -> Any:
    if value is not None and other is not None:
        raise ValueError(f"{name} and {alias} are both given: they mean the same; leave one of them out")
    return value if value is not None else other


def _bounds(window_size: tuple[int | None, int | None]) -> tuple[int, int] | None:
    """None for no window; a negative number, as in FlashAttention, or None, as FlashAttention-4 writes it, is no bound."""
    left, right = window_size
    left, right = -1 if left is None or left < 0 else left, -1 if right is None or right < 0 else right
    return None if left < 0 and right < 0 else (left, right)


def _run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softmax_scale: float | None, causal: bool, window_size: tuple[int, int],
         softcap: float, descales: tuple[torch.Tensor | None, ...], qv: Any, sm_margin: int, num_splits: int, return_lse: bool,
         out: torch.Tensor | None, attention_chunk: int, sinks: torch.Tensor | None, **features: Any) -> Any:
    """What all functions share. Features that are not given are not named: a plain call stays one."""
    if qv is not None:
        _refuse("qv", "a tensor", "only None")
    if sm_margin != 0:
        _refuse("sm_margin", sm_margin, "only 0")
    if num_splits < 0:
        _refuse("num_splits", num_splits, "0 or more")
    given = {name: x for name, x in features.items() if x is not None}
    if attention_chunk != 0:
        given["chunk"] = attention_chunk
    if sinks is not None:
        given["sinks"] = sinks.float()
    if num_splits > 0:
        given["max_splits"] = num_splits
    some = [x for x in descales if x is not None]
    if some:  # each may be left out, which is 1; one value is often expanded to all batches and heads, without memory for each
        descales = tuple(torch.ones_like(some[0], memory_format=torch.contiguous_format) if x is None else x.contiguous() for x in descales)
    q_descale, k_descale, v_descale = descales
    heads, heads_kv = q.shape[-2], k.shape[-2]
    if q_descale is not None and heads_kv > 0:
        q_descale = q_descale.repeat_interleave(heads // heads_kv, 1)
    return _attention(q, k, v, out=out, scale=softmax_scale, causal=causal, window=_bounds(window_size), align="bottom_right",
                      softcap=softcap, layout="bshd", return_lse=return_lse, q_scale=q_descale, k_scale=k_descale, v_scale=v_descale,
                      out_dtype=torch.bfloat16 if q.dtype == torch.float8_e4m3fn and out is None else None, **given)


def _check_deterministic(deterministic: bool, *tensors: torch.Tensor) -> None:
    if deterministic and tensors[0].is_cuda and torch.is_grad_enabled() and any(x.requires_grad for x in tensors) \
            and not torch.are_deterministic_algorithms_enabled():
        _refuse("deterministic", True, "call torch.use_deterministic_algorithms(True), which PyTorch's backward asks")


def flash_attn_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softmax_scale: float | None = None, causal: bool = False,
                    qv: torch.Tensor | None = None, q_descale: torch.Tensor | None = None, k_descale: torch.Tensor | None = None,
                    v_descale: torch.Tensor | None = None, window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0,
                    softcap: float = 0.0, num_splits: int = 1, pack_gqa: bool | None = None, deterministic: bool = False,
                    sm_margin: int = 0, return_attn_probs: bool = False, s_aux: torch.Tensor | None = None,
                    learnable_sink: torch.Tensor | None = None, out: torch.Tensor | None = None) -> Any:
    """q [B, Sq, Hq, D], k [B, Skv, Hkv, D], v [B, Skv, Hkv, Dv] -> out [B, Sq, Hq, Dv], with return_attn_probs (out, lse [B, Hq, Sq]).

    softmax_scale  None: 1 / sqrt(D).
    causal         aligned bottom-right, as window_size (left, right), -1 for no bound, and attention_chunk, 0 for none.
    *_descale      for float8_e4m3fn: float32 [B, Hkv], each 1 where it is left out; the output is bfloat16 then.
    num_splits     most parts of a row's keys. 0 and 1, the default: the library's to choose; no choice changes from run to run.
    deterministic  the forward pass always is. Gradients are PyTorch's: on CUDA, with torch.use_deterministic_algorithms(True).
    s_aux, learnable_sink  [Hq]: exp of it joins the denominator of every row.
    qv, sm_margin: not offered.
    """
    _check_deterministic(deterministic, q, k, v)
    return _run(q, k, v, softmax_scale, causal, window_size, softcap, (q_descale, k_descale, v_descale), qv, sm_margin,
                num_splits if num_splits != 1 else 0, return_attn_probs, out, attention_chunk,
                _one_of("s_aux", s_aux, "learnable_sink", learnable_sink))


def flash_attn_varlen_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor | None,
                           max_seqlen_q: int | None, max_seqlen_k: int | None, seqused_q: torch.Tensor | None = None,
                           seqused_k: torch.Tensor | None = None, softmax_scale: float | None = None, causal: bool = False,
                           qv: torch.Tensor | None = None, q_descale: torch.Tensor | None = None, k_descale: torch.Tensor | None = None,
                           v_descale: torch.Tensor | None = None, window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0,
                           softcap: float = 0.0, num_splits: int = 1, pack_gqa: bool | None = None, deterministic: bool = False,
                           sm_margin: int = 0, return_attn_probs: bool = False, s_aux: torch.Tensor | None = None,
                           learnable_sink: torch.Tensor | None = None, page_table: torch.Tensor | None = None,
                           block_table: torch.Tensor | None = None, out: torch.Tensor | None = None) -> Any:
    """Packed sequences: q [total_q, Hq, D], k [total_k, Hkv, D], v [total_k, Hkv, Dv] -> out [total_q, Hq, Dv], with return_attn_probs
    (out, lse [Hq, total_q]).

    cu_seqlens_q, cu_seqlens_k  int32 [B + 1]: where each sequence begins and ends.
    max_seqlen_q, max_seqlen_k  the longest of each, as far as the host knows: more is allowed, less is not. None: all rows.
    seqused_q, seqused_k        int32 [B]: how many of its rows each sequence uses. Rows of out behind seqused_q are not written.
    page_table, block_table     int32 [B, pages]: k and v are [blocks, page, Hkv, D] then, cu_seqlens_k None, and seqused_k has lengths.
    *_descale                   float32 [B, Hkv]. The rest is flash_attn_func's. No gradients.
    """
    table = _one_of("page_table", page_table, "block_table", block_table)
    if table is not None and cu_seqlens_k is not None:
        raise ValueError("cu_seqlens_k is given with page_table: the page table says where keys lie; pass None, and seqused_k")
    return _run(q, k, v, softmax_scale, causal, window_size, softcap, (q_descale, k_descale, v_descale), qv, sm_margin,
                num_splits if num_splits != 1 else 0, return_attn_probs, out, attention_chunk,
                _one_of("s_aux", s_aux, "learnable_sink", learnable_sink), cu_q=cu_seqlens_q, cu_kv=cu_seqlens_k, max_q=max_seqlen_q,
                max_kv=max_seqlen_k if table is not None or cu_seqlens_k is not None else None, used_q=seqused_q, used_kv=seqused_k,
                page_table=table)


def flash_attn_combine(out_partial: torch.Tensor, lse_partial: torch.Tensor, out: torch.Tensor | None = None,
                       out_dtype: torch.dtype | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Parts of one attention over disjoint keys, made into one: out_partial [parts, B, S, H, D], lse_partial [parts, B, S, H] ->
    (out [B, S, H, D], lse [B, S, H]). A part whose lse is -inf or +inf is empty; NaN is not, and makes the row's lse NaN. out_dtype None: the parts'."""
    if out_partial.dim() != 5 or out_partial.shape[0] < 1 or lse_partial.shape != out_partial.shape[:-1]:
        raise ValueError(f"out_partial has shape {list(out_partial.shape)} and lse_partial {list(lse_partial.shape)}: [parts, B, S, H, D] and "
                         "[parts, B, S, H] are expected, one part or more")
    parts = len(out_partial)
    lses = lse_partial.transpose(2, 3).contiguous()
    if out is None:
        out = torch.empty(out_partial.shape[1:], dtype=out_dtype or out_partial.dtype, device=out_partial.device)
    whole, lse = out_partial[0], lses[0]
    # A part alone is merged with nothing, so that an empty one is found too. Between merges sums stay float32.
    rest = [(out_partial[n], lses[n]) for n in range(1, parts)] or [(whole, torch.full_like(lse, -torch.inf))]
    for n, (part, part_lse) in enumerate(rest):
        last = n + 1 == len(rest)
        whole, lse = _merge(whole, lse, part.to(whole.dtype), part_lse, out=out if last else None, out_dtype=None if last else torch.float32,
                            layout="bshd")
    return whole, lse.transpose(1, 2)


def flash_attn_with_kvcache(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor | None = None,
                            v: torch.Tensor | None = None, qv: torch.Tensor | None = None, rotary_cos: torch.Tensor | None = None,
                            rotary_sin: torch.Tensor | None = None, cache_seqlens: int | torch.Tensor | None = None,
                            cache_batch_idx: torch.Tensor | None = None, cache_leftpad: torch.Tensor | None = None,
                            page_table: torch.Tensor | None = None, cu_seqlens_q: torch.Tensor | None = None,
                            cu_seqlens_k_new: torch.Tensor | None = None, max_seqlen_q: int | None = None,
                            rotary_seqlens: torch.Tensor | None = None, q_descale: torch.Tensor | None = None,
                            k_descale: torch.Tensor | None = None, v_descale: torch.Tensor | None = None, softmax_scale: float | None = None,
                            causal: bool = False, window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0, softcap: float = 0.0,
                            rotary_interleaved: bool = True, scheduler_metadata: torch.Tensor | None = None, num_splits: int = 0,
                            pack_gqa: bool | None = None, sm_margin: int = 0, return_softmax_lse: bool = False,
                            s_aux: torch.Tensor | None = None, learnable_sink: torch.Tensor | None = None,
                            block_table: torch.Tensor | None = None, out: torch.Tensor | None = None) -> Any:
    """Appends k and v to the cache, where they are given, and attends to all of it: out [B, Sq, Hq, Dv], with return_softmax_lse
    (out, lse [B, Hq, Sq]); with cu_seqlens_q q and out are [total_q, Hq, D] and lse [Hq, total_q].

    k_cache, v_cache  [rows, Skv, Hkv, D]; with page_table (block_table) int32 [B, pages] [blocks, page, Hkv, D], any page.
    k, v              [B, Snew, Hkv, D]; with cu_seqlens_k_new int32 [B + 1] packed, [total_new, Hkv, D]. Written to the cache in place, at
                      cache_seqlens. No sequence may outgrow its cache, and no two may write one row or page.
    cache_seqlens     keys before the call, an int or int32 [B]; None: the whole cache, and no k.
    cache_batch_idx   int32 [B]: the row of the cache of each entry. cache_leftpad int32 [B]: the first key that may be seen.
    rotary_cos, rotary_sin  [positions, R / 2]: k and q are turned at cache_seqlens, cache_seqlens + 1, ...; q must be of k's tokens, and
                      with more than one of them causal or in a window. rotary_interleaved: 2 n with 2 n + 1, else n with n + R / 2.
    num_splits        most parts of a row's keys; 0: as many as pay.
    The rest is flash_attn_func's. qv, rotary_seqlens, sm_margin: not offered.
    """
    if rotary_seqlens is not None:
        _refuse("rotary_seqlens", "a tensor", "only None: positions are those of the cache")
    table = _one_of("page_table", page_table, "block_table", block_table)
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=k_cache.device)
    if (k is None) != (v is None):
        raise ValueError("k and v are given together, or neither")
    if k is None or v is None:
        for name, value in (("rotary_cos", rotary_cos), ("rotary_sin", rotary_sin), ("cu_seqlens_k_new", cu_seqlens_k_new)):
            if value is not None:
                raise ValueError(f"{name} is given without k and v: it is for new keys; pass them, or leave it out")
    else:
        if cache_seqlens is None:
            raise ValueError("cache_seqlens is None, and k is given: say where in the cache the new keys begin")
        turned = q if rotary_cos is not None else None
        if turned is not None:
            if q.shape[:-2] != k.shape[:-2] or (cu_seqlens_q is None) != (cu_seqlens_k_new is None):
                _refuse("rotary_cos", "a tensor", f"q {list(q.shape)} has to be of the tokens of k {list(k.shape)}; turn q and k before the call")
            if not causal and _bounds(window_size) is None and (cu_seqlens_q is not None or q.shape[1] > 1):
                _refuse("causal", False, "with rotary_cos and several queries the mask is causal or a window")
        kind = "interleaved" if rotary_interleaved else "neox"
        made = _append(k, v, k_cache, v_cache, used_kv=cache_seqlens, q=turned, cos=None if rotary_cos is None else rotary_cos.float(),
                       sin=None if rotary_sin is None else rotary_sin.float(), rotary=kind, page_table=table, kv_index=cache_batch_idx,
                       cu_new=cu_seqlens_k_new, layout="bshd")
        q = q if made is None else made
        new = k.shape[1] if cu_seqlens_k_new is None else cu_seqlens_k_new.diff()
        cache_seqlens = cache_seqlens + new
    return _run(q, k_cache, v_cache, softmax_scale, causal, window_size, softcap, (q_descale, k_descale, v_descale), qv, sm_margin, num_splits,
                return_softmax_lse, out, attention_chunk, _one_of("s_aux", s_aux, "learnable_sink", learnable_sink), cu_q=cu_seqlens_q,
                max_q=max_seqlen_q if cu_seqlens_q is not None else None, used_kv=cache_seqlens, kv_start=cache_leftpad, kv_index=cache_batch_idx,
                page_table=table)


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
