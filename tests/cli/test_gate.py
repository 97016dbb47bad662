"""compare and gate as their users run them."""
import json

import jsonschema
import pytest

from cli_paths import ROOT

TINY = ["--primary", "1x2x33x16", "--guards", "none", "--dtype", "fp32", "--seeds", "0", "--processes", "1",
        "--budget", "0.1"]


def validate(record):
    name = record["schema"].removeprefix("greenfast.").removesuffix("/1")
    schema = json.loads((ROOT / "docs" / "schema" / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(record)
    if "samples" in record:
        validate(record["samples"])


@pytest.mark.parametrize("name", ["samples", "gate", "compare"])
def test_the_schemas_are_schemas(name):
    jsonschema.Draft202012Validator.check_schema(
        json.loads((ROOT / "docs" / "schema" / f"{name}.schema.json").read_text()))


@pytest.mark.parametrize("record", sorted((ROOT / "docs" / "verdicts").glob("*/gate.json")), ids=lambda p: p.parent.name)
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
    assert resumed.err.count("taken from the checkpoint") == 2
    assert (work / "gate.json").exists()


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
        (["--baseline", "cpu.naive", "--candidate", "cpu.flash", "--processes", "0"], ["--processes"]),
        (["--baseline", "cpu.naive", "--candidate", "cpu.flash", "--gate-policy", "none.toml"], ["none.toml"]),
        (["--resume", "nowhere"], ["nowhere"]),
    ]:
        greenfast("gate", *arguments).refused(2, *words)
        assert greenfast.files() == []


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
    greenfast("compare", "cpu.naive", "peer:torch-cpu").refused(3, "--samples")
