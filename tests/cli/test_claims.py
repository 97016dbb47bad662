"""What a gate looks at beside what it was asked, what it measures of a plugin, and what it tells whoever was RED."""
import os
import re
import shutil
import subprocess

import pytest

from cli_paths import ROOT
from schemas import validate

HONEST = ROOT / "examples" / "plugins" / "honest.c"
SHAPE = "1x2x128x32"

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no host compiler")

# What the candidate claims beside the given shapes: right there too, or named.
WRONG_ELSEWHERE = r"""
#include "%s"
static gf_status launch(const gf_plugin_call* call) {
  gf_problem asked = *call->problem;
  gf_plugin_call other = *call;
  other.problem = &asked;
  %s
  example_attend(&other);
  return GF_OK;
}
EXAMPLE_PLUGIN("mine", "right where it was asked", launch)
"""
# A kernel that takes what it says and refuses the rest in its own words.
TAKES_ONLY = r"""
#include "%s"
static int supports(const gf_problem* p, char* why, size_t capacity) {
  if (%s) return example_supports(p, why, capacity);
  snprintf(why, capacity, "%s");
  return 0;
}
static gf_status launch(const gf_plugin_call* call) { example_attend(call); return GF_OK; }
static const gf_plugin_kernel kKernels[] = {
    {sizeof(gf_plugin_kernel), GF_CPU, "mine", "", supports, example_workspace, NULL, launch}};
static const gf_plugin kPlugin = GF_PLUGIN_INIT("mine", kKernels);
GF_PLUGIN_EXPORT const gf_plugin* gf_plugin_get(void) { return &kPlugin; }
"""
ELSEWHERE = [
    ("LSE", "asked.lse = 0;", "--lse"),
    ("LSE under a causal mask", "if (asked.lse && asked.mask_right == 0 && asked.mask_left < 0) asked.scale = 1;", "--lse"),
    ("head dim 64", "if (asked.head_dim == 64) asked.scale = 1;", "1x2x64x64"),
    ("head dim 80", "if (asked.head_dim == 80) asked.scale = 1;", "1x2x64x80"),
    ("softcap", "asked.softcap = 0;", "--softcap"),
    ("a window", "if (asked.mask_left > 0) asked.mask_left = -1;", "--window"),
    ("a causal mask", "if (asked.mask_left < 0) asked.mask_right = -1;", "--causal"),
    ("fewer KV heads than Q heads", "if (asked.heads_kv != asked.heads_q) asked.scale = 1;", "1x4/2x64x32"),
    ("layouts other than BHSD", "if (asked.o.stride[2] != asked.head_dim) asked.scale = 1;", "--layout"),
]
TRIED = ["--primary", SHAPE, "--guards", "none", "--dtype", "fp32", "--seeds", "0", "--processes", "1", "--budget", "0.2"]


def source(greenfast, text, name="mine.c"):
    greenfast.work.mkdir(exist_ok=True)
    (greenfast.work / name).write_text(text)


@pytest.mark.parametrize("kind, change, option", ELSEWHERE, ids=[row[0] for row in ELSEWHERE])
def test_what_a_candidate_takes_and_does_wrong_is_rejected_with_a_command_that_shows_it(greenfast, kind, change, option):
    source(greenfast, WRONG_ELSEWHERE % (ROOT / "examples" / "plugins" / "attention.h", change))
    result = greenfast("gate", "--plugin", "mine.c", "--baseline", "cpu.naive", "--candidate", "plugin:mine", *TRIED, "--json")
    assert result.code in (20, 21), result.err
    validate(result.json)
    (reason,) = result.json["verdict"]["reasons"]
    assert kind in reason["detail"], reason
    assert option in reason["settle"]
    # The hint runs, and shows what it was given for.
    command = reason["settle"].replace("greenfast ", f"{greenfast.program} ", 1)
    shown = subprocess.run(["/bin/sh", "-c", command], cwd=greenfast.work, capture_output=True, text=True, check=False)
    assert shown.returncode == result.code, (command, shown.stdout, shown.stderr)


