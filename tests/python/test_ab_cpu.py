"""The CPU harness: each engine in a process of its own. Peers that are not installed are stood in for by fakes."""
import hashlib
import importlib.util
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

numpy = pytest.importorskip("numpy")

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench" / "python"), str(ROOT / "tests" / "cli")]

from cli_paths import GREENFAST  # noqa: E402
from greenfast_bench import ab, ab_cpu, cpu_engine  # noqa: E402

if importlib.util.find_spec("jsonschema"):
    from schemas import validate
else:
    def validate(record):
        """Not in an environment that has a peer and no more."""

THREADS = min(2, len(os.sched_getaffinity(0)))


@pytest.fixture
def library(monkeypatch):
    monkeypatch.setenv("GREENFAST_LIBRARY", str(next(pathlib.Path(GREENFAST).resolve().parents[1].glob("src/libgreenfast.so"))))


@pytest.fixture
def fakes(library, monkeypatch, tmp_path):
    """A folder of modules that every engine's process looks into first."""
    folder = tmp_path / "modules"
    folder.mkdir()
    shutil.copy(ROOT / "tests" / "python" / "fake_openvino.py", folder / "openvino.py")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def run(tmp_path, *arguments, code=0):
    """The record and the table of a short run."""
    file, table = tmp_path / "samples.json", tmp_path / "table.md"
    assert ab_cpu.main(["--iters", "12", "--budget", "0.2", "--warmup", "1", "--threads", str(THREADS), "--json", str(file),
                        "--markdown", str(table), "--outputs", str(tmp_path), *arguments]) == code
    return json.loads(file.read_text()), table.read_text()


@pytest.mark.parametrize("arguments, word", [
    (["--shapes", "1x8x512"], "1x8x512"),
    (["--peers", "cudnn"], "one of: torch-cpu, zentorch, onnxruntime, openvino"),
    (["--iters", "3"], "--iters 3"),
    (["--budget", "0"], "--budget 0"),
    (["--peers", ""], "two sides"),
    (["--peers", "torch-cpu,torch-cpu"], "each name once"),
    (["--threads", "-1"], "--threads -1"),
    (["--pause", "-1"], "--pause -1"),
    (["--pause", "inf"], "--pause inf"),
    (["--row-seconds", "0"], "--row-seconds 0"),
    (["--python", "zentorch"], "PEER=PATH"),
    (["--python", "fa3=python3"], "PEER=PATH"),
])
def test_bad_arguments_are_usage(arguments, word, capsys):
    assert ab_cpu.main(arguments) == 2
    assert word in capsys.readouterr().err


def test_the_clock_the_cache_and_the_processors_of_this_machine():
    assert 0 < ab_cpu.tick_seconds() < 1e-3
    assert ab_cpu.cache_bytes() >= 1 << 18
    assert set(ab_cpu.processors()) == os.sched_getaffinity(0)


def test_work_under_a_mask_is_counted_by_visible_pairs():
    assert ab_cpu.flops(ab.Shape.parse("1x2x4x8"), causal=False) == 4 * 2 * 16 * 8
    assert ab_cpu.flops(ab.Shape.parse("1x2x4x8"), causal=True) == 4 * 2 * (1 + 2 + 3 + 4) * 8
    assert ab_cpu.flops(ab.Shape.parse("1x2x4/2x8"), causal=True) == 4 * 2 * (1 + 2 + 2 + 2) * 8


def test_bf16_is_rounded_to_nearest_even():
    bits = ab_cpu.to_bits(numpy.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8 - 2**-20], numpy.float32), "bf16")
    assert [hex(x) for x in bits] == ["0x3f80", "0x3f80", "0x3f82", "0xbf81"]
    assert list(ab_cpu.to_fp64(bits)) == [1.0, 1.0, 1 + 2**-6, -1 - 2**-7]


