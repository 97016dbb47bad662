"""tools/gpu/bounded.py and steps.sh, by themselves and through the tools that rest on them, with a greenfast that only answers."""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPU = ROOT / "tools" / "gpu"
sys.path.insert(0, str(GPU))
import bounded  # noqa: E402

# `list` says what is built; `check` and `bench` do what the variable says.
ANSWERS = """#!/bin/bash
echo "$@" >>"$0.calls"
case "$1" in
  list)
    case "$*" in
      *--json*) echo '{"variants": [{"id": "cuda.sm90.fp8", "built": BUILT}, {"id": "cuda.sm90.fp8_curved", "built": BUILT},
        {"id": "cuda.sm90.fp8_fast", "built": BUILT}]}' ;;
      *) for name in decode packed; do echo "cuda.sm90.$name  sm_90  automatically  WORD  of its own"; done ;;
    esac ;;
  check) eval "$ON_CHECK" ;;
  bench) eval "$ON_BENCH" ;;
esac
"""


@pytest.fixture
def build(tmp_path):
    def make(built=True):
        folder = tmp_path / "build"
        (folder / "bin").mkdir(parents=True)
        (folder / "src").mkdir()
        (folder / "src" / "libgreenfast.so").touch()
        program = folder / "bin" / "greenfast"
        program.write_text(ANSWERS.replace("BUILT", "true" if built else "false").replace("WORD", "yes " if built else "no  "))
        program.chmod(0o755)
        return folder

    return make


