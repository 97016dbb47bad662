"""tools/cpu_peers on a machine to which nothing can be installed: the peers that a Python has, runs of several numbers of threads, all in time."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

pytest.importorskip("numpy")

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("GREENFAST_BUILD", ROOT / "build"))
TINY = ["--shapes", "1x2x33x16", "--dtype", "fp32", "--masks", "full", "--iters", "12"]


@pytest.fixture
def peers(tmp_path):
    """The tool, run by a Python whose only peer is a stand-in for OpenVINO."""
    modules = tmp_path / "modules"
    modules.mkdir()
    shutil.copy(ROOT / "tests" / "python" / "fake_openvino.py", modules / "openvino.py")

    def run(*arguments, path=modules):
        environment = {**os.environ, "PYTHONPATH": str(path)}
        return subprocess.run([sys.executable, ROOT / "tools" / "cpu_peers", "--here", "--out", tmp_path / "out", *arguments], text=True,
                              capture_output=True, check=False, env=environment)

    run.out = tmp_path / "out"
    return run


@pytest.mark.parametrize("arguments, code, word", [
    (["--runs", "two"], 2, "--runs two"),
    (["--runs", "0,2"], 2, "at least 1 thread"),
    (["--minutes", "0"], 2, "more than 0"),
    (["--runs", "100000"], 2, "may use"),
    (["--build", "/nowhere"], 3, "no src/libgreenfast.so"),
])
def test_what_cannot_be_is_named(arguments, code, word, peers):
    done = peers(*arguments)
    assert done.returncode == code and word in done.stderr, done.stderr


def test_each_number_of_threads_has_a_record_of_its_own(peers):
    counts = [1, 2] if len(os.sched_getaffinity(0)) > 1 else [1]
    done = peers("--build", BUILD, "--runs", ",".join(map(str, counts)), "--minutes", "2", *TINY, "--pause", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "peers here: openvino" in done.stdout or "openvino" in done.stdout.splitlines()[0]
    for count in counts:
        record = json.loads((peers.out / f"samples-{count}.json").read_text())
        assert f"{count} threads each, on processors" in record["notes"][0] and len(record["notes"][0].split("processors ")[1].split(";")[0].split(",")) == count
        assert [shape["metric"] for shape in record["shapes"]] == ["back_to_back", "after_pause"]
        assert {peak["threads"] for peak in record["shapes"][0]["peaks"]} == {1, count}
        assert "| 1x2x33x16 | full | fp32 |" in (peers.out / f"table-{count}.md").read_text()


def test_a_run_that_is_not_through_in_time_keeps_its_rows(peers):
    (peers.out).mkdir()
    (peers.out / "samples-1.json").write_text("of an earlier run")
    begin = time.monotonic()
    done = peers("--build", BUILD, "--runs", "1", "--minutes", "0.25", *TINY, "--shapes", ",".join(["1x2x33x16"] * 200))
    assert done.returncode == 130 and time.monotonic() - begin < 120, done.stdout + done.stderr
    record = json.loads((peers.out / "samples-1.json").read_text())
    assert 0 < len(record["shapes"]) < 200 and record["notes"][-1] == f"ended after {len(record['shapes'])} of 200 rows"
    assert record["notes"][-1] in (peers.out / "table-1.md").read_text()