def test_the_error_is_of_the_rows_and_a_nan_anywhere_shows():
    q = k = numpy.zeros((1, 1, 2, 4), numpy.float32)
    v = numpy.array([[[[1, 1, 1, 1], [3, 3, 3, 3]]]], numpy.float32)
    full, causal = numpy.full((1, 1, 2, 4), 2.0, numpy.float32), v - numpy.array([[0], [1]], numpy.float32)
    assert ab_cpu.relative_error(q, k, v, full, [0, 1], causal=False) == 0
    assert ab_cpu.relative_error(q, k, v, causal, [0, 1], causal=True) == 0
    assert ab_cpu.relative_error(q, k, v, full, [0], causal=True) == 1.0
    causal[0, 0, 1, 3] = math.nan
    assert math.isnan(ab_cpu.relative_error(q, k, v, causal, [0], causal=True))


def test_a_library_or_peers_that_are_missing_are_named(library, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for module in ("torch", "onnxruntime"):
        (tmp_path / f"{module}.py").write_text("raise ImportError('not here')")
    assert ab_cpu.main(["--peers", "torch-cpu,onnxruntime"]) == 3
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "torch-cpu: ImportError: not here" in last and "onnxruntime:" in last and "GREENFAST_PYTHON" in last
    monkeypatch.setenv("GREENFAST_LIBRARY", "/nowhere/libgreenfast.so")
    assert ab_cpu.main([]) == 3
    assert "/nowhere/libgreenfast.so" in capsys.readouterr().err


def right(sides):
    """Timed, with an error of rounding alone, and nothing that the harness makes of it."""
    return all("refused" not in side and "verdict" not in side and side["errors"]["rel_fro"] < 5e-3 for side in sides)


def test_every_type_and_mask_is_recorded_interleaved(fakes, tmp_path):
    record, table = run(tmp_path, "--shapes", "1x2x33x16", "--peers", "openvino", "--dtype", "fp32,bf16,fp16", "--masks", "full,causal")
    assert [shape["problem"] for shape in record["shapes"]][:3] == ["1x2x33x16 fp32", "1x2x33x16 fp32 causal(top-left)", "1x2x33x16 bf16"]
    assert len(record["shapes"]) == 6 and "openvino 2026.4.1" in record["notes"][0] and record["missing"] == {}
    for shape in record["shapes"]:
        assert [side["id"] for side in shape["sides"]] == ["cpu.flash", "peer:openvino"] and right(shape["sides"])
        assert len(shape["blocks"]) >= 6
        for block in shape["blocks"]:
            assert block["order"] == block["order"][::-1] and sorted(block["order"]) == [0, 0, 1, 1]
            assert all(0 < seconds < 10 for seconds in block["seconds"])
    ours, theirs = (numpy.frombuffer((tmp_path / f"1.{side}.bin").read_bytes(), numpy.float32) for side in (0, 1))
    assert ours.size == 2 * 33 * 16 and numpy.abs(ours - theirs).max() < 1e-5
    assert table.count("×") == 12 and table.count("× openvino |") == 6 and "compare FILE --best" in table and "refused" not in table and "| 1x2x33x16 | causal | fp16 |" in table


def test_rows_of_a_record_have_names_of_their_own(fakes, tmp_path):
    record, _ = run(tmp_path, "--shapes", "1x2x33x16", "--peers", "openvino", "--dtype", "fp32,bf16", "--masks", "full,causal", "--hot",
                    "--pause", "3")
    names = [shape["name"] for shape in record["shapes"]]
    assert len(set(names)) == len(names) == 8
    # `compare` knows rows by their names: what is wrong in one type must not be said of the other.
    wrong = next(shape for shape in record["shapes"] if shape["name"] == "1x2x33x16 bf16")
    wrong["sides"][1] |= {"verdict": "RED", "reason": "planted"}
    (tmp_path / "samples.json").write_text(json.dumps(record))
    done = subprocess.run([GREENFAST, "compare", tmp_path / "samples.json", "--sides", "peer:openvino,cpu.flash", "--json"], text=True,
                          capture_output=True, check=False)
    judged = json.loads(done.stdout)
    assert {row["name"]: row["a"]["green"] for row in judged["shapes"]} == {name: "RED: planted" if name == "1x2x33x16 bf16" else "GREEN" for name in names}


def test_a_call_after_a_pause_has_a_row_of_its_own(fakes, tmp_path):
    begin = time.monotonic()
    record, table = run(tmp_path, "--shapes", "1x2x33x16", "--peers", "openvino", "--hot", "--pause", "40")
    validate(record)
    assert [(shape["metric"], shape.get("pause_seconds"), shape["name"]) for shape in record["shapes"]] == [
        ("back_to_back", None, "1x2x33x16"), ("after_pause", 0.04, "1x2x33x16 after 40 ms")]
    # Each sample of the second waits for it.
    assert time.monotonic() - begin > sum(0.04 * len(block["order"]) for block in record["shapes"][1]["blocks"])
    assert all(side["batch"] == 1 for side in record["shapes"][1]["sides"])
    assert "| back to back |" in table and "| after 40 ms |" in table


def test_the_engine_calls_once_more_before_calls_back_to_back_alone(fakes, monkeypatch, tmp_path):
    asked = []
    ask = ab_cpu.Process.ask

    def watched(process, do, **order):
        if do == "sample":
            asked.append((order["pause"], order["wake"] >= 0, len(order["slots"])))
        return ask(process, do, **order)

    monkeypatch.setattr(ab_cpu.Process, "ask", watched)
    run(tmp_path, "--shapes", "1x2x33x16", "--peers", "openvino", "--pause", "3")
    assert {(wake, pause) for pause, wake, _ in asked} >= {(True, 0.0), (False, 0.003)} and not any(wake for pause, wake, _ in asked if pause)
    assert {calls for pause, _, calls in asked if pause} == {1}


def test_a_row_that_would_take_too_long_has_fewer_blocks_and_says_so(fakes, tmp_path):
    record, table = run(tmp_path, "--shapes", "1x2x33x16", "--peers", "openvino", "--hot", "--row-seconds", "0.001")
    validate(record)
    (shape,) = record["shapes"]
    assert len(shape["blocks"]) == 2 and shape["cut"] == "2 blocks instead of 6 or more, for --row-seconds 0.001"
    assert f"- cut: {shape['cut']} (every row)" in table
    record, _ = run(tmp_path, "--shapes", "1x2x33x16", "--peers", "openvino", "--hot", "--row-seconds", "100")
    assert "cut" not in record["shapes"][0] and len(record["shapes"][0]["blocks"]) >= 6


def test_peaks_are_measured_beside_each_row_and_shares_are_of_them(fakes, tmp_path):
    record, table = run(tmp_path, "--shapes", "1x2x33x16,1x2x40x16", "--peers", "openvino", "--dtype", "fp32,bf16,fp16", "--hot")
    validate(record)
    for shape in record["shapes"]:
        kinds = [(peak["dtype"], peak["isa"], peak["threads"]) for peak in shape["peaks"]]
        assert len(set(kinds)) == len(kinds) and {threads for _, _, threads in kinds} == {1, THREADS}
        assert all(peak["flops"] > 1e8 for peak in shape["peaks"])
        assert shape["ceiling"] in shape["peaks"] and shape["ceiling"]["threads"] == THREADS
        if shape["problem"].split()[1] == "fp32":
            assert shape["ceiling"]["dtype"] == "fp32"
    times = [numpy.mean([second for second, side in zip(block["seconds"], block["order"]) if side == 0]) for block in record["shapes"][0]["blocks"]]
    share = record["shapes"][0]["flops"] / numpy.median(times) / record["shapes"][0]["ceiling"]["flops"]
    assert f" ({share:.0%}) |" in table.splitlines()[4]


def test_which_peak_a_type_is_held_against():
    def peaks(*isas):
        speeds = {"avx512amx": 16.0, "avx512bf16": 2.0, "avx512": 1.0}
        return [{"dtype": "fp32" if isa == "avx512" else "bf16", "isa": isa, "threads": threads, "flops": threads * speeds[isa]}
                for isa in isas for threads in (1, 2)]

    def held(dtype, *isas):
        return ab_cpu.ceiling(peaks(*isas), dtype, 2)["isa"]

    assert [held(dtype, "avx512amx", "avx512bf16", "avx512") for dtype in ("fp32", "fp16", "bf16")] == ["avx512", "avx512amx", "avx512amx"]
    assert [held(dtype, "avx512bf16", "avx512") for dtype in ("fp32", "fp16", "bf16")] == ["avx512", "avx512", "avx512bf16"]
    slow = [{**peak, "flops": peak["flops"] / 8 if peak["isa"] == "avx512bf16" else peak["flops"]} for peak in peaks("avx512bf16", "avx512")]
    assert ab_cpu.ceiling(slow, "bf16", 2)["isa"] == "avx512"
    assert ab_cpu.ceiling([], "bf16", 2) is None


@pytest.mark.parametrize("program, word", [("/nowhere/peaks", "No such file"), ("/bin/false", "ended with 1")])
def test_without_peaks_the_rest_is_measured(program, word, fakes, tmp_path, capfd):
    record, table = run(tmp_path, "--shapes", "1x2x33x16", "--peers", "openvino", "--hot", "--peaks", program)
    assert word in record["notes"][-1] and "peaks are not measured" in capfd.readouterr().err
    assert "peaks" not in record["shapes"][0] and "ceiling" not in record["shapes"][0] and "%" not in table.splitlines()[4]
    assert len(record["shapes"][0]["blocks"]) >= 6


def test_the_model_that_onnx_runtime_gets_is_one():
    node = cpu_engine.onnx_node("Attention", "", is_causal=1)
    sizes = {"q": [1, 2, 300, 16], "k": [1, 2, 40, 16], "v": [1, 2, 40, 16], "o": [1, 2, 300, 16]}
    text = cpu_engine.onnx_model(node, sizes, cpu_engine.ONNX_BFLOAT16, [("", 23)])
    # Of what the package onnx 1.23.2 has found right, since it is not here as a rule.
    assert hashlib.sha256(text).hexdigest() == "6e117bfca29a263060eb1d2051a4ebeae41f07d9dc468e64e4f513a307874139"
    if not importlib.util.find_spec("onnx"):
        return
    import onnx
    model = onnx.load_from_string(text)
    onnx.checker.check_model(model, full_check=True)
    assert [attribute.i for attribute in model.graph.node[0].attribute] == [1]
    values = (*model.graph.input, *model.graph.output)
    assert {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values} == sizes
    assert {value.type.tensor_type.elem_type for value in values} == {onnx.TensorProto.BFLOAT16}


def test_what_a_peer_lacks_is_named_with_the_reason_and_the_rest_is_measured(fakes, monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("FAKE_OPENVINO", "no fp16")
    (fakes / "onnxruntime.py").write_text("raise ImportError('no such wheel')")
    record, table = run(tmp_path, "--shapes", "1x2x33x16", "--peers", "openvino,onnxruntime,zentorch", "--dtype", "fp32,fp16", "--hot",
                        "--python", "zentorch=/nowhere/python3")
    assert record["missing"] == {"onnxruntime": "ImportError: no such wheel", "zentorch": "/nowhere/python3: No such file or directory"}
    assert "no such wheel" in capfd.readouterr().err
    refused = [{side["id"]: side.get("refused") for side in shape["sides"]} for shape in record["shapes"]]
    assert refused[0]["peer:openvino"] is None and "f16 is not supported here" in refused[1]["peer:openvino"]
    assert refused[1]["cpu.flash"] is None and len(record["shapes"][1]["blocks"]) >= 6
    for line in ("- openvino: RuntimeError: f16 is not supported here (1x2x33x16 fp16)",
                 "- onnxruntime: ImportError: no such wheel (every row)",
                 "- zentorch: /nowhere/python3: No such file or directory (every row)", "no peer takes it"):
        assert line in table


def test_grouped_heads_are_refused_by_name_where_a_peer_has_none(fakes, tmp_path):
    record, table = run(tmp_path, "--shapes", "1x4/2x33x16", "--peers", "openvino", "--hot")
    assert "as many key heads" in record["shapes"][0]["sides"][1]["refused"] and "as many key heads" in table


@pytest.mark.parametrize("how, word", [("wrong", "rel_fro"), ("wrong later", "a timed call went wrong"), ("dies", "ended by SIGABRT")])
def test_a_peer_that_errs_or_dies_sets_no_pace_and_ends_nothing(how, word, fakes, monkeypatch, tmp_path):
    monkeypatch.setenv("FAKE_OPENVINO", how)
    record, table = run(tmp_path, "--shapes", "1x2x33x16,1x2x40x16", "--peers", "openvino", "--hot")
    assert word in table and "no peer takes it" in table
    for shape in record["shapes"]:
        ours, theirs = shape["sides"]
        assert right([ours])
        if how == "wrong":  # timed all the same: what its error means, compare says
            assert theirs["errors"]["rel_fro"] > 0.1 and "refused" not in theirs and "verdict" not in theirs
        else:
            assert word in theirs["refused"]
    (tmp_path / "samples.json").write_text(json.dumps(record))
    judged = json.loads(subprocess.run([GREENFAST, "compare", tmp_path / "samples.json", "--best", "--json"], text=True,
                                       capture_output=True, check=False).stdout)
    assert [shape["best"] for shape in judged["shapes"]] == [None] * 2 and judged["standings"]["all"] is None
    if how == "wrong":
        assert all(shape["a"]["green"].startswith("RED: rel_fro") for shape in judged["beside"][0]["shapes"])


def test_a_peer_that_hangs_is_ended(fakes, monkeypatch, tmp_path):
    monkeypatch.setenv("FAKE_OPENVINO", "hangs")
    monkeypatch.setattr(ab_cpu, "MAX_ANSWER_SECONDS", 8.0)
    record, table = run(tmp_path, "--shapes", "1x2x33x16,1x2x40x16", "--peers", "openvino", "--hot")
    assert "openvino: no answer after 8 s" in table and "no peer takes it" in table
    assert all(right(shape["sides"][:1]) for shape in record["shapes"])


def test_a_module_that_ends_its_process_is_a_missing_peer(fakes, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_OPENVINO", "ends")
    assert ab_cpu.main(["--peers", "openvino"]) == 3
    assert "openvino: its process ended with code 7" in capsys.readouterr().err


def stops(pid):
    """The signal has arrived a moment after it was sent."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return True
    return False


def test_an_engine_is_stopped_but_while_it_answers(fakes, tmp_path):
    cpus = sorted(os.sched_getaffinity(0))[:THREADS]
    process = ab_cpu.Process("openvino", sys.executable, THREADS, cpus)
    try:
        assert process.missing == "" and stops(process._process.pid)
        process.ask("drop")
        assert stops(process._process.pid)
        assert os.sched_getaffinity(process._process.pid) == set(cpus)
        process._process.kill()
        process._process.wait()
        with pytest.raises(ab_cpu.Ended):
            process.ask("drop")
    finally:
        process.end()


def test_the_real_peers_of_this_python(library, tmp_path):
    peers = [name for name, module in ab_cpu.PEERS.items() if importlib.util.find_spec(module)]
    if not peers:
        pytest.skip("no peer is installed")
    record, _ = run(tmp_path, "--shapes", "1x2x33x16", "--peers", ",".join(peers), "--dtype", "fp32", "--masks", "full,causal")
    for shape in record["shapes"]:
        assert len(shape["sides"]) == 1 + len(peers) and right(shape["sides"])


def test_zentorch_is_called_by_its_operator(fakes, tmp_path):
    pytest.importorskip("torch")
    shutil.copy(ROOT / "tests" / "python" / "fake_zentorch.py", fakes / "zentorch.py")
    record, table = run(tmp_path, "--shapes", "1x2x33x16,1x4/2x33x16", "--peers", "zentorch,torch-cpu", "--dtype", "fp32,bf16,fp16",
                        "--masks", "full,causal", "--hot")
    assert "zentorch 2.14.0.1 with torch" in record["notes"][0]
    for shape in record["shapes"][:6]:
        assert len(shape["sides"]) == 3 and right(shape["sides"])
    for shape in record["shapes"][6:]:
        assert "as many key heads" in shape["sides"][1]["refused"] and right(shape["sides"][2:])
