"""A/B on one GPU: Greenfast against the attention of PyTorch and of any peer that can be imported.

Every engine gets the same tensors in the same process. A shape is first checked (error of sampled rows against fp64 on
the same bits), then timed: CUDA graphs that rotate through several input sets, replayed in rounds of random order, so
that drift of clock and power meets every engine alike. What is plainly wrong is not timed; beyond that it judges nothing:
whether an output is right enough, who is faster, by how much and how sure that is, `greenfast compare FILE --best` says of the samples.

    python -m greenfast_bench.ab --suite peers --json peers.json --md peers.md --plot peers.svg
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import random
import sys
import time

from greenfast_bench import capi, fp8, models, serving, ways
from greenfast_bench.measure import (SCHEMA, CpuClock, CudaClock, DeviceLost, Record, Telemetry, Usage, elapsed_us, first_line,
                                     interrupted_by_term, measured, p50_us, say, why_not_timed)

# The table of peers: every row is shown, the slower ones too.
SUITES = {
    "mission": ["1x8x512x64"],
    "peers": [
        "1x8x512x64", "1x8x2048x64", "2x8x2048x64", "2x8x2048x128",
        "32x32x512x64", "16x32x1024x64", "8x32x2048x64", "4x32x4096x64", "2x32x8192x64", "1x32x16384x64",
        "32x16x512x128", "16x16x1024x128", "8x16x2048x128", "4x16x4096x128", "2x16x8192x128", "1x16x16384x128",
        "2x8x4096x256",
    ],
    # Greenfast alone, on inputs that its range guard must work for; × is against N(0,1).
    "hard": ["8x16x1024x64", "2x32x2048x64", "2x8x2048x64", "1x8x2048x64", "8x16x1024x128", "4x8x2048x256"],
}
# Rows with masks of their own.
MODELS = {"models": [(model.shape, model.causal) for model in models.MODELS]}
HARD_INPUTS = ["normal", "x9", "falling", "rising", "x21", "far", "nan", "inf"]

REFERENCE_ROWS = 256  # rows per (batch, head) compared with fp64
ENGINES_HELD = 8  # outputs beside each input set, at most, when it is asked what the memory holds
CHECKED_SETS = 2  # compared with fp64; of further ones every element must be written


@dataclasses.dataclass(frozen=True)
class Shape:
    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    dim: int
    dim_v: int
    text: str

    @staticmethod
    def parse(text: str) -> "Shape":
        def pair(item: str) -> tuple[int, int]:
            first, _, second = item.partition("/")
            return int(first), int(second or first)

        try:
            batch, heads, seq, dim = text.split("x")
            (hq, hkv), (sq, skv), (d, dv) = pair(heads), pair(seq), pair(dim)
            shape = Shape(int(batch), hq, hkv, sq, skv, d, dv, text)
        except ValueError:
            raise Usage(f"shape '{text}': expected BxHxSxD, e.g. 1x8x512x64 or 4x32/8x1/8192x128") from None
        if min(shape.batch, hq, hkv, sq, skv, d, dv) < 1 or hq % hkv:
            raise Usage(f"shape '{text}': every number must be positive and Hq a multiple of Hkv")
        return shape

    def flops(self, causal: bool) -> float:
        """2·B·H·Sq·Skv·(D + Dv); under a causal mask the half that is customarily counted."""
        return 2.0 * self.batch * self.heads_q * self.seq_q * self.seq_kv * (self.dim + self.dim_v) * (0.5 if causal else 1.0)

    def problem(self, causal: bool, dtype: str) -> str:
        """As `greenfast` prints it."""
        value = f" value-dim={self.dim_v}" if self.dim_v != self.dim else ""
        return f"{self.text.removesuffix(f'/{self.dim_v}') if value else self.text} {dtype}{' causal(top-left)' if causal else ''}{value}"

    def input_bytes(self) -> float:
        """Of Q, K and V in 16 bits."""
        keys = self.seq_kv * self.heads_kv * (self.dim + self.dim_v)
        return 2.0 * self.batch * (self.heads_q * self.seq_q * self.dim + keys)


class Engine:
    """One implementation of attention on [B, H, S, D] tensors."""

    name = ""
    checked = True  # its output is compared with fp64

    def inputs(self, q, k, v):
        """What it gets in place of N(0,1) tensors."""
        return q, k, v

    def unavailable(self, shape: Shape, causal: bool, dtype: str) -> str | None:
        """Why this engine does not take the row; None when it does."""
        return None

    def call(self, q, k, v, o, causal: bool):
        """Computes attention and returns it; o is room that an engine may use for it."""
        raise NotImplementedError


class TorchSdpa(Engine):
    def __init__(self, name: str, backend: str):
        self.name, self._backend = name, backend

    def unavailable(self, shape, causal, dtype):
        if causal and shape.seq_q != shape.seq_kv:
            return "rows with Sq != Skv compare full masks only: engines align the diagonal differently"
        return None

    def call(self, q, k, v, o, causal):
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(getattr(SDPBackend, self._backend)):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


class FlashAttention3(Engine):
    name = "fa3"

    def __init__(self):
        import torch

        try:
            import flash_attn_interface  # noqa: F401  the upstream package
        except ImportError:
            import peer_fa3  # noqa: F401  the same operators, packed without their package
        self._forward = torch.ops.flash_attn_3.fwd

    def call(self, q, k, v, o, causal):
        out = self._forward(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                            softmax_scale=q.shape[-1] ** -0.5, is_causal=causal, num_splits=1)
        return out[0].transpose(1, 2)


class FlashAttention4(Engine):
    name = "fa4"

    def __init__(self):
        try:
            from flash_attn.cute.interface import _flash_attn_fwd
        except ImportError:
            from vllm.vllm_flash_attn.cute.interface import _flash_attn_fwd
        self._forward = _flash_attn_fwd

    def call(self, q, k, v, o, causal):
        out = self._forward(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                            softmax_scale=q.shape[-1] ** -0.5, causal=causal)
        return out[0].transpose(1, 2)


class SageAttention(Engine):
    name = "sage"

    def __init__(self):
        import sageattention

        self._forward = sageattention.sageattn

    def call(self, q, k, v, o, causal):
        return self._forward(q, k, v, tensor_layout="HND", is_causal=causal)


class FlashInfer(Engine):
    name = "flashinfer"

    def __init__(self):
        import flashinfer

        self._forward = flashinfer.single_prefill_with_kv_cache

    def unavailable(self, shape, causal, dtype):
        return None if shape.batch == 1 else "its unbatched call takes B = 1 only"

    def call(self, q, k, v, o, causal):
        out = self._forward(q[0].transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1), causal=causal)
        return out.transpose(0, 1).unsqueeze(0)


class Greenfast(Engine):
    """The library through its C ABI; a variant forces one kernel, and gives the engine its name."""

    def __init__(self, variant: str = "", library: str | None = None):
        self.name, self._variant, self._library = variant or "greenfast", variant, capi.load(library)
        self._rooms: dict = {}
        if library:  # another build of ours, to compare with as with a peer
            self.name = "before"

    def _plan(self, shape: Shape, causal: bool, dtype: str):
        problem = self._library.problem(shape.batch, shape.heads_q, shape.heads_kv, shape.seq_q, shape.seq_kv,
                                        shape.dim, dtype, capi.TOP_LEFT if causal else None, shape.dim_v)
        return self._library.plan(problem, variant=self._variant)

    def unavailable(self, shape, causal, dtype):
        try:
            self._plan(shape, causal, dtype)
        except capi.Error as error:
            return str(error)
        return None

    def chosen(self, shape: Shape, causal: bool, dtype: str) -> dict:
        """What a record keeps of the plan: `greenfast evidence` finds the machine code that ran by it."""
        plan = self._plan(shape, causal, dtype)
        return {"variant": plan.variant.decode(), "kernel": plan.kernel.decode(), "grid": list(plan.grid),
                "block": list(plan.block), "shared_bytes": plan.shared_bytes}

    def identity(self) -> dict:
        """Of the library that was loaded."""
        return self._library.identity()

    def call(self, q, k, v, o, causal):
        import torch

        key = (q.shape, k.shape, v.shape, q.dtype, causal)
        if key not in self._rooms:  # one for all calls of a row: they follow one another on a stream
            problem = self._library.problem(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3],
                                            capi.TORCH_DTYPES[str(q.dtype)], capi.TOP_LEFT if causal else None, v.shape[3])
            size = self._library.plan(problem, variant=self._variant).workspace_bytes
            self._rooms = {key: torch.empty(size, dtype=torch.uint8, device=q.device) if size else None}
        self._library.bind(q, k, v, o, causal, self._variant, torch.cuda.current_stream().cuda_stream, workspace=self._rooms[key])()
        return o


class OnHardInputs(Greenfast):
    """Greenfast on inputs of one kind, under the kind's name. Keys are blocks of 128 here."""

    def __init__(self, kind: str):
        super().__init__()
        self.name, self.checked = kind, kind not in ("nan", "inf")

    def inputs(self, q, k, v):
        import torch

        q, k, last = q.clone(), k.clone(), k.shape[2] - 1
        if self.name in ("x9", "x21"):
            q *= int(self.name[1:])
        elif self.name in ("falling", "rising"):  # by 2^10 a block, seen from the last key
            block = torch.arange(k.shape[2], device=k.device) // 128
            q[..., 0] = q.shape[-1] ** 0.5
            k[..., 0] = 10 * math.log(2) * (block if self.name == "falling" else last // 128 - block).to(k.dtype)
        elif self.name == "far":  # weights of 2^260 in one key of 97
            q[..., 0] = 2 * q.shape[-1] ** 0.5
            k[:, :, ::97, 0] = 90
        elif self.name in ("nan", "inf"):
            k[:, :, (last + 1) // 2, 0] = float(self.name)
        return q, k, v


PEERS = {
    "cudnn": lambda: TorchSdpa("cudnn", "CUDNN_ATTENTION"),
    "flash": lambda: TorchSdpa("flash", "FLASH_ATTENTION"),
    "efficient": lambda: TorchSdpa("efficient", "EFFICIENT_ATTENTION"),
    "fa3": FlashAttention3,
    "fa4": FlashAttention4,
    "flashinfer": FlashInfer,
    "sage": SageAttention,
}


def open_engines(peers: list[str], variants: list[str]) -> tuple[list[Engine], dict[str, str]]:
    """Ours first. A peer that cannot be imported is left out with its reason."""
    engines: list[Engine] = [Greenfast()] + [Greenfast(v) for v in variants]
    missing = {}
    for name in peers:
        if name not in PEERS:
            raise Usage(f"peer '{name}' is unknown; one of: {', '.join(PEERS)}")
        try:
            engines.append(PEERS[name]())
        except Exception as error:  # whatever a foreign package throws at import is a reason, not our failure
            missing[name] = first_line(error)
    return engines, missing


def reference_rows(shape: Shape, seed: int) -> list[int]:
    """Query rows compared with fp64: all, or a sample that always holds both ends."""
    if shape.seq_q <= REFERENCE_ROWS:
        return list(range(shape.seq_q))
    picked = set(random.Random(seed).sample(range(shape.seq_q), REFERENCE_ROWS - 4))
    return sorted(picked | {0, 1, shape.seq_q - 2, shape.seq_q - 1})


def relative_error(q, k, v, o, rows: list[int], causal: bool) -> float:
    """||o - r|| / ||r|| (Frobenius) over the rows, r in fp64 from the same bits; a NaN in o gives NaN."""
    import torch

    if torch.isnan(o).any():
        return math.nan
    index = torch.tensor(rows, device=q.device)
    group = q.shape[1] // k.shape[1]
    hidden = torch.arange(k.shape[2], device=q.device)[None, :] > index[:, None] if causal else None
    err = torch.zeros((), dtype=torch.float64, device=q.device)
    norm = torch.zeros_like(err)
    for b in range(q.shape[0]):
        for h in range(k.shape[1]):
            heads = slice(h * group, (h + 1) * group)
            s = q[b, heads, index].double() @ k[b, h].double().T * q.shape[-1] ** -0.5
            if hidden is not None:
                s = s.masked_fill(hidden, -math.inf)
            r = torch.softmax(s, -1) @ v[b, h].double()
            err += ((o[b, heads, index].double() - r) ** 2).sum()
            norm += (r ** 2).sum()
    return math.sqrt(float(err) / float(norm)) if float(norm) > 0 else math.sqrt(float(err))


def plan_tracks(shape: Shape, causal: bool, args, clock) -> tuple[int, list[ways.Track]]:
    """How many input sets the row takes, and its ways."""
    import torch

    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[args.dtype]
    guess = shape.flops(causal) / 5e14 + 3e-6

    def track(way: ways.Way | None, sets: int) -> ways.Track:
        before, cache = None, way.cache if way else "hot"
        if way and way.between:
            before = ways.neighbour(way.neighbour, shape.batch * shape.seq_q, shape.heads_q * shape.dim, dtype, clock.kind,
                                    2 * clock.cache_bytes if cache == "cold" else 0)
        count = ways.calls_per_graph(guess, sets)
        row = {"shape": shape.text, "causal": causal, "dtype": args.dtype, "flops": shape.flops(causal), "cache": cache, "sets": sets,
               "calls_per_graph": count, "engines": {}, "rounds": []}
        if way:
            row["way"] = way.text
        if before:
            row["neighbour"] = before.what
        return ways.Track(way or ways.Way(), row, count, clock, before)

    if not args.ways:
        return args.sets or 2, [track(None, args.sets or 2)]
    moved = shape.input_bytes()
    held = moved + 2.0 * shape.batch * shape.heads_q * shape.seq_q * shape.dim_v * ENGINES_HELD
    sets = ways.sets_of(args.ways, moved, held, clock, args.sets)
    left_out = [way.text for way in args.ways if way.cache not in sets]
    if left_out:
        say(f"{shape.text}: not timed {', '.join(left_out)}: its input sets are not twice the L2 cache in a third of the memory")
    return max(sets.values(), default=0), [track(way, sets[way.cache]) for way in args.ways if way.cache in sets]


def run_row(shape: Shape, causal: bool, engines: list[Engine], args, clock, telemetry: Telemetry, rng: random.Random) -> list[dict]:
    """The row as it was timed in each way."""
    import torch

    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[args.dtype]
    generator = torch.Generator(device=clock.kind).manual_seed(args.seed)

    def normal(heads, seq, dim):
        return torch.randn(shape.batch, heads, seq, dim, device=clock.kind, dtype=dtype, generator=generator)

    count, tracks = plan_tracks(shape, causal, args, clock)
    sets = [(normal(shape.heads_q, shape.seq_q, shape.dim), normal(shape.heads_kv, shape.seq_kv, shape.dim),
             normal(shape.heads_kv, shape.seq_kv, shape.dim_v)) for _ in range(count)]
    rows = reference_rows(shape, args.seed)
    singles: dict = {}
    # Every call's output stays allocated as long as a graph writes to it: torch.cuda.graph() empties the cache, and a
    # replay into memory that was given back is an illegal access, or another engine's output overwritten.
    kept = []
    for engine in engines:
        entries = [track.row["engines"].setdefault(engine.name, {"us": [], "single_us": [], "skipped": None}) for track in tracks]
        reason = engine.unavailable(shape, causal, args.dtype)
        if reason:
            for entry in entries:
                entry["skipped"] = reason
            continue
        try:
            calls, worst = [], 0.0
            kept.append(calls)
            for i, tensors in enumerate(sets):
                q, k, v = engine.inputs(*tensors)
                o = torch.full((*q.shape[:3], v.shape[3]), math.nan, dtype=q.dtype, device=q.device)
                out = engine.call(q, k, v, o, causal)
                clock.synchronize()
                if engine.checked:
                    error = (relative_error(q, k, v, out, rows, causal) if i < CHECKED_SETS else
                             math.nan if torch.isnan(out).any() else 0.0)
                    if not error <= worst:
                        worst = error
                calls.append(lambda q=q, k=k, v=v, o=o, e=engine: e.call(q, k, v, o, causal))
            for track, entry in zip(tracks, entries):
                if engine.checked:
                    entry["error"] = worst
                why = why_not_timed({"rel_fro": worst}, args.dtype)
                entry["timed"] = not why
                if isinstance(engine, Greenfast):
                    entry["plan"] = engine.chosen(shape, causal, args.dtype)
                    entry["variant"] = entry["plan"]["variant"]
                if why:
                    entry["skipped"] = why
                else:
                    track.replays[engine.name], _ = track.prepare(calls[:track.row["sets"]])
                    singles[engine.name] = calls[0]
        except Exception as error:  # an engine that cannot take this row must not end the others'
            reason = first_line(error)
            try:
                clock.synchronize()
            except Exception as lost:
                raise DeviceLost(f"the device was lost in {engine.name} at {shape.text}: {first_line(lost)}") from error
        for track, entry in zip(tracks, entries):
            if engine.name not in track.replays and reason:
                entry["skipped"] = reason
    ways.take_rounds(tracks, args.rounds, rng, telemetry)
    if args.single and tracks:
        names = list(tracks[0].replays)
        for _ in range(max(args.rounds, 15)):
            rng.shuffle(names)
            for name in names:
                clock.synchronize()
                tracks[0].entry(name)["single_us"].append(elapsed_us(singles[name]))
    for track in tracks:
        track.replays.clear()
    return [track.row for track in tracks]


def tflops(row: dict, entry: dict) -> float | None:
    """At the median, for the eye."""
    us = p50_us(entry)
    return row["flops"] / us * 1e-6 if us else None


def identity(name: str) -> str:
    """How `greenfast compare` calls an engine."""
    if name in ("cudnn", "flash", "efficient"):
        return f"peer:torch-{name}"
    return f"peer:{name}" if name in PEERS else name


def samples(row: dict, device: str, seed: int) -> dict:
    """One shape of greenfast.samples/1: a round is a block. What the schema does not know stands under "ab"."""
    clock = CudaClock
    return {"name": ways.title(row, row["shape"] + (" causal" if row["causal"] else "")),
            "problem": Shape.parse(row["shape"]).problem(row["causal"], row["dtype"]), "flops": row["flops"],
            "device": {"kind": "cuda", "name": device}, **ways.described(row, clock.timer, clock.tick_seconds), "seed": seed,
            **measured(row, identity)}


def rows_of(document: dict) -> list[dict]:
    """The rows of a record that this harness wrote, for tables and plots."""
    if document.get("schema") != SCHEMA or any("ab" not in shape for shape in document["shapes"]):
        raise Usage(f"not a record of greenfast.ab (schema {document.get('schema')!r})")
    return [shape["ab"] for shape in document["shapes"]]


def table(rows: list[dict], markdown: bool) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row["engines"]))
    ours = [name for name in names if name not in PEERS]
    several = any(row.get("way") for row in rows)
    header = ["B,H,S,D", "mask", *(["way"] if several else [])] + [f"{n} µs (TFLOP/s)" for n in names] + ["error", "variant"]
    body = []
    for row in rows:
        cells = [row["shape"].replace("x", ","), "causal" if row["causal"] else "full", *([row["way"]] if several else [])]
        for name in names:
            entry = row["engines"].get(name, {})
            if us := p50_us(entry):
                cells.append(f"{us:.2f} ({tflops(row, entry):.0f})")
            else:
                cells.append("wrong" if entry.get("timed") is False else "noise" if ways.is_noise(entry) else "–")
        first = row["engines"].get(ours[0], {})
        cells.append(f"{first['error']:.2e}" if "error" in first else "–")
        cells.append(first.get("variant", "–"))
        body.append(cells)
    if markdown:
        lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        return "\n".join(lines + ["| " + " | ".join(cells) + " |" for cells in body])
    widths = [max(len(line[i]) for line in [header] + body) for i in range(len(header))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths)).rstrip() for line in [header] + body)


