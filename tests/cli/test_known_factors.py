"""tools/known_factors: it counts what is wrong, goes on where it was, and mixes no two builds. The command is a fake."""
import json
import subprocess
import sys

import pytest

from cli_paths import ROOT

TOOL = ROOT / "tools" / "known_factors"
FAKE = r'''#!/usr/bin/env python3
import json, os, sys
if sys.argv[1] == "--version":
    print(os.environ.get("FAKE_VERSION", "fake 1"))
    sys.exit(0)
with open(os.environ["FAKE_LOG"], "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\n")
value = {"plugin:same": 1.0, "plugin:x1_02": 0.98, "plugin:x3": 0.3}.get(sys.argv[sys.argv.index("--candidate") + 1], 0.9)
decision = {1.0: "REJECT", 0.98: "PROMOTE", 0.3: "REJECT"}.get(value, "DEFER")
interval = {"value": value, "lo": value - 0.05, "hi": value + 0.05}
print(json.dumps({"verdict": {"decision": decision, "reasons": [{"code": "REGRESSION", "detail": ""}] if decision == "REJECT" else []},
                  "fast": [{"shape": "s", "speedup": interval, "speedup_p90": {**interval, "hi": value}, "blocks": 9, "baseline": {}}],
                  "utc": "2026-11-22T00:00:00Z", "host": {}, "build": {"git_sha": "0"}}))
'''


@pytest.fixture
def known_factors(tmp_path, monkeypatch):
    fake = tmp_path / "greenfast"
    fake.write_text(FAKE)
    fake.chmod(0o755)
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))

    def run(*arguments):
        return subprocess.run([sys.executable, TOOL, "--state", "quiet", "--greenfast", fake, "--out", tmp_path / "record.json",
                               *arguments], capture_output=True, text=True, check=False, cwd=tmp_path)
    return run


def test_what_is_wrong_is_counted(known_factors, tmp_path):
    result = known_factors("--gates", "1")
    assert result.returncode == 1, "a false PROMOTE"
    rows = {tuple(cell.strip() for cell in line.split("|")[1:3]): [cell.strip() for cell in line.split("|")[3:-1]]
            for line in result.stdout.splitlines() if line.startswith("| ")}
    # gates, covered by p50 and p90, PROMOTE, REJECT, DEFER, false PROMOTE, false REJECT
    assert rows["1", "1.000"][:8] == ["1", "1 of 1", "1 of 1", "0", "1", "0", "0", "1"]
    assert rows["2", "0.980"][:8] == ["1", "1 of 1", "0 of 1", "1", "0", "0", "1", "0"]
    assert rows["2", "0.333"][:8] == ["1", "1 of 1", "0 of 1", "0", "1", "0", "0", "0"]
    assert rows["2", "all"][0] == "6"
    record = json.loads((tmp_path / "record.json").read_text())
    assert len(record["gates"]) == 12 and record["gates"][0]["p50"] == {"value": 1.0, "lo": 0.95, "hi": 1.05}


def test_it_goes_on_where_it_was(known_factors, tmp_path, monkeypatch):
    known_factors("--gates", "1")
    known_factors("--gates", "2")
    commands = (tmp_path / "log").read_text().splitlines()
    assert len(commands) == 24 and len(json.loads((tmp_path / "record.json").read_text())["gates"]) == 24
    # In the second round the roles are swapped.
    assert "--baseline plugin:unit --candidate plugin:x3" in commands[5] and "--seeds 0 --processes 1" in commands[5]
    assert "--baseline plugin:x3 --candidate plugin:unit" in commands[17] and "--seeds 1 --processes 1" in commands[17]
    other = known_factors("--gates", "3", "--budget", "9")
    assert other.returncode != 0 and "was begun with budget_seconds 2, now it is 9.0" in other.stderr
    monkeypatch.setenv("FAKE_VERSION", "fake 2")
    assert "was begun with version fake 1, now it is fake 2" in known_factors("--gates", "3").stderr
