"""greenfast evidence: records bound to machine code. A real change makes that kernel's evidence STALE and no other, a
comment none, and what was changed by hand is TAMPERED and named."""
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

import pytest

from cli_paths import BUILD, GREENFAST, ROOT
from schemas import validate

CUBIN = ROOT / "fuzz" / "seeds" / "device_code" / "sm_90a.cubin"


def codes(greenfast, binary):
    """What a record says of the machine code, of a file's kernels."""
    rows = greenfast("resources", "--binary", binary, "--json").json["kernels"]
    return [{"kernel": row["kernel"], "arch": row["arch"], "sha256": row["code_sha256"], "registers": row["registers"],
             "static_shared_bytes": row["static_shared_bytes"], "local_bytes": row["local_bytes"],
             "compiler": row["compiler"]} for row in rows]


@pytest.fixture
def run_on_gpu(greenfast):
    """A run.json as a GPU would have given it: a real one of the CPU, with the kernels of a file in their place."""
    template = greenfast("bench", "--device", "cpu", "--variants", "cpu.naive", "--shapes", "1x1x16x16", "--iters", "3",
                         "--json").json

    def make(binary):
        record = json.loads(json.dumps(template))
        record["device"] = {**record["device"], "kind": "cuda", "name": "a GPU", "arch": 90}
        record["code"] = codes(greenfast, binary)
        record["plans"] = [{**template["plans"][0], "variant": f"cuda.test.{item['kernel']}", "kernel": item["kernel"]}
                           for item in record["code"]]
        return record

    return make


@pytest.fixture
def evidence(greenfast, tmp_path):
    folder = tmp_path / "work" / "evidence"
    folder.mkdir(parents=True, exist_ok=True)

    def findings(*arguments):
        """State and words by (file, subject), of files alone: what the registry lacks is no matter of these tests."""
        result = greenfast("evidence", "verify", "--json", *arguments)
        seen = result.json["findings"]
        bad = [f for f in seen if f["state"] in ("STALE", "MISSING", "TAMPERED")]
        assert result.code == (30 if bad else 0)
        return [(f["state"], f["file"], f["subject"], f["detail"]) for f in seen if f["file"]]

    findings.folder = folder
    return findings


def write(path, record):
    path.write_text(json.dumps(record))
    return path


def sources_alone(folder):
    """A checkout of src alone: of a whole one, verify computes the tables of peers again, which takes ten seconds."""
    folder.mkdir()
    (folder / "src").symlink_to(ROOT / "src")
    return folder


def test_a_record_goes_home_in_a_bundle_and_is_current(greenfast, tmp_path, run_on_gpu, evidence):
    run = write(tmp_path / "run.json", run_on_gpu(CUBIN))
    bundle = tmp_path / "bundle.json"
    result = greenfast("evidence", "record", f"gpu={run}", "--out", bundle)
    assert result.code == 0 and "gpu.json: bound to machine code" in result.err
    assert not (evidence.folder / "gpu.json").exists()
    assert greenfast("evidence", "import", bundle).code == 0
    assert json.loads((evidence.folder / "gpu.json").read_text()) == json.loads(run.read_text())
    assert evidence("--binary", CUBIN) == [("CURRENT", "gpu.json", None, "bound to machine code")]


