"""Attention in fp64, written from the definition alone, and inputs to try it on."""
import numpy as np


def attention(q, k, v, *, scale=None, left=-1, right=-1, bottom_right=False, softcap=0.0, mask=None, slopes=None, sinks=None, chunk=0, start=0):
    """(out, lse) of [B, H, S, D] arrays; heads of k and v are repeated. start: the first key, of all."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat(groups, 1), v.repeat(groups, 1)
    scores = q @ k.swapaxes(2, 3) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    rows, keys = scores.shape[-2:]
    position, key = np.arange(rows)[:, None] + (keys - rows if bottom_right else 0), np.arange(keys)[None]
    step = key - position
    visible = np.ones_like(step, bool) & (key >= start)
    if left >= 0:
        visible &= step >= -left
    if right >= 0:
        visible &= step <= right
    if chunk:
        visible &= (key - start) // chunk == (position - start) // chunk
    if slopes is not None:
        scores = scores - np.asarray(slopes, np.float64).reshape(-1, q.shape[1], 1, 1) * abs(step)
    if mask is not None and mask.dtype == bool:
        visible = visible & mask
    elif mask is not None:
        scores = scores + np.asarray(mask, np.float64)
    scores = np.where(visible, scores, -np.inf)
    sinks = np.full(q.shape[1], -np.inf) if sinks is None else np.asarray(sinks, np.float64)
    sinks = np.broadcast_to(sinks[:, None], scores.shape[:3])
    with np.errstate(all="ignore"):
        top = np.maximum(scores.max(-1, initial=-np.inf), sinks)
        top = np.where(np.isneginf(top), 0.0, top)
        weights = np.exp(scores - top[..., None])
        total = weights.sum(-1) + np.exp(sinks - top)
        out = np.where(total[..., None] > 0, weights @ v / total[..., None], 0.0)
        return out, np.log(total) + top


def sequences(q, k, v, *, cu_q=None, cu_kv=None, used_q=None, used_kv=None, kv_start=None, kv_index=None, page_table=None, mask=None,
              slopes=None, **options):
    """[(rows, out [Hq, rows, Dv], lse [Hq, rows])] of each sequence, where rows is where it lies in q: its index in what follows the
    heads, and in the batch. q [B, Hq, S, D], packed [Hq, total, D]; k, v likewise, or pages [blocks, Hkv, page, D]."""
    batch = len(cu_q) - 1 if cu_q is not None else len(q)
    result = []
    for b in range(batch):
        if cu_q is not None:
            count = cu_q[b + 1] - cu_q[b] if used_q is None else used_q[b]
            where, own_q = (slice(None), slice(cu_q[b], cu_q[b] + count)), q[:, cu_q[b]:cu_q[b] + count]
        else:
            count = q.shape[2] if used_q is None else used_q[b]
            where, own_q = (b, slice(None), slice(0, count)), q[b, :, :count]
        own = []
        for x in (k, v):
            if page_table is not None:
                x = np.concatenate([x[page] if 0 <= page < len(x) else np.full_like(x[0], np.nan) for page in page_table[b]], 1)
            elif cu_kv is not None:
                x = x[:, cu_kv[b]:cu_kv[b + 1]]
            else:
                x = x[b if kv_index is None else kv_index[b]]
            own.append(x[:, :None if used_kv is None else used_kv[b]])
        start = 0 if kv_start is None else kv_start[b]
        for x in own:
            x[:, :start] = 0 if start else x[:, :start]  # hidden: whatever it holds
        shaped = mask
        if mask is not None:
            shaped = np.broadcast_to(mask, (batch, q.shape[-3], *mask.shape[-2:]))[b:b + 1]
            shaped = shaped[..., :count if shaped.shape[2] > 1 else 1, :own[0].shape[1] if shaped.shape[3] > 1 else 1]
        own_slopes = slopes if slopes is None or slopes.ndim == 1 else slopes[b]
        out, lse = attention(own_q[None], own[0][None], own[1][None], mask=shaped, slopes=own_slopes, start=start, **options)
        result.append((where, out[0], lse[0]))
    return result


def inputs(seed=0, batch=2, heads=4, heads_kv=2, rows=37, keys=53, width=32, width_v=None):
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(shape, dtype=np.float32) for shape in
                 ((batch, heads, rows, width), (batch, heads_kv, keys, width), (batch, heads_kv, keys, width_v or width)))
