"""A/B on the CPU: Greenfast against the attention of PyTorch, zentorch, ONNX Runtime and OpenVINO, interleaved.

Each engine is a process of its own (greenfast_bench.cpu_engine) on the same processors with as many threads, and stopped while
another is timed, so that a pool that spins after its call takes no processor from the next. All get the same bits. Outputs are
compared with fp64 on them before anything is timed; then blocks of A B B A in random order are taken, by default from a ring of
inputs that no cache holds, and each sample's output is held to the one from before. Between rows the peak of each type is measured
on the same processors, by loops of nothing but multiplications. Raw samples go to a file of schema
greenfast.samples/1; `greenfast compare cpu.flash peer:torch-cpu` runs this and computes the intervals.

    python -m greenfast_bench.ab_cpu --variants cpu.flash --peers torch-cpu --shapes 1x8x512x64 --json samples.json
    python -m greenfast_bench.ab_cpu --peers torch-cpu,zentorch,onnxruntime,openvino --python zentorch=VENV/bin/python3 \\
        --dtype fp32,bf16,fp16 --masks full,causal --hot --shapes 1x8x512x64,2x8x2048x64 --json samples.json --markdown table.md

`tools/cpu_peers` installs the peers and runs this.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import json
import math
import os
import pathlib
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import numpy

from greenfast_bench import capi
from greenfast_bench.ab import Shape, reference_rows
from greenfast_bench.measure import SCHEMA, Usage, why_not_timed

PEERS = {"torch-cpu": "torch", "zentorch": "zentorch", "onnxruntime": "onnxruntime", "openvino": "openvino"}  # and the module each needs
BITS = {"fp32": numpy.float32, "fp16": numpy.float16, "bf16": numpy.uint16}
DISTINCT = 3  # sets of inputs with bits of their own; further slots repeat them in fresh memory
MAX_SLOTS = 512
MIN_TICKS = 200
SHORT_CALL = 5e-2  # calls back to back find their pool awake: an untimed one goes before those in which that could be seen
LONG_CALL = 0.5  # the call that made the first output warmed everything, and one more would cost a block
ENOUGH_BLOCKS, LEAST_BLOCKS = 6, 2  # for an interval of a median; for the interval that `compare` gives, a wide one then
BACK_TO_BACK, AFTER_PAUSE = "back_to_back", "after_pause"
PEAK_SECONDS = 0.05
PEAKS = "bench_cpu_peaks"
MAX_ANSWER_SECONDS = 300.0


class Ended(Exception):
    """An engine's process is no more: how it ended."""


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


def to_bits(values: numpy.ndarray, dtype: str) -> numpy.ndarray:
    """fp32 rounded to nearest even; bf16 as uint16."""
    if dtype != "bf16":
        return values.astype(BITS[dtype])
    raw = values.view(numpy.uint32)
    return ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(numpy.uint16)


def to_fp64(bits: numpy.ndarray) -> numpy.ndarray:
    if bits.dtype == numpy.uint16:
        bits = (bits.astype(numpy.uint32) << 16).view(numpy.float32)
    return bits.astype(numpy.float64)


def relative_error(q, k, v, o, rows: list[int], causal: bool) -> float:
    """||o - r|| / ||r|| (Frobenius) over the rows, r in fp64 from the same bits; a NaN in o gives NaN."""
    if numpy.isnan(to_fp64(o)).any():
        return math.nan
    group, error, norm = q.shape[1] // k.shape[1], 0.0, 0.0
    hidden = numpy.arange(k.shape[2])[None, :] > numpy.array(rows)[:, None] if causal else None
    for b in range(q.shape[0]):
        for h in range(k.shape[1]):
            keys, values = to_fp64(k[b, h]), to_fp64(v[b, h])
            for head in range(h * group, (h + 1) * group):
                s = to_fp64(q[b, head, rows]) @ keys.T * q.shape[-1] ** -0.5
                if hidden is not None:
                    s[hidden] = -math.inf
                weights = numpy.exp(s - s.max(-1, keepdims=True))
                r = weights @ values / weights.sum(-1, keepdims=True)
                error += float(((to_fp64(o[b, head, rows]) - r) ** 2).sum())
                norm += float((r ** 2).sum())
    return math.sqrt(error / norm) if norm > 0 else math.sqrt(error)


