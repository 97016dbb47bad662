"""diffusers: the attention backend "greenfast".

    import greenfast.diffusers
    greenfast.diffusers.register()
    pipe.transformer.set_attention_backend("greenfast")        # or: with diffusers.attention_backend("greenfast"): ...

Calls with dropout go to PyTorch's own attention, and a greenfast.torch.FallbackWarning says so once.
"""

from __future__ import annotations

from typing import Any

import torch

from .torch import scaled_dot_product_attention

__all__ = ["register"]

NAME = "greenfast"


def register() -> None:
    """Adds the backend "greenfast" to diffusers. Its list of backends is a closed enum without a call to extend it, so a
    member is added by hand (tested with diffusers 0.42). Again: no change."""
    from diffusers.models import attention_dispatch
    names, registry = attention_dispatch.AttentionBackendName, attention_dispatch._AttentionBackendRegistry
    if NAME in names._value2member_map_:
        return
    member = str.__new__(names, NAME)
    member._name_, member._value_ = "GREENFAST", NAME
    member.__objclass__ = names
    names._member_map_["GREENFAST"] = member
    names._member_names_.append("GREENFAST")
    names._value2member_map_[NAME] = member
    registry.register(member, constraints=[])(_attention)


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0,
               is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, return_lse: bool = False,
               _parallel_config: Any = None) -> torch.Tensor:
    """diffusers' attention function: [B, S, H, D] in and out; a mask is [B, Skv] or broadcasts to [B, H, Sq, Skv]."""
    if return_lse:
        raise NotImplementedError("greenfast: return_lse is not offered to diffusers; call greenfast.attention")
    if _parallel_config is not None:
        raise NotImplementedError("greenfast: context parallelism (_parallel_config) is not offered; use the backend 'native'")
    if attn_mask is not None and attn_mask.ndim == 2 and attn_mask.shape[0] == query.shape[0] and attn_mask.shape[1] == key.shape[1]:
        attn_mask = attn_mask[:, None, None, :]
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    out = scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return out.transpose(1, 2)
