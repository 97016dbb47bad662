"""The A/B harness and the C ABI binding, as far as they go without a GPU: arguments, records, tables, CPU calls."""
import array
import json
import math
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench" / "python"), str(ROOT / "tests" / "cli")]

from cli_paths import GREENFAST  # noqa: E402
from greenfast_bench import ab, capi, measure  # noqa: E402


def library():
    found = sorted(pathlib.Path(GREENFAST).resolve().parents[1].glob("src/libgreenfast.so"))
    assert found, "the build has no libgreenfast.so"
    return capi.load(found[0])


@pytest.mark.parametrize("text, fields", [
    ("1x8x512x64", (1, 8, 8, 512, 512, 64)),
    ("4x32/8x1/8192x128", (4, 32, 8, 1, 8192, 128)),
])
def test_shapes_are_those_of_the_command(text, fields):
    shape = ab.Shape.parse(text)
    assert (shape.batch, shape.heads_q, shape.heads_kv, shape.seq_q, shape.seq_kv, shape.dim) == fields


@pytest.mark.parametrize("text", ["1x8x512", "ax8x512x64", "0x8x512x64", "1x8/3x512x64", "1x8x-2x64"])
def test_a_bad_shape_is_named(text, capsys):
    assert ab.main(["--shapes", text]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("arguments, word", [(["--masks", "diagonal"], "diagonal"), (["--rounds", "0"], "--rounds 0")])
def test_bad_arguments_are_usage(arguments, word, capsys):
    assert ab.main(arguments) == 2
    assert word in capsys.readouterr().err


def measured_row():
    """A row as run_row leaves it: two engines timed, one that could not take the shape."""
    ours = {"us": [10.0, 10.2, 9.9, 10.1, 10.0, 10.1], "single_us": [], "skipped": None, "error": 2.8e-4, "timed": True,
            "variant": "cuda.sm90.prefill"}
    theirs = {"us": [12.0, 12.3, 11.9, 12.1, 12.0, 12.2], "single_us": [], "skipped": None, "error": 2.8e-4, "timed": True}
    absent = {"us": [], "single_us": [], "skipped": "D 64 only"}
    row = {"shape": "1x8x512x64", "causal": True, "dtype": "fp16", "flops": 2.7e8, "cache": "hot", "calls_per_graph": 96,
           "engines": {"greenfast": ours, "cudnn": theirs, "fa3": absent},
           "rounds": [{"order": ["cudnn", "greenfast"], "telemetry": {"sm_mhz": 1980}}] * 6}
    return row


def test_the_table_has_medians_and_the_record_neither_them_nor_a_verdict():
    row = measured_row()
    text = ab.table([row], markdown=True)
    assert "| 10.05 (27) |" in text and "1,8,512,64" in text and "causal" in text and "cuda.sm90.prefill" in text
    assert text.splitlines()[2].count("|") == text.splitlines()[0].count("|")
    shape = ab.samples(row, "NVIDIA H200", 0)
    ours = shape["ab"]["engines"]["greenfast"]
    assert ours["us"] == row["engines"]["greenfast"]["us"]
    assert not {"p50_us", "tflops", "verdict", "over"} & set(ours) and "best_peer" not in shape["ab"]
    assert [side.get("verdict") for side in shape["sides"]] == [None] * 3
    assert shape["sides"][0] == {"id": "greenfast", "batch": 96, "variant": "cuda.sm90.prefill", "errors": {"rel_fro": 2.8e-4}}


def test_what_is_too_wrong_to_be_timed_says_why():
    why = measure.why_not_timed
    assert why({"rel_fro": 9e-4}, "fp16") == "" and why({"rel_fro": 7e-3, "max_row": 3e-2}, "bf16") == ""
    assert why({"rel_fro": 2e-3}, "fp16") == "not timed: rel_fro 0.002 is above 0.001"
    assert why({"rel_fro": 2e-4, "max_row": 5e-3}, "fp16") == "not timed: max_row 0.005 is above 0.004"
    assert why({"rel_fro": math.nan}, "fp32").startswith("not timed: rel_fro nan")
    assert why({"rel_fro": 8e-2}, "e4m3") and not why({"rel_fro": 8e-2}, "e4m3", 1.5)
    row = measured_row()
    row["engines"]["cudnn"].update(us=[], timed=False, skipped=why({"rel_fro": 0.5}, "fp16"), error=0.5)
    for block in row["rounds"]:
        block["order"] = ["greenfast"]
    side = ab.samples(row, "NVIDIA H200", 0)["sides"][1]
    assert side["refused"] == "not timed: rel_fro 0.5 is above 0.001" and side["errors"] == {"rel_fro": 0.5} and "verdict" not in side
    assert "| wrong |" in ab.table([row], markdown=True)


def test_compare_reads_the_record(tmp_path):
    record = {"schema": ab.SCHEMA, "shapes": [ab.samples(measured_row(), "NVIDIA H200", 0)]}
    file = tmp_path / "peers.json"
    file.write_text(json.dumps(record))
    assert ab.rows_of(record)[0]["shape"] == "1x8x512x64"
    done = subprocess.run([GREENFAST, "compare", "peer:torch-cudnn", "greenfast", "--samples", file], capture_output=True,
                          text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1.2" in done.stdout


def test_another_record_is_refused():
    with pytest.raises(ab.Usage, match="greenfast.run/1"):
        ab.rows_of({"schema": "greenfast.run/1", "shapes": []})


def test_the_binding_matches_the_abi():
    lib = library()
    problem = lib.problem(1, 2, 1, 3, 5, 8, "fp32", capi.BOTTOM_RIGHT)
    plan = lib.plan(problem, device=capi.CPU)
    assert plan.variant.decode().startswith("cpu.")
    with pytest.raises(capi.Error, match="300"):
        lib.plan(lib.problem(1, 2, 1, 3, 5, 300, "fp32"), device=capi.CPU)


class Tensor:
    """As much of a torch tensor as the binding asks for: dense fp32 on the CPU."""

    dtype = "torch.float32"

    def __init__(self, shape, values=None):
        self.shape, size = shape, math.prod(shape)
        self.values = array.array("f", values if values is not None else [math.nan] * size)

    def stride(self):
        b, h, s, d = self.shape
        return (h * s * d, s * d, d, 1)

    def data_ptr(self):
        return self.values.buffer_info()[0]


def test_attention_through_the_binding():
    # One key a head: the output is V, whatever Q and K are.
    q, k = Tensor((1, 2, 3, 8), [0.5] * 48), Tensor((1, 1, 1, 8), [0.25] * 8)
    v, o = Tensor((1, 1, 1, 8), range(8)), Tensor((1, 2, 3, 8))
    library().attention(q, k, v, o, device=capi.CPU)
    assert list(o.values) == pytest.approx([float(i) for i in range(8)] * 6, rel=1e-6)


def test_the_suites_hold_the_table_of_the_targets():
    shapes = [ab.Shape.parse(text) for name in ("peers", "hard") for text in ab.SUITES[name]]
    for dim in (64, 128):
        lengths = {shape.seq_q for shape in shapes if shape.dim == dim}
        assert {512, 1024, 2048, 4096, 8192, 16384} <= lengths
    assert any(shape.dim == 256 for shape in shapes)


def test_hard_inputs_are_beside_normal_ones_and_only_what_has_a_reference_is_checked(monkeypatch):
    monkeypatch.setattr(ab.Greenfast, "__init__", lambda self: None)
    engines = {kind: ab.OnHardInputs(kind) for kind in ab.HARD_INPUTS}
    assert [kind for kind, engine in engines.items() if not engine.checked] == ["nan", "inf"]
