"""The CPU harness as far as it goes without PyTorch; with it, a whole small run."""
import json
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench" / "python"), str(ROOT / "tests" / "cli")]

from cli_paths import GREENFAST  # noqa: E402
from greenfast_bench import ab, ab_cpu  # noqa: E402


@pytest.mark.parametrize("arguments, word", [
    (["--shapes", "1x8x512"], "1x8x512"),
    (["--peers", "cudnn"], "one of: torch-cpu"),
    (["--iters", "3"], "--iters 3"),
    (["--budget", "0"], "--budget 0"),
    (["--peers", ""], "two sides"),
    (["--threads", "-1"], "--threads -1"),
])
def test_bad_arguments_are_usage(arguments, word, capsys):
    assert ab_cpu.main(arguments) == 2
    assert word in capsys.readouterr().err


def test_the_clock_and_the_cache_of_this_machine():
    assert 0 < ab_cpu.tick_seconds() < 1e-3
    assert ab_cpu.cache_bytes() >= 1 << 18


def test_work_under_a_mask_is_counted_by_visible_pairs():
    assert ab_cpu.flops(ab.Shape.parse("1x2x4x8"), causal=False) == 4 * 2 * 16 * 8
    assert ab_cpu.flops(ab.Shape.parse("1x2x4x8"), causal=True) == 4 * 2 * (1 + 2 + 3 + 4) * 8
    assert ab_cpu.flops(ab.Shape.parse("1x2x4/2x8"), causal=True) == 4 * 2 * (1 + 2 + 2 + 2) * 8


def test_a_missing_library_or_torch_is_named(monkeypatch, capsys):
    monkeypatch.setenv("GREENFAST_LIBRARY", "/nowhere/libgreenfast.so")
    assert ab_cpu.main([]) == 3
    assert "/nowhere/libgreenfast.so" in capsys.readouterr().err
    library = next(pathlib.Path(GREENFAST).resolve().parents[1].glob("src/libgreenfast.so"))
    monkeypatch.setenv("GREENFAST_LIBRARY", str(library))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert ab_cpu.main([]) == 3
    assert "PyTorch" in capsys.readouterr().err


def test_both_sides_are_recorded_interleaved(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    library = next(pathlib.Path(GREENFAST).resolve().parents[1].glob("src/libgreenfast.so"))
    monkeypatch.setenv("GREENFAST_LIBRARY", str(library))
    file = tmp_path / "samples.json"
    assert ab_cpu.main(["--shapes", "1x2x33x16", "--iters", "12", "--causal", "--json", str(file),
                        "--outputs", str(tmp_path)]) == 0
    shape = json.loads(file.read_text())["shapes"][0]
    assert shape["problem"] == "1x2x33x16 fp32 causal(top-left)"
    assert [side["id"] for side in shape["sides"]] == ["cpu.flash", "peer:torch-cpu"]
    for block in shape["blocks"]:
        assert block["order"] == block["order"][::-1] and sorted(block["order"]) == [0, 0, 1, 1]
    assert (tmp_path / "0.1.bin").stat().st_size == 2 * 33 * 16 * 4
