"""Calls timed behind a neighbour, on a stand-in for the GPU whose clock is a number: no PyTorch, no device."""
import json
import pathlib
import random
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench" / "python"), str(ROOT / "tests" / "cli")]

from cli_paths import GREENFAST  # noqa: E402
from greenfast_bench import ab, models, ways  # noqa: E402
from greenfast_bench.measure import p50_us  # noqa: E402


class Machine:
    """A stream of kernels. Each is a function that returns its µs and whether it overlaps with one of its kind, by launching early and
    releasing early; beside any other the second pays for its launch."""

    kind, name, arch, timer, tick_seconds = "cuda", "NVIDIA H200", 90, "a number", 0.5e-6
    cache_bytes, memory_bytes = 60 << 20, 141 << 30
    LAUNCH = 1.0

    def __init__(self):
        self.now, self.drift = 0.0, 1.0

    def prepare(self, calls, count, before=()):
        def replay():
            last = None
            for i in range(count):
                for kernel in ([before[i % len(before)]] if before else []) + ([calls[i % len(calls)]] if calls else []):
                    us, early = kernel()
                    self.now += (us + (0.0 if last is None or (last and early) else self.LAUNCH)) * self.drift
                    last = early

        return replay, [None] * len(calls)

    def elapsed_us(self, replay):
        begin = self.now
        replay()
        return self.now - begin


def kernel(us, early):
    return lambda: (us, early)


ELEMENTWISE = ways.Neighbour("elementwise", "elementwise: x += 1 of 4 MiB in fp32", [kernel(5.0, False)])


class NoTelemetry:
    def read(self):
        return {}


def timed(engines, rounds=6, before=ELEMENTWISE, machine=None):
    """Both ways of one row: engines is name -> its kernel."""
    machine, tracks = machine or Machine(), []
    for way, neighbour in ((ways.Way(), None), (ways.Way("elementwise", "hot"), before)):
        row = {"shape": "1x8x512x64", "causal": False, "dtype": "fp16", "flops": 5e8, "cache": way.cache, "way": way.text, "sets": 1,
               "calls_per_graph": 10, "engines": {}, "rounds": []}
        if neighbour:
            row["neighbour"] = neighbour.what
        track = ways.Track(way, row, 10, machine, neighbour)
        for name, call in engines.items():
            row["engines"][name] = {"us": [], "single_us": [], "skipped": None, "error": 2e-4, "timed": True}
            track.replays[name], _ = track.prepare([call])
        tracks.append(track)
    ways.take_rounds(tracks, rounds, random.Random(1), NoTelemetry())
    return [track.row for track in tracks]


def test_between_is_the_graph_with_neighbours_less_that_without():
    hot, between = timed({"greenfast": kernel(3.0, True), "cudnn": kernel(8.0, False)})
    # Back to back the one that overlaps with itself hides its launch; behind an ordinary kernel neither does.
    assert p50_us(hot["engines"]["greenfast"]) == pytest.approx(3.0)
    assert p50_us(hot["engines"]["cudnn"]) == pytest.approx(8.9)  # 9 of 10 launches
    entry = between["engines"]["greenfast"]
    assert entry["with_us"] == pytest.approx([9.9] * 6)  # 5 + 3, and 19 launches of 10 pairs
    assert entry["alone_us"] == pytest.approx([5.9] * 6)
    assert p50_us(entry) == pytest.approx(4.0) and p50_us(between["engines"]["cudnn"]) == pytest.approx(9.0)
    assert entry["us"] == pytest.approx([x - y for x, y in zip(entry["with_us"], entry["alone_us"])])
    assert between["neighbour"].startswith("elementwise: ")