def plot(rows: list[dict], path: str) -> None:
    """TFLOP/s against S, one panel for each D and mask; of several shapes with one S, the one with most work."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels: dict[tuple[int, bool], dict[int, dict]] = {}
    for row in rows:
        if row.get("way") not in (None, f"{ways.BACK_TO_BACK}:hot"):
            continue
        shape = Shape.parse(row["shape"])
        curve = panels.setdefault((shape.dim, row["causal"]), {})
        if shape.seq_q not in curve or row["flops"] > curve[shape.seq_q]["flops"]:
            curve[shape.seq_q] = row
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.6), squeeze=False,
                                layout="constrained")
    for axis, ((dim, causal), curve) in zip(axes[0], sorted(panels.items())):
        for name in dict.fromkeys(n for row in curve.values() for n in row["engines"]):
            points = [(seq, rate) for seq, row in sorted(curve.items()) if (rate := tflops(row, row["engines"].get(name, {})))]
            if points:
                axis.plot(*zip(*points), marker="o", markersize=3, label=name,
                          linewidth=1.1 if name in PEERS else 2.2)
        axis.set_xscale("log", base=2)
        axis.set_ylim(bottom=0)
        axis.set_title(f"D {dim}, {'causal' if causal else 'full'}")
        axis.set_xlabel("S")
    axes[0][0].set_ylabel("TFLOP/s")
    axes[0][-1].legend(fontsize="small")
    figure.savefig(path)


def parse_arguments(argv: list[str] | None, as_serving: bool = False) -> argparse.Namespace:
    """as_serving: shapes without attributes are rows of serving too."""
    parser = argparse.ArgumentParser(
        prog="python -m greenfast_bench.ab", description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"""Suites: mission, peers and hard are dense, as --shapes without attributes is; models, whose rows have their own masks, is what
