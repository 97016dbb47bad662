"""tools/gpu/python where there is no GPU: every part that can be is run whole, at sizes that take seconds."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import greenfast  # noqa: E402

TOOL = pathlib.Path(__file__).resolve().parents[3] / "tools" / "gpu" / "python"
PACKAGE = pathlib.Path(greenfast.__file__).parents[1]


def tool(package, out, *arguments, **variables):
    return subprocess.run([sys.executable, TOOL, package, out, *arguments], capture_output=True, text=True, timeout=900, check=False,
                          env={**os.environ, **variables})


def test_calls_and_a_model_are_measured_and_kept(tmp_path):
    done = tool(PACKAGE, tmp_path, "calls", "diffusion", "--device", "cpu", "--rounds", "2", "--budget", "800")
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "python.json").read_text())
    assert record["schema"] == "greenfast.python/1" and record["tiny"] and [step["state"] for step in record["steps"]] == ["as it should"] * 2
    assert len(record["calls"]["microseconds"]) == 10
    (case,) = record["models"].values()
    assert not case["failed"] and case["cosine_to_sdpa"] > 0.999
    assert set(case["eager"]) == {"sdpa", "greenfast", "nothing"} and set(case["compiled"]) == {"sdpa", "greenfast"}
    assert {name for mode in ("eager", "compiled") for name in case["speedup_over_sdpa"][mode]} == {"greenfast"}
    assert "attention is" in done.stdout


def test_what_does_not_fit_is_named_and_what_was_found_is_kept(tmp_path):
    done = tool(PACKAGE, tmp_path, "calls", "models", "--device", "cpu", "--budget", "15")
    assert done.returncode == 1
    states = {step["part"]: step["state"] for step in json.loads((tmp_path / "python.json").read_text())["steps"]}
    assert set(states) == {"calls", "encoder", "diffusion", "decoder"} and set(states.values()) == {"left out"}
    assert "decoder    left out" in done.stdout


def test_a_package_that_does_not_load_is_told_before_anything_is_measured(tmp_path):
    (tmp_path / "empty").mkdir()
    done = tool(tmp_path / "empty", tmp_path / "out", "calls", "--device", "cpu", PYTHONPATH="")
    assert done.returncode == 3 and "does not load" in done.stderr
    done = tool(tmp_path / "absent", tmp_path / "out", "calls", "--device", "cpu")
    assert done.returncode == 2 and "no such wheel or folder" in done.stderr
