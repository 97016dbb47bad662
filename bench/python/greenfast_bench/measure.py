"""What the harnesses of this package share: input errors, telemetry, timed graphs, the record on disk."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import sys
import time

SCHEMA = "greenfast.samples/1"
# Relative Frobenius error against fp64 on the same bits beyond which an engine, ours or a peer, is not timed: some three
# times what an exact result on N(0,1) inputs has that is rounded to 16 bits (2.9e-4, 2.3e-3), and far above that in fp32 (3e-8), where
# engines sum in other orders. It saves a GPU's time on what computes something else; what an error means is `greenfast compare`'s to
# say, and whether a kernel keeps its promises `greenfast check`'s. An engine that rounds more than its inputs' type says so by
# `allowed`, a factor of its own.
TIMED_UP_TO = {"fp32": 1.0e-5, "fp16": 1.0e-3, "bf16": 8.0e-3, "e4m3": 6.0e-2}
ROW_FACTOR = 4.0  # times that is what any single row may be off


class Usage(Exception):
    """Bad input: what was asked, what is possible."""


class DeviceLost(Exception):
    """No call of this process can succeed any more: which engine's was the first to fail."""


def why_not_timed(errors: dict[str, float], dtype: str, allowed: float = 1.0) -> str:
    """Of an output's errors against fp64, by metric; empty: it is timed. NaN is above any limit."""
    limits = {"rel_fro": allowed * TIMED_UP_TO[dtype], "max_row": ROW_FACTOR * allowed * TIMED_UP_TO[dtype]}
    for metric, error in errors.items():
        if not error <= limits[metric]:
            return f"not timed: {metric} {error:.3g} is above {limits[metric]:.3g}"
    return ""


def p50_us(entry: dict) -> float | None:
    """Median of an engine's times, for the eye: records hold the times alone."""
    return statistics.median(entry["us"]) if entry.get("us") else None


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


def make_graph(calls: list, count: int, before: list = ()):
    """A CUDA graph of count calls, taken in turn, and what the last round of them returned: memory of the graph, which a replay
    writes. before: kernels of which, in turn, one stands before each call; without calls they are alone."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        # Libraries make handles and workspaces when they are first called on a stream, which a capture does not allow.
        for call in (*before, *calls):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = [None] * len(calls)
        for i in range(count):
            if before:
                before[i % len(before)]()
            if calls:
                results[i % len(calls)] = None  # its memory may serve the next call
                results[i % len(calls)] = calls[i % len(calls)]()
    return graph, results


def elapsed_us(work) -> float:
    """µs between two events around work()."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


class CudaClock:
    """Times a graph of calls between two events."""

    timer, tick_seconds, kind = "cuda graph replay between events", 0.5e-6, "cuda"

    def __init__(self):
        import torch

        if not torch.cuda.is_available():
            raise OSError("torch finds no CUDA device, and this harness compares GPU kernels")
        properties = torch.cuda.get_device_properties(0)
        self.name, self.cache_bytes = torch.cuda.get_device_name(0), properties.L2_cache_size
        self.memory_bytes = properties.total_memory
        self.arch = int("".join(map(str, torch.cuda.get_device_capability(0))))

    def stream(self) -> int:
        import torch

        return torch.cuda.current_stream().cuda_stream

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()

    def prepare(self, calls: list, count: int, before: list = ()):
        graph, results = make_graph(calls, count, before)
        return graph.replay, results

    def elapsed_us(self, replay) -> float:
        return elapsed_us(replay)

    def release(self) -> None:
        import torch

        torch.cuda.empty_cache()


class CpuClock:
    """The same path where there is no GPU: calls one after the other, by the host's clock."""

    timer, tick_seconds, kind, arch = "perf_counter around calls", 1e-7, "cpu", 0
    cache_bytes, memory_bytes, name = 1 << 20, 4 << 30, "cpu"

    def stream(self) -> int:
        return 0

    def synchronize(self) -> None:
        pass

    def prepare(self, calls: list, count: int, before: list = ()):
        results = [None] * len(calls)

        def replay():
            for i in range(count):
                if before:
                    before[i % len(before)]()
                if calls:
                    results[i % len(calls)] = calls[i % len(calls)]()

        replay()
        return replay, results

    def elapsed_us(self, replay) -> float:
        begin = time.perf_counter()
        replay()
        return (time.perf_counter() - begin) * 1e6

    def release(self) -> None:
        pass


def interrupted_by_term() -> None:
    """SIGTERM ends a run as Ctrl-C does: with what has been measured on disk."""
    def stop(_signal, _frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)


class Record:
    """A record of greenfast.samples/1 that is whole on disk after every row."""

    def __init__(self, path: str | None, clock, library: dict, argv: list[str], missing: dict[str, str], notes: list[str]):
        import torch

        cudnn = torch.backends.cudnn.version() if clock.kind == "cuda" else None
        self._path = path
        self.document = {
            "schema": SCHEMA, "tool": "greenfast.ab", "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "argv": argv,
            "device": clock.name, "versions": {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": cudnn},
            "missing": missing, "library": library, "device_arch": clock.arch,
            "notes": [f"one Python process; torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {cudnn}", *notes],
            "shapes": [],
        }

    def add(self, *shapes: dict) -> None:
        self.document["shapes"] += shapes
        self.write()

    def write(self) -> None:
        if not self._path:
            return
        part = f"{self._path}.part"
        with open(part, "w", encoding="utf-8") as file:
            json.dump(self.document, file, indent=1)
        os.replace(part, self._path)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def ratio_of_rounds(row: dict, over: str, name: str) -> float | None:
    """Median over the rounds of the time of one engine over another's of the same round; None where one was not timed."""
    a, b = (row["engines"].get(n, {}).get("us") for n in (over, name))
    return statistics.median(x / y for x, y in zip(a, b)) if a and b else None


def measured(row: dict, identity) -> dict:
    """What greenfast.samples/1 has of a shape's engines: sides and blocks, with both readings where a time is their difference, and
    under "ab" what the schema does not know.
    identity(name): how `greenfast compare` calls an engine."""
    names, sides = list(row["engines"]), []
    for name in names:
        entry = row["engines"][name]
        side = {"id": identity(name), "batch": row["calls_per_graph"]}
        if entry.get("variant"):
            side["variant"] = entry["variant"]
        if not entry["us"]:
            side["refused"] = entry["skipped"] or "not timed"
        found = {"rel_fro": entry.get("error", math.nan), "max_row": entry.get("max_row", math.nan)}
        if errors := {metric: error for metric, error in found.items() if math.isfinite(error)}:
            side["errors"] = errors
        sides.append(side)
    blocks = []
    for i, round_ in enumerate(row["rounds"]):
        timed = [name for name in round_["order"] if row["engines"][name]["us"]]
        if not timed:
            continue

        def seconds(of):
            return [row["engines"][name][of][i] * 1e-6 for name in timed]

        block = {"process": 0, "order": [names.index(name) for name in timed], "seconds": seconds("us"), "telemetry": round_["telemetry"]}
        if row.get("neighbour"):
            block.update(with_neighbour=seconds("with_us"), neighbour_alone=seconds("alone_us"))
        blocks.append(block)
    return {"sides": sides, "blocks": blocks, "ab": {key: value for key, value in row.items() if key != "rounds"}}
