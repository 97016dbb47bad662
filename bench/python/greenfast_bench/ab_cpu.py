"""A/B on the CPU: Greenfast against PyTorch's attention or ONNX Runtime's in one process, on as many threads, interleaved.

Both sides get the same tensors. Outputs are compared with fp64 on the same bits before anything is timed; then blocks of
A B B A in random order are taken from a ring of inputs that no cache holds, and after each sample its output is held to
the one from before. Raw samples go to a file of schema greenfast.samples/1; `greenfast compare cpu.flash peer:torch-cpu`
runs this and computes the intervals.

    python -m greenfast_bench.ab_cpu --variants cpu.flash --peers torch-cpu --shapes 1x8x512x64 --json samples.json
    python -m greenfast_bench.ab_cpu --peers torch-cpu,onnxruntime --dtype fp32,bf16,fp16 --masks full,causal --hot \
        --shapes 1x8x512x64,2x8x2048x64 --json samples.json --markdown table.md
"""

from __future__ import annotations

import argparse
import ctypes
import glob
import hashlib
import json
import math
import os
import pathlib
import random
import statistics
import sys
import time

from greenfast_bench import capi
from greenfast_bench.ab import SCHEMA, Shape, Usage, first_line, reference_rows, relative_error

PEERS = {"torch-cpu": "torch", "onnxruntime": "onnxruntime"}  # and the module each needs
# Relative Frobenius error on N(0,1) inputs beyond which a side is RED here. Rounding an exact result costs 3e-8 in fp32,
# 2.9e-4 in fp16 and 2.3e-3 in bf16; weights rounded before P V as much again.
ERROR_LIMIT = {"fp32": 1.0e-5, "fp16": 1.0e-3, "bf16": 8.0e-3}
DISTINCT = 3  # sets of inputs with bits of their own; further slots repeat them in fresh memory
MAX_SLOTS = 512
MIN_TICKS = 200
# Workers of either pool spin for a while after a call, and would take a core from the other side's.
PAUSE_SECONDS = 2e-3
SHORT_CALL = 1e-3  # calls shorter than this find their pool asleep; an untimed call wakes it


def cache_bytes() -> int:
    """Of the outermost cache; 32 MiB where the system does not tell."""
    sizes = []
    for file in glob.glob("/sys/devices/system/cpu/cpu0/cache/index*/size"):
        text = pathlib.Path(file).read_text(encoding="ascii").strip()
        sizes.append(int(text.rstrip("KM")) << {"K": 10, "M": 20}.get(text[-1], 0))
    return max(sizes, default=32 << 20)


def tick_seconds() -> float:
    """The shortest step between two readings of the clock."""
    shortest = 1.0
    for _ in range(2000):
        first = second = time.perf_counter()
        while second == first:
            second = time.perf_counter()
        shortest = min(shortest, second - first)
    return shortest


def torch_call(q, k, v, causal: bool):
    import torch

    attention, grouped = torch.nn.functional.scaled_dot_product_attention, q.shape[1] != k.shape[1]
    return lambda: attention(q, k, v, is_causal=causal, enable_gqa=grouped)


def onnxruntime_call(q, k, v, causal: bool, threads: int):
    """MultiHeadAttention of ONNX Runtime on [B, S, H D], the layout it takes without copies; its output likewise."""
    import numpy
    import onnxruntime
    from onnx import TensorProto, helper

    if str(q.dtype) != "torch.float32" or q.shape[1] != k.shape[1]:
        raise ValueError("onnxruntime: MultiHeadAttention on the CPU takes fp32 with as many key heads as query heads")
    heads, width = q.shape[1], q.shape[1] * q.shape[3]
    arrays = [numpy.ascontiguousarray(t.transpose(1, 2).reshape(t.shape[0], t.shape[2], width).numpy())
              for t in (q, k, v)]
    node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["o"], domain="com.microsoft", num_heads=heads,
                            unidirectional=int(causal))
    shapes = zip("qkvo", [*(a.shape for a in arrays), arrays[0].shape])
    ends = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in shapes}
    graph = helper.make_graph([node], "attention", [ends["q"], ends["k"], ends["v"]], [ends["o"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)])
    model.ir_version = 8
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in zip("qkv", arrays):
        binding.bind_cpu_input(name, array)
    out = onnxruntime.OrtValue.ortvalue_from_shape_and_type(arrays[0].shape, numpy.float32, "cpu")
    binding.bind_ortvalue_output("o", out)

    def call():
        session.run_with_iobinding(binding)
        return out

    return call


