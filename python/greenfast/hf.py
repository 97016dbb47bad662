"""transformers: `attn_implementation="greenfast"`.

    import greenfast.hf
    greenfast.hf.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="greenfast")

Full and causal attention, sliding windows, chunks, softcap, grouped heads, sinks, K and V of different widths, position
biases, and every mask that transformers makes (padding, static caches, packed sequences) run here. What is left goes to
transformers' own functions, with the same result, and a FallbackWarning says why, once for each reason: dropout, gradients
where they are not exact, what no kernel of the device takes; and models that do not ask transformers' AttentionInterface
(Bloom, MPT, Longformer, ...) or mix what they add to masks themselves (DeepSeek-V4), which keep the implementation that transformers
gives them unasked. Continuous batching (a paged cache), which transformers offers to its own implementations alone, is refused by name.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import warnings
from typing import Any

import torch

from . import _arrays
from . import attention as _attention
from . import torch as _gt
from .torch import FallbackWarning

__all__ = ["register"]

NAME = "greenfast"
_said: set[str] = set()


@torch.compiler.assume_constant_result
def _say(reason: str) -> bool:
    if reason not in _said:
        _said.add(reason)
        warnings.warn(f"greenfast: attention of transformers went to its own functions: {reason}", FallbackWarning, stacklevel=2)
    return True


def register() -> None:
    """Makes "greenfast" an attention implementation of transformers, with a mask function of its own, and wraps the method by which
    PreTrainedModel chooses one, for models that could not use it rightly. Again: no change."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface
    AttentionInterface.register(NAME, attention_forward)
    # Without a mask function transformers would drop padding, and with FlashAttention's, Llama 4's chunks.
    AttentionMaskInterface.register(NAME, attention_mask)
    _choose_for_models()


# --- which models -------------------------------------------------------------------------------------------------------

# Models that ask the AttentionInterface and still need the mask that transformers makes for its eager attention: they lengthen it, a tensor of
# floats, by biases of their own.
_OWN_BIAS = frozenset(("DeepseekV4PreTrainedModel",))


def _asks(kind: type) -> bool:
    """Whether a model's attention asks the AttentionInterface, as its class says, so that what attention_mask makes reaches attention_forward."""
    return bool(getattr(kind, "_supports_attention_backend", False)) and not any(x.__name__ in _OWN_BIAS for x in kind.__mro__)


def _attends(kind: type) -> bool:
    """Whether the file of a model defines an attention: a frame around other models has none to lose."""
    try:
        source = inspect.getsource(sys.modules[kind.__module__])
    except (KeyError, OSError, TypeError):
        return True
    return re.search(r"^class \w*Attention", source, re.MULTILINE) is not None


def _choose_for_models() -> None:
    """Has models that do not ask the AttentionInterface choose as if nothing had been asked for. transformers lets any of them take a registered
    implementation: their masks are made for it and applied by code that expects another kind, so causality and padding would be lost."""
    from transformers import PreTrainedModel
    plain = getattr(PreTrainedModel, "get_correct_attn_implementation", None)
    if plain is None or hasattr(plain, "_greenfast"):
        return

    @functools.wraps(plain)
    def choose(self: Any, requested_attention: str | None, *args: Any, **options: Any) -> str:
        if requested_attention == NAME and not _asks(type(self)):
            requested_attention = None
            if _attends(type(self)):
                _say(f"{type(self).__name__} does not hand its attention over as a whole")
        return plain(self, requested_attention, *args, **options)

    choose._greenfast = True  # type: ignore[attr-defined]
    PreTrainedModel.get_correct_attn_implementation = choose


# --- masks --------------------------------------------------------------------------------------------------------------

def _plain_overlay(mask_function: Any, size: int | None) -> str | None:
    """"window" or "chunk": transformers' causal sliding window, or causal chunks, of this size and nothing else; in doubt, None."""
    from transformers import masking_utils
    cells = getattr(mask_function, "__closure__", None) or ()
    parts = next((cell.cell_contents for cell in cells if isinstance(cell.cell_contents, tuple)), ())
    if size is None or len(parts) != 2 or masking_utils.causal_mask_function not in parts:
        return None
    overlay = parts[0] if parts[1] is masking_utils.causal_mask_function else parts[1]
    held = {name: cell.cell_contents for name, cell in zip(getattr(overlay.__code__, "co_freevars", ()), overlay.__closure__ or ())}
    for kind, likeness in (("window", masking_utils.sliding_window_overlay(size)), ("chunk", masking_utils.chunked_overlay(size, None))):
        if overlay.__code__ is likeness.__code__:
            # Chunks count from the left padding, of which there is none where there is no padding.
            return kind if held == {"sliding_window": size} or (held.get("chunk_size") == size and set(held) == {"chunk_size", "left_padding"}) else None
    return None