def test_what_a_candidate_refuses_is_named_as_never_seen(greenfast):
    source(greenfast, TAKES_ONLY % (ROOT / "examples" / "plugins" / "attention.h", "!p->lse && p->softcap == 0 && p->seq_q == 128 && p->seq_kv == 128",
                                    "is for 128 rows without LSE"))
    result = greenfast("gate", "--plugin", "mine.c", "--baseline", "cpu.naive", "--candidate", "plugin:mine", *TRIED, "--json")
    assert result.code in (10, 23), result.err
    unseen = result.json["verdict"]["unseen"]
    assert any(u.startswith("LSE (refused: is for 128 rows") for u in unseen) and any(u.startswith("softcap") for u in unseen)
    # Of what takes everything, that remains which no gate tries.
    both = greenfast("gate", "--baseline", "cpu.naive", "--candidate", "cpu.flash", *TRIED, "--json")
    assert both.json["verdict"]["unseen"] == ["types other than fp32", "head dims other than 32, 64, 80",
                                              "several of these kinds at once, but for those that are named together"]
    assert {row["gate"]: row["status"] for row in both.json["checklist"]}["GREEN of what else it takes"] == "PASS"


def test_equal_kernels_on_a_busy_machine_are_neither_promoted_nor_rejected(greenfast):
    source(greenfast, (HONEST.read_text().replace('"attention.h"', f'"{HONEST.parent}/attention.h"').replace('"honest"', '"twin"')),
           "twin.c")
    busy = [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) for _ in range(3 * len(os.sched_getaffinity(0)))]
    try:
        for _ in range(3):
            result = greenfast("gate", "--plugin", HONEST, "--plugin", "twin.c", "--baseline", "plugin:honest", "--candidate",
                               "plugin:twin", *TRIED, "--json")
            assert result.code == 10, result.json["headline"]
            assert result.json["verdict"]["decision"] == "DEFER"
    finally:
        for one in busy:
            one.kill()
            one.wait()


LEAK = r"""
#include <stdlib.h>
#include "%s"
static gf_status launch(const gf_plugin_call* call) {
  static char* volatile kept;  /* which a compiler must not leave out */
  kept = malloc(65536);
  if (kept != NULL) memset((char*)kept, 1, 65536);
  example_attend(call);
  return GF_OK;
}
EXAMPLE_PLUGIN("mine", "frees nothing", launch)
"""


def test_a_leak_is_measured(greenfast):
    source(greenfast, LEAK % (ROOT / "examples" / "plugins" / "attention.h"))
    arguments = ["--plugin", "mine.c", "--plugin", HONEST, "--baseline", "plugin:honest", "--primary", "1x1x32x16", "--guards", "none",
                 "--dtype", "fp32", "--seeds", "0", "--processes", "1", "--budget", "1", "--json"]
    result = greenfast("gate", "--candidate", "plugin:mine", *arguments)
    assert result.code == 22, result.json["headline"]
    validate(result.json)
    (reason,) = result.json["verdict"]["reasons"]
    assert reason["code"] == "RESOURCES" and "keeps memory from call to call" in reason["detail"]
    twin = greenfast("gate", "--candidate", "cpu.naive", *arguments)
    assert twin.code != 22
    # A number, not a pass for want of one.
    rows = {row["name"]: row for row in result.json["resources"]}
    assert rows["private_bytes"]["value"] >= rows["grown_bytes"]["value"] > rows["grown_bytes"]["limit"]


def test_an_address_sanitizer_build_gets_a_hint_that_runs(greenfast):
    source(greenfast, (ROOT / "examples" / "plugins" / "out_of_bounds.c").read_text()
           .replace('"attention.h"', f'"{HONEST.parent}/attention.h"'))
    arguments = ["check", "mine.c", "--plugin-flags=-fsanitize=address", "--shapes", SHAPE, "--dtype", "fp32", "--quiet"]
    result = greenfast(*arguments)
    if "asan" not in result.err.lower() and "AddressSanitizer" not in result.err:
        pytest.skip("this compiler has no AddressSanitizer")
    assert result.code == 24
    hint = next(line for line in result.err.splitlines() if "LD_PRELOAD=" in line)
    command = hint[hint.index("ASAN_OPTIONS="):]
    shown = subprocess.run(["/bin/sh", "-c", command], cwd=greenfast.work, capture_output=True, text=True, check=False)
    # Now it is judged: for what it does, not for how it was built.
    assert shown.returncode in (21, 24) and "plugin:out_of_bounds" in shown.stdout, (command, shown.stdout, shown.stderr)


