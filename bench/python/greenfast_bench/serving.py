"""The suites decode, varlen, paged, verify and masks of greenfast_bench.ab: what inference engines ask of attention, beside the peers that serve it.

A row is a shape with the attributes of `greenfast check --shapes` (docs/command.md): `64x32/8x1/32768x128 used-kv lengths=log-uniform:128`.
Every engine gets the same bits in the same process, reads lengths on the device where the row has such, and is timed only after
rows of what it returns have been compared with fp64, eagerly and once more out of the graph that is timed.
"""

from __future__ import annotations

import dataclasses
import math
import random

from greenfast_bench import capi, ways
from greenfast_bench.measure import DeviceLost, Usage, first_line, measured, p50_us, ratio_of_rounds, say, why_not_timed

# Rows of tools/gpu/decode.
DENSE_DECODE = [
    "1x32/8x1/2048x128", "1x32/8x1/512x128", "1x8x1/2048x64", "1x32/8x1/8192x128", "8x32/8x1/2048x128", "64x32/8x1/512x128",
    "1x32/8x1/32768x128", "1x16/1x1/131072x128", "8x32/8x1/8192x128", "1x32/8x1/131072x128", "128x32/8x1/2048x128",
    "16x32/8x1/8192x128", "16x8x1/8192x128", "16x64/4x1/16384x128",
]
SUITES = {
    "decode": DENSE_DECODE + [
        "1x64/8x1/8192x64 window=127:0 sinks", "32x64/8x1/8192x64 window=127:0 sinks",  # gpt-oss, a layer with a window
        "256x64/8x1/2048x64 window=127:0 sinks",
        "1x64/8x1/8192x64 sinks", "32x64/8x1/4096x64 sinks",  # its other layers
        "4x32/8x1/4096x128", "32x32/8x1/4096x128", "256x32/8x1/1024x128", "4x32/8x1/32768x128",  # Qwen3
        "1x32/4x1/8192x128",  # Qwen3-MoE
        "1x40/8x1/20480x128 chunk=8192 causal", "16x40/8x1/20480x128 chunk=8192 causal", "1x40/8x1/131072x128 chunk=8192 causal",  # Llama 4
        "1x96/8x1/4096x128", "32x96/8x1/8192x128",  # GLM
        "1x8/4x1/4096x256", "32x8/4x1/8192x256", "1x8/4x1/32768x256 window=1023:0",  # Gemma
    ],
    "varlen": [
        "16x32/8x2048x128 packed causal lengths=full", "8x16x4096x128 packed causal lengths=full",
        "16x32/8x2048x64 packed causal lengths=full",
        "16x32/8x4096x128 packed causal lengths=log-uniform:64", "64x32/8x2048x128 packed causal lengths=log-uniform:16",
        "8x32/8x16384x128 packed causal lengths=log-uniform:512",
        "16x64/8x4096x64 packed window=127:0 sinks lengths=log-uniform:64",  # gpt-oss
        "16x64/8x4096x64 packed causal lengths=log-uniform:64",
        "8x40/8x16384x128 packed causal chunk=8192 lengths=log-uniform:512",  # Llama 4
        "8x96/8x4096x128 packed causal lengths=log-uniform:64",  # GLM
        "16x8/4x4096x256 packed causal lengths=log-uniform:64",  # Gemma
        "8x16/8x8192x256 packed causal softcap=50 lengths=log-uniform:256",  # Gemma 2
        "8x48/8x8192x128 packed causal softcap=30 lengths=log-uniform:256",  # Grok-1
        "4x128x4096x192/128 packed causal lengths=log-uniform:256",  # DeepSeek
        "64x32/8x1/32768x128 used-kv lengths=log-uniform:128",  # ragged decode
    ],
    "paged": [
        "16x32/8x1/8192x128 pages=64 used-kv lengths=full", "16x32/8x1/8192x128 pages=16 used-kv lengths=full",
        "1x32/8x1/8192x128 pages=64 used-kv lengths=full", "1x32/8x1/8192x128 pages=16 used-kv lengths=full",
        "64x32/8x1/32768x128 pages=64 used-kv lengths=log-uniform:128", "64x32/8x1/32768x128 pages=16 used-kv lengths=log-uniform:128",
        "64x64/8x1/8192x64 pages=16 used-kv lengths=log-uniform:512 window=127:0 sinks",  # gpt-oss
        "64x64/8x1/8192x64 pages=64 used-kv lengths=log-uniform:512 sinks",
        "16x96/8x1/8192x128 pages=16 used-kv lengths=log-uniform:512",  # GLM
        "32x8/4x1/8192x256 pages=16 used-kv lengths=log-uniform:512",  # Gemma
        "8x32/8x256/8192x128 pages=64 used-kv lengths=log-uniform:512 causal",  # a piece of a prompt over its cache
        "8x32/8x256/8192x128 pages=1 used-kv lengths=log-uniform:512 causal",  # SGLang's pages, unless it is told otherwise
    ],
    # Tokens to be verified (speculative decoding, 4 to 16 a sequence), and few pieces of prompts.
    "verify": [
        "16x32/8x16/8192x128 pages=16 used-kv lengths=log-uniform:512 causal", "1x32/8x16/8192x128 pages=16 used-kv lengths=full causal",
        "64x32/8x16/1024x128 pages=16 used-kv lengths=full causal",  # Llama, Qwen3
        "16x64/4x4/8192x128 pages=16 used-kv lengths=log-uniform:512 causal",  # Qwen3-MoE
        "32x96/8x4/8192x128 pages=16 used-kv lengths=log-uniform:512 causal",  # GLM
        "16x64/8x8/8192x64 pages=16 used-kv lengths=log-uniform:512 sinks causal",  # gpt-oss
        "16x32/8x8/8192x128 pages=16 used-kv lengths=log-uniform:512 causal", "1x32/8x8/32768x128 pages=16 used-kv lengths=full causal",
        "8x32/8x64/8192x128 pages=64 used-kv lengths=log-uniform:512 causal", "1x32/8x128/32768x128 pages=64 used-kv lengths=full causal",
        "16x32/8x16/8192x128 pages=1 used-kv lengths=log-uniform:512 causal",  # SGLang's pages
    ],
    "masks": [
        "8x16x1024x64 mask=bool:bqk", "8x16x1024x64 mask=narrow:hqk", "4x16x2048x64 mask=bool:bk", "4x16x2048x128 mask=bool:bqk",
        "4x16x2048x128 mask=narrow:bhqk",
        "4x32/8x2048x128 mask=bool:bqk",  # a decoder's prompt and padding in one array
        "1x24x4608x128 mask=bool:qk",  # Flux's tokens
        "1x16x2048x128 mask=narrow:hqk",  # T5's relative positions
        "64x12x200x64 mask=narrow:hqk", "64x12x197x64 mask=narrow:hqk",  # BEiT's, and where rows begin anywhere
        "8x16x1023x64 mask=bool:bqk", "8x16x1023x64 mask=narrow:hqk", "32x16x256x64 mask=narrow:hqk",
        "256x8x49x32 mask=narrow:hqk",  # Swin's windows
        "1x32/8x64/4096x128 mask=bool:bqk", "16x32/8x1/2048x128 mask=bool:bqk",
    ],
}
MOST_SETS = 64
ENTRIES, ROWS = 4, 64  # sequences, and rows of each, that are compared with fp64
CHECKED_SETS = 2
PAGE_OF_DENSE = 64  # keys of a page in which FlashAttention-3's varlen entry reads a dense cache


