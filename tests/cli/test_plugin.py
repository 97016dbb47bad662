"""Plugins as their authors run them: every example of examples/plugins gets its verdict, and nothing a plugin does is
the command's failure."""
import json
import shutil

import pytest

from cli_paths import ROOT
from schemas import validate

EXAMPLES = ROOT / "examples" / "plugins"
TINY = ["--shapes", "1x2x33x16", "--dtype", "fp32", "--plugin-timeout", "2", "--plugin-memory", "0.25"]

pytestmark = pytest.mark.skipif(not (shutil.which("cc") and shutil.which("c++")), reason="no host compiler")

# Example, exit code, what the verdict says.
VERDICTS = [
    ("honest", 0, None),
    ("crash", 24, "crashed: killed by SIGSEGV"),
    ("hang", 24, "hung: no end after 2 s"),
    ("out_of_memory", 24, "out of memory"),
    ("out_of_bounds", 21, "wrote outside O: 0 bytes past its end"),
    ("other_thread", 21, "not on the given stream"),
    ("modifies_input", 21, "input Q was modified"),
    ("replay", 20, "rel_fro"),
]


def check(greenfast, name, *more):
    return greenfast("check", "--plugin", EXAMPLES / f"{name}.c", "--variants", f"plugin:{name}", *TINY, "--quiet", *more)


@pytest.mark.parametrize("name, code, words", VERDICTS, ids=lambda v: v if isinstance(v, str) and " " not in v else "")
def test_every_example_gets_its_verdict(greenfast, name, code, words):
    result = check(greenfast, name, "--json")
    assert result.code == code, result.err
    record = result.json
    validate(record)
    (row,) = record["rows"]
    assert row["variant"] == f"plugin:{name}"
    if words is None:
        assert row["verdict"] == "GREEN" and row["cases"] > 3
    else:
        assert row["verdict"] == "RED" and words in row["reason"]
    (plugin,) = record["plugins"]
    assert plugin["kernels"][0]["id"] == f"plugin:{name}" and "-O3" in plugin["compiled"]["command"]


def test_every_example_is_tested():
    refused, tuned = {"wrong_abi", "does_not_compile"}, {"tiled"}
    assert {p.stem for p in EXAMPLES.glob("*.c")} - tuned == {name for name, _, _ in VERDICTS} | refused


def test_another_abi_version_is_refused_by_name(greenfast):
    check(greenfast, "wrong_abi").refused(2, "wrong_abi.c", "ABI version 42", "speaks 1", "rebuild")


def test_a_source_that_does_not_compile_shows_the_compilers_message(greenfast):
    result = check(greenfast, "does_not_compile")
    assert result.code == 2 and result.out == ""
    assert "no_such_field" in result.err and "command:" in result.err


@pytest.mark.parametrize("later, name", [
    (["--sinks"], "sinks"), (["--shapes", "1x2x33x16 used-kv"], "used lengths of K and V"),
    (["--shapes", "1x2x33x16 chunk=8"], "attention in chunks")])
def test_a_feature_later_than_its_abi_is_refused_by_name_before_it_is_asked(greenfast, later, name):
    # out_of_bounds would write outside O, were it called.
    result = check(greenfast, "out_of_bounds", *later, "--json")
    assert result.code == 3, result.err
    (row,) = result.json["rows"]
    assert row["verdict"] == "SKIPPED" and row["reason"].startswith(f"was built for plugin ABI 1: {name}, which it does not take: "), row
    # That answers be exact is no such feature: it was asked of everybody.
    assert "exact accuracy" not in row["reason"]


@pytest.mark.parametrize("name, text, words", [
    ("absent.so", None, "no such file"),
    ("notes.txt", "hello", ".cu"),
    ("empty.so", "", "cannot be loaded"),
    ("nothing.c", "int nothing;", "exports no gf_plugin_get"),
])
def test_what_is_no_plugin_is_refused(greenfast, name, text, words):
    greenfast.work.mkdir()
    if text is not None:
        (greenfast.work / name).write_text(text)
    greenfast("check", "--plugin", name, "--variants", "plugin:x", *TINY).refused(2, name, words)


def test_a_crash_while_it_is_loaded_is_the_plugins(greenfast):
    greenfast.work.mkdir()
    (greenfast.work / "early.c").write_text(
        "#include <stdlib.h>\n__attribute__((constructor)) static void begin(void) { abort(); }\n")
    greenfast("check", "--plugin", "early.c", "--variants", "plugin:early", *TINY).refused(
        24, "early.c", "while being loaded it crashed", "SIGABRT")