published models ask for (docs/models.md). decode, varlen, paged, verify and masks are what serving asks
for: one query over long caches, packed prompts, caches in pages, masks by array; their rows take the attributes packed, used-kv,
pages=N, lengths=full, lengths=log-uniform:LEAST, chunk=N, window=L:R, sinks, softcap=X, causal and mask=bool:DIMS or
narrow:DIMS (docs/measuring.md), and so does --shapes, one row of them between commas. Lengths are drawn by --seed. There the peers
are {', '.join(serving.PEERS)};
greenfast:dense is the same call over the dense twin of pages or equal packed sequences.
--dtype e4m3 takes dense rows and those of serving; its peers are {', '.join(fp8.PEERS)}, and greenfast:fp16 and
greenfast:bf16 get the same values in 16 bits; greenfast:from-fp16, where the package greenfast is installed, quantises dense rows first.
--between times each row also behind a neighbour, as in a model: an elementwise kernel, or the GEMM that projects the queries. A call's
time is then that of [neighbour, call] less that of the neighbours alone; where that is not above zero in every round it is noise.
The record is written after each row, so that what an interrupted run measured is kept.

Exit: 0 measured, 2 bad input, 3 no GPU, library or PyTorch, 20 one of ours was too wrong to be timed, 24 the device was lost, 130 interrupted.""")
    parser.add_argument("--suite", choices=[*SUITES, *MODELS, *serving.SUITES], help="a named list of rows (default: mission)")
    parser.add_argument("--shapes", help="BxHxSxD[,…], with Hq/Hkv, Sq/Skv and D/Dv where they differ")
    parser.add_argument("--masks", default="full,causal", help="of dense rows: full, causal or both (default)")
    parser.add_argument("--dtype", choices=["fp16", "bf16", "e4m3"], help="default: fp16, of decode, varlen, paged, verify and masks bf16")
    parser.add_argument("--peers", help=f"of {', '.join(PEERS)} (default: cudnn,flash,fa3,fa4), or of the suite's own")
    parser.add_argument("--before", metavar="LIBRARY", help="another libgreenfast.so, timed beside this one as a peer")
    parser.add_argument("--variants", default="", help="also time these Greenfast variants, each forced")
    parser.add_argument("--rounds", type=int, default=7, help="rounds; each engine is replayed once a round")
    parser.add_argument("--sets", type=int, help="input sets that a graph rotates through (default: 2; decode, varlen, paged, verify and masks: until "
                        "their keys and values are twice the L2 cache)")
    parser.add_argument("--single", action="store_true", help="dense rows: also time single launches")
    parser.add_argument("--between", nargs="?", const=",".join(ways.NEIGHBOURS), metavar="LIST",
                        help=f"also time calls behind a neighbour, less the neighbours alone: {', '.join(ways.NEIGHBOURS)} (default: both)")
    parser.add_argument("--cache", metavar="LIST", help="hot: each call on the same inputs; cold: on sets that are twice the L2 cache "
                        "together; with commas (default with --between: hot,cold, of decode, varlen, paged, verify and masks cold)")
    parser.add_argument("--invariant", action="store_true", help="decode, varlen, paged, verify, masks: also with batch_invariant")
    parser.add_argument("--layout", choices=["bshd", "bhsd"], help="memory order of dense rows (default: decode bshd, e4m3 bhsd)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: decode, varlen, paged, masks and e4m3 through the "
                        "library's CPU kernels, which tests the harness and times nothing worth telling")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help=f"write raw samples ({SCHEMA}) here, for `greenfast compare`")
    parser.add_argument("--md", help="write the table as Markdown here")
    parser.add_argument("--plot", help="write TFLOP/s against S here (.svg or .png); dense rows only")
    args = parser.parse_args(argv)
    args.argv = list(argv) if argv is not None else sys.argv[1:]
    if not args.suite and not args.shapes:
        args.suite = "mission"
    if args.rounds < 1 or (args.sets is not None and args.sets < 1):
        raise Usage(f"--rounds {args.rounds} --sets {args.sets}: both must be at least 1")
    if args.between is not None and not args.between:
        raise Usage(f"--between '': expected {', '.join(ways.NEIGHBOURS)}, with commas")
    args.mask_list = args.masks.split(",")
    if any(mask not in ("full", "causal") for mask in args.mask_list):
        raise Usage(f"--masks '{args.masks}': expected full, causal or full,causal")
    given = args.shapes.split(",") if args.shapes else []
    cold_alone = args.suite in serving.SUITES
    args.ways = ways.chosen(args.between, args.cache or ("cold" if cold_alone else "hot,cold")) if args.between or args.cache else []
    args.serving = (as_serving or args.suite in serving.SUITES or args.dtype == "e4m3" or any(" " in text.strip() for text in given))
    if args.serving:
        if args.plot:
            raise Usage("--plot: only of dense rows in 16 bits")
        if args.suite in MODELS or (args.suite in SUITES and args.dtype != "e4m3"):
            raise Usage(f"--suite {args.suite} is of dense rows in 16 bits; shapes with attributes go with {', '.join(serving.SUITES)} or alone")
        args.dtype = args.dtype or "bf16"
        args.shape_list = serving_rows(args, given)
    else:
        args.dtype = args.dtype or "fp16"
        args.row_list = [(Shape.parse(text), mask == "causal") for text in SUITES.get(args.suite, []) + given for mask in args.mask_list]
        args.row_list += [(Shape.parse(text), causal) for text, causal in MODELS.get(args.suite, [])]
        if args.device == "cpu":
            raise Usage("--device cpu: only decode, varlen, paged, masks and e4m3; dense rows have greenfast_bench.ab_cpu")
    return args


def serving_rows(args, given: list[str]) -> list:
    """The rows of a suite of serving; of e4m3 also dense ones, with each mask."""
    texts = serving.SUITES.get(args.suite, []) + given
    if args.dtype == "e4m3":
        args.sets, args.layout = args.sets or (None if args.ways else 2), args.layout or "bhsd"
        dense = [text for text in SUITES.get(args.suite, []) + given if " " not in text.strip()]
        texts = [text for text in texts if text not in dense]
        texts += [text + (" causal" if mask == "causal" else "") for text in dense for mask in args.mask_list]
    rows = [serving.Row.parse(text) for text in texts]
    for row in rows:
        if args.dtype == "e4m3" and row.mask == "narrow":
            raise Usage(f"shape '{row.text}': a mask of e4m3 has no meaning: use mask=bool, or 16-bit inputs")
    return rows


def listed(text: str | None) -> list[str]:
    return [word for word in (text or "").split(",") if word]


def main(argv: list[str] | None = None) -> int:
    try:
        args = parse_arguments(argv)
        try:
            import torch  # noqa: F401
        except ImportError:
            raise OSError("PyTorch is not installed, and the peers run in it: install torch with CUDA") from None
        clock = CpuClock() if args.device == "cpu" else CudaClock()
        variants = listed(args.variants)
        if args.dtype == "e4m3":
            engines, missing = fp8.open_engines(listed(fp8.DEFAULT_PEERS if args.peers is None else args.peers), variants, args.before)
        elif args.serving:
            peers = serving.DEFAULT_PEERS.get(args.suite, ",".join(serving.PEERS)) if args.peers is None else args.peers
            engines, missing = serving.open_engines(listed(peers), variants, args.invariant, args.before)
        elif args.suite == "hard":
            engines, missing = [OnHardInputs(kind) for kind in HARD_INPUTS], {}
        else:
            engines, missing = open_engines(listed("cudnn,flash,fa3,fa4" if args.peers is None else args.peers), variants)
            if args.before:
                engines.append(Greenfast(library=args.before))
    except Usage as error:
        print(f"greenfast.ab: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"greenfast.ab: {error}", file=sys.stderr)
        return 3
    for name, reason in missing.items():
        say(f"SKIPPED {name}: {reason}")
    interrupted_by_term()
    notes = ["lengths=log-uniform:LEAST: round(exp(u)), u uniform in [ln LEAST, ln Skv], drawn by Python's random.Random of the seed"]
    record = Record(args.json, clock, engines[0].identity(), args.argv, missing, notes if args.serving else [])
    rows: list[dict] = []
    code = None
    try:
        measure_rows(args, engines, clock, record, rows)
    except KeyboardInterrupt:
        say(f"greenfast.ab: interrupted after {len(rows)} rows, which are kept")
        code = 130
    except DeviceLost as error:
        say(f"greenfast.ab: {error}; the {len(rows)} rows before it are kept")
        code = 24
    record.write()
    of = serving.table if args.serving else table
    if args.md and rows:
        with open(args.md, "w", encoding="utf-8") as file:
            file.write(of(rows, markdown=True) + "\n")
    if args.plot and rows:
        plot(rows, args.plot)
    if rows:
        print(of(rows, markdown=False))
    if args.serving:
        for line in serving.reasons(rows):
            say(line)
    if code is not None:
        return code
    names = {e.name for e in engines if isinstance(e, Greenfast) or getattr(e, "ours", False)}
    ours = [entry for row in rows for name, entry in row["engines"].items() if name in names]
    if any(entry.get("timed") is False for entry in ours):
        return 20
    return 0 if any(entry["us"] for entry in ours) else 3


def measure_rows(args, engines, clock, record: Record, rows: list[dict]) -> None:
    """Each row, in each way, as it is done goes to `rows` and to disk."""
    telemetry, rng = Telemetry(), random.Random(args.seed)
    begin = time.monotonic()
    for asked in args.shape_list if args.serving else args.row_list:
        if args.serving:
            found = serving.run_row(asked, engines, args, clock, telemetry, rng)
            record.add(*(serving.samples(row, clock, args.seed) for row in found))
        else:
            found = run_row(*asked, engines, args, clock, telemetry, rng)
            record.add(*(samples(row, clock.name, args.seed) for row in found))
        rows += found
        for row in found:
            say(f"{time.monotonic() - begin:6.1f} s  {serving.progress(row) if args.serving else progress(row)}")


def progress(row: dict) -> str:
    times = ", ".join(f"{name} {us:.2f}" if (us := p50_us(entry)) else f"{name} wrong" if entry.get("timed") is False else f"{name} noise"
                      for name, entry in row["engines"].items() if entry["us"] or entry.get("timed") is False or ways.is_noise(entry))
    return f"{ways.title(row, row['shape'] + (' causal' if row['causal'] else ''))}: {times or 'nobody'}"


if __name__ == "__main__":
    sys.exit(main())
