"""tools/sanitize_gpu against a sanitizer and a greenfast that play their parts; the ladder's records and plot."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]

GREENFAST = '''#!/bin/sh
case "$1" in
  --version) echo "greenfast 0.1.0 (01234567)" ;;
  doctor) echo '{"devices": {"cuda": {"available": AVAILABLE, "reason": "no driver", "facts": {"name": "GPU", "driver": "13.0"}}}}' ;;
  list) echo '{"variants": [{"id": "cuda.a", "device": "cuda", "built": true}, {"id": "cuda.b", "device": "cuda", "built": true},
                            {"id": "cuda.c", "device": "cuda", "built": false}, {"id": "cpu.x", "device": "cpu", "built": true}]}' ;;
esac
'''
# --tool T --print-limit 20 --log-file FILE --error-exitcode 99 GREENFAST check --device cuda --variants V ...
SANITIZER = '''#!/bin/sh
[ "$1" = --version ] && { echo "NVIDIA Compute Sanitizer"; echo "Version 2025.3.1.0"; exit 0; }
tool=$2 report=$6 variant=${14}
errors=0
[ "$tool $variant" = "FINDS" ] && { errors=3; echo "========= Invalid read at ns::kernel(int)+0x40 in a.cu:7" >"$report"; }
if [ "$tool" = racecheck ]; then
  echo "========= RACECHECK SUMMARY: $errors hazards displayed ($errors errors, 0 warnings)" >>"$report"
else
  echo "========= ERROR SUMMARY: $errors errors" >>"$report"
fi
echo '{"rows": [{"verdict": "GREEN", "cases": 4, "reason": null}, {"verdict": "SKIPPED", "cases": 0, "reason": "type"}]}'
'''


@pytest.fixture
def sanitize(tmp_path):
    def run(*arguments, finds="none", available="true", sanitizer=True):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        for name, text in (("greenfast", GREENFAST.replace("AVAILABLE", available)), ("compute-sanitizer", SANITIZER.replace("FINDS", finds))):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        if not sanitizer:
            (folder / "compute-sanitizer").unlink()
        path = f"{folder}:/usr/bin:/bin"
        record = tmp_path / "record.json"
        done = subprocess.run([sys.executable, ROOT / "tools" / "sanitize_gpu", folder / "greenfast", "--out", record, *arguments],
                              env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
        return done, json.loads(record.read_text()) if record.is_file() else None

    return run


def test_every_built_variant_runs_under_every_tool(sanitize):
    done, record = sanitize()
    assert done.returncode == 0, done.stderr
    assert record["compute_sanitizer"] == "2025.3.1.0" and record["device"] == "GPU" and record["findings"] == 0
    assert [(r["variant"], r["tool"]) for r in record["rows"]] == [
        (v, t) for v in ("cuda.a", "cuda.b") for t in ("memcheck", "racecheck", "initcheck", "synccheck")]
    assert all(r["status"] == "clean" and r["cases"] == 4 for r in record["rows"])


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_a_finding_is_counted_named_and_fails(sanitize, tool):
    done, record = sanitize(finds=f"{tool} cuda.b")
    assert done.returncode == 21
    assert f"cuda.b under {tool}" in done.stdout and "Invalid read" in done.stdout
    found = [r for r in record["rows"] if r["status"] != "clean"]
    assert [(r["variant"], r["tool"], r["findings"], r["kernels"]) for r in found] == [("cuda.b", tool, 3, ["ns::kernel(int)"])]


def test_without_a_gpu_or_a_variant_it_says_so(sanitize):
    done, record = sanitize(available="false")
    assert done.returncode == 3 and "no driver" in done.stderr and record is None
    done, record = sanitize("--variants", "cuda.c")
    assert done.returncode == 2 and "cuda.c" in done.stderr
    done, record = sanitize("--tools", "valgrind")
    assert done.returncode == 2 and "memcheck" in done.stderr


def test_the_plot_of_the_page_shows_its_records(tmp_path):
    page = (ROOT / "docs" / "ladder.md").read_text()
    records = page.split("<!-- greenfast:ladder ")[1].split(" -->")[0].split()[:2]
    tool = [sys.executable, ROOT / "tools" / "ladder_plot"]
    paths = [ROOT / path for path in records]
    done = subprocess.run([*tool, "--check", *paths, ROOT / "docs" / "ladder" / "times.svg"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    other = tmp_path / "old.svg"
    other.write_text("<svg/>")
    assert subprocess.run([*tool, "--check", *paths, other], capture_output=True, check=False).returncode == 1


def test_a_walk_becomes_one_record_of_what_ran_on_a_gpu(tmp_path):
    def gate(kind):
        return {"device": {"kind": kind}, "argv": ["gate"], "build": {}, "host": {}, "utc": "2026-11-21T00:00:00Z", "fast": [],
                "samples": "left out", "verdict": {"decision": "DEFER"}}

    for name, kind in (("cuda.b", "cuda"), ("cpu.b", "cpu")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "gate.json").write_text(json.dumps(gate(kind)))
    steps = [{"candidate": c, "baseline": "x", "verdict": v} for c, v in (("cuda.b", "DEFER"), ("cpu.b", "DEFER"), ("cuda.c", "SKIPPED"))]
    (tmp_path / "ladder.json").write_text(json.dumps({"steps": steps}))
    done = subprocess.run([sys.executable, ROOT / "tools" / "ladder_gates", tmp_path], capture_output=True, text=True, check=False)
    record = json.loads(done.stdout)
    assert [step["candidate"] for step in record["steps"]] == ["cuda.b"] and "samples" not in record["steps"][0]


def test_checks_are_held_to_the_predecessor(tmp_path):
    worst = {"max_err": 1e-3, "mean_err": 1e-4, "percent_bad": 0, "rel_fro": 1e-4}
    case = {"problem": "p", "distribution": "normal", "seed": 0}
    record = {"argv": ["check"], "utc": "2026-11-21T00:00:00Z", "build": {"git": {"sha": "0" * 40}}, "device": {"name": "GPU"},
              "policy": {"name": "strict"}, "settings": {"seeds": [0]},
              "rows": [{"variant": v, "problem": "p", "verdict": "GREEN", "reason": None, "cases": 1, "worst": worst}
                       for v in ("cuda.v2c.v6", "cuda.v2c.v7", "cuda.stage_c.stage2_no_cp_async")],
              "cases": [{**case, "variant": "cuda.v2c.v6", "output_sha256": "a"}, {**case, "variant": "cuda.v2c.v7", "output_sha256": "a"}]}
    path = tmp_path / "check.json"
    path.write_text(json.dumps(record))
    tool = [sys.executable, ROOT / "tools" / "ladder_checks", path]
    rows = json.loads(subprocess.run(tool, capture_output=True, text=True, check=True).stdout)["rows"]
    assert [(r["same_bits"], r["compared"], r["compared_with"]) for r in rows] == [(0, 0, None), (1, 1, "cuda.v2c.v6"), (0, 0, None)]
    record["rows"][0]["verdict"] = "RED"
    path.write_text(json.dumps(record))
    assert subprocess.run(tool, capture_output=True, check=False).returncode == 20
