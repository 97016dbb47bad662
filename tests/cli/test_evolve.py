"""evolve as its users run it: proposers that work, die, are silent and talk nonsense."""
import json
import shutil
import sys
import textwrap

import pytest

from cli_paths import ROOT
from schemas import validate

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no host compiler")

SOURCE = """#include "attention.h"
#define WORK 4
static gf_status launch(const gf_plugin_call* call) {
  for (int i = 0; i < WORK; ++i) example_attend(call);
  return GF_OK;
}
EXAMPLE_PLUGIN("work", "repeats itself", launch)
"""
TINY = ["--primary", "1x2x33x16", "--held-out", "none", "--dtype", "fp32", "--jobs", "2"]


@pytest.fixture
def evolve(greenfast):
    greenfast.work.mkdir()
    shutil.copy(ROOT / "examples" / "plugins" / "attention.h", greenfast.work)
    (greenfast.work / "work.c").write_text(SOURCE)

    def run(proposer, *more):
        if not str(proposer).endswith(".py"):
            (greenfast.work / "proposer.py").write_text(textwrap.dedent(proposer))
            proposer = "proposer.py"
        return greenfast("evolve", "work.c", "--proposer", f"{sys.executable} {proposer}", *TINY, *more, "--json")

    return run


def test_the_example_proposer_finds_a_faster_source_and_its_lineage_is_kept(evolve, greenfast):
    result = evolve(ROOT / "examples" / "evolve" / "proposer.py", "--candidates", "3")
    assert result.code in (0, 10), result.err
    found = result.json
    validate(found)
    assert found["winner"] != "c0"
    lineage = {row["id"]: row for row in found["lineage"]}
    assert lineage["c1"]["parents"] == ["c0"] and lineage["c1"]["note"].startswith("WORK from 4")
    assert lineage[found["winner"]]["speedup"] > 1
    assert "#define WORK" in (greenfast.work / found["winner_file"]).read_text()

    # Killed or not: what is in the cache is not asked again.
    again = evolve("raise SystemExit(1)", "--candidates", "3")
    assert again.json["winner"] == found["winner"]


def test_a_proposer_that_dies_or_talks_nonsense_loses_that_candidate_alone(evolve):
    result = evolve("""
        import json, sys
        for line in sys.stdin:
            message = json.loads(line)
            if message["type"] == "task":
                source = message["source"]
            if message["type"] != "propose":
                continue
            n = int(message["id"][1:])
            candidate = {"type": "candidate", "id": message["id"], "parents": ["c0"]}
            if n == 1:
                raise SystemExit("tired")
            answer = {2: "not json", 3: json.dumps([1]), 4: json.dumps({"type": "candidate", "id": "c99", "source": "x"}),
                      5: json.dumps(candidate), 6: json.dumps({**candidate, "source": source}),
                      7: json.dumps({**candidate, "source": "does not compile"}),
                      8: json.dumps({**candidate, "source": source.replace("return GF_OK", "return *(volatile int*)0")}),
                      9: json.dumps({**candidate, "source": source.replace("WORK 4", "WORK 1")}),
                      10: json.dumps({"type": "done"})}[n]
            print(answer, flush=True)
    """, "--candidates", "20")
    assert result.code in (0, 10), result.err
    found = result.json
    assert found["winner"] == "c9" and len(found["lineage"]) == 10
    reasons = {row["key"]: (row["stage"], row["reason"]) for row in found["rejected"]}
    for key, stage, words in [("c1", "proposal", "ended"), ("c2", "proposal", "no JSON object"),
                              ("c3", "proposal", "no JSON object"), ("c4", "proposal", "answers 'c99'"),
                              ("c5", "proposal", "no source"), ("c6", "proposal", "same source as c0"),
                              ("c7", "compile", "error"), ("c8", "case", "SIGSEGV")]:
        assert reasons[key][0] == stage and words in reasons[key][1], (key, reasons[key])


def test_a_silent_proposer_is_given_up(evolve):
    result = evolve("import time\ntime.sleep(1000)\n", "--candidates", "20", "--patience", "0.2")
    assert result.code == 10, result.err
    assert result.json["winner"] == "c0"
    assert [row["reason"] for row in result.json["rejected"]] == ["no answer within 0.2 s"] * 3


def test_what_cannot_be_evolved_is_refused(greenfast):
    greenfast("evolve", "absent.c", "--proposer", "true").refused(2, "absent.c")
