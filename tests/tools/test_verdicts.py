"""docs/verdicts.md is what its records give, and tools/loaded sees a verdict that changes."""
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def test_the_page_is_what_the_records_give():
    done = subprocess.run([sys.executable, ROOT / "tools" / "verdicts", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_unknown_records_are_refused():
    done = subprocess.run([sys.executable, ROOT / "tools" / "verdicts", "--only", "promotion"], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 2 and "promotion" in done.stderr


@pytest.mark.parametrize("busy, slower, code, words", [
    ((3.0, 1.5, 6.0), 1, 0, "every loaded interval holds the time without load"),
    ((3.0, 0.5, 6.0), 1, 1, "A VERDICT CHANGED"),
    ((3.0, 1.5, 6.0), 2, 1, "outside its loaded interval: cpu.flash, small")])
def test_a_loaded_machine(tmp_path, busy, slower, code, words):
    # A command whose second comparison is wider than its first.
    command = tmp_path / "greenfast"
    command.write_text(f"""#!{sys.executable}
import json, pathlib, sys
here = pathlib.Path({str(tmp_path)!r})
if sys.argv[1] == "compare":
    again = (here / "seen").exists()
    (here / "seen").touch()
    value, lo, hi = {busy!r} if again else (3.0, 2.9, 3.1)
    print(json.dumps({{"shapes": [{{"name": "small", "ratio_p50": {{"value": value, "lo": lo, "hi": hi}}}}], "samples": []}}))
else:
    directory = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
    factor = {slower} if (here / "benched").exists() else 1
    (here / "benched").touch()
    row = {{"variant": "cpu.flash", "problem": "small", "verdict": "GREEN",
           "time": {{"p50_seconds": factor * 1e-3, "p50_ci_seconds": [factor * 0.9e-3, factor * 1.1e-3]}}}}
    (directory / "run.json").write_text(json.dumps({{"rows": [row], "host": {{"cpus": 2}}, "device": {{"name": "x"}},
                                                    "build": {{"git": {{"sha": "abc"}}}}}}))
""")
    command.chmod(0o755)
    record = tmp_path / "loaded.json"
    done = subprocess.run([sys.executable, ROOT / "tools" / "loaded", "--greenfast", command, "--out", record],
                          capture_output=True, text=True, check=False)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert words in done.stdout and "6.9% -> " in done.stdout
    seen = json.loads(record.read_text())
    assert (seen["same"] and not seen["missed"]) is (code == 0)
