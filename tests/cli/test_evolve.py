"""evolve as its users run it: proposers that work, die, are silent and talk nonsense."""
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

from cli_paths import ROOT
from schemas import validate

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no host compiler")

PROPOSERS = ROOT / "examples" / "evolve"
NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")

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
        if not str(proposer).startswith(str(PROPOSERS)):  # its text
            (greenfast.work / "proposer.py").write_text(textwrap.dedent(proposer))
            proposer = "proposer.py"
        return greenfast("evolve", "work.c", "--proposer", f"{sys.executable} {proposer}", *TINY, *more, "--json")

    return run


def test_the_example_proposer_finds_a_faster_source_and_its_lineage_is_kept(evolve, greenfast):
    result = evolve(PROPOSERS / "proposer.py", "--candidates", "3")
    assert result.code in (0, 10), result.err
    found = result.json
    validate(found)
    assert found["winner"] != "c0"
    lineage = {row["id"]: row for row in found["lineage"]}
    assert lineage["c1"]["parents"] == ["c0"] and lineage["c1"]["note"].startswith("WORK from 4")
    assert lineage[found["winner"]]["speedup"] > 1
    folder = greenfast.work / "results" / "evolve-work"
    assert "#define WORK" in (folder / found["winner_file"]).read_text()
    assert lineage["c1"]["sha256"] == hashlib.sha256((folder / "candidates" / "c1.c").read_bytes()).hexdigest()

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


def test_a_recorded_search_is_walked_again_with_its_proposer(evolve, greenfast):
    first = evolve(PROPOSERS / "edits.py", "--candidates", "4")
    assert first.code in (0, 10), first.err
    (greenfast.work / "results").rename(greenfast.work / "kept")
    walk = ["--simulate", "kept/evolve-work/cache.jsonl"]
    again = evolve(PROPOSERS / "edits.py", *walk)
    assert again.code == first.code and again.json == first.json
    assert not (greenfast.work / "results").exists()
    said = evolve(f"{PROPOSERS / 'edits.py'} --kinds pitch", *walk)
    said.refused(2, "cache.jsonl", "c1 was source", "now answers that it is done")
    (greenfast.work / "work.c").write_text(SOURCE + "\n")
    evolve(PROPOSERS / "edits.py", *walk).refused(2, "c1 was source", "has changed since")
    evolve(PROPOSERS / "edits.py", "--simulate", "absent.jsonl").refused(2, "absent.jsonl")
    evolve(PROPOSERS / "edits.py", *walk, "--cache", "other.jsonl").refused(2, "--cache")
    evolve(PROPOSERS / "edits.py", *walk, "--compile-only").refused(2, "--compile-only")


def test_the_recorded_run_on_a_gpu_is_walked_again(greenfast):
    """From the rung as it was then, whose sources stand beside the recording, by the proposer as it is today: a change of it asks for a new
    record."""
    record = json.loads((ROOT / "evidence" / "search" / "evolve-cuda.stage_c.stage2-h100.json").read_text())
    validate(record)
    recorded = ROOT / "tests" / "cli" / "search" / "evolve-cuda.stage_c.stage2.h100"
    walked = greenfast("evolve", "cuda.stage_c.stage2", "--tree", recorded, "--proposer", f"{sys.executable} {PROPOSERS / 'edits.py'}",
                       "--simulate", recorded.with_suffix(".h100.jsonl"), "--json")
    assert walked.code == 0, walked.err
    assert walked.json == record and record["winner"] == "c11" and len(record["lineage"]) == 13


def test_what_cannot_be_evolved_is_refused(greenfast):
    greenfast("evolve", "absent.c", "--proposer", "true").refused(2, "absent.c")


def test_structured_edits_find_a_faster_source_without_a_model(evolve):
    # Numbers alone: an edit that changes nothing may look faster on a busy machine, and would be followed instead.
    result = evolve(f"{PROPOSERS / 'edits.py'} --kinds number", "--candidates", "4")
    assert result.code in (0, 10), result.err
    found = result.json
    validate(found)
    lineage = {row["id"]: row for row in found["lineage"]}
    assert lineage[found["winner"]]["speedup"] > 1 and "WORK from 4 to 2" in str(found["lineage"])
    assert {row["note"].split(":")[0] for row in found["lineage"][1:]} <= {"number"}


MODEL = """
import re, sys
question = sys.stdin.read()
open("asked", "a").write(question + "=====\\n")
if "WORK 1" in question:
    raise SystemExit("I have no more ideas")
source = re.findall(r"```\\n(.*?)```", question, re.S)[0]
print("NOTE: half of the work\\n```c\\n" + re.sub(r"WORK (\\d)", lambda m: f"WORK {int(m[1]) // 2}", source) + "```")
"""