@dataclasses.dataclass(frozen=True)
class Row:
    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    dim: int
    dim_v: int
    text: str
    packed: bool = False
    used: bool = False
    page: int = 0
    window: tuple[int, int] = (-1, -1)
    causal: bool = False
    chunk: int = 0
    sinks: bool = False
    softcap: float = 0.0  # 0: none
    least: int = 0  # of log-uniform lengths; 0: all are full
    mask: str = ""  # by array: bool or narrow, which is of Q's type and added
    mask_dims: str = ""  # of bhqk, those that it has; the others are broadcast

    @staticmethod
    def parse(text: str) -> "Row":
        def pair(item: str) -> tuple[int, int]:
            first, _, second = item.partition("/")
            return int(first), int(second or first)

        shape, *attributes = text.split()
        try:
            batch, heads, seq, dim = shape.split("x")
            (hq, hkv), (sq, skv), (d, dv) = pair(heads), pair(seq), pair(dim)
            row = Row(int(batch), hq, hkv, sq, skv, d, dv, text)
        except ValueError:
            raise Usage(f"shape '{text}': expected BxHxSxD and attributes, e.g. '64x32/8x1/32768x128 used-kv lengths=log-uniform:128'"
                        ) from None
        if min(row.batch, hq, hkv, sq, skv, d, dv) < 1 or hq % hkv:
            raise Usage(f"shape '{text}': every number must be positive and Hq a multiple of Hkv")
        fields: dict = {}
        given: dict[str, str] = {}
        for attribute in attributes:
            name, _, value = attribute.partition("=")
            if name in given:
                raise Usage(f"shape '{text}': '{attribute}' stands behind '{given[name]}', and each may stand there once: keep one of them")
            given[name] = attribute
            try:
                if attribute in ("packed", "causal", "sinks"):
                    fields[name] = True
                elif attribute == "used-kv":
                    fields["used"] = True
                elif name in ("pages", "chunk") and int(value) > 0:
                    fields["page" if name == "pages" else name] = int(value)
                elif name == "softcap" and 0 < float(value) < math.inf:
                    fields[name] = float(value)
                elif name == "window":
                    left, _, right = value.partition(":")
                    fields["window"] = (int(left), int(right))
                elif name == "mask":
                    kind, _, dims = value.partition(":")
                    if kind not in ("bool", "narrow") or "k" not in dims or dims != "".join(d for d in "bhqk" if d in dims):
                        raise ValueError
                    fields["mask"], fields["mask_dims"] = kind, dims
                elif name == "lengths" and value.startswith("log-uniform:"):
                    fields["least"] = int(value.partition(":")[2])
                elif attribute != "lengths=full":
                    raise ValueError
            except ValueError:
                raise Usage(f"shape '{text}': '{attribute}' is not known here; possible: packed, used-kv, pages=N, lengths=full, "
                            "lengths=log-uniform:LEAST, chunk=N, window=L:R, sinks, softcap=X, causal, mask=bool or narrow and of :bhqk the "
                            "dimensions that it has, k among them") from None
        row = dataclasses.replace(row, **fields)
        if row.packed and (row.used or row.page or row.seq_q != row.seq_kv):
            raise Usage(f"shape '{text}': packed goes with neither used-kv nor pages, and with as many rows as keys")
        if row.mask and (row.packed or row.used):
            raise Usage(f"shape '{text}': a mask by array goes with dense rows here")
        if row.page and not row.used:
            raise Usage(f"shape '{text}': pages want used-kv")
        if row.least and not (row.packed or row.used):
            raise Usage(f"shape '{text}': lengths want packed or used-kv")
        if row.least and not (row.seq_q if row.used else 1) <= row.least <= row.seq_kv:
            raise Usage(f"shape '{text}': the least length must be in [Sq, Skv]")
        return row

    @property
    def band(self) -> tuple[int, int]:
        """Keys seen before and after a row's position, which is aligned with the last key."""
        return (self.window[0], 0) if self.causal else self.window

    def lengths(self, seed: int) -> list[int]:
        """Keys of each sequence. Log-uniform: round(exp(u)), u uniform in [ln LEAST, ln Skv], by Python's random.Random(seed),
        so that rows of one B, LEAST and Skv have the same lengths whatever they are kept in."""
        if not self.least:
            return [self.seq_kv] * self.batch
        rng = random.Random(seed)
        return [round(math.exp(rng.uniform(math.log(self.least), math.log(self.seq_kv)))) for _ in range(self.batch)]

    def rows_of(self, length: int) -> int:
        return length if self.packed else self.seq_q

    def seen(self, position: int, length: int) -> tuple[int, int]:
        """First key and one behind the last that a row at this position sees."""
        left, right = self.band
        first = 0 if left < 0 else position - left
        last = length if right < 0 else position + right + 1
        if self.chunk:
            first, last = max(first, position // self.chunk * self.chunk), min(last, (position // self.chunk + 1) * self.chunk)
        return max(first, 0), max(min(last, length), 0)

    def work(self, seed: int, element: int = 2) -> tuple[float, float]:
        """FLOP over the visible pairs, and bytes that a call cannot avoid: Q, the keys that any row sees, O of 16 bits."""
        flops = moved = 0.0
        for length in self.lengths(seed):
            rows = self.rows_of(length)
            spans = [self.seen(length - rows + i, length) for i in range(rows)]
            pairs = sum(max(last - first, 0) for first, last in spans)
            keys = max(last for _, last in spans) - min(first for first, _ in spans)
            flops += 2.0 * pairs * self.heads_q * (self.dim + self.dim_v)
            moved += element * ((self.dim + self.dim_v) * keys * self.heads_kv + self.dim * rows * self.heads_q)
            moved += 2.0 * self.dim_v * rows * self.heads_q
        return flops, moved + self.mask_bytes(element)

    def mask_shape(self) -> tuple[int, ...]:
        sizes = (self.batch, self.heads_q, self.seq_q, self.seq_kv)
        return tuple(size if dim in self.mask_dims else 1 for size, dim in zip(sizes, "bhqk"))

    def mask_bytes(self, element: int = 2) -> float:
        return float(math.prod(self.mask_shape()) * (1 if self.mask == "bool" else element)) if self.mask else 0.0

    def cache_bytes(self, seed: int) -> float:
        """Of 16-bit K and V as they are allocated, a dense copy beside pages included."""
        dense = self.batch * self.seq_kv
        tokens = sum(self.lengths(seed)) if self.packed else dense
        if self.page:
            tokens += sum(self.lengths(seed))
        return 2.0 * tokens * self.heads_kv * (self.dim + self.dim_v) + self.mask_bytes()


class Data:
    """One set of inputs. q: [B, Hq, Sq, D] or packed [total, Hq, D]; k, v: [B, Hkv, Skv, D], pages [count, Hkv, size, D] or packed
    [total, Hkv, D]. What is packed or paged and would fit a dense call has the same bits there too (twin)."""

    def __init__(self, row: Row, dtype, device: str, seed: int, index: int, layout: str):
        import torch

        generator = torch.Generator(device=device).manual_seed(seed * 1000 + index)

        narrow = dtype.itemsize == 1

        def normal(*shape):
            values = torch.randn(*shape, device=device, dtype=torch.float16 if narrow else dtype, generator=generator)
            return values.to(dtype)

        def ints(values):
            return torch.tensor(values, dtype=torch.int32, device=device)

        self.row, self.lengths = row, row.lengths(seed)
        self.longest = max(self.lengths)  # what a host knows that packed them
        self.sinks = self.sinks_bf16 = self.table = self.used = self.cu = self.twin = self.mask = None
        if row.mask == "bool":
            self.mask = torch.rand(row.mask_shape(), device=device, generator=generator) < 0.7
            self.mask[..., 0] = True  # no row without a key, of which engines think differently
        elif row.mask:
            self.mask = normal(*row.mask_shape())
        if row.sinks:  # the same bits in both types, since engines differ in what they take
            self.sinks_bf16 = torch.randn(row.heads_q, device=device, generator=generator).to(torch.bfloat16)
            self.sinks = self.sinks_bf16.float()
        if row.packed:
            ends = [0]
            for length in self.lengths:
                ends.append(ends[-1] + length)
            self.cu, self.total = ints(ends), ends[-1]
            self.ends = ends
            self.q, self.k = normal(self.total, row.heads_q, row.dim), normal(self.total, row.heads_kv, row.dim)
            self.v = normal(self.total, row.heads_kv, row.dim_v)
            if not row.least:
                self.twin = tuple(x.view(row.batch, row.seq_kv, *x.shape[1:]).transpose(1, 2) for x in (self.q, self.k, self.v))
            return

        def cache(dim):
            if layout == "bhsd":
                return normal(row.batch, row.heads_kv, row.seq_kv, dim)
            return normal(row.batch, row.seq_kv, row.heads_kv, dim).transpose(1, 2)

        if layout == "bhsd":
            self.q = normal(row.batch, row.heads_q, row.seq_q, row.dim)
        else:
            self.q = normal(row.batch, row.seq_q, row.heads_q, row.dim).transpose(1, 2)
        self.k, self.v = cache(row.dim), cache(row.dim_v)
        if row.used:
            self.used = ints(self.lengths)
        if row.page:
            self.twin = (self.q, self.k, self.v)
            self._page(ints, seed)
        elif narrow:  # every e4m3 is an fp16
            self.twin = tuple(x.to(torch.float16) for x in (self.q, self.k, self.v))

    def _page(self, ints, seed: int) -> None:
        """Moves K and V into pages that lie in a random order; the last one is nobody's, and stands where a table has no page."""
        import torch

        row, size = self.row, self.row.page
        counts = [-(-length // size) for length in self.lengths]
        order = list(range(sum(counts)))
        random.Random(seed).shuffle(order)
        width, nobody, at = -(-row.seq_kv // size), len(order), 0
        table = torch.full((row.batch, width), nobody, dtype=torch.int32)
        for b, count in enumerate(counts):
            table[b, :count] = torch.tensor(order[at:at + count], dtype=torch.int32)
            at += count
        self.table = table.to(self.q.device)
        pools = []
        for dense in (self.k, self.v):
            dtype = dense.dtype
            if dtype.itemsize == 1:  # e4m3 cannot be indexed
                dense = dense.view(torch.uint8)
            pool = torch.zeros(nobody + 1, size, row.heads_kv, dense.shape[3], dtype=dense.dtype, device=dense.device)
            for b, count in enumerate(counts):
                keys = dense[b].transpose(0, 1)[:min(count * size, row.seq_kv)]  # [keys, Hkv, D]
                whole = keys.shape[0] // size
                where = self.table[b, :count].long()
                pool[where[:whole]] = keys[:whole * size].reshape(whole, size, row.heads_kv, -1)
                if whole < count:
                    pool[where[whole], :keys.shape[0] - whole * size] = keys[whole * size:]
            pools.append(pool.view(dtype).transpose(1, 2))
        self.k, self.v = pools

    def entry(self, b: int):
        """Q [Hq, rows, D] and the keys in use [Hkv, length, D] of a sequence."""
        if self.row.packed:
            part = slice(self.ends[b], self.ends[b + 1])
            return tuple(x[part].transpose(0, 1) for x in (self.q, self.k, self.v))
        q, k, v = self.twin or (self.q, self.k, self.v)
        return q[b], k[b, :, :self.lengths[b]], v[b, :, :self.lengths[b]]

    def room(self, dtype=None):
        """For O: [B, Hq, Sq, Dv] or [total, Hq, Dv], full of NaN; of Q's type, for e4m3 fp16, unless another is given."""
        import torch

        row, dtype = self.row, dtype or (torch.float16 if self.q.element_size() == 1 else self.q.dtype)
        shape = (self.total,) if row.packed else (row.batch, row.seq_q)
        o = torch.full((*shape, row.heads_q, row.dim_v), math.nan, dtype=dtype, device=self.q.device)
        return o if row.packed else o.transpose(1, 2)

    def output_of(self, o, b: int):
        """[Hq, rows, Dv] of a sequence."""
        return o[self.ends[b]:self.ends[b + 1]].transpose(0, 1) if self.row.packed else o[b]


def sample(row: Row, lengths: list[int], seed: int) -> list[tuple[int, list[int]]]:
    """(sequence, its rows) to compare: the longest, the shortest and others; of many rows both ends and some between."""
    rng = random.Random(seed)
    order = sorted(range(row.batch), key=lambda b: lengths[b])
    chosen = {order[0], order[-1]} | set(rng.sample(order, min(len(order), ENTRIES - 2)))
    picked = []
    for b in sorted(chosen):
        rows = row.rows_of(lengths[b])
        some = set(range(rows)) if rows <= ROWS else set(rng.sample(range(rows), ROWS - 4)) | {0, 1, rows - 2, rows - 1}
        picked.append((b, sorted(some)))
    return picked


def reference(data: Data, b: int, rows: list[int]):
    """O of these rows of sequence b in fp64, [Hq, rows, Dv]."""
    import torch

    row, (q, k, v) = data.row, (widened(x) for x in data.entry(b))
    group, length = row.heads_q // row.heads_kv, data.lengths[b]
    index = torch.tensor(rows, device=q.device)
    position = index + (length - row.rows_of(length))
    keys = torch.arange(length, device=q.device)
    hidden = torch.zeros(len(rows), length, dtype=torch.bool, device=q.device)
    left, right = row.band
    if left >= 0:
        hidden |= keys[None] < (position - left)[:, None]
    if right >= 0:
        hidden |= keys[None] > (position + right)[:, None]
    if row.chunk:
        hidden |= keys[None] // row.chunk != (position // row.chunk)[:, None]
    parts = []
    for h in range(row.heads_kv):
        heads = slice(h * group, (h + 1) * group)
        s = q[heads, index].double() @ k[h].double().T * row.dim ** -0.5
        if row.softcap:
            s = row.softcap * torch.tanh(s / row.softcap)
        if row.mask:
            of_heads = data.mask.expand(row.batch, row.heads_q, row.seq_q, row.seq_kv)[b, heads][:, index]
            s = s.masked_fill(~of_heads, -math.inf) if row.mask == "bool" else s + of_heads.double()
        s = s.masked_fill(hidden, -math.inf)
        if row.sinks:
            sink = data.sinks[heads].double()[:, None, None].expand(group, len(rows), 1)
            p = torch.softmax(torch.cat((s, sink), -1), -1)[..., :-1]
        else:
            p = torch.softmax(s, -1)
        parts.append(p @ v[h].double())
    return torch.cat(parts)


def error_of(data: Data, o, wanted) -> dict[str, float]:
    """rel_fro over all rows of `wanted` (sequence, rows, reference), and of the worst row; NaN where o has one anywhere."""
    import torch

    o = widened(o)
    if torch.isnan(o).any():
        return {"rel_fro": math.nan, "max_row": math.nan}
    err = norm = worst = 0.0
    for b, rows, r in wanted:
        got = data.output_of(o, b)[:, rows].double()
        if got.shape != r.shape:
            raise ValueError(f"its output has shape {tuple(o.shape)}")
        e, n = ((got - r) ** 2).sum(-1), (r ** 2).sum(-1)
        err, norm = err + float(e.sum()), norm + float(n.sum())
        worst = max(worst, float((e / n.clamp_min(1e-30)).max()))
    return {"rel_fro": math.sqrt(err / norm) if norm else math.sqrt(err), "max_row": math.sqrt(worst)}


def widened(o):
    """e4m3 knows no arithmetic, nor isnan."""
    return o.half() if o.element_size() == 1 else o


class Refused(Exception):
    """Why an engine does not take a row."""


class Engine:
    name = ""
    ours = False
    allowed = 1.0  # of measure.TIMED_UP_TO

    def room(self, data: Data):
        """For O."""
        return data.room()

    def bind(self, row: Row, data: Data, o, clock):
        """A call of this row on this data, which returns O; o is room for it. Raises Refused."""
        raise NotImplementedError

    def plan(self) -> dict:
        """What a record keeps of how it ran."""
        return {}


class Greenfast(Engine):
    """The library through its C ABI. On the dense twin of pages or packed sequences: what they cost."""

    ours = True
    accuracy = 0  # exact

    def __init__(self, variant: str = "", library: capi.Library | None = None, twin: bool = False, invariant: bool = False,
                 name: str = ""):
        self._variant, self._library, self._twin, self._invariant = variant, library or capi.load(), twin, invariant
        self.name = (name or variant or "greenfast") + (":dense" if twin else "") + (":invariant" if invariant else "")
        self._plan: dict = {}
        self._rooms: dict = {}

    def identity(self) -> dict:
        return self._library.identity()

    def operands(self, row: Row, data: Data, o):
        """Q, K, V, O as the C ABI wants them, and the arrays."""
        arrays = {"sinks": data.sinks, "mask": data.mask}
        if self._twin:
            if data.twin is None:
                raise Refused("the row is dense itself, or its lengths differ")
            q, k, v = data.twin
            if row.packed:
                o = o.view(row.batch, row.seq_q, *o.shape[1:]).transpose(1, 2)
            arrays["used_kv"] = data.used
        elif row.packed:
            q, k, v, o = (x.transpose(0, 1).unsqueeze(0) for x in (data.q, data.k, data.v, o))
            arrays["cu_q"] = arrays["cu_kv"] = data.cu
        else:
            q, k, v = data.q, data.k, data.v
            arrays["used_kv"], arrays["page_table"] = data.used, data.table
        return q, k, v, o, {name: array for name, array in arrays.items() if array is not None}

    def bind(self, row, data, o, clock):
        q, k, v, out, arrays = self.operands(row, data, o)
        device = capi.CUDA if clock.kind == "cuda" else capi.CPU
        most = data.longest if row.packed else row.seq_kv
        problem = self._library.serving_problem(q, k, v, out, batch=row.batch, seq_q=most if row.packed else row.seq_q, seq_kv=most,
                                                arrays=arrays, window=row.band, chunk=row.chunk, softcap=row.softcap)
        problem.accuracy = self.accuracy
        room = self.room_for(row, problem, device, o)
        bound = self._library.bind_problem(problem, q, k, v, out, arrays, device=device, variant=self._variant, workspace=room,
                                           batch_invariant=self._invariant)

        def call():
            bound(clock.stream())
            return o

        return call

    def room_for(self, row: Row, problem: capi.Problem, device: int, o):
        """The workspace that the plan of this problem asks for; what the plan says is kept. Raises Refused."""
        import torch

        try:
            plan = self._library.plan(problem, device=device, variant=self._variant, batch_invariant=self._invariant)
        except capi.Error as error:
            raise Refused(str(error)) from None
        self._plan = {"variant": plan.variant.decode(), "kernel": plan.kernel.decode(), "grid": list(plan.grid),
                      "block": list(plan.block), "shared_bytes": plan.shared_bytes, "splits": plan.splits,
                      "workspace_bytes": plan.workspace_bytes}
        if not plan.workspace_bytes:
            return None
        key = (row.text, plan.workspace_bytes)  # one for all calls of a row: they follow one another on a stream
        if key not in self._rooms:
            self._rooms = {key: torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=o.device)}
        return self._rooms[key]

    def plan(self):
        return self._plan


class FlashAttention3(Engine):
    """Its forward by the operator's own schema, since packages differ in what they take. planned: the schedule of the lengths is
    computed before the clock runs, as engines do once for all layers."""

    def __init__(self, name: str, operators, varlen_only: bool, planned: bool = False):
        self.name, self._forward, self._varlen_only = name, operators.fwd, varlen_only
        self._schema = operators.fwd.default._schema.arguments
        self._planner = operators.get_scheduler_metadata if planned else None

    def known(self, row: Row, data: Data, o) -> dict:
        """Arguments by name. Where the build has its varlen entry only, a dense cache goes in as pages that lie in order."""
        import torch

        if row.mask:
            raise Refused("it takes no masks by array")
        taken = {argument.name for argument in self._schema}
        left, right = row.band
        # 0: its own heuristic; one part where there are rows enough to fill the machine.
        values = {"softmax_scale": row.dim ** -0.5, "num_splits": 0 if row.seq_q <= 64 else 1, "softcap": row.softcap, "is_rotary_interleaved": True,
                  "is_causal": right == 0, "causal": right == 0}
        if row.softcap and "softcap" not in taken:
            raise Refused("this build's schema has no softcap")
        if row.sinks:
            name = next((n for n in ("s_aux", "learnable_sink") if n in taken), None)
            if not name:
                raise Refused("this build's schema has no sinks")
            values[name] = data.sinks_bf16
        if row.chunk:
            if "attention_chunk" in taken:
                values["attention_chunk"] = row.chunk
            elif row.seq_q == 1 and not row.least and not row.packed:  # the keys of one row in a chunk are a window
                left, right = (row.seq_kv - 1) % row.chunk, 0
                values["is_causal"] = values["causal"] = True
            else:
                raise Refused("this build's schema has no attention_chunk")
        values["window_size_left"], values["window_size_right"] = left, right
        if row.packed:
            return {**values, "q": data.q, "k": data.k, "v": data.v, "out": o, "cu_seqlens_q": data.cu, "cu_seqlens_k": data.cu,
                    "max_seqlen_q": data.longest, "max_seqlen_k": data.longest}
        q, k, v, out = (x.transpose(1, 2) for x in (data.q, data.k, data.v, o))  # [B, S, H, D], [pages, size, H, D]
        values.update(k=k, v=v)
        if row.used:
            values.update(seqused_k=data.used, max_seqlen_k=row.seq_kv)
        if row.page:
            values["page_table"] = data.table
        if not self._varlen_only:
            return {**values, "q": q, "out": out}
        device = q.device
        if not row.used and row.seq_q > 64:  # a prompt: packed, all of one length
            values.update(k=k.reshape(-1, *k.shape[2:]), v=v.reshape(-1, *v.shape[2:]), max_seqlen_k=row.seq_kv,
                          cu_seqlens_k=torch.arange(0, (row.batch + 1) * row.seq_kv, row.seq_kv, dtype=torch.int32, device=device))
        elif not row.used:
            values.update(seqused_k=torch.full((row.batch,), row.seq_kv, dtype=torch.int32, device=device), max_seqlen_k=row.seq_kv)
            if k.is_contiguous() and v.is_contiguous() and row.seq_kv % PAGE_OF_DENSE == 0:
                pages = row.batch * row.seq_kv // PAGE_OF_DENSE
                values.update(k=k.view(pages, PAGE_OF_DENSE, *k.shape[2:]), v=v.view(pages, PAGE_OF_DENSE, *v.shape[2:]),
                              page_table=torch.arange(pages, dtype=torch.int32, device=device).view(row.batch, -1))
        return {**values, "q": q.reshape(-1, *q.shape[2:]), "out": out.view(-1, *out.shape[2:]), "max_seqlen_q": row.seq_q,
                "cu_seqlens_q": torch.arange(0, (row.batch + 1) * row.seq_q, row.seq_q, dtype=torch.int32, device=device)}

    def bind(self, row, data, o, clock):
        import torch

        values = self.known(row, data, o)
        if self._planner:
            if not row.used and not row.packed:
                raise Refused("the row has no lengths to plan for")
            lengths = values.get("seqused_k")
            if lengths is None:
                lengths = torch.tensor(data.lengths, dtype=torch.int32, device=data.q.device)
            facts = {**values, "batch_size": row.batch, "max_seqlen_q": data.longest if row.packed else row.seq_q,
                     "max_seqlen_k": data.longest if row.packed else row.seq_kv,
                     "num_heads": row.heads_q, "num_heads_k": row.heads_kv, "headdim": row.dim, "headdim_v": row.dim_v,
                     "qkv_dtype": data.q.dtype, "seqused_k": lengths, "page_size": row.page or None, "has_softcap": row.softcap > 0}
            values["scheduler_metadata"] = self._planner(**by_schema(self._planner.default._schema.arguments, facts))
        arguments, forward = by_schema(self._schema, values), self._forward

        def call():
            out = forward(**arguments)
            out = out[0] if isinstance(out, (tuple, list)) else out
            return out if row.packed else out.view(row.batch, row.seq_q, *out.shape[-2:]).transpose(1, 2)

        return call


def by_schema(arguments, known: dict) -> dict:
    """The values that an operator's schema asks for; what is not known and has no default is nothing, off or zero."""
    values = {}
    for argument in arguments:
        if argument.name in known:
            values[argument.name] = known[argument.name]
        elif not argument.has_default_value():
            kind = str(argument.type)
            optional = "Optional" in kind or kind.endswith("?")
            # cp_world_size of vLLM's build counts the machines that share a sequence.
            one = argument.name == "cp_world_size"
            values[argument.name] = None if optional else False if kind == "bool" else 0.0 if kind == "float" else int(one)
    return values


class TorchCudnn(Engine):
    """cuDNN as PyTorch calls it: dense by scaled_dot_product_attention, packed by the operator under varlen_attn."""

    name, backend = "cudnn", "CUDNN_ATTENTION"

    def bind(self, row, data, o, clock):
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        if clock.kind != "cuda":
            raise Refused("cuDNN runs on a GPU")
        if row.sinks or row.softcap:
            raise Refused("torch's call has no sinks and no softcap")
        if row.used:
            raise Refused("torch's call takes no used lengths and no pages")
        if row.packed:
            if row.band[0] >= 0 or row.chunk:
                raise Refused("torch's packed call of cuDNN has no windows and no chunks")
            forward, scale = torch.ops.aten._cudnn_attention_forward, row.dim ** -0.5

            def packed():
                return forward(data.q, data.k, data.v, None, data.cu, data.cu, data.longest, data.longest, True, 0.0, row.band[1] == 0,
                               False, scale=scale)[0]

            return packed
        options = {"enable_gqa": row.heads_q != row.heads_kv}
        if row.mask:
            if row.band != (-1, -1) or row.chunk:
                raise Refused("torch's call takes a mask by array alone")
            k, v, options["attn_mask"] = data.k, data.v, data.mask
        elif row.seq_q == row.seq_kv > 1 and row.band == (-1, 0) and not row.chunk:
            k, v, options["is_causal"] = data.k, data.v, True
        else:
            k, v = seen_by_one_row(row, data)

        def call():
            with sdpa_kernel(getattr(SDPBackend, self.backend)):
                return torch.nn.functional.scaled_dot_product_attention(data.q, k, v, **options)

        return call


class TorchEfficient(TorchCudnn):
    """PyTorch's memory-efficient kernel, which takes a mask by array too."""

    name, backend = "efficient", "EFFICIENT_ATTENTION"

    def bind(self, row, data, o, clock):
        if row.packed:
            raise Refused("dense rows only")
        if row.heads_q != row.heads_kv:
            raise Refused("it has no groups of heads")
        return super().bind(row, data, o, clock)


def seen_by_one_row(row: Row, data: Data):
    """K and V as far as the only row of each sequence sees them: a view, for engines without windows and chunks."""
    if row.seq_q == 1:
        first, last = row.seen(row.seq_kv - 1, row.seq_kv)
        return data.k[:, :, first:last], data.v[:, :, first:last]
    if row.band != (-1, -1) or row.chunk:
        raise Refused("it aligns masks with the first key")
    return data.k, data.v


class CudnnGraph(Engine):
    """cuDNN through its frontend: used lengths and pages, both on the device, sinks and windows. A graph is built once for a row."""

    name = "cudnn-graph"

    def __init__(self):
        import cudnn

        self._cudnn, self._handle = cudnn, cudnn.create_handle()
        self._key = self._graph = self._tensors = self._workspace = None

    def arguments(self, row: Row, data: Data) -> tuple[dict, dict]:
        """Of sdpa(): its tensors by name, and its facts."""
        import torch

        if row.packed:
            raise Refused("packed sequences are left to torch's call of cuDNN")
        if row.mask:
            raise Refused("masks by array are left to torch's call of cuDNN")
        if row.softcap:
            raise Refused("no softcap")
        cudnn, k, v, band = self._cudnn, data.k, data.v, row.band
        if row.chunk:
            if row.used:
                raise Refused("no chunks where lengths differ")
            (k, v), band = seen_by_one_row(row, data), (-1, -1)
        tensors = {"q": data.q, "k": k, "v": v}
        facts: dict = {"attn_scale": row.dim ** -0.5}
        if row.used:
            facts["use_padding_mask"] = True
            tensors["seq_len_q"] = torch.full((row.batch, 1, 1, 1), row.seq_q, dtype=torch.int32, device=data.q.device)
            tensors["seq_len_kv"] = data.used.view(-1, 1, 1, 1)
        if row.seq_q == 1 and band[0] < 0:  # a row's own key is the last: there is nothing behind it
            band = (-1, -1)
        if band != (-1, -1):
            facts["diagonal_alignment"] = cudnn.diagonal_alignment.BOTTOM_RIGHT
            if band[0] >= 0:
                facts["diagonal_band_left_bound"] = band[0] + 1  # it counts the row's own key
            if band[1] >= 0:
                facts["diagonal_band_right_bound"] = band[1]
        if row.sinks:
            tensors["sink_token"] = data.sinks.view(1, -1, 1, 1)
        if row.page:
            facts["paged_attention_max_seq_len_kv"] = row.seq_kv
            tensors["paged_attention_k_table"] = tensors["paged_attention_v_table"] = data.table.view(row.batch, 1, -1, 1)
        return tensors, facts

    def build(self, tensors: dict, facts: dict, o):
        """A graph and its tensors by name, that of O among them."""
        import torch

        cudnn = self._cudnn
        kinds = {torch.float16: cudnn.data_type.HALF, torch.bfloat16: cudnn.data_type.BFLOAT16, torch.float32: cudnn.data_type.FLOAT,
                 torch.int32: cudnn.data_type.INT32}
        graph = cudnn.pygraph(io_data_type=kinds[o.dtype], intermediate_data_type=cudnn.data_type.FLOAT,
                              compute_data_type=cudnn.data_type.FLOAT, handle=self._handle)
        made = {name: graph.tensor(name=name, dim=list(x.shape), stride=list(x.stride()), data_type=kinds[x.dtype])
                for name, x in tensors.items()}
        try:
            out = graph.sdpa(**made, **facts, generate_stats=False)[0]
        except TypeError:
            out = graph.sdpa(**made, **facts, is_inference=True)[0]
        out.set_output(True).set_dim(list(o.shape)).set_stride(list(o.stride())).set_data_type(kinds[o.dtype])
        return graph, {**made, "o": out}

    def bind(self, row, data, o, clock):
        import torch

        tensors, facts = self.arguments(row, data)
        key = (row, data.q.dtype, *(x.stride() for x in tensors.values()))
        if self._key != key:
            self._key = None
            self._graph, self._tensors = self.build(tensors, facts, o)
            self._graph.build([self._cudnn.heur_mode.A])
            self._workspace = torch.empty(max(self._graph.get_workspace_size(), 16), dtype=torch.uint8, device=o.device)
            self._key = key
        pack = {self._tensors[name]: x for name, x in {**tensors, "o": o}.items()}
        graph, workspace, handle, set_stream = self._graph, self._workspace, self._handle, self._cudnn.set_stream

        def call():
            set_stream(handle=handle, stream=clock.stream())
            graph.execute(pack, workspace, handle=handle)
            return o

        return call


class TorchVarlen(Engine):
    """torch.nn.attention.varlen, since PyTorch 2.10."""

    name = "varlen"

    def __init__(self):
        import inspect

        from torch.nn.attention.varlen import varlen_attn

        self._call, self._taken = varlen_attn, set(inspect.signature(varlen_attn).parameters)

    def bind(self, row, data, o, clock):
        if not row.packed:
            raise Refused("packed sequences only")
        if row.sinks or row.chunk or row.softcap:
            raise Refused("no sinks, no chunks and no softcap")
        options: dict = {"scale": row.dim ** -0.5} if "scale" in self._taken else {}
        if "window_size" in self._taken:
            options["window_size"] = row.band
        elif row.band[0] >= 0:
            raise Refused("this PyTorch's varlen_attn has no window")
        if "is_causal" in self._taken:
            options["is_causal"] = row.band[1] == 0
        if "enable_gqa" in self._taken:
            options["enable_gqa"] = row.heads_q != row.heads_kv

        def call():
            return self._call(data.q, data.k, data.v, data.cu, data.cu, data.longest, data.longest, **options)

        return call


def _upstream():
    import torch

    try:
        import flash_attn_interface  # noqa: F401  the upstream package
    except ImportError:
        import peer_fa3  # noqa: F401  the same operators, packed without their package
    return torch.ops.flash_attn_3


def _vllm():
    import torch

    import peer_fa3_fp8  # noqa: F401  vLLM's build, packed without its package
    return torch.ops._vllm_fa3_C


# fa3 is the upstream build; fa3-vllm is vLLM's, which has the varlen entry only; -plan: with the schedule made before.
PEERS = {
    "cudnn": TorchCudnn,
    "cudnn-graph": CudnnGraph,
    "efficient": TorchEfficient,
    "fa3": lambda: FlashAttention3("fa3", _upstream(), varlen_only=False),
    "fa3-vllm": lambda: FlashAttention3("fa3-vllm", _vllm(), varlen_only=True),
    "fa3-vllm-plan": lambda: FlashAttention3("fa3-vllm-plan", _vllm(), varlen_only=True, planned=True),
    "varlen": TorchVarlen,
}
DEFAULT_PEERS = {"decode": "cudnn,cudnn-graph,fa3,fa3-vllm", "varlen": "cudnn,cudnn-graph,fa3,fa3-vllm,fa3-vllm-plan,varlen",
                 "paged": "cudnn-graph,fa3,fa3-vllm,fa3-vllm-plan", "verify": "fa3-vllm,fa3-vllm-plan", "masks": "cudnn,efficient"}
BESIDE = (":dense", ":fp16", ":bf16", ":transposed", ":from-fp16")  # of ours, for other comparisons than with peers
IDENTITY = {"cudnn": "peer:torch-cudnn", "efficient": "peer:torch-efficient", "varlen": "peer:torch-varlen"}


def identity(name: str) -> str:
    """How `greenfast compare` calls an engine."""
    return IDENTITY.get(name, f"peer:{name}") if is_peer(name) else name


def is_peer(name: str) -> bool:
    return name in PEERS or name in ("fa3-fp8", "cudnn-fp8", "fa3-fp16", "cudnn-fp16")


def open_engines(peers: list[str], variants: list[str], invariant: bool, before: str | None, twins: bool = True
                 ) -> tuple[list[Engine], dict[str, str]]:
    """Ours first. A peer that cannot be imported is left out with its reason."""
    for name in peers:
        if name not in PEERS:
            raise Usage(f"peer '{name}' is unknown to these suites; one of: {', '.join(PEERS)}")
    library = capi.load()
    engines: list[Engine] = []
    for variant in ["", *variants]:
        engines.append(Greenfast(variant, library))
        if twins:
            engines.append(Greenfast(variant, library, twin=True))
        if invariant:
            engines.append(Greenfast(variant, library, invariant=True))
    if before:
        engines.append(Greenfast("", capi.load(before), name="before"))
    missing = {}
    for name in peers:
        try:
            engines.append(PEERS[name]())
        except Exception as error:  # whatever a foreign package throws at import is a reason, not our failure
            missing[name] = first_line(error)
    return engines, missing


def count_sets(row: Row, clock, args) -> int:
    """Input sets whose visible K and V are twice the cache, so that each call finds its own in memory; where that takes more than
    MOST_SETS of them, or more than a third of the memory, fewer."""
    if args.sets:
        return args.sets
    _, moved = row.work(args.seed)
    wanted = math.ceil(2 * clock.cache_bytes / moved)
    fits = int(clock.memory_bytes / 3 / row.cache_bytes(args.seed))
    return max(1, min(max(2, wanted), MOST_SETS, fits))


def plan_tracks(row: Row, lengths: list[int], flops: float, moved: float, dtype, args, clock) -> tuple[int, list[ways.Track], list[str]]:
    """How many input sets the row takes, its ways, and which of those asked for it cannot be timed in."""
    guess = max(flops / 5e14, moved / 4e12) + 4e-6 if clock.kind == "cuda" else 1e-3
    rows = sum(row.rows_of(length) for length in lengths)

    def track(way: ways.Way | None, sets: int, cache: str) -> ways.Track:
        before = None
        if way and way.between:
            before = ways.neighbour(way.neighbour, rows, row.heads_q * row.dim, dtype, clock.kind,
                                    2 * clock.cache_bytes if cache == "cold" else 0)
        count = ways.calls_per_graph(guess, sets)
        own = {"shape": row.text, "problem": f"{row.text} {args.dtype}", "causal": row.causal, "dtype": args.dtype, "flops": flops,
               "bytes": moved, "sets": sets, "cache": cache, "calls_per_graph": count, "engines": {}, "rounds": []}
        if way:
            own["way"] = way.text
        if before:
            own["neighbour"] = before.what
        if row.least:
            own["lengths"] = lengths
        return ways.Track(way or ways.Way(cache=cache), own, count, clock, before)

    if not args.ways:
        sets = count_sets(row, clock, args)
        return sets, [track(None, sets, "cold" if sets * moved >= 2 * clock.cache_bytes else "hot")], []
    sets = ways.sets_of(args.ways, moved, row.cache_bytes(args.seed), clock, args.sets)
    tracks = [track(way, sets[way.cache], way.cache) for way in args.ways if way.cache in sets]
    return max(sets.values(), default=0), tracks, [way.text for way in args.ways if way.cache not in sets]


def run_row(row: Row, engines: list[Engine], args, clock, telemetry, rng: random.Random) -> list[dict]:
    """The row as it was timed in each way."""
    import torch

    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}[args.dtype]
    flops, moved = row.work(args.seed, dtype.itemsize)
    sets, tracks, left_out = plan_tracks(row, row.lengths(args.seed), flops, moved, dtype, args, clock)
    if left_out:
        say(f"{row.text}: not timed {', '.join(left_out)}: its input sets are not twice the L2 cache in a third of the memory")
    data = [Data(row, dtype, clock.kind, args.seed, i, args.layout) for i in range(sets)]
    picked = sample(row, row.lengths(args.seed), args.seed)
    wanted = [[(b, rows, reference(data[i], b, rows)) for b, rows in picked] for i in range(min(sets, CHECKED_SETS))]
    kept = []  # what graphs write to must not be given back while they live
    for engine in engines:
        entries = [track.row["engines"].setdefault(engine.name, {"us": [], "skipped": None}) for track in tracks]
        reason = None
        try:
            calls = [engine.bind(row, one, engine.room(one), clock) for one in data]
            kept.append(calls)
            eager = worst_errors(data, [call() for call in calls], wanted, clock)
            for track, entry in zip(tracks, entries):
                entry["plan"], errors = engine.plan(), eager
                if engine.ours:
                    entry["variant"] = entry["plan"]["variant"]
                if not why_not_timed(eager, args.dtype, engine.allowed):
                    replay, outputs = track.prepare(calls[:track.row["sets"]])
                    kept.append(outputs)
                    for output in outputs:
                        (output.view(torch.uint8).fill_(0x7f) if output.element_size() == 1 else output.fill_(math.nan))
                    clock.synchronize()
                    replay()
                    errors = worst_errors(data, outputs, wanted, clock)
                entry["error"], entry["max_row"] = errors["rel_fro"], errors["max_row"]
                why = why_not_timed(errors, args.dtype, engine.allowed)
                entry["timed"] = not why
                if why:
                    entry["skipped"] = why
                else:
                    track.replays[engine.name] = replay
        except Refused as why:
            reason = str(why)
        except Exception as error:  # an engine that cannot take this row must not end the others'
            reason = first_line(error)
            try:
                clock.synchronize()
            except Exception as lost:
                raise DeviceLost(f"the device was lost in {engine.name} at {row.text}: {first_line(lost)}") from error
        for entry in entries:
            if "timed" not in entry:
                entry["skipped"] = reason
    ways.take_rounds(tracks, args.rounds, rng, telemetry)
    for track in tracks:
        track.replays.clear()
    kept.clear()
    clock.release()
    return [track.row for track in tracks]


def worst_errors(data: list[Data], outputs: list, wanted: list, clock) -> dict[str, float]:
    """Of the sets that have a reference; of the others only that every element was written."""
    import torch

    clock.synchronize()
    worst = {"rel_fro": 0.0, "max_row": 0.0}
    for i, output in enumerate(outputs):
        if i < len(wanted):
            found = error_of(data[i], output, wanted[i])
        else:
            found = {"rel_fro": math.nan if torch.isnan(widened(output)).any() else 0.0}
        for name, value in found.items():
            if not value <= worst[name]:
                worst[name] = value
    return worst


def shown(row: dict) -> dict[str, dict]:
    """For the eye, and in no record: of each engine that was timed its median, rates, and how many times faster than each peer
    ("over") and than its own twins it is, as medians of the rounds' ratios. Which peer is the best and how sure a ratio is,
    `greenfast compare --best` says."""
    times = {name: us for name, entry in row["engines"].items() if (us := p50_us(entry))}
    figures = {}
    for name, us in times.items():
        own = figures[name] = {"p50_us": us, "tflops": row["flops"] / us * 1e-6, "tbs": row["bytes"] / us * 1e-6}
        if not is_peer(name) and not name.endswith(BESIDE):
            own["over"] = {peer: ratio for peer in times if is_peer(peer) and (ratio := ratio_of_rounds(row, peer, name))}
        for kind in ("dense", "fp16", "bf16"):
            other = f"{name.partition(':')[0]}:{kind}"
            if other in times and not name.endswith((":dense", ":fp16", ":bf16")):
                own[f"over_{kind}"] = ratio_of_rounds(row, other, name)
    return figures


def samples(row: dict, clock, seed: int) -> dict:
    """One shape of greenfast.samples/1: a round is a block. What the schema does not know stands under "ab"."""
    return {"name": ways.title(row, row["shape"]), "problem": row["problem"], "flops": row["flops"],
            "device": {"kind": clock.kind, "name": clock.name}, **ways.described(row, clock.timer, clock.tick_seconds), "seed": seed,
            **measured(row, identity)}


def table(rows: list[dict], markdown: bool) -> str:
    """µs a call of every engine that took any row; of ours how many times faster than each peer; and of the fastest of ours how
    it stands beside its dense twin, or the same values in 16 bits."""
    names = [n for n in dict.fromkeys(name for row in rows for name in row["engines"])
             if any("timed" in row["engines"].get(n, {}) for row in rows)]
    every = [shown(row) for row in rows]
    ours = [n for n in names if not is_peer(n) and not n.endswith(BESIDE)]
    quantised = any(name.endswith(":from-fp16") for figures in every for name in figures)
    beside = [kind for kind in ("dense", "fp16", "bf16") if any(f"over_{kind}" in own for figures in every for own in figures.values())]
    several = any(row.get("way") for row in rows)
    header = ["problem", *(["way"] if several else []), "MB", *(f"{n} µs" for n in names), "TB/s", "TFLOP/s", *(f"× {n}" for n in ours),
              *(f"× over {kind}" for kind in beside), *(["from fp16 × over fp16"] if quantised else []), "error", "variant"]
    body = []
    for row, figures in zip(rows, every):
        cells = [row["shape"], *([row["way"]] if several else []),
                 f"{row['bytes'] / 1e6:.1f}" + ("" if row["cache"] == "cold" else " hot")]
        for name in names:
            entry = row["engines"].get(name, {})
            noise = ways.is_noise(entry)
            cells.append(f"{figures[name]['p50_us']:.2f}" if name in figures else "wrong" if entry.get("timed") is False else "noise" if noise else "–")
        # Of several of ours the fastest speaks for the row.
        speaker = min((n for n in ours if n in figures), key=lambda n: figures[n]["p50_us"], default="")
        fastest = figures.get(speaker, {})
        cells += [f"{fastest['tbs']:.2f}" if fastest else "–", f"{fastest['tflops']:.0f}" if fastest else "–"]
        for name in ours:
            cells.append(", ".join(f"{ratio:.3f} {peer}" for peer, ratio in figures.get(name, {}).get("over", {}).items()) or "–")
        cells += [*(f"{fastest[f'over_{kind}']:.3f}" if fastest.get(f"over_{kind}") else "–" for kind in beside)]
        if quantised:
            ratio = figures.get("greenfast:from-fp16", {}).get("over_fp16")
            cells.append(f"{ratio:.3f}" if ratio else "–")
        entry = row["engines"].get(speaker, {})
        cells += [f"{entry['error']:.1e}" if entry else "–", entry.get("variant", "–")]
        body.append(cells)
    if markdown:
        lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        return "\n".join(lines + ["| " + " | ".join(cells) + " |" for cells in body])
    widths = [max(len(line[i]) for line in [header] + body) for i in range(len(header))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths)).rstrip() for line in [header] + body)


def progress(row: dict) -> str:
    figures = shown(row)
    parts = [f"{name} {figures[name]['p50_us']:.2f}" if name in figures else f"{name} {entry['skipped']}" if entry.get("timed") is False else
             f"{name} noise" if ways.is_noise(entry) else ""
             for name, entry in row["engines"].items()]
    ratios = [f"{name} ×{ratio:.2f} {peer}" for name, own in figures.items() for peer, ratio in own.get("over", {}).items()]
    return f"{ways.title(row, row['shape'])}: {', '.join(part for part in parts if part) or 'nobody'}  {', '.join(ratios)}"


def reasons(rows: list[dict]) -> list[str]:
    """Who left out what, each reason once."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, entry in row["engines"].items():
            if entry["skipped"] and not name.endswith(":dense"):
                found.setdefault((name, entry["skipped"][:300]), []).append(row["shape"])
    return [f"SKIPPED {name} ({len(shapes)} rows, first {shapes[0]}): {reason}" for (name, reason), shapes in found.items()]