def test_red_names_what_was_expected_and_what_came(greenfast):
    result = greenfast("check", "--variants", "mutant.gain", "--shapes", SHAPE, "--dtype", "fp32", "--json")
    assert result.code == 20
    assert re.search(r"worst at b \d+ h \d+ i \d+ d \d+: expected -?[0-9.e-]+, got -?[0-9.e-]+\)", result.json["rows"][0]["reason"])


def test_hints_of_the_help_and_of_new_run(greenfast):
    made = greenfast("new", "mine.c")
    head = (greenfast.work / "mine.c").read_text().split("*/")[0]
    commands = [made.out.split("Next: ")[1].strip()] + re.findall(r"greenfast (?:check|run|gate) .*", head)
    assert len(commands) >= 3
    for command in commands:
        shown = subprocess.run(["/bin/sh", "-c", command.replace("greenfast ", f"{greenfast.program} ", 1) + " --help"], cwd=greenfast.work,
                               capture_output=True, text=True, check=False)
        assert shown.returncode == 0, (command, shown.stderr)
    check = commands[0].replace("greenfast ", f"{greenfast.program} ", 1)
    assert subprocess.run(["/bin/sh", "-c", check + " --shapes 1x1x16x16"], cwd=greenfast.work, capture_output=True, check=False).returncode == 0


def test_what_was_measured_is_shown_where_it_cannot_be_kept(greenfast):
    gate = greenfast("gate", "--baseline", "cpu.naive", "--candidate", "cpu.naive", *TRIED, "--json")
    directory = next((greenfast.work / "results").glob("*-gate"))
    (directory / "gate.json").unlink()
    (directory / "gate.json").mkdir()
    again = greenfast("gate", "--resume", directory)
    assert gate.code == 10 and again.code == 4
    assert again.out.startswith("DEFER(NO_OP)") and "gate.json" in again.err and "--resume" in again.err
    (greenfast.work / "full").mkdir()
    compared = subprocess.run(["/bin/sh", "-c", f"trap '' XFSZ; ulimit -f 0; exec {greenfast.program} compare cpu.naive cpu.flash --shapes "
                               "1x1x16x16 --dtype fp32 --iters 6 --json-out full/c.json"], cwd=greenfast.work, capture_output=True, text=True,
                              check=False)
    assert compared.returncode == 4 and "cpu.flash" in compared.stdout, (compared.stdout, compared.stderr)


def test_ends_of_the_range_that_a_candidate_refuses_are_named(greenfast):
    source(greenfast, TAKES_ONLY % (ROOT / "examples" / "plugins" / "attention.h", "p->seq_kv != 65 && p->seq_kv <= 4000",
                                    "is for rows of up to 4000 keys"))
    said = "(refused: is for rows of up to 4000 keys)"
    result = greenfast("check", "mine.c", "--shapes", SHAPE, "--dtype", "fp32", "--seeds", "0", "--json")
    assert result.code == 0, result.err
    validate(result.json)
    (row,) = [r for r in result.json["rows"] if r["variant"] == "plugin:mine"]
    assert row["verdict"] == "GREEN" and row["reason"].startswith("never saw ") and "faint_tail" in row["reason"] and said in row["reason"], row
    # What takes all of them has nothing to say.
    result = greenfast("check", "--variants", "cpu.flash", "--shapes", SHAPE, "--dtype", "fp32", "--seeds", "0", "--json")
    assert result.code == 0 and result.json["rows"][0]["reason"] is None, result.json["rows"]
    result = greenfast("gate", "--plugin", "mine.c", "--baseline", "cpu.naive", "--candidate", "plugin:mine", *TRIED, "--json")
    validate(result.json)
    assert f"the distribution faint_tail {said}" in result.json["verdict"]["unseen"], result.json["verdict"]["unseen"]
