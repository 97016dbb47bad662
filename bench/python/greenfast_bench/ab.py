"""A/B on one GPU: Greenfast against the attention of PyTorch and of any peer that can be imported.

Every engine gets the same tensors in the same process. A shape is first checked (error of sampled rows against fp64 on
the same bits), then timed: CUDA graphs that rotate through several input sets, replayed in rounds of random order, so
that drift of clock and power meets every engine alike. It measures and judges nothing: who is faster, by how much and how
sure that is, `greenfast compare FILE --sides PEER,greenfast` says of the samples.

    python -m greenfast_bench.ab --suite peers --json peers.json --md peers.md --plot peers.svg
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import statistics
import sys
import time

SCHEMA = "greenfast.samples/1"

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
HARD_INPUTS = ["normal", "x9", "falling", "rising", "x21", "far", "nan", "inf"]

# Relative Frobenius error on N(0,1) inputs beyond which an engine is RED here; an exact result rounded to fp16
# is 2.9e-4.
ERROR_LIMIT = {"fp16": 1.0e-3, "bf16": 8.0e-3}
REFERENCE_ROWS = 256  # rows per (batch, head) compared with fp64
REPLAY_SECONDS = 4e-3  # aim for one graph replay


class Usage(Exception):
    """Bad input: what was asked, what is possible."""


@dataclasses.dataclass(frozen=True)
class Shape:
    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    dim: int
    text: str

    @staticmethod
    def parse(text: str) -> "Shape":
        def pair(item: str) -> tuple[int, int]:
            first, _, second = item.partition("/")
            return int(first), int(second or first)

        try:
            batch, heads, seq, dim = text.split("x")
            (hq, hkv), (sq, skv) = pair(heads), pair(seq)
            shape = Shape(int(batch), hq, hkv, sq, skv, int(dim), text)
        except ValueError:
            raise Usage(f"shape '{text}': expected BxHxSxD, e.g. 1x8x512x64 or 4x32/8x1/8192x128") from None
        if min(shape.batch, hq, hkv, sq, skv, shape.dim) < 1 or hq % hkv:
            raise Usage(f"shape '{text}': every number must be positive and Hq a multiple of Hkv")
        return shape

    def flops(self, causal: bool) -> float:
        """4·B·H·Sq·Skv·D; under a causal mask the half that is customarily counted."""
        return 4.0 * self.batch * self.heads_q * self.seq_q * self.seq_kv * self.dim * (0.5 if causal else 1.0)


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
        from greenfast_bench import capi

        self.name, self._variant, self._library = variant or "greenfast", variant, capi.load(library)
        if library:  # another build of ours, to compare with as with a peer
            self.name = "before"

    def _plan(self, shape: Shape, causal: bool, dtype: str):
        from greenfast_bench import capi

        problem = self._library.problem(shape.batch, shape.heads_q, shape.heads_kv, shape.seq_q, shape.seq_kv,
                                        shape.dim, dtype, capi.TOP_LEFT if causal else None)
        return self._library.plan(problem, variant=self._variant)

    def unavailable(self, shape, causal, dtype):
        from greenfast_bench import capi

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

        self._library.attention(q, k, v, o, causal=causal, variant=self._variant,
                                stream=torch.cuda.current_stream().cuda_stream)
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


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


class Telemetry:
    """SM clock, power and temperature through NVML; empty where nvidia-ml-py is absent."""

    def __init__(self):
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml, self._handle = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
        except Exception:
            self._nvml = None

    def read(self) -> dict[str, float]:
        if self._nvml is None:
            return {}
        nvml, handle = self._nvml, self._handle
        return {
            "sm_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "watts": nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "celsius": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        }


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


def make_graph(calls: list, count: int):
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(count):
            calls[i % len(calls)]()
    return graph


def elapsed_us(work) -> float:
    """µs between two events around work()."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