def test_an_exception_is_a_failure_of_the_plugin(greenfast):
    greenfast.work.mkdir()
    (greenfast.work / "throws.cpp").write_text("""
#include <stdexcept>
#include <greenfast/plugin.h>
static gf_status launch(const gf_plugin_call*) { throw std::runtime_error("no idea how"); }
static const gf_plugin_kernel kKernels[] = {
    {sizeof(gf_plugin_kernel), GF_CPU, "throws", nullptr, nullptr, nullptr, nullptr, launch}};
static const gf_plugin kPlugin = GF_PLUGIN_INIT("throws", kKernels);
GF_PLUGIN_EXPORT const gf_plugin* gf_plugin_get() { return &kPlugin; }
""")
    result = greenfast("check", "--plugin", "throws.cpp", "--variants", "plugin:throws", *TINY, "--json")
    assert result.code == 24
    assert "no idea how" in result.json["rows"][0]["reason"]


def test_a_crash_costs_nobody_else_their_result(greenfast):
    result = greenfast("run", "--plugin", EXAMPLES / "crash.c", "--plugin", EXAMPLES / "honest.c", "--variants",
                       "plugin:crash,plugin:honest,cpu.naive", *TINY, "--iters", "6", "--json")
    assert result.code == 24
    verdicts = {row["variant"]: row for row in result.json["rows"]}
    assert verdicts["plugin:crash"]["verdict"] == "RED"
    for name in ("plugin:honest", "cpu.naive"):
        assert verdicts[name]["verdict"] == "GREEN" and verdicts[name]["time"]["p50_seconds"] > 0


@pytest.mark.parametrize("command", [["check"], ["run", "--iters", "6"], ["bench", "--iters", "6"]])
def test_without_variants_the_plugins_are_what_runs(greenfast, command):
    result = greenfast(*command, "--plugin", EXAMPLES / "modifies_input.c", "--plugin", EXAMPLES / "honest.c", *TINY, "--json")
    assert [(row["variant"], row["verdict"]) for row in result.json["rows"]] == [("plugin:modifies_input", "RED"),
                                                                                   ("plugin:honest", "GREEN")]
    assert result.code == 21


def test_a_plugin_for_another_device_is_refused_not_left_out(greenfast):
    greenfast("check", "--plugin", EXAMPLES / "honest.c", "--device", "cuda", "--shapes", "small").refused(
        2, "plugin:honest: it runs on cpu", "--device cpu")


def test_what_it_cannot_do_is_skipped_with_its_reason(greenfast):
    result = greenfast("check", "--plugin", EXAMPLES / "honest.c", "--variants", "plugin:honest", "--shapes", "1x1x8x16",
                       "--dtype", "fp16", "--json")
    assert result.code == 3
    assert "takes fp32" in result.json["rows"][0]["reason"]


GATE = ["--primary", "1x2x33x16", "--guards", "none", "--dtype", "fp32", "--seeds", "0", "--processes", "1", "--budget",
        "0.2"]


@pytest.mark.parametrize("name, code, reason", [("crash", 24, "CRASH"), ("modifies_input", 21, "INTEGRITY"),
                                                ("replay", 20, "NUMERICS")])
def test_the_gate_rejects_a_plugin_for_what_it_did(greenfast, name, code, reason):
    result = greenfast("gate", "--plugin", EXAMPLES / f"{name}.c", "--baseline", "cpu.naive", "--candidate",
                       f"plugin:{name}", *GATE, "--json")
    assert result.code == code, result.err
    record = result.json
    validate(record)
    assert record["verdict"]["decision"] == "REJECT"
    assert [r["code"] for r in record["verdict"]["reasons"]] == [reason]


def test_the_gate_times_a_plugin_and_resumes_with_it(greenfast):
    result = greenfast("gate", "--plugin", EXAMPLES / "honest.c", "--baseline", "cpu.naive", "--candidate",
                       "plugin:honest", *GATE, "--json")
    assert result.code in (0, 10, 23), result.err
    record = result.json
    assert record["fast"][0]["speedup"]["value"] > 0
    directory = greenfast.work / "results" / record["run_id"]
    (directory / "gate.json").unlink()
    assert greenfast("gate", "--resume", directory).code in (0, 10, 23)


def test_compare_takes_a_plugin(greenfast):
    result = greenfast("compare", "cpu.naive", "plugin:honest", "--plugin", EXAMPLES / "honest.c", "--shapes",
                       "1x2x33x16", "--dtype", "fp32", "--iters", "8", "--json")
    assert result.code in (0, 10, 23), result.err
    assert result.json["shapes"][0]["ratio_p50"]["value"] > 0
