"""tune as its users run it: on a CPU plugin, live, killed and resumed, and simulated from a cache."""
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from cli_paths import GREENFAST, ROOT
from schemas import validate

EXAMPLES = ROOT / "examples" / "plugins"
SEARCHES = ROOT / "tests" / "cli" / "search"

NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="no host compiler")

# A space whose order no noise can change: WORK repeats the whole calculation. 3 is wrong, 5 crashes, 7 does not compile.
SOURCE = """
// tune: WORK = 1 3 *4 5 7 16
// tune: UNUSED = *0 1
// tune-if: UNUSED == 0 || WORK == 4
#include "attention.h"
#if WORK == 7
#error "seven cannot be built"
#endif
static gf_status launch(const gf_plugin_call* call) {
  for (int i = 0; i < WORK; ++i) example_attend(call);
  if (WORK == 3) *(float*)call->tensors->o += 1;
  if (WORK == 5) *(volatile int*)0 = 0;
  return GF_OK;
}
EXAMPLE_PLUGIN("work", "repeats itself", launch)
"""
TINY = ["--primary", "1x2x33x16", "--held-out", "none", "--dtype", "fp32", "--strategy", "exhaustive", "--jobs", "2"]


@pytest.fixture
def source(greenfast):
    greenfast.work.mkdir()
    shutil.copy(EXAMPLES / "attention.h", greenfast.work)
    (greenfast.work / "work.c").write_text(SOURCE)
    return "work.c"


@needs_compiler
def test_it_finds_the_fastest_that_is_right_and_says_what_became_of_the_others(greenfast, source):
    result = greenfast("tune", source, *TINY, "--json")
    assert result.code == 0, result.err
    found = result.json
    validate(found)
    assert found["measured"]["device"]["name"] and found["identity"]["name"] == "work"
    assert found["hand_set"] == "WORK=4 UNUSED=0"
    assert found["winner"] == "WORK=1 UNUSED=0"
    assert found["confirmed"]["shapes"][0]["speedup"]["lo"] > 1
    rejected = {row["key"]: row for row in found["rejected"]}
    assert rejected["WORK=3 UNUSED=0"]["stage"] == "case" and rejected["WORK=3 UNUSED=0"]["fault"] == "numerics"
    assert rejected["WORK=5 UNUSED=0"]["fault"] == "launch"
    assert rejected["WORK=5 UNUSED=0"]["stage"] == "case" and "SIGSEGV" in rejected["WORK=5 UNUSED=0"]["reason"]
    assert rejected["WORK=7 UNUSED=0"]["stage"] == "compile"
    assert "seven cannot be built" in rejected["WORK=7 UNUSED=0"]["reason"]

    # The same search from its cache, without compiler and device.
    cache = greenfast.work / "results" / "tune-work" / "cache.jsonl"
    lines = cache.read_text()
    simulated = greenfast("tune", "--simulate", cache, "--json", env={"PATH": ""})
    assert simulated.code == 0 and simulated.json == found
    # And again, live: nothing is left to do.
    assert greenfast("tune", source, *TINY, "--json").json == found
    assert cache.read_text() == lines


@needs_compiler
@pytest.mark.parametrize("fault, code", [
    ("*(float*)call->tensors->o += 1;", 20),
    ("static int calls; if (++calls > 40) *(float*)call->tensors->o += 1;", 21),
    ("*(volatile int*)0 = 0;", 24),
])
@pytest.mark.parametrize("command", ["tune", "evolve"])
def test_a_search_from_what_is_wrong_ends_with_its_fault(greenfast, source, command, fault, code):
    text = SOURCE.replace("  return GF_OK;", "  if (WORK == 4) { " + fault + " }\n  return GF_OK;")
    (greenfast.work / source).write_text("#define WORK 4\n" + text if command == "evolve" else text)
    more = [] if command == "tune" else ["--proposer", f"{sys.executable} {ROOT / 'examples' / 'evolve' / 'proposer.py'}", "--candidates", "2"]
    arguments = [a for a in TINY if command == "tune" or a not in ("--strategy", "exhaustive")]
    for again in range(2):  # from the cache, too
        result = greenfast(command, source, *arguments, *more)
        assert result.code == code, result.err
        assert "fails: " in result.err


