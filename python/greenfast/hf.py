"""transformers: `attn_implementation="greenfast"`.

    import greenfast.hf
    greenfast.hf.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="greenfast")

The library computes full and causal attention, sliding windows, softcap and grouped heads. Calls that need what it does not
have yet go to transformers' own functions, with the same result, and a FallbackWarning says why, once for each reason:
padding and other masks, sinks, position biases, dropout, head dimensions of K and V that differ. Continuous batching
(a paged cache) is refused by name.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from . import torch as _gt
from . import attention as _attention
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
    """Makes "greenfast" an attention implementation of transformers, with a mask function of its own. Again: no change."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface
    AttentionInterface.register(NAME, attention_forward)
    # Without a mask function transformers would drop padding, and with FlashAttention's, Llama 4's chunks.
    AttentionMaskInterface.register(NAME, attention_mask)


# --- masks --------------------------------------------------------------------------------------------------------------

def _plain_window(mask_function: Any, window: int | None) -> bool:
    """Whether it is transformers' causal sliding window of this width and nothing else; in doubt, not."""
    from transformers import masking_utils
    cells = getattr(mask_function, "__closure__", None) or ()
    parts = next((cell.cell_contents for cell in cells if isinstance(cell.cell_contents, tuple)), ())
    if window is None or len(parts) != 2 or masking_utils.causal_mask_function not in parts:
        return False
    overlay = parts[0] if parts[1] is masking_utils.causal_mask_function else parts[1]
    likeness = masking_utils.sliding_window_overlay(window)
    return (getattr(overlay, "__code__", None) is likeness.__code__
            and [cell.cell_contents for cell in overlay.__closure__ or ()] == [window])


def attention_mask(*args: Any, **options: Any) -> torch.Tensor | None:
    """No mask where attention_forward computes it from what it knows: causal, bidirectional, a window over whole sequences.
    A mask [B, 1, Sq, Skv] of bools otherwise, as transformers makes it for SDPA: padding, chunks, packed sequences.

    The arguments are those of transformers' sdpa_mask, whichever its version has; what is not recognised leads there."""
    from transformers.masking_utils import sdpa_mask
    window, config = options.get("local_size"), options.get("config")
    # A window has to be found again by attention_forward, which layer_types allows; chunks have a local_size too.
    if (not args and window is not None and window == getattr(config, "sliding_window", None) and getattr(config, "layer_types", None)
            and options.get("allow_is_causal_skip") is True and options.get("attention_mask") is None
            and isinstance(options.get("q_offset"), int) and options["q_offset"] == options.get("kv_offset") == 0
            and options.get("q_length") == options.get("kv_length") and _plain_window(options.get("mask_function"), window)):
        return None
    return sdpa_mask(*args, **options)


def _window_of(module: torch.nn.Module, given: int | None) -> int | None:
    """The layer's window: what the model passes, else what its configuration says of the layer."""
    if given is not None:
        return given
    config = getattr(module, "config", None)
    types, index = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    if types and index is not None and index < len(types) and types[index] == "sliding_attention":
        return getattr(config, "sliding_window", None)
    return None


# --- attention ----------------------------------------------------------------------------------------------------------

def attention_forward(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                      attention_mask: torch.Tensor | None, dropout: float = 0.0, scaling: float | None = None,
                      is_causal: bool | None = None, softcap: float | None = None, sliding_window: int | None = None,
                      s_aux: torch.Tensor | None = None, position_bias: torch.Tensor | None = None, cache: Any = None,
                      **kwargs: Any) -> tuple[torch.Tensor, None]:
    """transformers' attention function: query [B, Hq, Sq, D], key and value [B, Hkv, Skv, D] -> ([B, Sq, Hq, D], None)."""
    if cache is not None:
        raise NotImplementedError("greenfast: a paged cache (continuous batching) is not offered: use generate() with another cache, or "
                                  "attn_implementation='sdpa'")
    rows, keys = query.shape[2], key.shape[2]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and rows > 1 and attention_mask is None
    window = _window_of(module, sliding_window) if causal else None
    if causal and keys > rows:  # an empty static cache: what lies behind is for later tokens
        key, value, keys = key[:, :, :rows], value[:, :, :rows], rows
    if window is not None and keys <= window:
        window = None

    reason = ("sinks" if s_aux is not None else "a position bias" if position_bias is not None else "a mask (padding, chunks, packed "
              "sequences, a static cache)" if attention_mask is not None
              else _gt._why_not(query, key, value, None, dropout, causal, scaling, False))
    if reason is None and torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        reason = _gt._no_gradient(query, key, value, -1 if window is None else window - 1, 0 if causal else -1, 0, False, softcap or 0.0, None)
        reason = None if reason is None else f"gradients with {reason}"
    if reason is None:
        options: Any = dict(scale=scaling, causal=causal, window=None if window is None else (window - 1, 0), align="top_left",
                            softcap=softcap or 0.0)
        if torch.compiler.is_compiling():
            return _attention(query, key, value, **options).transpose(1, 2).contiguous(), None
        try:
            return _attention(query, key, value, **options).transpose(1, 2).contiguous(), None
        except NotImplementedError as error:  # no kernel takes this problem, in the library's words
            reason = str(error)
    _say(reason)

    if causal and (window is not None or softcap or s_aux is not None):
        step = torch.arange(rows, device=query.device)[:, None] - torch.arange(keys, device=query.device)[None, :]
        attention_mask = ((step >= 0) & (step < window) if window is not None else step >= 0)[None, None]
        causal = False
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