def _nothing_padded(mask: torch.Tensor | None) -> bool:
    return mask is None or (not torch.compiler.is_compiling() and mask.dim() == 2 and bool(mask.all()))


def attention_mask(*args: Any, **options: Any) -> torch.Tensor | None:
    """No mask where attention_forward computes it from what it knows: causal, bidirectional, a window or chunks over whole sequences.
    A mask [B, 1, Sq, Skv] of bools otherwise, as transformers makes it for SDPA: padding, static caches, packed sequences.

    The arguments are those of transformers' sdpa_mask, whichever its version has; what is not recognised leads there."""
    from transformers.masking_utils import sdpa_mask
    size, config = options.get("local_size"), options.get("config")
    # Windows and chunks have to be found again by attention_forward, which layer_types allows.
    if (not args and size is not None and getattr(config, "layer_types", None) and options.get("allow_is_causal_skip") is True
            and isinstance(options.get("q_offset"), int) and options["q_offset"] == options.get("kv_offset") == 0
            and options.get("q_length") == options.get("kv_length") and _nothing_padded(options.get("attention_mask"))):
        kind = _plain_overlay(options.get("mask_function"), size)
        if (kind == "window" and size == getattr(config, "sliding_window", None)) or (
                kind == "chunk" and size == getattr(config, "attention_chunk_size", None)):
            return None
    return sdpa_mask(*args, **options)


def _local_size(module: torch.nn.Module, kind: str, attribute: str) -> int | None:
    """The layer's window or chunk, as its configuration says.

    A layer that torch.compile compiles by itself is compiled anew for each number of a layer that was asked for, and no longer at all
    beyond eight (recompile_limit): so the number is asked for last."""
    config = getattr(module, "config", None)
    types = getattr(config, "layer_types", None)
    if not types or kind not in types:
        return None
    own = getattr(module, "layer_type", None)
    if own not in types:
        index = getattr(module, "layer_idx", None)
        own = types[index] if index is not None and index < len(types) else None
    return getattr(config, attribute, None) if own == kind else None


def _window_of(module: torch.nn.Module, given: int | None) -> int | None:
    """The layer's window: what the model passes, else what its configuration says of the layer."""
    return given if given is not None else _local_size(module, "sliding_attention", "sliding_window")


def _chunk_of(module: torch.nn.Module) -> int | None:
    return _local_size(module, "chunked_attention", "attention_chunk_size")


# --- attention ----------------------------------------------------------------------------------------------------------