class Side:
    """One contestant at one shape: `calls[slot]()` computes and returns its output."""

    def __init__(self, name: str, peer: bool):
        self.name, self.id, self.peer = name, f"peer:{name}" if peer else name, peer
        self.calls, self.outputs, self.expected = [], [], []
        self.refused, self.error, self.verdict, self.sha256 = "", math.nan, "", ""
        self.batch, self.estimate = 1, math.inf


class Row:
    """One shape: its inputs, both sides, their samples."""

    def __init__(self, shape: Shape, dtype_name: str, causal: bool, args, library):
        import torch

        self.shape, self.dtype, self.causal, self.args, self.torch = shape, dtype_name, causal, args, torch
        dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype_name]
        generator = torch.Generator().manual_seed(args.seed)

        def normal(heads, seq):
            return torch.randn(shape.batch, heads, seq, shape.dim, generator=generator).to(dtype)

        contents = [(normal(shape.heads_q, shape.seq_q), normal(shape.heads_kv, shape.seq_kv),
                     normal(shape.heads_kv, shape.seq_kv)) for _ in range(DISTINCT)]
        one = sum(t.numel() for t in contents[0]) + contents[0][0].numel()
        slots = min(MAX_SLOTS, max(2, -(-2 * cache_bytes() // (one * contents[0][0].element_size())) + 1))
        self.sets = [contents[i] if i < DISTINCT else tuple(t.clone() for t in contents[i % DISTINCT])
                     for i in range(1 if args.hot else slots)]
        self.flush = torch.ones(2 * cache_bytes() // 8, dtype=torch.int64)
        self.cursor, self.blocks = 0, []
        self.sides = [Side(name, False) for name in args.variant_list] + [Side(name, True) for name in args.peer_list]
        for side in self.sides:
            self._prepare(side, library)

    def _prepare(self, side: Side, library) -> None:
        """Calls for every slot, the first outputs and their error."""
        torch, args, rows = self.torch, self.args, reference_rows(self.shape, self.args.seed)
        try:
            for q, k, v in self.sets:
                if side.name == "onnxruntime":
                    side.calls.append(onnxruntime_call(q, k, v, self.causal, args.threads))
                elif side.peer:
                    side.calls.append(torch_call(q, k, v, self.causal))
                else:
                    o = torch.full_like(q, math.nan)
                    side.outputs.append(o)
                    call = library.bind(q, k, v, o, causal=self.causal, variant=side.name, device=capi.CPU)
                    side.calls.append(call)
            side.error = 0.0
            for slot in range(min(DISTINCT, len(self.sets))):
                begin = time.perf_counter()
                out = self._output(side, slot, side.calls[slot]())
                side.estimate = min(side.estimate, time.perf_counter() - begin)
                error = relative_error(*self.sets[slot], out, rows, self.causal)
                if not error <= side.error:
                    side.error = error
                side.expected.append(out.clone())
        except Exception as error:  # whatever a side throws is its refusal, and must not end the other's
            side.refused = first_line(error)
            return
        bits = side.expected[0].contiguous()
        raw = ctypes.string_at(bits.data_ptr(), bits.numel() * bits.element_size())
        side.sha256 = hashlib.sha256(raw).hexdigest()
        if args.outputs:
            name = f"{args.rows.index((self.shape, self.dtype, self.causal))}.{self.sides.index(side)}.bin"
            (pathlib.Path(args.outputs) / name).write_bytes(raw)
        limit = ERROR_LIMIT[self.dtype]
        if side.error <= limit:
            side.verdict = "GREEN"
        else:
            side.verdict = f"RED: rel_fro {side.error:.3g} > {limit:.3g}"

    def _output(self, side: Side, slot: int, returned):
        if side.name == "onnxruntime":
            out = self.torch.from_numpy(returned.numpy())
            return out.view(*out.shape[:2], self.shape.heads_q, self.shape.dim).transpose(1, 2)
        return returned if side.peer else side.outputs[slot]

    def _next(self) -> int:
        slot, self.cursor = self.cursor, (self.cursor + 1) % len(self.sets)
        return slot

    def _sample(self, side: Side) -> float:
        """Seconds of a call: off the clock the caches are emptied, the pools come to rest and the output is poisoned."""
        if not self.args.hot:
            self.flush.sum()
        time.sleep(PAUSE_SECONDS)
        if side.estimate < SHORT_CALL:
            side.calls[self._next()]()
        slots = [self._next() for _ in range(side.batch)]
        if not side.peer:
            side.outputs[slots[-1]].fill_(math.nan)
        calls = [side.calls[slot] for slot in slots]
        returned = None
        begin = time.perf_counter()
        for call in calls:
            returned = call()
        seconds = time.perf_counter() - begin
        self._verify(side, slots[-1], returned)
        return seconds / side.batch

    def _verify(self, side: Side, slot: int, returned) -> None:
        torch = self.torch
        out, expected = self._output(side, slot, returned), side.expected[slot % DISTINCT]
        if torch.equal(out.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8)):
            return
        error = relative_error(*self.sets[slot], out, reference_rows(self.shape, self.args.seed), self.causal)
        if not error <= ERROR_LIMIT[self.dtype]:
            side.refused = f"a timed call went wrong: rel_fro {error:.3g}"

    def measure(self, rng: random.Random, tick: float) -> None:
        for side in self._live():
            # Twice, so that what only the first call does is not taken for the length of one.
            side.estimate = min(self._sample(side) for _ in range(2))
            side.batch = max(1, math.ceil(MIN_TICKS * tick / max(side.estimate, tick)))
            begin = time.perf_counter()
            for _ in range(self.args.warmup):
                if time.perf_counter() - begin > 0.1 * self.args.budget:
                    break
                side.calls[self._next()]()
        begin = time.perf_counter()
        for block in range(max(1, self.args.iters // 2)):
            if block >= 6 and time.perf_counter() - begin > self.args.budget:
                break
            order = self._live()
            rng.shuffle(order)
            order = order + order[::-1]
            seconds = [self._sample(side) for side in order]
            if any(side.refused for side in order):
                break
            self.blocks.append({"process": 0, "order": [self.sides.index(side) for side in order], "seconds": seconds})

    def _live(self) -> list[Side]:
        return [side for side in self.sides if not side.refused]

    def record(self, device: str, tick: float) -> dict:
        sides = []
        for side in self.sides:
            entry = {"id": side.id, "batch": side.batch}
            if side.refused:
                entry["refused"] = side.refused
            if math.isfinite(side.error):
                entry["errors"] = {"rel_fro": side.error}
            if side.verdict:
                entry["verdict"] = side.verdict
            if side.sha256:
                entry["output_sha256"] = side.sha256
            sides.append(entry)
        mask = " causal(top-left)" if self.causal else ""
        return {"name": self.shape.text + (" causal" if self.causal else ""),
                "problem": f"{self.shape.text} {self.dtype}{mask}", "flops": flops(self.shape, self.causal),
                "device": {"kind": "cpu", "name": device}, "timer": "perf_counter", "tick_seconds": tick,
                "cache": "hot" if self.args.hot else "cold", "seed": self.args.seed, "sides": sides,
                "blocks": self.blocks}


def flops(shape: Shape, causal: bool) -> float:
    """4 D for each visible query-key pair, as greenfast counts."""
    if not causal:
        return shape.flops(False)
    pairs = sum(min(row + 1, shape.seq_kv) for row in range(shape.seq_q))
    return 4.0 * shape.batch * shape.heads_q * pairs * shape.dim


def markdown(rows: list[Row], caption: str) -> str:
    """GFLOP/s of every side, and of the first variant against the best peer: the median over blocks of the ratio of times."""
    sides = [side.name for side in rows[0].sides]
    lines = [caption, "", f"| shape | mask | dtype | {' | '.join(sides)} | against the best peer |",
             "|---|---|---|" + "---|" * (len(sides) + 1)]
    for row in rows:
        work = flops(row.shape, row.causal)
        seconds = [[statistics.fmean(s for s, at in zip(block["seconds"], block["order"]) if at == index)
                    for block in row.blocks if index in block["order"]] for index in range(len(row.sides))]
        cells = [f"{work / statistics.median(times) / 1e9:.0f}" if times and not side.refused else "refused"
                 for side, times in zip(row.sides, seconds)]
        peers = [times for side, times in zip(row.sides, seconds) if side.peer and times and not side.refused]
        ratio = "no peer takes it"
        if peers and seconds[0] and not row.sides[0].refused and not row.sides[0].peer:
            best = min(peers, key=statistics.median)
            ratio = f"{statistics.median(b / a for a, b in zip(seconds[0], best)):.2f}×"
        lines.append(f"| {row.shape.text} | {'causal' if row.causal else 'full'} | {row.dtype} | {' | '.join(cells)} | {ratio} |")
    return "\n".join(lines) + "\n"


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m greenfast_bench.ab_cpu", description=(__doc__ or "").split("\n\n")[0],
        epilog="Exit: 0 measured, 2 bad input, 3 no library or no PyTorch, 20 one of ours is RED.")
    parser.add_argument("--shapes", default="1x8x512x64", help="BxHxSxD[,…], with Hq/Hkv and Sq/Skv where they differ")
    parser.add_argument("--variants", default="cpu.flash", help="Greenfast variants")
    parser.add_argument("--peers", default="torch-cpu", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--dtype", default="fp32", help=f"of {', '.join(ERROR_LIMIT)}, with commas")
    parser.add_argument("--masks", default="full", help="full, causal (aligned top left), or both with a comma")
    parser.add_argument("--causal", action="store_true", help="the same as --masks causal")
    parser.add_argument("--threads", type=int, default=0, help="of each side (default: processors of this process)")
    parser.add_argument("--iters", type=int, default=200, help="samples of each side, at most")
    parser.add_argument("--warmup", type=int, default=10, help="untimed calls first")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of timing for each shape")
    parser.add_argument("--hot", action="store_true", help="one set of inputs, in whatever cache holds it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--outputs", help="write the output of shape I, side J on the first inputs to DIR/I.J.bin")
    parser.add_argument("--markdown", help="write a table of GFLOP/s and ratios here as well")
    parser.add_argument("--json", help=f"write raw samples ({SCHEMA}) here instead of to standard output")
    args = parser.parse_args(argv)
    if args.iters < 12 or not args.budget > 0 or args.warmup < 0:
        raise Usage(f"--iters {args.iters} --budget {args.budget} --warmup {args.warmup}: expected at least 12, above 0, "
                    "at least 0")
    args.shape_list = [Shape.parse(text) for text in args.shapes.split(",")]
    dtypes = args.dtype.split(",")
    for name in dtypes:
        if name not in ERROR_LIMIT:
            raise Usage(f"--dtype '{name}': expected one of {', '.join(ERROR_LIMIT)}, or several with commas")
    masks = ["causal"] if args.causal else args.masks.split(",")
    for name in masks:
        if name not in ("full", "causal"):
            raise Usage(f"--masks '{name}': expected full, causal or full,causal")
    args.rows = [(shape, dtype, mask == "causal") for shape in args.shape_list for dtype in dtypes for mask in masks]
    args.variant_list = [name for name in args.variants.split(",") if name]
    args.peer_list = [name for name in args.peers.split(",") if name]
    for name in args.peer_list:
        if name not in PEERS:
            raise Usage(f"peer '{name}' is unknown on the CPU; one of: {', '.join(PEERS)}")
    if len(args.variant_list) + len(args.peer_list) < 2:
        raise Usage("two sides are needed: --variants and --peers")
    args.threads = args.threads or int(os.environ.get("GREENFAST_THREADS") or 0) or len(os.sched_getaffinity(0))
    if args.threads < 1:
        raise Usage(f"--threads {args.threads}: expected at least 1")
    return args


def main(argv: list[str] | None = None) -> int:
    try:
        args = parse_arguments(argv)
        os.environ["GREENFAST_THREADS"] = str(args.threads)
        library = capi.load()
        try:
            import torch
        except ImportError as error:
            raise OSError(f"PyTorch cannot be imported by {sys.executable} ({error}); install torch there, or name a "
                          "Python that has it in GREENFAST_PYTHON") from None
        torch.set_num_threads(args.threads)
    except Usage as error:
        print(f"greenfast.ab_cpu: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"greenfast.ab_cpu: {error}", file=sys.stderr)
        return 3
    device, tick, rng = library.device_facts().name.decode(), tick_seconds(), random.Random(args.seed)
    shapes, rows, red = [], [], False
    for shape, dtype, causal in args.rows:
        row = Row(shape, dtype, causal, args, library)
        row.measure(rng, tick)
        red = red or any(side.verdict.startswith("RED") for side in row.sides if not side.peer)
        shapes.append(row.record(device, tick))
        # What it timed is not needed any more, and gigabytes at some shapes.
        row.sets, row.flush = [], None
        for side in row.sides:
            side.calls, side.outputs, side.expected = [], [], []
        rows.append(row)
    record = {"schema": SCHEMA, "tool": "greenfast.ab_cpu", "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
              "argv": list(argv) if argv is not None else sys.argv[1:],
              "notes": [f"one Python process, {args.threads} threads on each side; torch {torch.__version__}, greenfast "
                        f"{library.version()}"],
              "shapes": shapes}
    if args.markdown:
        caption = (f"{device}, {library.device_facts().isa.decode()}, {args.threads} threads on each side, "
                   f"{'hot' if args.hot else 'cold'}; GFLOP/s, medians. torch {torch.__version__}, greenfast "
                   f"{library.version()}, {record['utc']}.")
        pathlib.Path(args.markdown).write_text(markdown(rows, caption), encoding="utf-8")
    text = json.dumps(record, indent=1) + "\n"
    if args.json:
        pathlib.Path(args.json).write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 20 if red else 0


if __name__ == "__main__":
    sys.exit(main())