def processors() -> list[int]:
    """Of this process: one of each core before its siblings."""
    def place(cpu: int) -> tuple[int, int]:
        try:
            text = pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii")
        except OSError:
            return 0, cpu
        siblings = []
        for part in text.strip().split(","):
            first, _, last = part.partition("-")
            siblings += range(int(first), int(last or first) + 1)
        return siblings.index(cpu) if cpu in siblings else 0, cpu

    return sorted(os.sched_getaffinity(0), key=place)


class Peaks:
    """What the processors reach in each type, measured now and then while every engine is stopped."""

    def __init__(self, program: str, cpus: list[int]):
        self._command = [program, ",".join(map(str, cpus)), str(PEAK_SECONDS)]
        self.missing = "" if program else f"{PEAKS} is not beside the library: build it (tools/build cpu), or name it with --peaks"
        self.latest = self._measured()

    def _measured(self) -> list[dict]:
        if self.missing:
            return []
        try:
            done = subprocess.run(self._command, capture_output=True, text=True, check=False, timeout=60)
            if done.returncode == 0:
                return json.loads(done.stdout)
            self.missing = f"{self._command[0]} ended with {done.returncode}: {done.stderr.strip()}"
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            self.missing = f"{self._command[0]}: {error}"
        return []

    def around(self) -> list[dict]:
        """What was measured last and what is measured now: a row lies between. The higher of both counts."""
        before, self.latest = self.latest, self._measured()
        return [{**one, "flops": max(one["flops"], other["flops"])} for one, other in zip(before, self.latest)]


def find_peaks(named: str) -> str:
    """The program, empty where there is none."""
    if named:
        return named
    library = capi.find_library().resolve()
    found = [folder / "bin" / PEAKS for folder in library.parents[:3] if (folder / "bin" / PEAKS).exists()]
    return str(found[0]) if found else ""


def ceiling(peaks: list[dict], dtype: str, threads: int) -> dict | None:
    """The fastest arithmetic that an honest kernel may do the type in: bf16 in bf16 or widened; fp16 as fp32, or, where there are
    tiles, as sums of two bf16."""
    tiles = any(peak["isa"] == "avx512amx" for peak in peaks)
    able = [peak for peak in peaks if peak["threads"] == threads
            and (peak["dtype"] == "fp32" or dtype == "bf16" or dtype == "fp16" and tiles and peak["isa"] == "avx512amx")]
    return max(able, key=lambda peak: peak["flops"], default=None)