def start(tool, *arguments, build, **variables):
    return subprocess.Popen([GPU / tool, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            env={**os.environ, "GREENFAST_BUILD": str(build), **variables})


def run(*arguments, **options):
    process = start(*arguments, **options)
    text = process.communicate(timeout=120)[0]
    return process.returncode, text


def alive(pid):
    return pid in bounded.family(pid)


def test_a_command_that_does_not_end_is_ended_with_what_it_started(tmp_path):
    script = f"sleep 300 & echo $! >{tmp_path}/child; wait"
    done = bounded.run(["bash", "-c", script], 3, capture_output=True, text=True)
    assert done.returncode == bounded.TIMEOUT and not alive(int((tmp_path / "child").read_text()))
    assert bounded.run(["/no/such/program"], 1, capture_output=True, text=True).returncode == 127


def test_a_budget_grants_what_is_left_and_nothing_too_short_to_begin():
    budget = bounded.Budget(100)
    assert budget.grant(30) == 30 and 99 < budget.grant(1000) <= 100
    assert bounded.Budget(3).grant(60) == 0 and 0 < bounded.Budget(3).grant(2) <= 2


def test_a_watchdog_ends_what_hangs():
    code = ("import sys, time; sys.path.insert(0, sys.argv[1]); import bounded; dog = bounded.Watchdog('tool'); dog.feed(0.3, 'row 7'); "
            "time.sleep(60)")
    done = subprocess.run([sys.executable, "-c", code, GPU], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 24 and "no end of row 7" in done.stderr


def test_the_sanitizers_policy_is_strict_with_one_distribution():
    # Its list grew over several lines, and every check of tools/gpu/sanitize ended at once (2026-11-23).
    loader = importlib.machinery.SourceFileLoader("sanitize", str(GPU / "sanitize"))
    sanitize = importlib.util.module_from_spec(importlib.util.spec_from_loader("sanitize", loader))
    loader.exec_module(sanitize)
    strict = (ROOT / "policies" / "strict.toml").read_text()
    whole, one = tomllib.loads(strict), tomllib.loads(sanitize.one_distribution(strict))
    found = [section for section in whole if isinstance(whole[section], dict) and "distributions" in whole[section]]
    assert (one["distributions"] if not found else one[found[0]]["distributions"]) == ["normal"]
    assert one["numerics"] == whole["numerics"]
    assert sanitize.options_of(["fp16 inputs", "the LSE"]) == ["--dtype", sanitize.DTYPES, "--lse"]
    assert sanitize.options_of(["e4m3 inputs", "fast accuracy"]) == ["--dtype", "e4m3", "--accuracy=fast"]
    with pytest.raises(SystemExit, match="0 lists"):
        sanitize.one_distribution("reruns = 2")


@pytest.mark.parametrize("tool", ["decode", "packed"])
def test_a_kernel_that_is_listed_and_not_built_is_not_there(tool, build, tmp_path):
    code, text = run(tool, "--out", tmp_path / "out", build=build(built=False))
    assert code == 3 and "this build has no" in text and not (tmp_path / "out").exists()


def test_fp8_that_is_not_built_is_not_there(build, tmp_path):
    code, text = run("fp8", build(built=False), tmp_path / "out", build="")
    assert code == 3 and "is not in this build" in text


def test_a_wrong_result_ends_the_run_and_the_table_says_where(build, tmp_path):
    code, text = run("packed", "--only", "check,time", "--out", tmp_path / "out", build=build(),
                     ON_CHECK='case "$*" in *varlen*) echo RED; exit 20 ;; esac')
    assert code == 20
    table = text.rpartition("seconds by step\n")[2].splitlines()
    names = [f"check-{name}-{dtype}" for dtype in ("fp16", "bf16") for name in ("serving", "repair", "capped", "bshd", "packed", "alone", "features")]
    names.append("check-suite-fp16")
    assert [line.split()[:3] for line in table] == [[name, "exit", "20" if "suite" in name else "0"] for name in names]


def test_a_timing_that_fails_stops_no_other(build, tmp_path):
    code, text = run("packed", "--only", "time", "--out", tmp_path / "out", build=build(), ON_BENCH='case "$*" in *mixed*) exit 0 ;; esac; exit 24')
    assert code == 24 and "time-mixed" in text.rpartition("seconds by step\n")[2]


def test_what_the_budget_leaves_out_is_named(build, tmp_path):
    code, text = run("decode", "--only", "check", "--out", tmp_path / "out", "--budget", "7", build=build(), ON_CHECK="sleep 4")
    assert code == 125
    assert "left out, the budget of 7 s is spent: check-suites-fp16 check-features-bf16 check-suites-bf16" in text
    # Too little time is not the kernel's fault.
    code, text = run("decode", "--only", "check", "--out", tmp_path / "out", "--budget", "6", build=tmp_path / "build",
                     ON_CHECK="sleep 60")
    assert code == 125 and "check-features-fp16 (cut short)" in text


def test_interrupted_a_step_ends_with_its_tool(build, tmp_path):
    process = start("packed", "--only", "check", "--out", tmp_path / "out", build=build(), ON_CHECK=f"echo $$ >{tmp_path}/pid; exec sleep 300")
    until = time.monotonic() + 60
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    text = process.communicate(timeout=30)[0]
    assert process.returncode == 130 and "seconds by step" in text
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_crash_of_fp8_is_a_crash(build, tmp_path):
    # A signal's code is below 0 for Python; what follows a crash is not run.
    code, text = run("fp8", build(), tmp_path / "out", "smoke", "check", "--accuracy", "exact", build="", ON_CHECK="kill -SEGV $$")
    assert code == 24 and "exit 139" in text
    record = json.loads((tmp_path / "out" / "fp8.json").read_text())
    assert [row["code"] for row in record["checks"]] == [139]


def test_rows_of_fp8_that_are_skipped_are_no_failure_unless_all_are(build, tmp_path):
    folder = build()
    code, _ = run("fp8", folder, tmp_path / "out", "smoke", "--accuracy", "fast", build="", ON_CHECK='case "$*" in *1000x128*) exit 3 ;; esac')
    assert code == 0
    code, _ = run("fp8", folder, tmp_path / "out", "smoke", "--accuracy", "fast", build="", ON_CHECK="exit 3")
    assert code == 3


def test_an_answer_of_fp8_that_the_budget_had_no_time_for_is_not_wrong(build, tmp_path):
    folder = build()
    code, text = run("fp8", folder, tmp_path / "out", "smoke", "--accuracy", "exact", "--budget", "7", build="", ON_CHECK="sleep 60")
    assert code == 125 and "smoke exact" in text
    code, text = run("fp8", folder, tmp_path / "out", "smoke", "--accuracy", "exact", "--seconds", "1", build="", ON_CHECK="sleep 60")
    assert code == 24 and "no answer in 1 s" in text


def test_fp8_names_what_the_budget_leaves_out_and_keeps_what_was_found(build, tmp_path):
    code, text = run("fp8", build(), tmp_path / "out", "smoke", "check", "--accuracy", "exact", "--budget", "8", build="", ON_CHECK="sleep 1.5")
    assert code == 125 and "left out, 8 s are spent: " in text
    record = json.loads((tmp_path / "out" / "fp8.json").read_text())
    assert record["checks"] and all(row["code"] == 0 for row in record["checks"])


@pytest.mark.parametrize("tool", ["decode", "packed", "profiles"])
def test_a_part_that_there_is_not_is_named_and_nothing_runs(tool, build, tmp_path):
    folder = build()
    code, text = run(tool, "--only", "chekc", "--out", tmp_path / "out", build=folder)
    assert code == 2 and f"{tool}: --only chekc: there are " in text and not (tmp_path / "out").exists()
    code, text = run(tool, "--wrong", build=folder)
    assert code == 2 and text.startswith(f"# {tool} [--only ") and "Exit codes" in text and "set -uo" not in text