def test_all_ways_are_timed_in_every_round_and_drift_meets_them_alike():
    class Drifting(Machine):
        def elapsed_us(self, replay):
            self.drift *= 1.001
            return super().elapsed_us(replay)

    rows = timed({"greenfast": kernel(3.0, True), "cudnn": kernel(6.0, True)}, rounds=40, machine=Drifting())
    for row in rows:
        assert len(row["rounds"]) == 40 and {name for block in row["rounds"] for name in block["order"]} == {"greenfast", "cudnn"}
        assert {tuple(block["order"]) for block in row["rounds"]} == {("greenfast", "cudnn"), ("cudnn", "greenfast")}
    # The neighbours are timed right behind each stretch: what the clock did over the run cancels.
    between = rows[1]["engines"]
    ratio = [x / y for x, y in zip(between["cudnn"]["us"], between["greenfast"]["us"])]
    assert sum(ratio) / len(ratio) == pytest.approx(7 / 4, rel=0.02)


def test_a_difference_that_is_not_above_zero_is_noise_and_no_time():
    spread = random.Random(7)
    restless = ways.Neighbour("gemm", "gemm: 8x8 by 8x8", [lambda: (spread.uniform(50.0, 60.0), True)])
    _, between = timed({"greenfast": kernel(0.1, True), "cudnn": kernel(400.0, True)}, rounds=12, before=restless)
    entry = between["engines"]["greenfast"]
    assert entry["us"] == [] and p50_us(entry) is None and entry["skipped"].startswith("noise: ")
    assert len(entry["with_us"]) == len(entry["alone_us"]) == 12  # what was read stays
    assert p50_us(between["engines"]["cudnn"]) == pytest.approx(400, rel=0.1)
    shape = ab.samples(between, "NVIDIA H200", 0)
    assert shape["sides"][0]["refused"].startswith("noise: ")
    assert all(block["order"] == [1] and len(block["with_neighbour"]) == 1 for block in shape["blocks"])
    assert "noise" in ab.table([between], markdown=True)


def record_of(rows, file):
    record = {"schema": ab.SCHEMA, "tool": "greenfast.ab", "utc": "2026-11-23T00:00:00Z", "argv": ["--between", "elementwise"],
              "device": "NVIDIA H200", "versions": {"torch": "0"}, "notes": [], "shapes": [ab.samples(row, "NVIDIA H200", 0) for row in rows]}
    file.write_text(json.dumps(record))
    return record


def compare(file, *arguments):
    return subprocess.run([GREENFAST, "compare", file, "--sides", "peer:torch-cudnn,greenfast", *arguments], capture_output=True, text=True,
                          check=False, cwd=file.parent)


def test_compare_takes_one_way_at_a_time_and_names_the_neighbour(tmp_path):
    file = tmp_path / "ways.json"
    record = record_of(timed({"greenfast": kernel(3.0, True), "cudnn": kernel(8.0, False)}), file)
    assert [shape.get("way") for shape in record["shapes"]] == ["back-to-back:hot", "elementwise:hot"]
    assert record["shapes"][1]["tick_seconds"] == 2 * record["shapes"][0]["tick_seconds"]
    first = compare(file)
    assert first.returncode == 0 and "also timed elementwise:hot" in first.stdout and "2.96" in first.stdout, first.stderr
    second = compare(file, "--way", "elementwise:hot", "--json")
    judged = json.loads(second.stdout)
    assert judged["neighbour"] == ELEMENTWISE.what and judged["way"] == "elementwise:hot" and len(judged["shapes"]) == 1
    assert judged["shapes"][0]["ratio_p50"]["value"] == pytest.approx(9 / 4, rel=1e-3)
    assert "behind a neighbour (elementwise)" in compare(file, "--way", "elementwise:hot").stdout
    other = compare(file, "--way", "gemm:cold")
    assert other.returncode == 2 and "gemm:cold" in other.stderr and "elementwise:hot" in other.stderr


def test_a_time_that_is_not_its_difference_is_refused(tmp_path):
    file = tmp_path / "ways.json"
    record = record_of(timed({"greenfast": kernel(3.0, True), "cudnn": kernel(8.0, False)}), file)
    record["shapes"][1]["blocks"][2]["seconds"][0] *= 0.9
    file.write_text(json.dumps(record))
    done = compare(file)
    assert done.returncode == 2 and "/shapes/1/blocks/2/with_neighbour/0" in done.stderr and "less the neighbours alone" in done.stderr