def run_row(shape: Shape, causal: bool, engines: list[Engine], args, telemetry: Telemetry,
            rng: random.Random) -> dict:
    import torch

    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[args.dtype]
    generator = torch.Generator(device="cuda").manual_seed(args.seed)

    def normal(heads, seq):
        return torch.randn(shape.batch, heads, seq, shape.dim, device="cuda", dtype=dtype, generator=generator)

    sets = [(normal(shape.heads_q, shape.seq_q), normal(shape.heads_kv, shape.seq_kv),
             normal(shape.heads_kv, shape.seq_kv)) for _ in range(args.sets)]
    rows = reference_rows(shape, args.seed)
    changed = {engine.name: [engine.inputs(*tensors) for tensors in sets] for engine in engines}
    row = {"shape": shape.text, "causal": causal, "dtype": args.dtype, "flops": shape.flops(causal), "engines": {},
           "rounds": []}
    # Enough calls that one replay is long against the event clock; a multiple of the sets, so that all count alike.
    guess = shape.flops(causal) / 5e14 + 3e-6
    count = max(len(sets), min(96, int(REPLAY_SECONDS / guess)) // len(sets) * len(sets))
    graphs, singles = {}, {}
    # Every call's output stays allocated as long as a graph writes to it: torch.cuda.graph() empties the cache, and a
    # replay into memory that was given back is an illegal access, or another engine's output overwritten.
    kept = []
    for engine in engines:
        entry = row["engines"].setdefault(engine.name, {"us": [], "single_us": []})
        entry["skipped"] = engine.unavailable(shape, causal, args.dtype)
        if entry["skipped"]:
            continue
        try:
            calls, entry["error"] = [], 0.0
            kept.append(calls)
            for q, k, v in changed[engine.name]:
                o = torch.full_like(q, math.nan)
                out = engine.call(q, k, v, o, causal)
                torch.cuda.synchronize()
                error = relative_error(q, k, v, out, rows, causal) if engine.checked else 0.0
                if not error <= entry["error"]:
                    entry["error"] = error
                calls.append(lambda q=q, k=k, v=v, o=o, e=engine: e.call(q, k, v, o, causal))
            entry["verdict"] = "GREEN" if entry["error"] <= ERROR_LIMIT[args.dtype] else "RED"
            if isinstance(engine, Greenfast):
                entry["plan"] = engine.chosen(shape, causal, args.dtype)
                entry["variant"] = entry["plan"]["variant"]
            if entry["verdict"] == "GREEN":  # nothing is timed before it is right
                graphs[engine.name] = make_graph(calls, count)
                singles[engine.name] = calls[0]
        except Exception as error:  # an engine that cannot take this row must not end the others'
            entry["skipped"] = first_line(error)
            torch.cuda.synchronize()
    row["calls_per_graph"] = count
    names = list(graphs)
    for _ in range(args.rounds):
        rng.shuffle(names)
        for name in names:
            graphs[name].replay()  # settles clock and power for this engine
            row["engines"][name]["us"].append(elapsed_us(graphs[name].replay) / count)
        row["rounds"].append({"order": list(names), "telemetry": telemetry.read()})
    if args.single:
        for _ in range(max(args.rounds, 15)):
            rng.shuffle(names)
            for name in names:
                torch.cuda.synchronize()
                row["engines"][name]["single_us"].append(elapsed_us(singles[name]))
    for engine in engines:
        if not engine.checked:
            row["engines"][engine.name].pop("error", None)
    summarise(row)
    return row


def summarise(row: dict) -> None:
    """Adds medians and TFLOP/s, for the eye."""
    for entry in row["engines"].values():
        if not entry["us"]:
            continue
        entry["p50_us"] = statistics.median(entry["us"])
        entry["tflops"] = row["flops"] / entry["p50_us"] * 1e-6
        if entry["single_us"]:
            entry["single_p50_us"] = statistics.median(entry["single_us"])


def identity(name: str) -> str:
    """How `greenfast compare` calls an engine."""
    if name in ("cudnn", "flash", "efficient"):
        return f"peer:torch-{name}"
    return f"peer:{name}" if name in PEERS else name


def samples(row: dict, device: str, seed: int) -> dict:
    """One shape of greenfast.samples/1: a round is a block. What the schema does not know stands under "ab"."""
    names = list(row["engines"])
    sides = []
    for name in names:
        entry = row["engines"][name]
        side = {"id": identity(name), "batch": row["calls_per_graph"]}
        if not entry["us"]:
            side["refused"] = entry["skipped"] or entry.get("verdict", "not timed")
        if math.isfinite(entry.get("error", math.nan)):
            side["errors"] = {"rel_fro": entry["error"]}
        if "verdict" in entry:
            side["verdict"] = "GREEN" if entry["verdict"] == "GREEN" else f"RED: rel_fro {entry['error']:.3g}"
        sides.append(side)
    blocks = [{"process": 0, "order": [names.index(name) for name in block["order"]],
               "seconds": [row["engines"][name]["us"][i] * 1e-6 for name in block["order"]],
               "telemetry": block["telemetry"]} for i, block in enumerate(row["rounds"]) if block["order"]]
    mask = " causal(top-left)" if row["causal"] else ""
    return {"name": row["shape"] + (" causal" if row["causal"] else ""),
            "problem": f"{row['shape']} {row['dtype']}{mask}", "flops": row["flops"],
            "device": {"kind": "cuda", "name": device}, "timer": "cuda graph replay between events",
            "tick_seconds": 0.5e-6, "cache": "hot", "seed": seed, "sides": sides, "blocks": blocks,
            "ab": {key: value for key, value in row.items() if key != "rounds"}}


def rows_of(document: dict) -> list[dict]:
    """The rows of a record that this harness wrote, for tables and plots."""
    if document.get("schema") != SCHEMA or any("ab" not in shape for shape in document["shapes"]):
        raise Usage(f"not a record of greenfast.ab (schema {document.get('schema')!r})")
    return [shape["ab"] for shape in document["shapes"]]


def table(rows: list[dict], markdown: bool) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row["engines"]))
    ours = [name for name in names if name not in PEERS]
    header = ["B,H,S,D", "mask"] + [f"{n} µs (TFLOP/s)" for n in names] + ["error", "variant"]
    body = []
    for row in rows:
        cells = [row["shape"].replace("x", ","), "causal" if row["causal"] else "full"]
        for name in names:
            entry = row["engines"].get(name, {})
            if "p50_us" in entry:
                cells.append(f"{entry['p50_us']:.2f} ({entry['tflops']:.0f})")
            else:
                cells.append("RED" if entry.get("verdict") == "RED" else "–")
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
        shape = Shape.parse(row["shape"])
        curve = panels.setdefault((shape.dim, row["causal"]), {})
        if shape.seq_q not in curve or row["flops"] > curve[shape.seq_q]["flops"]:
            curve[shape.seq_q] = row
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.6), squeeze=False,
                                layout="constrained")
    for axis, ((dim, causal), curve) in zip(axes[0], sorted(panels.items())):
        for name in dict.fromkeys(n for row in curve.values() for n in row["engines"]):
            points = [(seq, row["engines"][name]["tflops"]) for seq, row in sorted(curve.items())
                      if "tflops" in row["engines"].get(name, {})]
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


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m greenfast_bench.ab", description=(__doc__ or "").split("\n\n")[0],
        epilog="Exit: 0 measured, 2 bad input, 3 no GPU, library or PyTorch, 20 one of ours is RED.")
    parser.add_argument("--suite", choices=SUITES, help="a named list of shapes (default: mission)")
    parser.add_argument("--shapes", help="BxHxSxD[,…], with Hq/Hkv and Sq/Skv where they differ")
    parser.add_argument("--masks", default="full,causal", help="full, causal or both (default)")
    parser.add_argument("--dtype", choices=list(ERROR_LIMIT), default="fp16")
    parser.add_argument("--peers", default="cudnn,flash,fa3,fa4", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--before", metavar="LIBRARY", help="another libgreenfast.so, timed beside this one as a peer")
    parser.add_argument("--variants", default="", help="also time these Greenfast variants, each forced")
    parser.add_argument("--rounds", type=int, default=7, help="rounds; each engine is replayed once a round")
    parser.add_argument("--sets", type=int, default=2, help="input sets that a graph rotates through")
    parser.add_argument("--single", action="store_true", help="also time single launches")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help=f"write raw samples ({SCHEMA}) here, for `greenfast compare`")
    parser.add_argument("--md", help="write the table as Markdown here")
    parser.add_argument("--plot", help="write TFLOP/s against S here (.svg or .png)")
    args = parser.parse_args(argv)
    if not args.suite and not args.shapes:
        args.suite = "mission"
    if args.rounds < 1 or args.sets < 1:
        raise Usage(f"--rounds {args.rounds} --sets {args.sets}: both must be at least 1")
    args.mask_list = args.masks.split(",")
    if any(mask not in ("full", "causal") for mask in args.mask_list):
        raise Usage(f"--masks '{args.masks}': expected full, causal or full,causal")
    texts = (SUITES[args.suite] if args.suite else []) + (args.shapes.split(",") if args.shapes else [])
    args.shape_list = [Shape.parse(text) for text in texts]
    return args


