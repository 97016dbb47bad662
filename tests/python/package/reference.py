"""Attention in fp64, written from the definition alone, and inputs to try it on."""
import numpy as np


def attention(q, k, v, *, scale=None, left=-1, right=-1, bottom_right=False, softcap=0.0):
    """(out, lse) of [B, H, S, D] arrays; heads of k and v are repeated."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat(groups, 1), v.repeat(groups, 1)
    scores = q @ k.swapaxes(2, 3) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    rows, keys = scores.shape[-2:]
    step = np.arange(keys)[None] - np.arange(rows)[:, None] - (keys - rows if bottom_right else 0)
    visible = np.ones_like(step, bool)
    if left >= 0:
        visible &= step >= -left
    if right >= 0:
        visible &= step <= right
    scores = np.where(visible, scores, -np.inf)
    with np.errstate(all="ignore"):
        top = np.where(visible.any(-1), scores.max(-1), 0.0)
        weights = np.where(visible, np.exp(scores - top[..., None]), 0.0)
        total = weights.sum(-1)
        out = np.where(total[..., None] > 0, weights @ v / total[..., None], 0.0)
        return out, np.log(total) + top


def inputs(seed=0, batch=2, heads=4, heads_kv=2, rows=37, keys=53, width=32):
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(shape, dtype=np.float32) for shape in
                 ((batch, heads, rows, width), (batch, heads_kv, keys, width), (batch, heads_kv, keys, width)))