def test_ways_are_chosen_by_name_and_back_to_back_is_always_among_them():
    both = ["back-to-back:hot", "elementwise:hot", "gemm:hot", "back-to-back:cold", "elementwise:cold", "gemm:cold"]
    assert [way.text for way in ways.chosen("elementwise,gemm", "hot,cold")] == both
    assert [way.text for way in ways.chosen("gemm", "cold")] == ["back-to-back:cold", "gemm:cold"]
    assert [way.text for way in ways.chosen(None, "hot")] == ["back-to-back:hot"]


@pytest.mark.parametrize("arguments, word", [
    (["--between", "softmax"], "'softmax' is no neighbour; possible: elementwise, gemm"), (["--between", ""], "--between ''"),
    (["--between", "--cache", "warm"], "expected hot, cold"), (["--suite", "models", "--shapes", "1x8x512x64 packed"], "--suite models"),
    (["--suite", "models", "--dtype", "e4m3"], "--suite models"),
])
def test_bad_ways_are_usage(arguments, word, capsys):
    assert ab.main(arguments) == 2
    assert word in capsys.readouterr().err


def test_without_between_a_row_is_timed_as_before():
    args = ab.parse_arguments(["--suite", "peers"])
    assert args.ways == [] and args.sets is None
    assert [way.text for way in ab.parse_arguments(["--suite", "decode", "--between"]).ways] == [
        "back-to-back:cold", "elementwise:cold", "gemm:cold"]


def test_cold_takes_so_many_sets_that_a_round_trip_is_twice_the_cache():
    machine, both = Machine(), ways.chosen(None, "hot,cold")
    moved = 3 * 8 * 512 * 64 * 2
    assert ways.sets_of(both, moved, moved, machine, None) == {"hot": 1, "cold": -(-2 * machine.cache_bytes // moved)}
    assert ways.sets_of(both, 1e9, 1e9, machine, None) == {"hot": 1, "cold": 2}
    # What cannot be cold is not called so: too few sets asked for, or too many needed.
    assert ways.sets_of(both, moved, moved, machine, 4) == {"hot": 4}
    assert ways.sets_of(both, 1e5, 1e5, machine, None) == {"hot": 1}
    assert ways.calls_per_graph(3e-6, 80) == 80 and ways.calls_per_graph(1e-4, 2) == 40 and ways.calls_per_graph(1.0, 2) == 2


def test_the_suite_models_stands_with_its_sources_in_the_docs():
    page = (ROOT / "docs" / "models.md").read_text()
    for model in models.MODELS:
        mask = "causal" if model.causal else "full"
        assert f"| {model.name} | `{model.source}` | {model.shape} | {mask} | {model.what} | `{model.address}` |" in page, model
    shapes = [ab.Shape.parse(model.shape) for model in models.MODELS]
    assert len({(shape.text, model.causal) for shape, model in zip(shapes, models.MODELS)}) == len(shapes) >= 20
    assert min(shape.seq_q for shape in shapes) <= 197 and max(shape.seq_q for shape in shapes) == 32760
    assert {1, 2, 4, 7, 8, 12, 16, 71} <= {shape.heads_q // shape.heads_kv for shape in shapes}
    assert {64, 72, 96, 128, 192, 256} == {shape.dim for shape in shapes}
    assert all(shape.seq_q == shape.seq_kv for shape, model in zip(shapes, models.MODELS) if model.causal)


def test_every_model_is_a_problem_of_the_command_as_the_record_writes_it():
    texts = [ab.Shape.parse(model.shape).problem(model.causal, "bf16") for model in models.MODELS]
    for model, text in zip(models.MODELS, texts):
        given = model.shape + (" causal=top-left" if model.causal else "")
        done = subprocess.run([GREENFAST, "list", "--why", given, "--dtype", "bf16", "--device", "cpu"], capture_output=True, text=True,
                              check=False)
        assert done.returncode == 0, done.stderr
        assert text in done.stdout
