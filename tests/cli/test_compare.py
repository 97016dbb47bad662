"""compare --best: one side of a recording beside the best of several others."""
import json

import pytest

from cli_paths import ROOT
from schemas import validate

PEERS = ROOT / "evidence" / "peers-h200.json"


def test_the_best_of_several_and_the_mean_over_the_shapes(greenfast):
    record = greenfast("compare", PEERS, "--best", "--json").json
    validate(record)
    for one in record["beside"]:
        validate(one)
    assert record["ours"] == "greenfast" and [one["a"] for one in record["beside"]] == ["peer:torch-cudnn", "peer:fa3", "peer:fa4"]
    ratios = {(one["a"], shape["name"]): shape for one in record["beside"] for shape in one["shapes"]}
    for shape in record["shapes"]:
        beside = ratios[shape["best"], shape["name"]]
        assert (shape["ratio_p50"], shape["ratio_p90"]) == (beside["ratio_p50"], beside["ratio_p90"])
        assert beside["a"]["p50_seconds"] == min(ratios[one["a"], shape["name"]]["a"]["p50_seconds"] for one in record["beside"])
    of = record["standings"]["all"]
    assert of["shapes"] == len(record["shapes"]) == 34
    assert of["mean_p50"]["lo"] < of["mean_p50"]["value"] < of["mean_p50"]["hi"]
    assert {row["variant"] for row in record["standings"]["variants"]} == {"cuda.sm90.small", "cuda.sm90.prefill"}
    # The same sides by name, and those of another way.
    asked = greenfast("compare", PEERS, "--best", "--sides", "peer:torch-cudnn,peer:fa3,peer:fa4,greenfast", "--json").json
    assert asked == record
    behind = greenfast("compare", PEERS, "--best", "--way", "gemm:cold", "--json").json
    validate(behind)
    assert behind["beside"][0]["way"] == "gemm:cold" and behind["standings"]["all"]["mean_p50"] != of["mean_p50"]


def test_it_is_told_to_people_as_well(greenfast):
    result = greenfast("compare", PEERS, "--best")
    device = json.loads(PEERS.read_text())["device"]
    assert result.code == 0 and f"against the best of peer:torch-cudnn, peer:fa3, peer:fa4 on {device}" in result.out
    assert "geometric mean p50" in result.out and "also timed elementwise:hot" in result.out
    result = greenfast("compare", PEERS, "--best", "--md")
    assert "| 1x8x512x64 | peer:torch-cudnn | " in result.out


@pytest.mark.parametrize("arguments, words", [
    (["cpu.naive", "cpu.flash", "--best"], ["--best", "one recording"]),
    ([PEERS, PEERS, "--best"], ["--best", "one recording"]),
    ([PEERS, "--sides", "peer:fa3,peer:fa4,greenfast"], ["--sides peer:fa3,peer:fa4,greenfast", "--best"]),
    ([PEERS, "--best", "--sides", "greenfast"], ["--sides greenfast", "two ids"]),
    ([PEERS, "--best", "--sides", "peer:fa5,greenfast"], ["no side peer:fa5"]),
    ([ROOT / "evidence" / "cpu.json", "--best"], ["--best", "--sides A,B"]),
])
def test_what_has_no_best_is_refused(greenfast, arguments, words):
    greenfast("compare", *arguments).refused(2, *words)


def test_errors_that_a_recording_holds_are_judged_here(greenfast, tmp_path):
    """By the policy's caps, and not by what the recorder says of itself; a recorder that says nothing is judged as well."""
    record = json.loads(PEERS.read_text())
    record["shapes"] = record["shapes"][:1]
    for side in record["shapes"][0]["sides"]:
        side.pop("verdict", None)
    names = [side["id"] for side in record["shapes"][0]["sides"]]
    fastest = "peer:torch-cudnn"
    path = tmp_path / "samples.json"

    def judged():
        path.write_text(json.dumps(record))
        return greenfast("compare", path, "--best", "--json").json

    assert judged()["shapes"][0]["best"] == fastest
    record["shapes"][0]["sides"][names.index(fastest)]["errors"]["rel_fro"] = 5e-3
    wrong = judged()
    assert wrong["shapes"][0]["best"] != fastest and wrong["exit_code"] == 0
    assert wrong["beside"][0]["shapes"][0]["a"]["green"] == "RED: rel_fro 0.005 is above 0.004"
    record["shapes"][0]["sides"][names.index("greenfast")]["errors"]["rel_fro"] = 5e-3
    assert greenfast("compare", path, "--best").code in (0, 20) and judged()["exit_code"] == 20


def test_a_shape_without_rows_or_keys_is_left_out_by_name(greenfast):
    shapes = ["1x2x0/64x16", "1x2x64/0x16", "0x2x64x16"]
    run = greenfast("compare", "cpu.naive", "cpu.flash", "--shapes", ",".join(shapes), "--dtype", "fp32", "--json")
    assert run.code == 3, "nothing was compared"
    record = run.json
    validate(record)
    assert record["shapes"] == [] and [(s["shape"], s["reason"]) for s in record["skipped"]] == [(shape, "nothing") for shape in shapes]
    text = greenfast("compare", "cpu.naive", "cpu.flash", "--shapes", ",".join(shapes), "--dtype", "fp32")
    assert text.out.count("has no rows or no keys") == 3 and "bit for bit" not in text.out