def test_a_command_of_the_users_is_asked_with_sources_fates_and_advice(evolve, greenfast):
    (greenfast.work / "model.py").write_text(MODEL)
    (greenfast.work / "profile.json").write_text(json.dumps(
        {"sides": [{"variant": "plugin:work", "findings": ["does everything four times"], "advice": ["do it once"]}]}))
    result = evolve(f"{PROPOSERS / 'ask.py'} --command '{sys.executable} model.py' --log log", "--candidates", "8", "--profile",
                    "profile.json")
    assert result.code in (0, 10), result.err
    found = result.json
    lineage = {row["id"]: row for row in found["lineage"]}
    assert found["winner"] == "c2" and lineage["c2"]["parents"] == ["c1"] and lineage["c1"]["note"] == "half of the work"
    # It ended with an error three times in a row: the run goes on with what it has.
    assert [row["key"] for row in found["rejected"]] == ["c3", "c4", "c5"]
    assert all("the command ended with 1: I have no more ideas" in row["reason"] for row in found["rejected"])
    questions = (greenfast.work / "asked").read_text().split("=====")
    assert "- does everything four times\n- do it once" in questions[0] and "Tried before" not in questions[0]
    assert re.search(r"- c1 from c0 \(half of the work\): \d", questions[1]) and "#define WORK 2" in questions[1]
    assert (greenfast.work / "log" / "c1.question").read_text() in questions[0]


def rung(greenfast, what, proposer, *more):
    return greenfast("evolve", what, "--proposer", proposer, "--plugin-flags", "-arch=sm_80", "--candidates", "2", *more)


@needs_nvcc
@pytest.mark.parametrize("what, edit", [("cuda.v2c.v8", ("#define V8_CHUNK 32", "#define V8_CHUNK 16")),
                                        ("cuda.stage_c.stage2", ("int stages = 2;", "int stages = 3;"))])
def test_a_rung_of_the_ladder_is_evolved_as_far_as_no_gpu_is_needed(greenfast, what, edit):
    """With both proposers: a model that makes one edit, and structured edits, from the same start."""
    greenfast.work.mkdir()
    (greenfast.work / "model.py").write_text(textwrap.dedent(f"""
        import re, sys
        source = re.findall(r"```\\n(.*?)```", sys.stdin.read(), re.S)[-1]
        print("NOTE: as asked\\n```cuda\\n" + source.replace({edit[0]!r}, {edit[1]!r}) + "```")
    """))
    ask = f"{sys.executable} {PROPOSERS / 'ask.py'} --command '{sys.executable} model.py'"
    asked = rung(greenfast, what, ask, "--compile-only", "--json", "--candidates", "1", "--cache", "asked/cache.jsonl")
    assert asked.code == 0, asked.err
    first, second = asked.json["lineage"]
    assert first["resources"]["registers"] > 32 and second["ok"] and second["note"] == "as asked"
    assert second["resources"] != {} and second["speedup"] is None
    changed = (pathlib.Path(asked.json["folder"]) / "c1.cu").read_text()
    assert edit[1] in changed and edit[0] in (greenfast.work / "asked" / f"{what}.cu").read_text()

    edits = f"{sys.executable} {PROPOSERS / 'edits.py'} --kinds pitch,blocks"
    edited = rung(greenfast, what, edits, "--compile-only")
    assert edited.code == 0, edited.err
    assert "none was run" in edited.out and re.search(r"^c\d +c0 +\d+ +yes +(pitch|blocks): ", edited.out, re.MULTILINE), edited.out
    # The same command where there is a GPU goes on from there; here it says what is missing.
    if subprocess.run(["nvidia-smi"], capture_output=True, check=False).returncode if shutil.which("nvidia-smi") else 1:
        rung(greenfast, what, edits).refused(3, "--compile-only")


def test_what_is_no_rung_is_refused_with_those_that_are(greenfast):
    greenfast("evolve", "cuda.sm90.prefill", "--proposer", "true").refused(2, "cuda.sm90.prefill", "cuda.v2c.v8", "cuda.stage_c.stage2")
    greenfast("evolve", "cuda.v2c.v8", "--proposer", "true", "--tree", "/tmp").refused(2, "--tree")
    of = ROOT / "evidence" / "verdicts" / "cuda-promote" / "profile.json"
    other = greenfast("evolve", "cuda.v2c.v8", "--proposer", "true", "--profile", of)
    other.refused(2, "says nothing of cuda.v2c.v8; it is of cuda.stage_c.stage1, cuda.stage_c.stage2")
    greenfast("evolve", "cuda.v2c.v8", "--proposer", "true", "--profile", "absent.json").refused(2, "--profile", "absent.json")


def test_edits_keep_what_two_children_changed_apart():
    sys.path.insert(0, str(PROPOSERS))
    import edits
    base = "#define A 2\nint x;\n#define B 8\n"
    both = edits.merged(base, base.replace("A 2", "A 4"), base.replace("B 8", "B 4"))
    assert both == "#define A 4\nint x;\n#define B 4\n"
    assert edits.merged(base, base.replace("A 2", "A 4"), base.replace("A 2", "A 1")) is None
    assert edits.merged(base, base, base.replace("A 2", "A 1")) is None
    # Neighbours change places only where neither names what the other writes.
    moved = [note for _, note in edits.orders("  a = b;\n  c = d;\n  e = c;\n")]
    assert moved == ["lines 1 and the next change places"]
    proposer = edits.Proposer(list(edits.KINDS), 0)
    proposer.begin({"source": base, "advice": ["smaller query tiles"]})
    assert proposer.weight["number"] > 0
    seen = {proposer.propose(f"c{n}", [{"id": "c0", "source": base}]).get("source") for n in range(4)}
    assert len(seen - {None}) == 4 and proposer.propose("c9", [{"id": "c0", "source": base}]) == {"type": "done"}