def main(argv: list[str] | None = None) -> int:
    try:
        args = parse_arguments(argv)
        try:
            import torch
        except ImportError:
            raise OSError("PyTorch is not installed, and the peers run in it: install torch with CUDA") from None
        if not torch.cuda.is_available():
            raise OSError("torch finds no CUDA device, and this harness compares GPU kernels")
        if args.suite == "hard":
            engines, missing = [OnHardInputs(kind) for kind in HARD_INPUTS], {}
        else:
            engines, missing = open_engines([p for p in args.peers.split(",") if p],
                                            [v for v in args.variants.split(",") if v])
            if args.before:
                engines.append(Greenfast(library=args.before))
    except Usage as error:
        print(f"greenfast.ab: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"greenfast.ab: {error}", file=sys.stderr)
        return 3
    for name, reason in missing.items():
        print(f"SKIPPED {name}: {reason}", file=sys.stderr)
    telemetry, rng = Telemetry(), random.Random(args.seed)
    record = {
        "schema": SCHEMA, "tool": "greenfast.ab", "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "argv": list(argv) if argv is not None else sys.argv[1:], "device": torch.cuda.get_device_name(0),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda,
                     "cudnn": torch.backends.cudnn.version()},
        "missing": missing,
        "library": engines[0].identity(),
        "device_arch": int("".join(map(str, torch.cuda.get_device_capability(0)))),
        "notes": [f"one Python process; torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN "
                  f"{torch.backends.cudnn.version()}"],
    }
    rows = [run_row(shape, mask == "causal", engines, args, telemetry, rng)
            for shape in args.shape_list for mask in args.mask_list]
    record["shapes"] = [samples(row, record["device"], args.seed) for row in rows]
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
    if args.md:
        with open(args.md, "w", encoding="utf-8") as file:
            file.write(table(rows, markdown=True) + "\n")
    if args.plot:
        plot(rows, args.plot)
    print(table(rows, markdown=False))
    ours = [row["engines"][e.name] for row in rows for e in engines if isinstance(e, Greenfast)]
    if any(entry.get("verdict") == "RED" for entry in ours):
        return 20
    return 0 if any(entry["us"] for entry in ours) else 3


if __name__ == "__main__":
    sys.exit(main())