def test_what_was_changed_by_hand_is_named(greenfast, tmp_path, run_on_gpu, evidence):
    run = write(tmp_path / "gpu.json", run_on_gpu(CUBIN))
    other = write(tmp_path / "other.json", run_on_gpu(CUBIN))
    assert greenfast("evidence", "import", run, other).code == 0
    ledger = evidence.folder / "ledger.json"
    kept, entries = (evidence.folder / "gpu.json").read_text(), ledger.read_text()

    (evidence.folder / "gpu.json").write_text(kept.replace('"seed"', '"sead"', 1))
    [changed, whole] = evidence("--binary", CUBIN)
    assert changed[:2] == ("TAMPERED", "gpu.json") and whole[:2] == ("CURRENT", "other.json")
    (evidence.folder / "gpu.json").write_text(kept[:-10])
    assert evidence("--binary", CUBIN)[0][:2] == ("TAMPERED", "gpu.json")
    (evidence.folder / "gpu.json").unlink()
    assert evidence("--binary", CUBIN)[0][:2] == ("MISSING", "gpu.json")
    (evidence.folder / "gpu.json").write_text(kept)

    # A digest in the ledger, and an entry taken out of it.
    document = json.loads(entries)
    document["entries"][0]["code"][0]["sha256"] = "0" * 64
    ledger.write_text(json.dumps(document))
    assert ("TAMPERED", "ledger.json", "gpu.json") in [f[:3] for f in evidence("--binary", CUBIN)]
    document = json.loads(entries)
    del document["entries"][0]
    ledger.write_text(json.dumps(document))
    states = [f[:3] for f in evidence("--binary", CUBIN)]
    assert ("TAMPERED", "ledger.json", "other.json") in states and ("MISSING", "gpu.json", None) in states
    for text in (entries[: len(entries) // 2], '{"schema": "greenfast.evidence/2", "entries": []}'):
        ledger.write_text(text)
        assert evidence("--binary", CUBIN)[0][:2] == ("TAMPERED", "ledger.json")


@pytest.mark.parametrize("figure", ["p50_seconds", "p90_seconds", "mean_seconds", "samples", "flops"])
def test_a_figure_that_its_samples_do_not_say_is_tampered_even_with_a_fresh_digest(greenfast, tmp_path, run_on_gpu, evidence,
                                                                                   figure):
    record = run_on_gpu(CUBIN)
    record["rows"][0]["time"][figure] = record["rows"][0]["time"].get(figure, 8) * 2
    assert greenfast("evidence", "import", write(tmp_path / "gpu.json", record)).code == 0
    found = evidence("--binary", CUBIN)
    assert [f[0] for f in found] == ["TAMPERED"] and f"{figure} " in found[0][3] and "its samples say" in found[0][3]


@pytest.mark.parametrize("file, decision, code, exit_code", [
    ("reject", "DEFER", "INCONCLUSIVE", 10),
    ("reject", "DEFER", "BELOW_GATE", 10),
    ("mutant", "DEFER", "INCONCLUSIVE", 10),
    ("mutant", "REJECT", "REGRESSION", 23),
    ("promote", "REJECT", "REGRESSION", 23),
])
def test_a_verdict_that_its_steps_and_samples_do_not_bear_out_is_tampered(greenfast, tmp_path, evidence, file, decision, code, exit_code):
    record = json.loads((ROOT / "evidence" / "verdicts" / file / "gate.json").read_text())
    record["verdict"].update(decision=decision, exit_code=exit_code, reasons=[{"code": code, "detail": "x", "settle": ""}])
    assert greenfast("evidence", "import", write(tmp_path / "mine.json", record)).code == 0
    assert any(f[0] == "TAMPERED" and f"its reasons are {code}, and its steps and samples say" in f[3] for f in evidence())


@pytest.fixture
def gate_on_gpu():
    """A recorded gate of a GPU, with the digests of both sides as a gate writes them today."""
    record = json.loads((ROOT / "evidence" / "verdicts" / "cuda-promote" / "gate.json").read_text())
    digests = {row["kernel"]: row["sha256"] for row in record["resources"] if "sha256" in row}
    launched = {}
    for shape in record["shapes"]:
        for plan in shape["plans"].values():
            launched.setdefault(plan["kernel"], set()).add(plan["variant"])
    record["code"] = [{"kernel": kernel, "arch": "sm_90a", "sha256": digests.get(kernel, "5" * 64), "variants": sorted(variants)}
                      for kernel, variants in sorted(launched.items())]
    return record


def test_a_gate_is_bound_to_the_code_of_both_sides(greenfast, tmp_path, evidence, gate_on_gpu):
    validate(gate_on_gpu)
    old = {key: value for key, value in gate_on_gpu.items() if key != "code"}
    assert greenfast("evidence", "import", write(tmp_path / "old.json", old)).code == 0
    assert greenfast("evidence", "import", write(tmp_path / "new.json", gate_on_gpu)).code == 0
    told = evidence()
    assert [f[1:] for f in told if f[0] == "UNBOUND"] == [("old.json", "cuda.stage_c.stage1", "no machine code of it is recorded")]
    assert not [f for f in told if f[0] == "TAMPERED"]
    entries = {e["file"]: e["code"] for e in json.loads((evidence.folder / "ledger.json").read_text())["entries"]}
    assert len(entries["new.json"]) == 2 and len(entries["old.json"]) == 1


def test_a_plugins_digest_stands_beside_the_baselines(greenfast, tmp_path, evidence, gate_on_gpu):
    # In a plugin's gate the code is the baseline's, and the resources hold what the plugin's file has.
    mine = next(row for row in gate_on_gpu["resources"] if "sha256" in row)["kernel"]
    gate_on_gpu["code"] = [row for row in gate_on_gpu["code"] if row["kernel"] != mine]
    assert len(gate_on_gpu["code"]) == 1
    greenfast("evidence", "import", write(tmp_path / "mine.json", gate_on_gpu))
    [entry] = json.loads((evidence.folder / "ledger.json").read_text())["entries"]
    assert {row["kernel"] for row in entry["code"]} == {mine, gate_on_gpu["code"][0]["kernel"]}


@pytest.mark.parametrize("change, words", [
    (lambda r: r["code"].pop(0), "code: no row of "),
    (lambda r: [row.update(sha256="6" * 64) for row in r["code"]], "has another digest than its row of resources"),
])
def test_digests_that_a_gate_contradicts_are_tampered(greenfast, tmp_path, evidence, gate_on_gpu, change, words):
    change(gate_on_gpu)
    assert greenfast("evidence", "import", write(tmp_path / "mine.json", gate_on_gpu)).code == 0
    assert any(f[0] == "TAMPERED" and words in f[3] for f in evidence()), evidence()


def test_a_walk_of_the_ladder_is_bound_to_what_its_steps_hold(greenfast, tmp_path, evidence):
    record = json.loads((ROOT / "evidence" / "ladder" / "gates-h100.json").read_text())

    def launched():
        assert greenfast("evidence", "import", write(tmp_path / "walk.json", record)).code == 0
        entry = json.loads((evidence.folder / "ledger.json").read_text())["entries"][-1]
        assert entry["bound_to"] == "machine code"
        return {variant for row in entry["code"] for variant in row["variants"]}

    candidates = {step["candidate"] for step in record["steps"]}
    assert launched() == candidates | {step["baseline"] for step in record["steps"]} > candidates
    # One from before 2026-11-26 has the candidates' alone, in its rows of resources.
    for step in record["steps"]:
        del step["code"]
    assert launched() == candidates
    assert all(f[0] != "UNBOUND" for f in evidence())


@pytest.mark.parametrize("file, path, words", [
    ("cpu.json", ("rows", 0, "worst", "max_row"), "worst max_row"),
    ("verdicts/peer/compare.json", ("shapes", 0, "ratio_p50", "lo"), "ratio_p50: lo"),
    ("verdicts/peer/compare.json", ("shapes", 0, "ratio_p90", "value"), "ratio_p90: value"),
    ("verdicts/peer/compare.json", ("shapes", 0, "b", "mean_seconds"), "mean_seconds"),
    ("verdicts/peer/compare.json", ("overall_p50", "hi"), "overall_p50: hi"),
    ("verdicts/promote/gate.json", ("overall", "value"), "overall/value"),
    ("verdicts/promote/gate.json", ("fast", 0, "same_against_same", "hi"), "same_against_same/hi"),
    ("verdicts/promote/gate.json", ("fast", 0, "noise_floor"), "noise_floor"),
    ("verdicts/promote/gate.json", ("fast", 0, "candidate", "ci_hi"), "ci_hi"),
    ("verdicts/promote/gate.json", ("fast", 0, "candidate_flops"), "candidate_flops"),
    ("verdicts/promote/gate.json", ("fast", 0, "candidate_percent_of_peak"), "candidate_percent_of_peak"),
    ("verdicts/promote/gate.json", ("resources", 0, "limit"), "beside its limit"),
])
def test_every_figure_that_can_be_computed_again_is(greenfast, tmp_path, evidence, file, path, words):
    record = json.loads((ROOT / "evidence" / file).read_text())
    one = record
    for step in path[:-1]:
        one = one[step]
    one[path[-1]] *= 1.01 if path[-1] != "limit" else 1e-3
    assert greenfast("evidence", "import", write(tmp_path / "mine.json", record)).code == 0
    tampered = [f for f in evidence() if f[0] == "TAMPERED"]
    assert tampered and any(words in f[3] for f in tampered), tampered


def _a_null_hides(record):
    record["cases"][0]["metrics"]["cosine"] = None
    record["rows"][0]["worst"]["max_row"] /= 1000


@pytest.mark.parametrize("file, change, words", [
    ("verdicts/promote/gate.json", lambda r: r.pop("samples"), "no samples"),
    ("verdicts/promote/gate.json", lambda r: r["samples"].update(shapes=[]), "no samples"),
    ("cpu-bench.json", lambda r: r["samples"].update(shapes=[]), "no samples"),
    ("cpu.json", lambda r: r["rows"][0].update(worst={}), "is not said"),
    ("cpu.json", _a_null_hides, "worst max_row"),
    ("cpu.json", lambda r: r["cases"][0].update(distribution="mine"), "is no distribution"),
    ("verdicts/peer/compare.json", lambda r: r["shapes"].pop(), "is not shown"),
    ("verdicts/peer/compare.json", lambda r: r["shapes"][0].update(ratio_p50=None), "says nothing"),
    ("verdicts/peer/compare.json", lambda r: r.update(b=r["a"]), "its samples say 1"),
])
def test_what_a_figure_comes_from_cannot_be_taken_away(greenfast, tmp_path, evidence, file, change, words):
    record = json.loads((ROOT / "evidence" / file).read_text())
    path = write(tmp_path / "mine.json", record)
    assert greenfast("evidence", "import", path).code == 0
    assert not [f for f in evidence() if f[0] == "TAMPERED"]
    change(record)
    assert greenfast("evidence", "import", write(tmp_path / "changed.json", record)).code == 0
    tampered = [f for f in evidence() if f[0] == "TAMPERED" and f[1] == "changed.json"]
    assert tampered and any(words in f[3] for f in tampered), tampered


def test_a_verdict_that_its_cases_do_not_say_is_tampered(greenfast, tmp_path, run_on_gpu, evidence):
    record = run_on_gpu(CUBIN)
    record["rows"][0]["cases"] += 1
    assert greenfast("evidence", "import", write(tmp_path / "gpu.json", record)).code == 0
    assert evidence("--binary", CUBIN)[0][0] == "TAMPERED"


def test_bundles_that_are_not_what_was_written(greenfast, tmp_path, run_on_gpu, evidence):
    run = write(tmp_path / "run.json", run_on_gpu(CUBIN))
    bundle = tmp_path / "bundle.json"
    assert greenfast("evidence", "record", f"gpu={run}", "--out", bundle).code == 0
    text = bundle.read_text()
    bundle.write_text(text.replace("a GPU", "a CPU", 1))
    greenfast("evidence", "import", bundle).refused(30, "TAMPERED")
    bundle.write_text(text[:-20])
    greenfast("evidence", "import", bundle).refused(2, "cut off")
    assert list(evidence.folder.iterdir()) == []


def test_old_records_are_kept_and_said_to_be_unbound(greenfast, tmp_path, run_on_gpu, evidence):
    record = run_on_gpu(CUBIN)
    del record["code"]
    record["build"]["git"]["sha"] = "0" * 40
    assert greenfast("evidence", "import", write(tmp_path / "old.json", record)).code == 0
    [found] = evidence("--binary", CUBIN)
    assert found[0] == "UNBOUND" and "before records held digests" in found[3]


def test_a_record_whose_program_is_gone_is_bound_by_building_its_commit_again(greenfast, tmp_path, run_on_gpu, evidence):
    record = run_on_gpu(CUBIN)
    del record["code"]
    record["build"]["git"]["sha"] = "0" * 40
    record["build"]["cuda"] = {"compiler": "nvcc 13.0.88", "flags": "", "architectures": "90a"}
    old = write(tmp_path / "old.json", record)
    greenfast("evidence", "import", old, "--rebuilt", CUBIN).refused(2, "--rebuilt needs --source")
    assert greenfast("evidence", "import", old, "--rebuilt", CUBIN, "--source", ROOT).code == 0
    [entry] = json.loads((evidence.folder / "ledger.json").read_text())["entries"]
    assert entry["how"].startswith("compiled again") and entry["code"][0]["variants"] == ["cuda.test.scale"]
    assert evidence("--binary", CUBIN) == [("CURRENT", "old.json", None, "bound to machine code")]
    record["build"]["cuda"]["compiler"] = "nvcc 13.0.48"
    greenfast("evidence", "import", write(old, record), "--rebuilt", CUBIN, "--source", ROOT).refused(2, "13.0.48", "V13.0.88")


def test_a_known_gap_is_told_and_does_not_fail(greenfast, tmp_path, evidence):
    missing = [f["subject"] for f in greenfast("evidence", "verify", "--json").json["findings"]]
    known = tmp_path / "known.toml"
    known.write_text("".join(f"[[known]]\nvariant = '{variant}'\nreason = 'no GPU'\n" for variant in missing))
    result = greenfast("evidence", "verify", "--known", known)
    assert result.code == 0 and result.out.count("known: no GPU") == len(missing)
    known.write_text(known.read_text() + "[[known]]\nvariant = 'cpu.flash'\nreason = 'none'\n")
    result = greenfast("evidence", "verify", "--known", known)
    assert result.code == 30 and "take it from the list" in result.out
    known.write_text("[[known]]\nvariant = 'x'\n")
    greenfast("evidence", "verify", "--known", known).refused(2, "needs variant and reason")


def test_another_compiler_is_no_change_of_the_kernel(greenfast, tmp_path, run_on_gpu, evidence):
    record = run_on_gpu(CUBIN)
    record["code"][0].update(compiler="12.9, V12.9.41", sha256="0" * 64)
    assert greenfast("evidence", "import", write(tmp_path / "gpu.json", record)).code == 0
    [found] = evidence("--binary", CUBIN)
    assert found[:3] == ("NOT COMPARED", "gpu.json", "scale") and "another ptxas" in found[3]


def test_a_record_in_a_folder_is_kept_and_laid_out_by_rows(greenfast, tmp_path, evidence):
    rows = [{"case": i, "O": 0.5} for i in range(3)]
    record = write(tmp_path / "seen.json", {"schema": "greenfast.sanitizer/1", "rows": rows, "shape": [1, 2]})
    assert greenfast("evidence", "import", f"ladder/seen.json={record}").code == 0
    kept = (evidence.folder / "ladder" / "seen.json").read_text()
    assert json.loads(kept) == json.loads(record.read_text())
    assert kept.splitlines()[1:4] == [' "rows": [', '  {"O": 0.5, "case": 0},', '  {"O": 0.5, "case": 1},']
    [found] = evidence()
    assert found[:2] == ("UNBOUND", "ladder/seen.json") and "greenfast.sanitizer/1" in found[3]
    (evidence.folder / "ladder" / "seen.json").write_text(kept.replace("0.5", "0.25", 1))
    assert evidence()[0][:2] == ("TAMPERED", "ladder/seen.json")
    for name in ("../out.json", "/tmp/out.json", "a/.hidden.json", "a//b.json/"):
        greenfast("evidence", "import", f"{name}={record}").refused(2, name.removesuffix(".json"), "FOLDER/NAME.json")


def test_a_record_that_says_the_same_stays_bound(greenfast, tmp_path, run_on_gpu, evidence):
    run = write(tmp_path / "gpu.json", run_on_gpu(CUBIN))
    bundle = tmp_path / "bundle.json"
    assert greenfast("evidence", "record", run, "--out", bundle).code == 0
    assert greenfast("evidence", "import", bundle).code == 0
    again = write(tmp_path / "gpu.json", dict(reversed(json.loads(run.read_text()).items())))
    assert greenfast("evidence", "import", again).code == 0
    first, second = json.loads((evidence.folder / "ledger.json").read_text())["entries"]
    assert first["code"] == second["code"] and first["bound_to"] == second["bound_to"] == "machine code"
    assert evidence("--binary", CUBIN) == [("CURRENT", "gpu.json", None, "bound to machine code")]


def test_a_record_is_retired_from_a_ledger_as_large_as_this_repository_s(greenfast, evidence):
    # What was written was gone by then: the memory of a small ledger still held it.
    kept = ROOT / "evidence"
    evidence.folder.mkdir(parents=True, exist_ok=True)
    for name in ("ledger.json", "minilm.json"):
        shutil.copy(kept / name, evidence.folder / name)
    before = json.loads((kept / "ledger.json").read_text())["entries"]
    assert greenfast("evidence", "retire", "minilm", "--why", "nothing").code == 0
    after = json.loads((evidence.folder / "ledger.json").read_text())["entries"]
    assert after[:-1] == before and after[-1]["why"] == "nothing" and not (evidence.folder / "minilm.json").exists()


def test_a_record_that_others_replaced_is_retired(greenfast, tmp_path, evidence):
    record = write(tmp_path / "seen.json", {"schema": "greenfast.sanitizer/1", "rows": []})
    assert greenfast("evidence", "import", f"old={record}", f"ladder/old={record}", f"new={record}").code == 0
    greenfast("evidence", "retire", "old").refused(2, "--why")
    greenfast("evidence", "retire", "never", "--why", "new.json").refused(2, "never.json", "no record of that name")
    kept = (evidence.folder / "ladder" / "old.json").read_text()
    (evidence.folder / "ladder" / "old.json").write_text(kept + " ")
    greenfast("evidence", "retire", "old", "ladder/old", "--why", "new.json").refused(2, "ladder/old.json", "not the file that was recorded")
    assert (evidence.folder / "old.json").exists()  # nothing or all
    (evidence.folder / "ladder" / "old.json").write_text(kept)
    assert greenfast("evidence", "retire", "old", "ladder/old", "--why", "new.json").code == 0
    assert not (evidence.folder / "old.json").exists() and not (evidence.folder / "ladder" / "old.json").exists()
    assert [found[:2] for found in evidence()] == [("UNBOUND", "new.json")]
    assert json.loads((evidence.folder / "ledger.json").read_text())["entries"][-1]["why"] == "new.json"
    greenfast("evidence", "retire", "old", "--why", "again").refused(2, "old.json", "no record of that name")
    (evidence.folder / "old.json").write_text(kept)
    assert ("TAMPERED", "old.json") in [found[:2] for found in evidence()]
    assert greenfast("evidence", "import", f"old={record}").code == 0  # a name may come back
    assert ("UNBOUND", "old.json") in [found[:2] for found in evidence()]


def test_files_that_never_were_recorded_are_named(greenfast, tmp_path, run_on_gpu, evidence):
    write(evidence.folder / "stray.json", run_on_gpu(CUBIN))
    [found] = evidence("--binary", CUBIN)
    assert found[:2] == ("MISSING", "stray.json") and "greenfast evidence import" in found[3]


def test_another_policy_is_told(greenfast, tmp_path, run_on_gpu, evidence):
    record = run_on_gpu(CUBIN)
    record["policy"]["sha256"] = "0" * 64
    assert greenfast("evidence", "import", write(tmp_path / "gpu.json", record)).code == 0
    assert evidence("--binary", CUBIN)[0][:3] == ("NOT COMPARED", "gpu.json", "policy strict")


def test_another_plan_makes_stale(greenfast, tmp_path, evidence):
    record = greenfast("check", "--device", "cpu", "--variants", "cpu.naive,cpu.flash", "--shapes", "1x1x16x16", "--json").json
    assert record["code"] == []
    shutil.copytree(ROOT / "src", tmp_path / "checkout" / "src")
    source = ["--source", tmp_path / "checkout"]
    assert greenfast("evidence", "import", write(tmp_path / "cpu.json", record), *source).code == 0
    assert [f[:2] for f in evidence(*source)] == [("CURRENT", "cpu.json")]
    record["plans"][0]["tile_kv"] += 1
    assert greenfast("evidence", "import", write(tmp_path / "cpu.json", record), *source).code == 0
    [found] = evidence(*source)
    assert found[:3] == ("STALE", "cpu.json", record["plans"][0]["variant"]) and "tile_kv was" in found[3]


def test_a_variant_known_to_be_stale_in_one_record_is_told_there_and_nowhere_else(greenfast, tmp_path, evidence):
    record = greenfast("check", "--device", "cpu", "--variants", "cpu.naive,cpu.flash", "--shapes", "1x1x16x16", "--json").json
    stale = record["plans"][0]["variant"]
    other = record["plans"][1]["variant"]
    record["plans"][0]["tile_kv"] += 1
    against = ["--source", sources_alone(tmp_path / "checkout")]
    assert greenfast("evidence", "import", write(tmp_path / "cpu.json", record), *against).code == 0
    missing = [f["subject"] for f in greenfast("evidence", "verify", *against, "--json").json["findings"] if f["state"] == "MISSING"]
    rows = "".join(f"[[known]]\nvariant = '{variant}'\nreason = 'no GPU'\n" for variant in missing)

    def verify(row):
        known = tmp_path / "known.toml"
        known.write_text(rows + row)
        return greenfast("evidence", "verify", *against, "--known", known)

    assert verify("").code == 30
    told = verify(f"[[known]]\nvariant = '{stale}'\nfile = 'cpu.json'\nreason = 'next week'\n")
    assert told.code == 0 and "STALE" in told.out and "known: next week" in told.out
    for variant, file in ((other, "cpu.json"), (stale, "gpu.json")):
        result = verify(f"[[known]]\nvariant = '{variant}'\nfile = '{file}'\nreason = 'no'\n")
        assert result.code == 30 and f"{file} has nothing stale of it alone" in result.out


def test_sources_decide_for_the_cpu(greenfast, tmp_path, evidence):
    record = greenfast("check", "--device", "cpu", "--variants", "cpu.naive,cpu.flash", "--shapes", "1x1x16x16", "--json").json
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "src", checkout / "src")
    assert greenfast("evidence", "import", write(tmp_path / "cpu.json", record), "--source", checkout).code == 0
    [naive] = (checkout / "src" / "kernels" / "cpu").glob("*naive.cpp")
    naive.write_text("// a comment\n" + naive.read_text())
    assert [f[:2] for f in evidence("--source", checkout)] == [("CURRENT", "cpu.json")]
    naive.write_text(naive.read_text() + "\nint changed;\n")
    [found] = evidence("--source", checkout)
    assert found[:3] == ("STALE", "cpu.json", "cpu.naive") and naive.name in found[3]


def test_a_file_that_only_moved_has_not_changed(greenfast, tmp_path, evidence):
    record = greenfast("check", "--device", "cpu", "--variants", "cpu.naive,cpu.flash", "--shapes", "1x1x16x16", "--json").json
    then, now = tmp_path / "then", tmp_path / "now"
    for checkout in (then, now):
        shutil.copytree(ROOT / "src", checkout / "src")
    # When it was recorded, band.hpp lay elsewhere, so that its includes stood elsewhere in their lists too.
    old, new = "kernels/cpu/attic/band.hpp", "kernels/cpu/device/band.hpp"
    (then / "src" / old).parent.mkdir()
    (then / "src" / new).rename(then / "src" / old)
    includers = 0
    for path in (then / "src" / "kernels" / "cpu").rglob("*.?pp"):
        text = path.read_text()
        if f'"{new}"' in text:
            includers += 1
            path.write_text(re.sub(r'(?:#include "[^"]+"\n)+',
                                   lambda run: "".join(sorted(run[0].replace(new, old).splitlines(keepends=True))), text))
    assert includers > 1
    assert greenfast("evidence", "import", write(tmp_path / "cpu.json", record), "--source", then).code == 0
    [entry] = json.loads((evidence.folder / "ledger.json").read_text())["entries"]
    assert f"src/{old}" in entry["variants"]["cpu.naive"]
    assert [f[:2] for f in evidence("--source", now)] == [("CURRENT", "cpu.json")]
    # One that moved and changed is named, and with it what includes it by its new name.
    moved = now / "src" / new
    moved.write_text(moved.read_text() + "\nint changed;\n")
    found = evidence("--source", now)
    assert {f[:3] for f in found} == {("STALE", "cpu.json", "cpu.naive"), ("STALE", "cpu.json", "cpu.flash")}
    assert all(f"src/{new}" in f[3] and "convert.hpp" not in f[3] for f in found)


def test_bad_input_is_said(greenfast, tmp_path, run_on_gpu, evidence):
    record = run_on_gpu(CUBIN)
    greenfast("evidence", "perhaps").refused(2, "record, import, retire, verify")
    greenfast("evidence", "record").refused(2, "a file is needed")
    greenfast("evidence", "import", tmp_path / "none.json").refused(2, "cannot be read")
    greenfast("evidence", "import", write(tmp_path / "x.json", {"schema": "greenfast.run/9"})).refused(2, "greenfast.run/9")
    greenfast("evidence", "import", write(tmp_path / "x.json", {**record, "status": "interrupted"})).refused(2, "interrupted")
    greenfast("evidence", "import", f"../up={write(tmp_path / 'x.json', record)}").refused(2, "stays in the directory")
    greenfast("evidence", "verify", "--dir", tmp_path / "none").refused(2, "no such directory")
    greenfast("evidence", "verify", "--source", tmp_path).refused(2, "no checkout")


# ---- With nvcc ----

KERNELS = """
__global__ void one(float* x) {{ x[threadIdx.x] = x[threadIdx.x] * {constant}f; }}
namespace {{ __global__ void two(float* x) {{ x[threadIdx.x] += 1.0f; }} }}
void* keep() {{ return reinterpret_cast<void*>(two); }}
"""


@pytest.fixture(scope="module")
def nvcc():
    cache = BUILD / "CMakeCache.txt"
    found = re.search(r"^CMAKE_CUDA_COMPILER:\w+=(.+)$", cache.read_text(), re.M) if cache.is_file() else None
    path = found[1] if found and pathlib.Path(found[1]).exists() else shutil.which("nvcc")
    if path is None:
        pytest.skip("no nvcc on this machine")
    return path


def test_a_change_makes_its_kernel_stale_and_no_other_a_comment_none(greenfast, tmp_path, run_on_gpu, evidence, nvcc):
    def compiled(name, text):
        source = tmp_path / name / f"{name}.cu"
        source.parent.mkdir()
        source.write_text(text)
        out = source.with_suffix(".o")
        subprocess.run([nvcc, "-lineinfo", "-gencode", "arch=compute_90a,code=sm_90a", "-c", "-o", out, source], check=True)
        return out

    first = compiled("first", KERNELS.format(constant="2.5"))
    commented = compiled("elsewhere", "// a comment that moves every line\n\n" + KERNELS.format(constant="2.5"))
    changed = compiled("changed", KERNELS.format(constant="2.75"))
    names = {item["kernel"] for item in codes(greenfast, first)}
    assert names == {"one", "two"}
    assert greenfast("evidence", "import", write(tmp_path / "gpu.json", run_on_gpu(first))).code == 0
    assert [f[:2] for f in evidence("--binary", commented)] == [("CURRENT", "gpu.json")]
    [found] = evidence("--binary", changed)
    assert found[:3] == ("STALE", "gpu.json", "one (sm_90a)") and "cuda.test.one" in found[3]


@pytest.fixture
def checkout(tmp_path):
    """What verify looks at in a checkout beside the records: of peers two rows, in each way that they were timed in."""
    root = tmp_path / "checkout"
    samples, table = root / "evidence/peers-h200.json", root / "docs/results/peers-h200.json"
    for file in ["src/dispatch/variants.def", samples, table]:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "src/dispatch/variants.def", root / "src/dispatch")
    shutil.copytree(ROOT / "policies", root / "policies")
    record = json.loads((ROOT / "evidence/peers-h200.json").read_text())
    kept = list(dict.fromkeys(shape["problem"] for shape in record["shapes"]))[:2]
    record["shapes"] = [shape for shape in record["shapes"] if shape["problem"] in kept]
    write(samples, record)
    subprocess.run([sys.executable, ROOT / "tools" / "peer_table", "--greenfast", GREENFAST, samples, table], check=True)
    write(table, json.loads(table.read_text()) | {"source": "evidence/peers-h200.json"})
    return root


