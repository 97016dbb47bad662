"""tools/streams_gpu where there is no GPU: what it says and how it ends."""
import pathlib
import subprocess
import sys

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "streams_gpu"


def streams(*arguments):
    return subprocess.run([sys.executable, TOOL, *arguments], text=True, capture_output=True, check=False,
                          env={"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"}, timeout=120)


def test_without_a_gpu_it_says_so_and_leaves_no_record(tmp_path):
    done = streams("--out", tmp_path / "streams.json")
    assert done.returncode == 3 and done.stderr.startswith("streams_gpu: ") and not list(tmp_path.iterdir())


def test_a_record_that_cannot_be_kept_is_refused_before_anything_runs(tmp_path):
    done = streams("--out", tmp_path / "absent" / "streams.json")
    assert done.returncode == 2 and "there is no folder" in done.stderr


def test_an_impossible_number_of_repeats_is_refused():
    done = streams("--repeats", "0")
    assert done.returncode == 2 and "--repeats must be positive" in done.stderr