def _bias(mask: torch.Tensor | None, position_bias: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """One mask of both, of a type that kernels read."""
    if position_bias is None:
        return mask if mask is None or mask.dtype in (torch.bool, torch.float32, query.dtype) else mask.to(query.dtype)
    bias = position_bias.to(query.dtype)
    if mask is not None:
        bias = bias.masked_fill(mask.logical_not(), -torch.inf) if mask.dtype == torch.bool else bias + mask
    return bias


def attention_forward(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                      attention_mask: torch.Tensor | None, dropout: float = 0.0, scaling: float | None = None,
                      is_causal: bool | None = None, softcap: float | None = None, sliding_window: int | None = None,
                      s_aux: torch.Tensor | None = None, position_bias: torch.Tensor | None = None, cache: Any = None,
                      cu_seq_lens_q: torch.Tensor | None = None, cu_seq_lens_k: torch.Tensor | None = None,
                      max_length_q: int | None = None, max_length_k: int | None = None, **kwargs: Any) -> tuple[torch.Tensor, None]:
    """transformers' attention function: query [B, Hq, Sq, D], key and value [B, Hkv, Skv, D] -> ([B, Sq, Hq, Dv], None)."""
    if cache is not None:
        raise NotImplementedError("greenfast: a paged cache (continuous batching) is not offered: use generate() with another cache, or "
                                  "attn_implementation='sdpa'")
    if query.device.type in _arrays.DEVICES and torch.is_autocast_enabled(query.device.type):
        query, key, value, attention_mask = _gt._autocast(query.device.type, query, key, value, attention_mask)
    rows, keys = query.shape[2], key.shape[2]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and rows > 1 and attention_mask is None
    # Lengths say where packed sequences lie, unless a mask says it already.
    packed = cu_seq_lens_q is not None and attention_mask is None and position_bias is None and query.shape[0] == 1
    window, chunk = (_window_of(module, sliding_window), _chunk_of(module)) if causal else (None, None)
    if causal and keys > rows and not packed:  # an empty static cache: what lies behind is for later tokens
        key, value, keys = key[:, :, :rows], value[:, :, :rows], rows
        position_bias = None if position_bias is None else position_bias[..., :rows]
    window = None if window is not None and keys <= window else window
    chunk = None if chunk is not None and keys <= chunk else chunk

    features: dict[str, Any] = {}
    needs: list[str] = []
    mask = _bias(attention_mask, position_bias, query)
    if mask is not None:
        features["mask"] = mask if mask.stride(-1) in (0, 1) or mask.shape[-1] == 1 else mask.contiguous()
    if s_aux is not None:
        features["sinks"] = s_aux.float()
        needs.append("sinks")
    if chunk is not None:
        features["chunk"] = chunk
        needs.append("chunk")
    if packed:
        features |= dict(cu_q=cu_seq_lens_q.int(), cu_kv=(cu_seq_lens_q if cu_seq_lens_k is None else cu_seq_lens_k).int(),
                         max_q=max_length_q, max_kv=max_length_k)
        needs.append("packed")

    reason = _gt._why_not(query, key, value, mask, dropout, False, scaling, False)
    if reason is None and needs:
        reason = _gt._refusal(query.device.type, query.device.index or 0, query.dtype, *needs)
    if reason is None and torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad
                                                       or s_aux is not None and s_aux.requires_grad):
        reason = _gt._no_gradient(query, key, value, -1 if window is None else window - 1, 0 if causal else -1, 0, False, softcap or 0.0, None,
                                  _arrays.features(features))
        reason = None if reason is None else f"gradients with {reason}"
    if reason is None:
        query, key, value = _gt._rows_of_their_own(query), _gt._contiguous_rows(key), _gt._contiguous_rows(value)
        options: Any = dict(scale=scaling, causal=causal, window=None if window is None else (window - 1, 0), align="top_left",
                            softcap=softcap or 0.0, **features)
        if packed:  # each sequence's last query faces its last key, as FlashAttention has it
            options["align"] = "bottom_right"
        if torch.compiler.is_compiling():
            return _attention(query, key, value, **options).transpose(1, 2).contiguous(), None
        try:
            return _attention(query, key, value, **options).transpose(1, 2).contiguous(), None
        except NotImplementedError as error:  # no kernel takes this problem, in the library's words
            reason = str(error)
    _say(reason)

    if packed:
        step = torch.arange(rows, device=query.device)
        starts = cu_seq_lens_q.to(query.device)
        part = torch.searchsorted(starts, step, right=True)
        key_part = part if cu_seq_lens_k is None else torch.searchsorted(cu_seq_lens_k.to(query.device), torch.arange(keys, device=query.device),
                                                                         right=True)
        attention_mask = (part[:, None] == key_part)[None, None]
        if causal:
            if keys != rows:
                raise NotImplementedError("greenfast: packed causal sequences of unequal lengths went to transformers, which has no mask for them")
            attention_mask = attention_mask & (step[:, None] >= step)
            if window is not None:
                attention_mask = attention_mask & (step[:, None] - step < window)
        causal, window, chunk = False, None, None
    if causal and (window is not None or chunk is not None or softcap or s_aux is not None):
        first, last = torch.arange(rows, device=query.device)[:, None], torch.arange(keys, device=query.device)[None, :]
        visible = first >= last
        if window is not None:
            visible = visible & (first - last < window)
        if chunk is not None:
            visible = visible & (first // chunk == last // chunk)
        attention_mask, causal = visible[None, None], False
    if softcap or s_aux is not None:
        return _in_steps(module, query, key, value, attention_mask, dropout, scaling, softcap, s_aux, position_bias), None
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=causal,
                                  position_bias=position_bias, **kwargs)


def _in_steps(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None,
              dropout: float, scaling: float | None, softcap: float | None, sinks: torch.Tensor | None,
              bias: torch.Tensor | None) -> torch.Tensor:
    """Attention with softcap, sinks and masks as PyTorch's operations: what SDPA has no word for."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = torch.matmul(query, key.transpose(2, 3)) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = torch.where(mask, scores, torch.finfo(scores.dtype).min) if mask.dtype == torch.bool else scores + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores.dtype).reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    weights = torch.softmax(scores, -1, dtype=torch.float32)
    weights = (weights[..., :-1] if sinks is not None else weights).to(value.dtype)
    weights = torch.nn.functional.dropout(weights, dropout, module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous()