def of_checkout(greenfast, root):
    (root / "records").mkdir(exist_ok=True)
    result = greenfast("evidence", "verify", "--json", "--dir", root / "records", "--source", root)
    return [(f["state"], f["file"], f["subject"], f["detail"]) for f in result.json["findings"] if f["file"]]


def test_a_table_of_peers_says_what_its_samples_say(greenfast, checkout):
    assert of_checkout(greenfast, checkout) == []
    path = checkout / "docs/results/peers-h200.json"
    whole = json.loads(path.read_text())
    peer = whole["peers"][0]

    def found(change):
        changed = json.loads(json.dumps(whole))
        change(changed)
        path.write_text(json.dumps(changed))
        return of_checkout(greenfast, checkout)

    def faster(table):
        table["shapes"][0]["peers"][peer]["speedup_p50"]["value"] *= 1.01

    [(state, file, subject, detail)] = found(faster)
    assert (state, file, subject) == ("TAMPERED", "docs/results/peers-h200.json", peer) and "speedup_p50/value" in detail
    assert "p50_seconds" in found(lambda t: t["shapes"][1]["greenfast"].update(p50_seconds=1e-6))[0][3]
    assert "overall_p50" in found(lambda t: t["overall_p50"][peer].update(lo=2.0))[0][3]
    assert "green" in found(lambda t: t["shapes"][0]["greenfast"].update(green="RED: no"))[0][3]
    assert "shows" in found(lambda t: t["shapes"].pop())[0][3]
    path.write_text(json.dumps(whole))
    samples = checkout / "evidence/peers-h200.json"
    samples.write_text(samples.read_text() + "\n")
    assert "SHA-256" in of_checkout(greenfast, checkout)[0][3]


