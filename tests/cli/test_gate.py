"""compare and gate as their users run them."""
import fcntl
import gzip
import json
import os
import re
import shutil
import sys

import jsonschema
import pytest

import schemas
from cli_paths import ROOT
from schemas import validate

TINY = ["--primary", "1x2x33x16", "--guards", "none", "--dtype", "fp32", "--seeds", "0", "--processes", "1",
        "--budget", "0.1"]


@pytest.mark.parametrize("name", [file.name.removesuffix(".schema.json") for file in schemas.FOLDER.glob("*")])
def test_the_schemas_are_schemas(name):
    jsonschema.Draft202012Validator.check_schema(schemas.schema_of(name))


@pytest.mark.parametrize("record", sorted((ROOT / "evidence" / "verdicts").glob("*/gate.json")), ids=lambda p: p.parent.name)
def test_the_recorded_verdicts_hold_to_the_schema(record):
    validate(json.loads(record.read_text()))


def test_a_mutant_is_rejected_and_the_record_says_why(greenfast):
    result = greenfast("gate", "--baseline", "cpu.naive", "--candidate", "mutant.drops_last_key", *TINY, "--json")
    assert result.code == 20, result.err
    record = result.json
    validate(record)
    assert record["schema"] == "greenfast.gate/1"
    assert record["verdict"]["decision"] == "REJECT"
    assert [r["code"] for r in record["verdict"]["reasons"]] == ["NUMERICS"]
    names = [f.split("/")[-1] for f in greenfast.files()]
    assert "gate.json" in names and "report.md" in names
    assert not [n for n in names if ".tmp" in n]


def test_an_a_a_is_a_no_op_and_can_be_compared_from_its_record(greenfast):
    result = greenfast("gate", "--baseline", "cpu.naive", "--candidate", "cpu.naive", *TINY)
    assert result.code == 10, result.err
    assert result.out.startswith("DEFER(NO_OP): cpu.naive against cpu.naive")
    directory = result.out.strip().splitlines()[-1].removeprefix("record: ").removesuffix("/gate.json")
    compared = greenfast("compare", directory, "--json")
    assert compared.code == 0, compared.err
    validate(compared.json)
    assert compared.json["paired"] is True and compared.json["shapes"][0]["outputs"] == "bit for bit"

    # Interrupted after GREEN: FAST alone is run again.
    work = greenfast.work / directory
    (work / "gate.json").unlink()
    (work / "steps" / "fast.0.0.json").unlink()
    resumed = greenfast("gate", "--resume", directory)
    assert resumed.code == 10, resumed.err
    assert resumed.err.count("taken from the checkpoint") == 3
    assert (work / "gate.json").exists()


@pytest.fixture
def job(greenfast):
    """A gate's directory after GREEN, as an interruption leaves it."""
    result = greenfast("gate", "--baseline", "cpu.naive", "--candidate", "cpu.naive", *TINY)
    directory = result.out.strip().splitlines()[-1].removeprefix("record: ").removesuffix("/gate.json")
    work = greenfast.work / directory
    (work / "steps" / "fast.0.0.json").unlink()
    record = (work / "gate.json").read_text()
    (work / "gate.json").unlink()
    return directory, work, record