@needs_compiler
def test_a_search_that_was_killed_goes_on_to_the_same_winner(greenfast, source):
    cache = greenfast.work / "results" / "tune-work" / "cache.jsonl"
    command = [GREENFAST, "tune", source, *TINY]
    running = subprocess.Popen(command, cwd=greenfast.work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while running.poll() is None and time.monotonic() < deadline:
        if cache.exists() and '"time0"' in cache.read_text():
            break
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    with cache.open("a") as file:
        file.write('{"key":"WORK=1 UNUSED=0","sta')  # what a kill in the middle of a line leaves
    before = cache.read_text().splitlines()[:-1]
    result = greenfast("tune", source, *TINY, "--json")
    assert result.code in (0, 10), result.err
    assert result.json["winner"] == "WORK=1 UNUSED=0"
    assert cache.read_text().splitlines()[:len(before)] == before


def made_up_cache(path, strategy, candidates):
    """Every result of a space of 24, best at A=4 B=2 by far, and better the nearer to that; B=3 is wrong."""
    parameters = ["A = *1 2 3 4 5 6", "B = *0 1 2 3"]
    lines = [{"schema": "greenfast.search/1", "identity": {
        "parameters": parameters, "conditions": ["A != 6 || B != 1"],
        "search": {"strategy": strategy, "candidates": candidates, "seed": 7, "finalists": 2}}}]
    for a in range(1, 7):
        for b in range(4):
            key = f"A={a} B={b}"
            value = 2.0 - 0.1 * abs(a - 4) - 0.2 * abs(b - 2)
            speedup = {"shape": "s", "problem": "p", "p50_seconds": 1e-3, "samples": 9,
                       "speedup": {"value": value, "lo": value - 0.01, "hi": value + 0.01}}
            lines.append({"key": key, "stage": "compile", "result": {"ok": True, "library": "x"}})
            lines.append({"key": key, "stage": "case", "result": {"ok": b != 3, "reason": "wrong"}})
            lines.append({"key": key, "stage": "green", "result": {"ok": True, "cases": 14}})
            for stage in ("time0", "time1", "time2", "time3", "final", "confirm"):
                lines.append({"key": key, "stage": stage, "result": {"ok": True, "shapes": [speedup]}})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("strategy, candidates", [("exhaustive", 1), ("random", 22), ("halving", 22), ("evolution", 20)])
def test_every_strategy_finds_the_best(greenfast, tmp_path, strategy, candidates):
    made_up_cache(tmp_path / "cache.jsonl", strategy, candidates)
    result = greenfast("tune", "--simulate", tmp_path / "cache.jsonl", "--json")
    assert result.code == 0, result.err
    found = result.json
    assert found["winner"] == "A=4 B=2" and found["strategy"] == strategy
    assert found["space"] == 23 and found["tried"] <= 23
    assert all(" B=3" in row["key"] and row["stage"] == "case" for row in found["rejected"])


def test_a_simulated_search_misses_nothing_silently(greenfast, tmp_path):
    made_up_cache(tmp_path / "cache.jsonl", "exhaustive", 1)
    lines = (tmp_path / "cache.jsonl").read_text().splitlines()
    kept = [line for line in lines if '"A=3 B=1"' not in line or '"time0"' not in line]
    (tmp_path / "cache.jsonl").write_text("\n".join(kept) + "\n")
    greenfast("tune", "--simulate", tmp_path / "cache.jsonl").refused(2, "holds no 'time0' of A=3 B=1")


@needs_compiler
def test_a_cache_of_something_else_is_refused_by_name(greenfast, source):
    assert greenfast("tune", source, *TINY, "--compile-only").code == 0
    (greenfast.work / "work.c").write_text(SOURCE + "/* changed */\n")
    greenfast("tune", source, *TINY).refused(2, "cache.jsonl", "source_sha256", "--cache")


@needs_compiler
def test_a_cache_of_another_device_is_refused_by_name(greenfast, source):
    assert greenfast("tune", source, *TINY).code in (0, 10)
    cache = greenfast.work / "results" / "tune-work" / "cache.jsonl"
    lines = [json.loads(line) for line in cache.read_text().splitlines()]
    device = next(line["result"]["device"] for line in lines if line.get("stage") == "device")
    device["name"] = "an abacus"
    cache.write_text("".join(json.dumps(line) + "\n" for line in lines if line.get("stage") != "confirm"))
    result = greenfast("tune", source, *TINY)
    assert result.code == 4 and "holds results of an abacus" in result.err and "--cache" in result.err


@pytest.mark.parametrize("name, record, code", [
    ("tiled", SEARCHES / "tiled.json", 0),  # faster
    ("cuda.v2c.v8.h200", ROOT / "evidence" / "search" / "cuda.v2c.v8-h200.json", 10),  # the hand-set one stays
])
def test_the_recorded_search_gives_the_same_winner(greenfast, name, record, code):
    recorded = json.loads(record.read_text())
    result = greenfast("tune", "--simulate", SEARCHES / f"{name}.jsonl", "--json")
    assert result.json == recorded
    assert result.code == code and (recorded["winner"] != recorded["hand_set"]) == (code == 0)


@pytest.mark.parametrize("source, words", [
    ("int x;", "declares nothing to tune"),
    ("// tune: A = 1 2", "no value is marked"),
    ("// tune: A = *1 *2", "several values are marked"),
    ("// tune: A = *1 two", "'two' is no whole number"),
    ("// tune: A = *1 2\n// tune: A = *1", "declared twice"),
    ("// tune: A = *1 2\n// tune-if: A > 1", "excludes the hand-set values"),
    ("// tune: A = *1 2\n// tune-if: B > 1", "'B' is no parameter"),
    ("// tune: A = *1 2\n// tune-if: (A > 0", "')' is missing"),
    ("// tune: A = *1 2\n// tune-if: A / 0", "division by 0"),
])
def test_a_space_that_cannot_be_read_is_refused(greenfast, source, words):
    greenfast.work.mkdir()
    (greenfast.work / "bad.c").write_text(source)
    greenfast("tune", "bad.c").refused(2, "bad.c", words)


@pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")
@pytest.mark.parametrize("variant", ["cuda.v2c.v8", "cuda.stage_c.stage2", "cuda.stage_c.persistent", "cuda.sm80.mma"])
def test_the_plugin_of_a_variant_lacks_no_symbol(tmp_path, variant):
    """As tune compiles the hand-set configuration."""
    plugin, source = tmp_path / "plugin.so", ROOT / "tune" / f"{variant}.cu"
    defines = [f"-D{name}={value}" for name, value in re.findall(r"^// tune: (\w+) = .*\*(\d+)", source.read_text(), re.MULTILINE)]
    assert defines
    subprocess.run([NVCC, "-std=c++20", "--expt-relaxed-constexpr", "-arch=sm_80", "-Xcompiler=-fPIC", "-Xlinker=-z,defs", "-shared",
                    f"-I{ROOT}", f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}", *defines, "-o", plugin, source], check=True)
    assert ctypes.CDLL(str(plugin), mode=os.RTLD_NOW).gf_plugin_get


SPACES = sorted(path.stem for path in (ROOT / "tune").glob("cuda.*.cu"))
# Each takes nvcc 25 s: three stand for all, unless GREENFAST_ALL_SPACES asks for them.
SAMPLED = SPACES if os.environ.get("GREENFAST_ALL_SPACES") else ["cuda.sm80.mma", "cuda.stage_c.fp8_mma", "cuda.v2c.v8"]


@pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")
@pytest.mark.parametrize("variant", SAMPLED)
def test_every_point_of_a_space_compiles_or_is_refused_with_a_reason(greenfast, variant):
    """A sample of each; the hand-set configuration always compiles."""
    result = greenfast("tune", variant, "--tree", ROOT, "--compile-only", "--strategy", "random", "--candidates", "1", "--seed", "1",
                       "--plugin-flags=-arch=sm_80" if variant != "cuda.stage_c.fp8_mma" else "--plugin-flags=-arch=sm_89", "--jobs", "2")
    assert result.code == 0, result.err
    *refused, last = result.out.splitlines()
    compiled, tried = map(int, re.match(r"compiled: (\d+) of (\d+), in ", last).groups())
    assert tried == 2 and compiled + sum(bool(re.match(r"\w+=-?\d+[ \w=-]*: (resources: \d+ bytes|\S.*)", line)) for line in refused) >= tried
    # A space whose conditions let through what its own source forbids would show as compiler's errors.
    assert "error" not in result.out and "does not compile" not in result.out


@needs_compiler
def test_a_compilation_alone_says_what_was_refused(greenfast, source):
    result = greenfast("tune", source, "--compile-only", "--jobs", "2")
    assert result.code == 0, result.err
    assert re.search(r"^WORK=7 UNUSED=0: .*does not compile", result.out, re.MULTILINE)
    assert "compiled: 6 of 7, in " in result.out
    text = (greenfast.work / "work.c").read_text().replace("1 3 *4 5 7 16", "1 3 4 5 *7 16").replace("WORK == 4", "WORK == 7")
    (greenfast.work / "bad.c").write_text(text)
    greenfast("tune", "bad.c", "--compile-only", "--strategy", "random", "--candidates", "1").refused(
        2, "hand-set configuration WORK=7 UNUSED=0 is refused", "-arch=")


def test_what_cannot_be_tuned_names_what_can(greenfast):
    greenfast("tune", "cuda.v2c.v5", "--tree", ROOT).refused(2, "cuda.v2c.v5", "cuda.v2c.v8")
    greenfast("tune", "--simulate", "absent.jsonl").refused(2, "absent.jsonl")
    greenfast("tune").refused(2, "source file or a variant")