def test_policies_on_disk_are_those_that_judge(greenfast, checkout):
    strict = checkout / "policies/strict.toml"
    strict.write_text(strict.read_text() + "# laxer\n")
    (checkout / "policies/gate.toml").unlink()
    found = of_checkout(greenfast, checkout)
    assert ("STALE", "policies/strict.toml") in [f[:2] for f in found] and ("MISSING", "policies/gate.toml") in [f[:2] for f in found]


@pytest.mark.parametrize("figure", ["us", "p50_us", "tflops", "error"])
def test_what_the_harness_says_beside_its_samples_is_computed_again(greenfast, tmp_path, evidence, figure):
    record = json.loads((ROOT / "evidence" / "models-fp16-h200.json").read_text())
    record["shapes"] = record["shapes"][:1]
    engine = record["shapes"][0]["ab"]["engines"]["cudnn"]
    # An older harness wrote these beside its samples.
    p50_us = statistics.median(engine["us"])
    engine.update(p50_us=p50_us, tflops=record["shapes"][0]["flops"] / p50_us * 1e-6)
    if figure == "us":
        engine["us"][3] *= 1.5
    else:
        engine[figure] *= 1.5
    assert greenfast("evidence", "import", f"gpu={write(tmp_path / 'gpu.json', record)}").code == 0
    assert [f[:3] for f in evidence("--binary", CUBIN) if f[0] == "TAMPERED"] == [("TAMPERED", "gpu.json", "cudnn")]