def test_a_job_can_be_looked_at(greenfast, job):
    directory, work, record = job
    before = {file: file.read_bytes() for file in work.rglob("*") if file.is_file()}
    looked = greenfast("gate", "--status", directory)
    assert looked.code == 10, looked.err
    assert "interrupted: cpu.naive against cpu.naive, 3 steps done, 1 left" in looked.out
    assert "  done GREEN" in looked.out and "  left FAST" in looked.out
    assert f"next: greenfast gate --resume {directory}" in looked.out
    assert {file: file.read_bytes() for file in work.rglob("*") if file.is_file()} == before
    data = greenfast("gate", "--status", directory, "--json").json
    assert data["schema"] == "greenfast.gate_status/1" and (data["state"], data["done"], data["left"]) == ("interrupted", 3, 1)
    assert [step["name"] for step in data["steps"]] == ["build", "green.0", "claims", "fast.0.0"] and data["verdict"] is None
    assert "refuse" not in looked.out and data["foreign"] is False
    head = (work / "job.json").read_text()
    with open(work / "job.json", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        running = greenfast("gate", "--status", directory)
        assert running.code == 10 and running.out.startswith("running: ")
    # The next command is what it says: it goes on, and then there is a verdict.
    assert greenfast("gate", "--resume", directory).code == 10
    ended = greenfast("gate", "--status", directory)
    assert ended.code == 10 and "finished: " in ended.out and "verdict: DEFER, exit code 10" in ended.out
    rejected = json.loads((work / "gate.json").read_text())
    rejected["verdict"].update(decision="REJECT", exit_code=23)
    (work / "gate.json").write_text(json.dumps(rejected))
    assert greenfast("gate", "--status", directory).code == 23


def test_an_unfinished_job_is_reported_as_that(greenfast, job):
    directory, work, _ = job
    result = greenfast("report", directory, "--md", "-", "--bundle", "walk.tar.gz")
    assert result.code == 0, result.err
    assert "## Unfinished gate" in result.out and "There is no verdict yet." in result.out
    assert "- [x] GREEN" in result.out and "- [ ] FAST" in result.out and f"greenfast gate --resume {directory}" in result.out
    secret = json.loads((work / "job.json").read_text())["secret"]
    assert secret not in result.out and secret.encode() not in gzip.decompress((greenfast.work / "walk.tar.gz").read_bytes())


@pytest.mark.parametrize("part, changed, begun, remedy", [
    ("git_sha", "0" * 40, "by another build of greenfast (", "go on with that build"),
    ("gate_policy_sha256", "0" * 64, "under another policy", "put back the policy of then"),
    ("cpu", {"isa": "of then", "threads": 999}, "with other threads or instructions (999 of of then; here ", "GREENFAST_THREADS"),
])
def test_a_resume_that_would_be_refused_is_not_proposed(greenfast, job, part, changed, begun, remedy):
    directory, work, _ = job
    head = json.loads((work / "job.json").read_text())
    head["build"][part] = changed
    (work / "job.json").write_text(json.dumps(head))
    greenfast("gate", "--resume", directory).refused(2, begun)
    looked = greenfast("gate", "--status", directory)
    assert looked.code == 10, looked.err
    assert f"would refuse it: it was begun {begun}" in looked.out and remedy in looked.out
    assert f"--resume {directory}" not in looked.out
    anew = "greenfast gate --baseline cpu.naive --candidate cpu.naive --primary 1x2x33x16 "
    assert f"next: {anew}" in looked.out
    data = greenfast("gate", "--status", directory, "--json").json
    assert data["foreign"] is True and begun in data["refused"] and data["next"].startswith(anew)
    told = greenfast("report", directory, "--md", "-")
    assert begun.split(" (")[0] in told.out and anew in told.out and f"--resume {directory}" not in told.out


def damages(text):
    """(what it is like, what stands in the file then) of a file that was whole."""
    document = json.loads(text)
    yield "cut off", text[:len(text) // 2]
    yield "empty", ""
    yield "a list", "[]"
    for key in document:
        if key != "digest":
            yield f"without {key}", json.dumps({k: v for k, v in document.items() if k != key})
            yield f"{key} of another kind", json.dumps(document | {key: 3})


def named_everywhere(greenfast, directory, named, todo, what):
    for words in (["gate", "--status", directory], ["report", directory, "--md", "-"]):
        seen = greenfast(*words)
        assert "json.exception" not in seen.out + seen.err, what
        seen.refused(2, named, todo)
    resumed = greenfast("gate", "--resume", directory)
    assert resumed.code == 2 and "json.exception" not in resumed.err and named in resumed.err, (what, resumed.err)


@pytest.mark.parametrize("name", ["steps/build.json", "steps/green.0.json", "steps/claims.json", "steps/fast.0.0.json"])
def test_a_damaged_step_is_named_with_what_to_do(greenfast, job, name):
    directory, work, _ = job
    if "fast" in name:  # as when the end came between the last step and the record
        assert greenfast("gate", "--resume", directory).code == 10
        (work / "gate.json").unlink()
    whole = (work / name).read_text()
    for what, text in damages(whole):
        (work / name).write_text(text)
        named_everywhere(greenfast, directory, f"{directory}/{name}", "delete this file, and resuming does the step again", what)
    # What the message says to do helps.
    (work / name).unlink()
    assert greenfast("gate", "--status", directory).code == 10
    assert greenfast("gate", "--resume", directory).code == 10


def test_a_damaged_head_of_a_job_is_named_with_what_to_do(greenfast, job):
    directory, work, _ = job
    whole = (work / "job.json").read_text()
    head = json.loads(whole)
    wrong = {"cut off": whole[:len(whole) // 2], "empty": ""}
    for key in ("argv", "options", "build", "utc", "secret"):
        wrong[f"without {key}"] = json.dumps({k: v for k, v in head.items() if k != key})
        wrong[f"{key} of another kind"] = json.dumps(head | {key: 3})
    for key in head["options"]:
        wrong[f"without options.{key}"] = json.dumps(
            head | {"options": {k: v for k, v in head["options"].items() if k != key}})
        wrong[f"options.{key} of another kind"] = json.dumps(head | {"options": head["options"] | {key: None}})
    for what, text in wrong.items():
        if what in ("without options.budget_seconds", "without options.processes", "without options.peers"):
            continue  # these may be left out
        (work / "job.json").write_text(text)
        named_everywhere(greenfast, directory, f"{directory}/job.json", "start a new", what)


def test_a_damaged_record_is_named_with_what_to_do(greenfast, job):
    directory, work, record = job
    whole = json.loads(record)
    assert greenfast("gate", "--resume", directory).code == 10
    for text in (record[:900], "", json.dumps(whole | {"verdict": 3}), json.dumps(whole | {"steps": "x"}),
                 json.dumps(whole | {"verdict": whole["verdict"] | {"exit_code": None}}),
                 json.dumps(whole | {"verdict": {k: v for k, v in whole["verdict"].items() if k != "exit_code"}}),
                 json.dumps(whole | {"verdict": whole["verdict"] | {"exit_code": 0}})):
        (work / "gate.json").write_text(text)
        seen = greenfast("gate", "--status", directory)
        assert "json.exception" not in seen.err
        seen.refused(2, f"{directory}/gate.json: damaged: ", f"or delete it, and greenfast gate --resume {directory} makes it anew")
    (work / "gate.json").unlink()
    assert greenfast("gate", "--resume", directory).code == 10
    assert greenfast("gate", "--status", directory).code == 10


def test_what_is_no_job_has_no_status(greenfast, job):
    directory, work, _ = job
    greenfast("gate", "--status", "nowhere").refused(2, "nowhere", "no such directory")
    greenfast("gate", "--status", directory, "--resume", directory).refused(2, "--status", "--resume")
    (work / "steps" / "build.json").write_text('{"shapes": [3]}')
    greenfast("gate", "--status", directory).refused(2, "steps/build.json", "delete this file")
    (work / "job.json").write_text('{"schema": "greenfast.tune/1"}')
    greenfast("gate", "--status", directory).refused(2, "no gate's")
    (work / "job.json").unlink()
    greenfast("gate", "--status", directory).refused(2, "job.json is missing")


def test_the_ladder_runs_what_is_built_and_skips_the_rest_with_reasons(greenfast):
    result = greenfast("gate", "--ladder", *TINY, "--json")
    steps = result.json["steps"]
    assert steps and result.code == result.json["exit_code"]
    for step in steps:
        assert step["verdict"] in ("PROMOTE", "DEFER", "REJECT", "SKIPPED")
        if step["verdict"] == "SKIPPED":
            assert "not built" in step["reason"] or "device" in step["reason"], step


def test_wrong_arguments_are_refused_and_leave_nothing(greenfast):
    for arguments, words in [
        (["--baseline", "cpu.naive"], ["--candidate is missing"]),
        (["--baseline", "cpu.naive", "--candidate", "cpu.nonsense"], ["cpu.nonsense"]),
        (["--baseline", "cpu.naive", "--candidate", "cpu.flash", "--primary", "elsewhere"], ["elsewhere"]),
        (["--baseline", "cpu.naive", "--candidate", "cpu.flash", "--seeds", "1,x"], ["--seeds", "'x'"]),
        (["--baseline", "cpu.naive", "--candidate", "cpu.flash", "--seeds", "0,,1"], ["--seeds 0,,1", "''"]),
        (["--baseline", "cpu.naive", "--candidate", "cpu.flash", "--processes", "0"], ["--processes"]),
        (["--baseline", "cpu.naive", "--candidate", "cpu.flash", "--gate-policy", "none.toml"], ["none.toml"]),
        (["--resume", "nowhere"], ["nowhere"]),
    ]:
        greenfast("gate", *arguments).refused(2, *words)
        assert greenfast.files() == []


SIXTY = ["--primary", "1x2x256x64", "--guards", "none", "--dtype", "fp32", "--seeds", "0", "--processes", "2", "--budget", "1"]


def gate_policy(tmp_path, noise_floor):
    file = tmp_path / "gate.toml"
    text = (ROOT / "policies" / "gate.toml").read_text()
    assert "noise_floor = 0.05" in text
    file.write_text(text.replace("noise_floor = 0.05", f"noise_floor = {noise_floor}"))
    return file


def test_a_regression_is_told_the_trees_levels_and_what_next(greenfast, tmp_path):
    result = greenfast("gate", "--baseline", "cpu.flash", "--candidate", "cpu.naive", *SIXTY, "--json",
                       "--gate-policy", gate_policy(tmp_path, 1e6))
    verdict = result.json["verdict"]
    validate(result.json)
    codes = {reason["code"] for reason in verdict["reasons"]}
    assert codes & {"REGRESSION", "INCONCLUSIVE", "NOISY"}, codes  # whatever else this machine does
    assert [level["name"] for level in verdict["levels"]] == ["promote"] and not verdict["levels"][0]["reached"]
    assert any("short of level" in line for line in verdict["next"]), verdict["next"]
    [report] = [file for file in greenfast.files() if file.endswith("report.md")]
    assert re.search(r"FAST took [\d.]+ s, of which [\d.]+ s \(\d+%\) inside the clock", (greenfast.work / report).read_text())
    assert "next: profile both sides" in (greenfast.work / report).read_text()


def test_a_verdict_that_is_no_promotion_reaches_no_level_and_is_advised(greenfast, tmp_path):
    """The gate asks for more than the tree's level, which the candidate's lower bound is above: no level is reached by that."""
    result = greenfast("gate", "--baseline", "cpu.naive", "--candidate", "cpu.flash", "--gate", "900", *SIXTY, "--json",
                       "--gate-policy", gate_policy(tmp_path, 1e6))
    verdict = result.json["verdict"]
    validate(result.json)
    assert result.code == 10, result.err
    assert verdict["level"] == "" and not any(level["reached"] for level in verdict["levels"])
    assert verdict["next"] and not any("reached" in line for line in verdict["next"])
    if {reason["code"] for reason in verdict["reasons"]} == {"BELOW_GATE"}:
        assert any("gate asks for 900.00x" in line for line in verdict["next"]), verdict["next"]


def test_a_gate_policys_rung_of_nobody_is_refused_with_its_line(greenfast, tmp_path):
    file = gate_policy(tmp_path, 0.05)
    text = file.read_text()
    file.write_text(f'{text}\n[[rung]]\ncandidate = "cuda.stage_c.stag2"\n')
    line = text.count("\n") + 3
    greenfast("gate", "--baseline", "cpu.naive", "--candidate", "cpu.flash", "--gate-policy", file).refused(
        2, f"line {line}", "cuda.stage_c.stag2")


def test_an_a_a_wider_than_the_policy_is_noisy(greenfast, tmp_path):
    result = greenfast("gate", "--baseline", "cpu.naive", "--candidate", "cpu.flash", *SIXTY, "--json",
                       "--gate-policy", gate_policy(tmp_path, 1e-12))
    assert result.code == 10, result.err
    verdict = result.json["verdict"]
    codes = {reason["code"] for reason in verdict["reasons"]}
    assert verdict["decision"] == "DEFER" and codes <= {"NOISY", "INCONCLUSIVE"}, codes
    [row] = [row for row in result.json["checklist"] if row["gate"] == "A/A noise floor"]
    assert row["status"] == "NOISY" and "within" in row["target"]


@pytest.mark.parametrize("row, words", [
    ("[[limit]]\nvariant = 'cuda.v9'\nregisters = 9\nreason = 'x'\n", ["variant 'cuda.v9'", "no CUDA variant"]),
    ("[[waiver]]\nname = 'w'\nvariant = 'cuda.v2c.v8'\nregisters = 9\n", ["waiver: needs a reason"]),
    ("[[waiver]]\nvariant = 'cuda.v2c.v8'\nregisters = 9\nreason = 'x'\n", ["a waiver needs a name"]),
    ("[[limit]]\nvariant = 'cuda.v2c.v8'\nregister = 9\nreason = 'x'\n", ["register: unknown key"]),
])
def test_a_policys_limits_that_bind_nobody_are_refused_with_the_line(greenfast, tmp_path, row, words):
    policy = tmp_path / "mine.toml"
    text = (ROOT / "policies" / "legacy.v2c.toml").read_text()
    policy.write_text(text + row)
    line = f"line {len(text.splitlines()) + 1}"
    greenfast("gate", "--baseline", "cpu.naive", "--candidate", "cpu.flash", "--policy", policy).refused(2, "mine.toml", line, *words)
    assert greenfast.files() == []


@pytest.mark.parametrize("option, name, wrong, words", [
    ("--gate-policy", "gate.toml", ("processes = 3", "proceses = 3"), "measure.proceses: unknown key; known: processes, "),
    ("--gate-policy", "gate.toml", ("halfwidth = 0.01", "halfwidth = 'x'"), "measure.halfwidth: expected a number above 0"),
    ("--policy", "strict.toml", ("redzones = true ", "redzone = true "), "unknown key integrity.redzone; known: "),
    ("--policy", "strict.toml", ("redzones = true ", "redzones = 3 "), "integrity.redzones must be true or false"),
])
def test_a_wrong_key_of_a_policy_is_refused_with_file_and_line(greenfast, tmp_path, option, name, wrong, words):
    text = (ROOT / "policies" / name).read_text()
    assert text.count("\n" + wrong[0]) == 1
    line = text[:text.index("\n" + wrong[0])].count("\n") + 2
    (tmp_path / "mine.toml").write_text(text.replace("\n" + wrong[0], "\n" + wrong[1]))
    greenfast("gate", "--baseline", "cpu.naive", "--candidate", "cpu.flash", option, tmp_path / "mine.toml").refused(
        2, f"mine.toml: line {line}: {words}")
    assert greenfast.files() == []


def test_a_wrong_key_beside_a_base_is_refused_with_its_own_line(greenfast, tmp_path):
    (tmp_path / "mine.toml").write_text("base = 'strict'\n\n[fast]\ngait = 1.2\n")
    greenfast("gate", "--baseline", "cpu.naive", "--candidate", "cpu.flash", "--policy", tmp_path / "mine.toml").refused(
        2, "mine.toml: line 4: unknown key fast.gait")


def test_recordings_that_cannot_be_compared_are_refused_by_name(greenfast, tmp_path):
    good = {"schema": "greenfast.samples/1", "shapes": [{
        "name": "mission", "problem": "1x8x512x64 fp32", "device": {"kind": "cpu", "name": "here"}, "timer": "t",
        "tick_seconds": 1e-8, "cache": "cold", "sides": [{"id": "cpu.flash", "batch": 1}, {"id": "peer:x", "batch": 1}],
        "blocks": [{"order": [0, 1, 1, 0], "seconds": [1e-3, 2e-3, 2.001e-3, 1.001e-3]}] * 8}]}
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    validate(good)
    first.write_text(json.dumps(good))
    # A peer's recording holds both sides, and either may come first.
    compared = greenfast("compare", "peer:x", "cpu.flash", "--samples", first, "--json")
    assert compared.code == 0, compared.err
    assert abs(compared.json["shapes"][0]["ratio_p50"]["value"] - 2) < 0.01

    hostile = json.loads(json.dumps(good).replace("peer:x", "peer:\\u001b]0;x\\u0007").replace("mission", "\\u001b[2Jmission"))
    second.write_text(json.dumps(hostile | {"notes": ["\x1b[1;1HPROMOTE"], "missing": {"\x1b[0m": "\x1b[2J"}}))
    for words in (["compare", second], ["compare", second, "--md"], ["report", second]):
        shown = greenfast(*words)
        assert "?[2Jmission" in shown.out or words[0] == "report", (shown.out, shown.err)
        assert "\x1b" not in shown.out + shown.err and "\a" not in shown.out + shown.err
    second.write_text("[" * 300000 + "]" * 300000)
    greenfast("compare", second).refused(2, "second.json")
    second.unlink()

    def refused(change, *words):
        other = json.loads(json.dumps(good))
        change(other)
        second.write_text(json.dumps(other))
        greenfast("compare", first, second, "--sides", "cpu.flash,peer:x").refused(2, "second.json", *words)

    refused(lambda d: d.update(schema="greenfast.samples/2"), "greenfast.samples/2")
    refused(lambda d: d["shapes"][0]["device"].update(name="elsewhere"), "elsewhere")
    refused(lambda d: d["shapes"][0].update(problem="1x8x512x64 bf16"), "bf16")
    refused(lambda d: d["shapes"][0]["blocks"][3]["seconds"].pop(), "/shapes/0/blocks/3")
    second.write_text(json.dumps(good)[:200])
    greenfast("compare", first, second).refused(2, "second.json", "truncated")
    greenfast("compare", first, tmp_path / "missing.json").refused(2, "missing.json")


def test_a_peer_that_cannot_be_had_is_named_at_once(greenfast):
    peer = ["cpu.flash", "peer:torch-cpu", "--shapes", "1x2x33x16"]
    nowhere = {"GREENFAST_PYTHON": "/nowhere/python3"}
    greenfast("compare", *peer, env=nowhere).refused(3, "/nowhere/python3", "GREENFAST_PYTHON")
    # This checkout's package is found, the library of this build is loaded, and torch is hidden.
    (greenfast.work / "torch.py").write_text("raise ImportError('no torch here')")
    hidden = {"GREENFAST_PYTHON": sys.executable, "PYTHONPATH": str(greenfast.work)}
    greenfast("compare", *peer, env=hidden).refused(3, "torch-cpu", "no torch here")
    greenfast("compare", "cpu.flash", "peer:torch-cudnn").refused(2, "peer:torch-cudnn on cuda", "peer:torch-cpu (cpu)")
    greenfast("compare", "cpu.flash", "peer:nobody").refused(2, "peer:nobody", "peer:torch-cpu")
    greenfast("compare", "mutant.gain", "peer:torch-cpu").refused(2, "mutant.gain")
    greenfast("compare", *peer, "--window", "8,0").refused(2, "--causal=top-left")
    greenfast("gate", "--baseline", "cpu.naive", "--candidate", "cpu.flash", "--peers", "peer:nobody").refused(2, "peer:nobody")


@pytest.mark.skipif("GREENFAST_PYTHON" not in os.environ, reason="GREENFAST_PYTHON names no Python with torch")
def test_a_peer_is_timed_beside_a_variant(greenfast):
    peer = {"GREENFAST_PYTHON": os.environ["GREENFAST_PYTHON"]}
    result = greenfast("compare", "cpu.flash", "peer:torch-cpu", "--shapes", "1x2x33x16,1x4/2x64/96x32", "--iters", "20",
                       "--budget", "1", "--json", env=peer)
    assert result.code == 0, result.err
    validate(result.json)
    assert result.json["paired"] is True and "threads" in result.json["notes"][0]
    for shape in result.json["shapes"]:
        assert shape["a"]["green"] == shape["b"]["green"] == "GREEN"
        assert 0 < shape["b"]["errors"]["rel_fro"] < 1e-5
        assert "ulp" in shape["outputs"] or shape["outputs"] == "bit for bit"

    result = greenfast("gate", "--baseline", "cpu.naive", "--candidate", "cpu.flash", *TINY, "--peers", "peer:torch-cpu",
                       "--json", env=peer)
    validate(result.json)
    assert result.json["peers"]["best"] == "peer:torch-cpu"
    assert "against the best peer, peer:torch-cpu" in result.json["headline"][2]


def test_a_resumed_job_goes_on_as_it_was_begun(greenfast):
    result = greenfast("gate", "--ladder", *TINY, "--json")
    directory = next(f for f in greenfast.files() if f.endswith("-ladder"))
    # A kill between two rungs: what is not begun yet is run by the options of the first call.
    for step in result.json["steps"]:
        shutil.rmtree(greenfast.work / directory / step["candidate"], ignore_errors=True)
    again = greenfast("gate", "--ladder", "--resume", directory, "--json")
    assert [s["candidate"] for s in again.json["steps"]] == [s["candidate"] for s in result.json["steps"]]
    for record in (greenfast.work / directory).glob("*/gate.json"):
        assert json.loads(record.read_text())["options"]["primary"] == TINY[1]
    greenfast("gate", "--ladder", "--resume", directory, "--budget", "5").refused(2, "--resume", "as it was begun")
    greenfast("gate", "--ladder", "--resume", "nowhere").refused(2, "nowhere")
    assert not (greenfast.work / "nowhere").exists()


def test_a_variant_that_refuses_the_primary_shape_ends_with_its_reason(greenfast):
    result = greenfast("gate", "--baseline", "cpu.naive", "--candidate", "mutant.first_head_scale", *TINY)
    assert result.code == 2
    assert "mutant.first_head_scale refuses the primary shape" in result.err and "scales per head" in result.err
    assert greenfast.files() == []
