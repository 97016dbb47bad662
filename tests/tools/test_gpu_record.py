"""tools/gpu/record with a greenfast that only answers: what it keeps, that a failed part stops no other, and its exit codes."""
import json
import pathlib
import stat
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ANSWERS = """#!/bin/sh
echo "$@" >>"$0.calls"
case "$1" in
  list) exit ${GPU:-0} ;;
  check)
    case "$*" in
      *--plugin*other_stream*) echo '{"rows": [{"variant": "cuda.a", "verdict": "RED", "reason": "stream"}]}'; exit 21 ;;
      *--plugin*bad_address*) echo '{"rows": [{"variant": "cuda.a", "verdict": "GREEN", "reason": null},
                                              {"variant": "plugin:bad_address", "verdict": "RED", "reason": "device"}]}'; exit 24 ;;
      *--plugin*) echo '{"rows": [{"variant": "plugin:x", "verdict": "GREEN", "reason": null}]}'; exit 0 ;;
      *rollback*) exit 21 ;;
      *cuda.sm90.decode*) sleep ${SLOW:-0} ;;
      *) while [ "$1" != --out ]; do shift; done; mkdir -p "$2"; echo '{}' >"$2/run.json" ;;
    esac ;;
  gate)
    for word; do case "$before" in --out) mkdir -p "$word/made"; echo '{}' >"$word/made/gate.json" ;; esac; before=$word; done
    case "$*" in *mutant*) exit 20 ;; *no-op*) exit 10 ;; *reject*) exit 23 ;; esac ;;
  profile) while [ "$1" != --out ]; do shift; done; echo '{}' >"$2/profile.json" ;;
  evidence) while [ "$1" != --out ]; do shift; done; echo '{}' >"$2" ;;
esac
"""


@pytest.fixture
def record(tmp_path):
    program = tmp_path / "build" / "bin" / "greenfast"
    program.parent.mkdir(parents=True)
    program.write_text(ANSWERS)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def run(*parts, gpu="0", slow="0"):
        done = subprocess.run([ROOT / "tools" / "gpu" / "record", tmp_path / "build", tmp_path / "out", *parts], text=True,
                              capture_output=True, check=False, env={"PATH": "/usr/bin:/bin", "GPU": gpu, "SLOW": slow})
        return done, tmp_path / "out", tmp_path / "build" / "bin" / "greenfast.calls"

    return run


def test_a_part_that_fails_is_told_and_stops_no_other(record):
    done, out, calls = record("rollback", "main")
    assert done.returncode == 1
    assert [(row["part"], row["good"]) for row in json.loads((out / "summary.json").read_text())] == [
        ("rollback", False), ("main", True)]
    assert "exit 21, expected 0 or 20" in (out / "rollback.log").read_text()
    # Only what was made goes into the bundle.
    assert (out / "bundle.json").exists()
    last = calls.read_text().splitlines()[-1]
    assert last.startswith("evidence record main-h200=") and "rollback" not in last


def test_plugins_are_held_to_the_exit_code_their_source_promises(record):
    done, out, calls = record("plugins")
    rows = {row["plugin"]: row for row in json.loads((out / "plugins" / "plugins.json").read_text())["rows"]}
    assert rows["bad_address.cu"]["as_expected"] and rows["bad_address.cu"]["verdict"] == "RED"
    assert rows["honest.cu"]["as_expected"]
    assert all("--variants plugin:*" in line for line in calls.read_text().splitlines() if "--plugin" in line)
    # The right exit code, but not the plugin's.
    assert not rows["other_stream.cu"]["as_expected"] and rows["other_stream.cu"]["verdict"] is None
    # This greenfast lets a hang pass.
    assert not rows["hang.cu"]["as_expected"] and rows["hang.cu"]["expected"] == 24
    assert done.returncode == 1


def test_without_a_gpu_and_for_unknown_parts_nothing_is_begun(record):
    done, out, _ = record("main", gpu="3")
    assert done.returncode == 3 and "greenfast doctor" in done.stderr and not out.exists()
    done, out, _ = record("everything")
    assert done.returncode == 2 and "no part 'everything'; there are: main" in done.stderr and not out.exists()


def test_what_the_budget_has_no_time_for_is_named_and_the_rest_is_kept(record):
    done, out, calls = record("main", "serving", "rollback", "--budget", "11", slow="30")
    assert done.returncode == 1 and "rollback     LEFT OUT" in done.stdout
    rows = {row["part"]: row for row in json.loads((out / "summary.json").read_text())}
    assert rows["main"]["good"] and not rows["serving"]["good"] and "left_out" in rows["rollback"]
    assert "exit 124" in (out / "serving.log").read_text()
    assert calls.read_text().splitlines()[-1].startswith("evidence record main-h200=")


def test_the_package_is_named_where_the_build_has_none(record):
    done, out, _ = record("python")
    assert done.returncode == 1 and "GREENFAST_PYTHON=ON" in (out / "python.log").read_text() and not (out / "bundle.json").exists()


def test_gates_and_their_profiles_go_into_the_bundle_where_the_pages_read_them(record):
    done, out, calls = record("gates")
    assert done.returncode == 0, (out / "gates.log").read_text()
    bundled = calls.read_text().splitlines()[-1].split()
    names = {word.partition("=")[0] for word in bundled if word.startswith("verdicts/")}
    assert {"verdicts/cuda-stage1/gate", "verdicts/cuda-stage1/profile", "verdicts/cuda-fp8-wgmma/profile", "verdicts/cuda-no-op/gate"} <= names
    assert "verdicts/cuda-no-op/profile" not in names
    assert (out / "gates" / "stage1" / "gate.json").exists()


def test_problems_are_drawn_by_the_build_that_is_named(record, tmp_path):
    for name in ("fuzz_library", "fuzz_serving"):
        program = tmp_path / "build" / "bin" / name
        program.write_text('#!/bin/sh\nfor word; do case "$before" in --json) echo "{}" >"$word" ;; esac; before=$word; done\n')
        program.chmod(0o755)
    done, out, calls = record("invariant", "fuzz")
    assert done.returncode == 0, (out / "fuzz.log").read_text()
    bundled = calls.read_text().splitlines()[-1]
    assert all(f"{name}-h200=" in bundled for name in ("invariant", "fuzz-dense", "fuzz-e4m3", "fuzz-serving"))
