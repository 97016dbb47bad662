"""fuzz_library: its record, what a seed means, exit codes."""
import json
import subprocess

import pytest

from cli_paths import GREENFAST, ROOT
from schemas import validate

FUZZ = GREENFAST.parent / "fuzz_library"


def fuzz(*arguments):
    return subprocess.run([FUZZ, *map(str, arguments)], text=True, capture_output=True, check=False, timeout=300)


def record_of(*arguments):
    result = fuzz(*arguments, "--json", "-")
    record = json.loads(result.stdout)
    validate(record, "fuzz")
    assert record["exit_code"] == result.returncode, result.stderr
    return record


@pytest.mark.parametrize("more", [[], ["--property", "batch-invariant"], ["--dtypes", "e4m3", "--variants", "cpu.naive"]])
def test_a_record_follows_the_published_schema_and_a_seed_repeats_it(more):
    first, second = (record_of("--count", 40, "--seed", 5, "--minimise", 0, *more) for _ in range(2))
    assert first["problems"] == 40
    assert first["distributions"] == second["distributions"] and first["failures"] == second["failures"]
    assert sum(row["checks"] for row in first["variants"]) >= 40
    assert first["device"]["kind"] == "cpu" and first["device"]["isa"]


def test_a_case_and_its_text_are_the_same_problem():
    shown = fuzz("--seed", 5, "--case", 17).stdout.splitlines()
    text = shown[1].removeprefix("--problem '").removesuffix("'")
    assert fuzz("--problem", text).stdout.splitlines()[:2] == shown[:2]


@pytest.mark.parametrize("arguments, words", [
    (["--device", "tpu"], ["cpu", "cuda", "tpu"]),
    (["--variants", "cpu.flsh"], ["cpu.flsh", "greenfast list"]),
    (["--problem", "sq=1,nonsense=3"], ["nonsense"]),
    (["--problem", "sq=-1"], ["seq_q"]),
    (["--count", "-3"], ["--count", "-3"]),
    (["--surprise"], ["--surprise", "--help"]),
])
def test_wrong_arguments_are_named(arguments, words):
    result = fuzz(*arguments)
    assert result.returncode == 2 and result.stdout == "" and result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


def serving(*arguments):
    return subprocess.run([FUZZ.parent / "fuzz_serving", *map(str, arguments)], text=True, capture_output=True,
                          check=False, timeout=300)


def test_serving_problems_find_nothing_in_the_library_and_a_planted_fault(tmp_path):
    record = tmp_path / "record.json"
    clean = serving("--count", 25, "--seed", 3, "--json", record)
    assert clean.returncode == 0 and "25 problems" in clean.stdout and " 0 findings" in clean.stdout
    kept = json.loads(record.read_text())
    validate(kept)
    assert (kept["problems"], kept["exit_code"], kept["findings"]) == (25, 0, []) and kept["variants"][0]["checked"] > 10
    wrong = serving("--count", 25, "--seed", 3, "--variants", "mutant.sink_forgotten", "--json", record)
    assert wrong.returncode == 20 and "sinks" in wrong.stdout
    assert "greenfast check --variants mutant.sink_forgotten --shapes '" in wrong.stdout
    kept = json.loads(record.read_text())
    validate(kept)
    assert kept["exit_code"] == 20 and all("sinks" in finding["options"] for finding in kept["findings"])
    assert kept["variants"][0]["wrong"] == len(kept["findings"]) > 0
    assert serving("--count", 1, "--json", tmp_path / "no" / "such" / "record.json").returncode == 4


@pytest.mark.parametrize("arguments, word", [
    (["--device", "tpu"], "tpu"), (["--count", "-3"], "-3"), (["--surprise", "1"], "--surprise"), (["--count"], "--count"),
    (["--property", "speed"], "batch-invariant")])
def test_wrong_arguments_of_serving_are_named(arguments, word):
    result = serving(*arguments)
    assert result.returncode == 2 and result.stdout == "" and word in result.stderr


def test_the_front_runs_the_build_it_is_given():
    front = ROOT / "tools" / "fuzz_library"
    result = subprocess.run([front, "--help"], env={"PATH": "/usr/bin:/bin", "GREENFAST_BUILD": str(FUZZ.parent.parent)},
                            text=True, capture_output=True, check=False, timeout=60)
    assert result.returncode == 0 and "--property" in result.stdout
    result = subprocess.run([front, "serving", "--help"], check=False, timeout=60, text=True, capture_output=True,
                            env={"PATH": "/usr/bin:/bin", "GREENFAST_BUILD": str(FUZZ.parent.parent)})
    assert result.returncode == 0 and "fuzz_serving" in result.stdout
    missing = subprocess.run([front], env={"PATH": "/usr/bin:/bin", "GREENFAST_BUILD": "/nowhere"}, text=True,
                             capture_output=True, check=False, timeout=60)
    assert missing.returncode == 3 and "/nowhere/bin/fuzz_library" in missing.stderr
