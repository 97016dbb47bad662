"""Problems with what serving asks for, from the command line to the record."""
import json
import subprocess

import pytest

from cli_paths import GREENFAST
from schemas import validate


def greenfast(*arguments):
    return subprocess.run([GREENFAST, *map(str, arguments)], text=True, capture_output=True, check=False, timeout=300)


def record_of(*arguments):
    result = greenfast(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout)
    validate(record, "run")
    return record


def test_accuracy_is_a_word_of_the_problem():
    behind = record_of("check", "--shapes", "1x2x100x64 accuracy=fast", "--dtype", "e4m3", "--variants", "cpu.flash")
    option = record_of("check", "--shapes", "1x2x100x64", "--accuracy", "fast", "--dtype", "e4m3", "--variants", "cpu.flash")
    assert behind["problems"][0]["accuracy"] == option["problems"][0]["accuracy"] == "fast"
    exact = record_of("check", "--shapes", "1x2x100x64", "--dtype", "e4m3", "--variants", "cpu.flash")
    assert "accuracy" not in exact["problems"][0]
    # The limits are those of a kernel with linear weights, which has the larger error.
    def limit(record):
        return next(case["limits"]["rel_fro"] for case in record["cases"] if case["distribution"] == "normal")
    assert limit(option) > 1.1 * limit(exact)
    refused = greenfast("check", "--shapes", "1x2x100x64", "--accuracy", "fast", "--dtype", "fp16")
    assert refused.returncode == 2 and "only e4m3" in refused.stderr
    why = greenfast("list", "--why", "1x2x100x64 accuracy=fast", "--dtype", "e4m3", "--model", "h200").stdout
    assert "accuracy=fast" in why or "fast accuracy" in why


def test_attributes_and_options_are_the_same_problem():
    behind = record_of("check", "--shapes", "3x4/2x5/40x32/16 pages=8 used-kv sinks alibi lengths=full", "--dtype", "fp32")
    options = record_of("check", "--shapes", "3x4/2x5/40x32/16", "--dtype", "fp32", "--pages", 8, "--used-kv", "--sinks",
                        "--alibi", "--lengths", "full")
    first, second = behind["problems"][0], options["problems"][0]
    assert {**first, "name": ""} == {**second, "name": ""}
    assert first["head_dim_v"] == 16 and first["pages"]["size"] == 8 and first["sinks"] and first["lengths"] == "full"
    assert first["sequences"]["used_kv"] and not first["sequences"]["packed_q"] and first["alibi"] == "per_head"
    digests = [[case["output_sha256"] for case in record["cases"]] for record in (behind, options)]
    assert digests[0] == digests[1]


def test_a_dense_problem_is_tried_with_serving_unasked_and_says_nothing_of_it():
    record = record_of("check", "--shapes", "1x2x16x32")
    assert not {"sequences", "pages", "sinks", "lengths", "head_dim_v"} & record["problems"][0].keys()
    cases = [case for case in record["cases"] if case["distribution"] == "serving"]
    assert cases and all(case["verdict"] in ("GREEN", "SKIPPED") for case in cases)


def test_a_suite_of_sequences_is_timed():
    record = record_of("bench", "--shapes", "4x4/2x1/300x64 pages=16 used-kv lengths=log-uniform:16", "--iters", 6,
                       "--dtype", "fp32")
    dense = 2 * 2 * 4 * 4 * 300 * 64
    assert record["problems"][0]["flop"] == dense
    assert 0 < record["samples"]["shapes"][0]["flops"] < dense, "counted with the lengths that were drawn"


@pytest.mark.parametrize("arguments, words", [
    (["--shapes", "1x2x16x64 pages"], ["pages", "needs a value"]),
    (["--shapes", "1x2x16x64 page=3"], ["page=3", "possible are"]),
    (["--shapes", "1x2x16x64 packed pages=16"], ["pages", "packed"]),
    (["--shapes", "1x2x16x64", "--mask", "bool:kq"], ["mask", "bool"]),
    (["--inputs", "/nowhere.safetensors", "--sinks"], ["--sinks", "--inputs"])])
def test_bad_attributes_are_named(arguments, words):
    result = greenfast("check", *arguments)
    assert result.returncode == 2, result.stderr
    for word in words:
        assert word in result.stderr