class Process:
    """An engine's process. Stopped but while it answers."""

    def __init__(self, engine: str, python: str, threads: int, cpus: list[int], variant: str = ""):
        self.name, self.version, self.device, self.missing = engine, "", "", ""
        environment = {**os.environ, "GREENFAST_THREADS": str(threads), "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"}
        if threads <= len(cpus):
            environment |= {"OMP_PROC_BIND": "true", "OMP_PLACES": ",".join(f"{{{cpu}}}" for cpu in cpus)}
        here = str(pathlib.Path(__file__).resolve().parents[1])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
        given = json.dumps({"engine": engine, "threads": threads, "cpus": cpus, "variant": variant})
        try:
            self._process = subprocess.Popen([python, "-m", "greenfast_bench.cpu_engine", given], stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, env=environment)
        except OSError as error:
            self._process, self.missing = None, f"{python}: {error.strerror}"
            return
        try:
            hello = self._answer()
        except Ended as error:
            hello = {"refused": str(error)}
        self.missing = hello.get("refused", "")
        self.version, self.device = hello.get("version", ""), hello.get("device", "")
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _answer(self) -> dict:
        if not select.select([self._process.stdout], [], [], MAX_ANSWER_SECONDS)[0]:
            self._process.kill()
            raise Ended(f"{self.name}: no answer after {MAX_ANSWER_SECONDS:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise Ended(f"{self.name}: its process ended " + (f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"))
        return json.loads(line)

    def ask(self, do: str, **order) -> dict:
        """Raises Ended where there is nobody to ask any more."""
        try:
            self._process.stdin.write(json.dumps({"do": do, **order}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise Ended(f"{self.name}: its process has ended") from None
        self._signal(signal.SIGCONT)
        try:
            return self._answer()
        finally:
            self._signal(signal.SIGSTOP)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
            try:
                self._process.stdin.close()
            except BrokenPipeError:  # an order that it did not live to read
                pass


class Side:
    """One contestant at one shape."""

    def __init__(self, name: str, peer: bool, process: Process):
        self.name, self.id, self.peer, self.process = name, f"peer:{name}" if peer else name, peer, process
        self.refused, self.error, self.sha256 = process.missing, math.nan, ""
        # Why its first outputs are plainly wrong. Numbers are timed all the same: `greenfast compare` says what their error means.
        self.wrong = ""
        self.batch, self.estimate, self.cursor = 1, math.inf, 0

    def ask(self, do: str, **order) -> dict:
        """The answer; a refusal or the engine's end is the side's refusal, and must not end the other's."""
        try:
            answer = self.process.ask(do, **order)
        except Ended as error:
            self.process.missing = str(error)
            answer = {"refused": str(error)}
        self.refused = answer.get("refused", self.refused)
        return answer


class Row:
    """One shape: its inputs, the sides, their samples."""

    def __init__(self, shape: Shape, dtype: str, causal: bool, args, processes: dict[str, Process], folder: pathlib.Path):
        self.shape, self.dtype, self.causal, self.args, self.folder = shape, dtype, causal, args, folder
        rng = numpy.random.default_rng(args.seed)

        def normal(heads, seq):
            return to_bits(rng.standard_normal((shape.batch, heads, seq, shape.dim), numpy.float32), dtype)

        self.contents = [(normal(shape.heads_q, shape.seq_q), normal(shape.heads_kv, shape.seq_kv), normal(shape.heads_kv, shape.seq_kv))
                         for _ in range(1 if args.hot else DISTINCT)]
        one = sum(array.nbytes for array in self.contents[0]) + self.contents[0][0].nbytes
        self.slots = 1 if args.hot else min(MAX_SLOTS, max(2, -(-2 * cache_bytes() // one) + 1))
        self.contents = self.contents[:self.slots]
        self.deadline = time.perf_counter() + args.row_seconds
        for index, arrays in enumerate(self.contents):
            for name, array in zip("qkv", arrays):
                array.tofile(folder / f"{index}.{name}")
        self.blocks: dict[str, list[dict]] = {}
        self.peaks, self.cut = [], ""
        self.sides = [Side(name, False, processes[name]) for name in args.variant_list]
        self.sides += [Side(name, True, processes[name]) for name in args.peer_list]
        for side in self._live():
            self._prepare(side)

    def _prepare(self, side: Side) -> None:
        """Calls for every slot, the first outputs and their error."""
        shape, args = self.shape, self.args
        query, key = (shape.batch, shape.heads_q, shape.seq_q, shape.dim), (shape.batch, shape.heads_kv, shape.seq_kv, shape.dim)
        files = [[str(self.folder / f"{index}.{name}") for name in "qkvo"] for index in range(len(self.contents))]
        answer = side.ask("row", shapes=[query, key, key], dtype=self.dtype, causal=self.causal, files=files, slots=self.slots,
                          flush_bytes=0 if args.hot else 2 * cache_bytes())
        if side.refused:
            return
        side.estimate, side.error = answer["seconds"], 0.0
        rows = reference_rows(shape, args.seed)
        for names, inputs in zip(files, self.contents):
            out = numpy.fromfile(names[3], BITS[self.dtype]).reshape(query)
            error = relative_error(*inputs, out, rows, self.causal)
            if not error <= side.error:
                side.error = error
        raw = pathlib.Path(files[0][3]).read_bytes()
        side.sha256 = hashlib.sha256(raw).hexdigest()
        if args.outputs:
            name = f"{args.rows.index((self.shape, self.dtype, self.causal))}.{self.sides.index(side)}.bin"
            (pathlib.Path(args.outputs) / name).write_bytes(raw)
        why = why_not_timed({"rel_fro": side.error}, self.dtype)
        side.wrong = why.removeprefix("not timed: ")
        if math.isnan(side.error):
            side.refused = why

    def _next(self, side: Side) -> int:
        slot, side.cursor = side.cursor, (side.cursor + 1) % self.slots
        return slot

    def _sample(self, side: Side, pause: float = 0.0) -> float:
        """Seconds of a call: of the first after a pause, or of one that follows another."""
        wake = self._next(side) if side.estimate < SHORT_CALL and not pause else -1
        slots, wrong = [self._next(side) for _ in range(1 if pause else side.batch)], self.folder / "wrong"
        answer = side.ask("sample", slots=slots, wake=wake, wrong=str(wrong), pause=pause)
        if side.refused:
            return math.inf
        if not answer["same"]:
            inputs = self.contents[slots[-1] % len(self.contents)]
            out = numpy.fromfile(wrong, BITS[self.dtype]).reshape(inputs[0].shape)
            error = relative_error(*inputs, out, reference_rows(self.shape, self.args.seed), self.causal)
            if why_not_timed({"rel_fro": error}, self.dtype):
                side.refused = f"a timed call went wrong: rel_fro {error:.3g}"
        return answer["seconds"] / len(slots)

    def measure(self, rng: random.Random, tick: float) -> None:
        for side in self._live():
            if side.estimate > LONG_CALL:
                continue
            # Twice, so that what only the first call does is not taken for the length of one.
            side.estimate = min(self._sample(side) for _ in range(2))
            if side.refused:
                continue
            side.batch = max(1, math.ceil(MIN_TICKS * tick / max(side.estimate, tick)))
            side.ask("warm", first=side.cursor, most=self.args.warmup, seconds=0.1 * self.args.budget)
        self._take(BACK_TO_BACK, rng, 0.0)
        if self.args.pause:
            self._take(AFTER_PAUSE, rng, self.args.pause / 1e3)

    def _take(self, metric: str, rng: random.Random, pause: float) -> None:
        blocks = self.blocks.setdefault(metric, [])
        begin, longest = time.perf_counter(), 0.0
        for block in range(max(1, self.args.iters // 2)):
            now = time.perf_counter()
            if block >= ENOUGH_BLOCKS and now - begin > self.args.budget:
                break
            if block >= LEAST_BLOCKS and now + longest > self.deadline:
                if block < ENOUGH_BLOCKS:
                    self.cut = f"{block} blocks instead of {ENOUGH_BLOCKS} or more, for --row-seconds {self.args.row_seconds:g}"
                break
            order = self._live()
            rng.shuffle(order)
            order = order + order[::-1]
            seconds = [self._sample(side, pause) for side in order]
            if any(side.refused for side in order):
                break
            blocks.append({"process": 0, "order": [self.sides.index(side) for side in order], "seconds": seconds})
            longest = max(longest, time.perf_counter() - now)

    def _live(self) -> list[Side]:
        return [side for side in self.sides if not side.refused]

    def drop(self) -> None:
        """What it timed is not needed any more, and gigabytes at some shapes."""
        self.contents = []
        for side in self.sides:
            if not side.process.missing:
                try:
                    side.process.ask("drop")
                except Ended as error:
                    side.process.missing = str(error)

    def name(self) -> str:
        """Of one type in a record: `compare` knows rows by their names."""
        several = len({dtype for _, dtype, _ in self.args.rows}) > 1
        return self.shape.text + (f" {self.dtype}" if several else "") + (" causal" if self.causal else "")

    def record(self, device: str, tick: float) -> list[dict]:
        """A row for each metric."""
        sides = []
        for side in self.sides:
            entry = {"id": side.id, "batch": side.batch}
            if side.refused:
                entry["refused"] = side.refused
            if math.isfinite(side.error):
                entry["errors"] = {"rel_fro": side.error}
            if side.sha256:
                entry["output_sha256"] = side.sha256
            sides.append(entry)
        mask = " causal(top-left)" if self.causal else ""
        common = {"problem": f"{self.shape.text} {self.dtype}{mask}", "flops": flops(self.shape, self.causal),
                  "device": {"kind": "cpu", "name": device}, "timer": "perf_counter", "tick_seconds": tick,
                  "cache": "hot" if self.args.hot else "cold", "seed": self.args.seed}
        if self.peaks:
            common["peaks"] = self.peaks
            if limit := ceiling(self.peaks, self.dtype, self.args.peak_threads):
                common["ceiling"] = limit
        if self.cut:
            common["cut"] = self.cut
        rows = [{"name": self.name(), **common, "metric": BACK_TO_BACK, "sides": sides, "blocks": self.blocks.get(BACK_TO_BACK, [])}]
        if self.args.pause:
            rows.append({"name": f"{self.name()} after {self.args.pause:g} ms", **common, "metric": AFTER_PAUSE,
                         "pause_seconds": self.args.pause / 1e3, "sides": [{**side, "batch": 1} for side in sides],
                         "blocks": self.blocks.get(AFTER_PAUSE, [])})
        return rows


def flops(shape: Shape, causal: bool) -> float:
    """4 D for each visible query-key pair, as greenfast counts."""
    if not causal:
        return shape.flops(False)
    pairs = sum(min(row + 1, shape.seq_kv) for row in range(shape.seq_q))
    return 4.0 * shape.batch * shape.heads_q * pairs * shape.dim


def markdown(rows: list[Row], caption: str) -> str:
    """GFLOP/s of every side; of the first variant against each peer the median over blocks of the ratio of times; of its first
    sample of a block against its second the same, which is 1 but for what the machine does meanwhile. For the eye: which peer is
    the best and how sure a ratio is, is `greenfast compare --best`'s to say."""
    def ratio(above, below):
        return f"{statistics.median(a / b for a, b in zip(above, below)):.2f}×"

    args = rows[0].args
    metrics = [BACK_TO_BACK, AFTER_PAUSE] if args.pause else [BACK_TO_BACK]
    titles = {BACK_TO_BACK: "back to back", AFTER_PAUSE: f"after {args.pause:g} ms"}
    peaked = any(row.peaks for row in rows)
    names = [side.name for side in rows[0].sides]
    head = ["shape", "mask", "dtype", *["call"] * bool(args.pause), *names, *["peak"] * peaked, "against peers", "against itself"]
    lines = [caption, "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    reasons = {}
    for row, metric in [(row, metric) for row in rows for metric in metrics]:
        work, blocks, peak = flops(row.shape, row.causal), row.blocks.get(metric, []), ceiling(row.peaks, row.dtype, args.peak_threads)
        samples = [[[s for s, at in zip(block["seconds"], block["order"]) if at == index] for block in blocks
                    if index in block["order"]] for index in range(len(row.sides))]
        seconds = [[statistics.fmean(pair) for pair in pairs] for pairs in samples]
        timed = [bool(times) and not side.refused for side, times in zip(row.sides, seconds)]
        cells = [titles[metric]] * bool(args.pause)
        for side, times, good in zip(row.sides, seconds, timed):
            wrong = side.wrong
            if good:
                rate = work / statistics.median(times)
                share = f" ({rate / peak['flops']:.0%})" if peak and not wrong else ""
                cells.append(f"{rate / 1e9:.0f}{share}{' (wrong)' if wrong else ''}")
            else:
                cells.append("refused")
            if not good or wrong:
                why = (side.refused or "not timed") if not good else wrong
                where = reasons.setdefault((side.name, why), [])
                where += [text for text in [f"{row.shape.text} {row.dtype}{' causal' if row.causal else ''}"] if text not in where]
        if peaked:
            cells.append(f"{peak['flops'] / 1e9:.0f} {peak['isa']}" if peak else "")
        # A wrong answer is nothing to be compared with.
        peers = [index for index, side in enumerate(row.sides) if side.peer and timed[index] and not side.wrong]
        against, itself = "no peer takes it", ""
        if timed[0]:
            itself = ratio(*zip(*samples[0]))
        if peers and timed[0] and not row.sides[0].peer:
            against = ", ".join(f"{ratio(seconds[index], seconds[0])} {names[index]}" for index in peers)
        lines.append(f"| {row.shape.text} | {'causal' if row.causal else 'full'} | {row.dtype} | {' | '.join(cells)} | {against} | "
                     f"{itself} |")
        if row.cut and metric == BACK_TO_BACK:
            reasons[("cut", row.cut)] = [*reasons.get(("cut", row.cut), []), row.name()]
    lines += [""] * bool(reasons)
    lines += [f"- {name}: {why} ({'every row' if len(where) == len(rows) else ', '.join(where)})"
              for (name, why), where in reasons.items()]
    return "\n".join(lines) + "\n"


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m greenfast_bench.ab_cpu", description=(__doc__ or "").split("\n\n")[0],
        epilog="Exit: 0 measured, 2 bad input, 3 no library or none of the peers, 20 one of ours is plainly wrong, 130 "
               "ended by a signal, with the rows so far.")
    parser.add_argument("--shapes", default="1x8x512x64", help="BxHxSxD[,…], with Hq/Hkv and Sq/Skv where they differ")
    parser.add_argument("--variants", default="cpu.flash", help="Greenfast variants")
    parser.add_argument("--peers", default="torch-cpu", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH",
                        help="the Python that has this peer, where it is not this one")
    parser.add_argument("--dtype", default="fp32", help=f"of {', '.join(BITS)}, with commas")
    parser.add_argument("--masks", default="full", help="full, causal (aligned top left), or both with a comma")
    parser.add_argument("--causal", action="store_true", help="the same as --masks causal")
    parser.add_argument("--threads", type=int, default=0, help="of each side (default: processors of this process)")
    parser.add_argument("--iters", type=int, default=200, help="samples of each side, at most")
    parser.add_argument("--warmup", type=int, default=10, help="untimed calls first")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of timing for each shape")
    parser.add_argument("--pause", type=float, default=0.0, metavar="MS",
                        help="time the first call after so many milliseconds without one, too: a row of its own, metric after_pause")
    parser.add_argument("--row-seconds", type=float, default=math.inf, metavar="S",
                        help="of a row with all that belongs to it, about: fewer blocks than asked for, two at least, and the record says so")
    parser.add_argument("--peaks", default="", metavar="PROGRAM", help=f"{PEAKS}, where it is not beside the library")
    parser.add_argument("--hot", action="store_true", help="one set of inputs, in whatever cache holds it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--outputs", help="write the output of shape I, side J on the first inputs to DIR/I.J.bin")
    parser.add_argument("--markdown", help="write a table of GFLOP/s and ratios here as well")
    parser.add_argument("--json", help=f"write raw samples ({SCHEMA}) here instead of to standard output")
    args = parser.parse_args(argv)
    if not (args.pause >= 0 and math.isfinite(args.pause)) or not args.row_seconds > 0:
        raise Usage(f"--pause {args.pause:g} --row-seconds {args.row_seconds:g}: expected milliseconds of at least 0, and more than 0 seconds")
    if args.iters < 12 or not args.budget > 0 or args.warmup < 0:
        raise Usage(f"--iters {args.iters} --budget {args.budget} --warmup {args.warmup}: expected at least 12, above 0, "
                    "at least 0")
    args.shape_list = [Shape.parse(text) for text in args.shapes.split(",")]
    dtypes = args.dtype.split(",")
    for name in dtypes:
        if name not in BITS:
            raise Usage(f"--dtype '{name}': expected one of {', '.join(BITS)}, or several with commas")
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
    args.pythons = {}
    for text in args.python:
        name, _, path = text.partition("=")
        if name not in PEERS or not path:
            raise Usage(f"--python '{text}': expected PEER=PATH, PEER one of: {', '.join(PEERS)}")
        args.pythons[name] = path
    if len(set(args.variant_list)) < len(args.variant_list) or len(set(args.peer_list)) < len(args.peer_list):
        raise Usage("--variants and --peers: each name once")
    if len(args.variant_list) + len(args.peer_list) < 2:
        raise Usage("two sides are needed: --variants and --peers")
    args.threads = args.threads or int(os.environ.get("GREENFAST_THREADS") or 0) or len(os.sched_getaffinity(0))
    if args.threads < 1:
        raise Usage(f"--threads {args.threads}: expected at least 1")
    return args


class Report:
    """The record and the table, whole on disk after every row: a run may be ended at any time."""

    def __init__(self, args, argv: list[str], processes: dict[str, Process], cpus: list[int], peaks: Peaks, missing: dict[str, str]):
        self._args, self._argv, self._processes, self._cpus, self._peaks, self._missing = args, argv, processes, cpus, peaks, missing
        self.device = next((process.device for process in processes.values() if process.device), "cpu")
        self.rows: list[Row] = []
        self._shapes: list[dict] = []

    def add(self, row: Row, tick: float) -> None:
        self.rows.append(row)
        self._shapes += row.record(self.device, tick)
        if self._args.json:
            self.write()

    def write(self) -> None:
        args, cpus = self._args, ",".join(map(str, self._cpus))
        versions = {name: process.version for name, process in self._processes.items() if process.version}
        said = "; ".join(dict.fromkeys(versions.values()))
        notes = [f"a process for each engine, stopped while another is timed; {args.threads} threads each, on processors {cpus}; {said}"]
        if self._peaks.missing:
            notes.append(f"peaks were not measured: {self._peaks.missing}")
        if len(self.rows) < len(args.rows):
            notes.append(f"ended after {len(self.rows)} of {len(args.rows)} rows")
        record = {"schema": SCHEMA, "tool": "greenfast.ab_cpu", "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                  "argv": self._argv, "missing": self._missing, "device": f"{self.device}, {args.threads} threads",
                  "versions": versions, "notes": notes, "shapes": self._shapes}
        if args.markdown and self.rows:
            shares = ", and their share of the peak measured beside them" * any(row.peaks for row in self.rows)
            caption = (f"{self.device}, {args.threads} threads each on processors {cpus}, {'hot' if args.hot else 'cold'}; GFLOP/s, medians"
                       f"{shares}; ratios are medians over blocks, for the eye; the best peer and how sure a ratio is: `greenfast compare FILE --best`. {said}. {record['utc']}." + "".join(f" {note}." for note in notes[1:]))
            replace(args.markdown, markdown(self.rows, caption))
        text = json.dumps(record, indent=1) + "\n"
        if args.json:
            replace(args.json, text)
        else:
            print(text, end="")


def replace(path: str, text: str) -> None:
    """Who reads the file meets the old one or the new one."""
    fresh = pathlib.Path(f"{path}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def measure_rows(args, processes: dict[str, Process], peaks: Peaks, report: Report) -> None:
    tick, rng = tick_seconds(), random.Random(args.seed)
    for shape, dtype, causal in args.rows:
        with tempfile.TemporaryDirectory(prefix="greenfast.ab_cpu.") as folder:
            row = Row(shape, dtype, causal, args, processes, pathlib.Path(folder))
            row.measure(rng, tick)
            row.drop()
        row.peaks = peaks.around()
        report.add(row, tick)


def ended(number, frame):
    raise KeyboardInterrupt


def main(argv: list[str] | None = None) -> int:
    try:
        args = parse_arguments(argv)
        program = find_peaks(args.peaks)
        capi.find_library()
    except Usage as error:
        print(f"greenfast.ab_cpu: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"greenfast.ab_cpu: {error}", file=sys.stderr)
        return 3
    cpus = processors()[:args.threads]
    args.peak_threads = len(cpus)
    processes: dict[str, Process] = {}
    try:
        for name in args.variant_list:
            processes[name] = Process("greenfast", sys.executable, args.threads, cpus, name)
        for name in args.peer_list:
            processes[name] = Process(name, args.pythons.get(name, sys.executable), args.threads, cpus)
        missing = {name: process.missing for name, process in processes.items() if process.missing}
        for name, why in missing.items():
            print(f"greenfast.ab_cpu: {name}: {why}", file=sys.stderr)
        ours, peers = ([name for name in names if name not in missing] for names in (args.variant_list, args.peer_list))
        if args.variant_list and not ours or args.peer_list and not peers:
            why = "; ".join(f"{name}: {why}" for name, why in missing.items())
            print(f"greenfast.ab_cpu: none of them can be had by {sys.executable} ({why}); install them there, name a Python that has "
                  "one in --python PEER=PATH, or another for all in GREENFAST_PYTHON", file=sys.stderr)
            return 3
        peaks = Peaks(program, cpus)
        if peaks.missing:
            print(f"greenfast.ab_cpu: peaks are not measured: {peaks.missing}", file=sys.stderr)
        report = Report(args, list(argv) if argv is not None else sys.argv[1:], processes, cpus, peaks, missing)
        before = signal.signal(signal.SIGTERM, ended)
        try:
            measure_rows(args, processes, peaks, report)
        except KeyboardInterrupt:
            print(f"greenfast.ab_cpu: ended after {len(report.rows)} of {len(args.rows)} rows", file=sys.stderr)
            report.write()
            return 130
        finally:
            signal.signal(signal.SIGTERM, before)
    finally:
        for process in processes.values():
            process.end()
    report.write()
    return 20 if any(side.wrong for row in report.rows for side in row.sides if not side.peer) else 0


if __name__ == "__main__":
    sys.exit(main())
