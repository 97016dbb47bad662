"""Plugins that try to bend a verdict, each by another means, and texts, signals and files that try the same."""
import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from cli_paths import ROOT
from schemas import validate

CHEATS = ROOT / "tests" / "cli" / "cheats"
HONEST = ROOT / "examples" / "plugins" / "honest.c"
SHAPE = "1x2x128x32"
GATE = ["--baseline", "plugin:honest", "--primary", SHAPE, "--guards", "none", "--dtype", "fp32", "--seeds", "0",
        "--processes", "1", "--budget", "0.5", "--plugin-timeout", "10"]

pytestmark = pytest.mark.skipif(not (shutil.which("cc") and shutil.which("c++")), reason="no host compiler")

# What is wrong is rejected, and named. What is only of no use is an honest kernel, and as fast as one.
REJECTED = [
    ("fewer_keys", 20, "NUMERICS", "before timing"),
    ("some_rows", (20, 21), ("NUMERICS", "INTEGRITY"), "max_row"),
    ("by_slot", 21, "INTEGRITY", "a timed call went wrong"),
    ("kept_softmax", 21, "INTEGRITY", "a timed call went wrong"),
    ("unwritten_slots", 21, "INTEGRITY", "a timed call went wrong"),
    ("changes_inputs_when_timed", 21, "INTEGRITY", "input Q was modified at byte 3"),
]
# An answer before its time is INTEGRITY where the command sees it at once, and costs its time where it does not.
OF_NO_USE = ["answers_early", "by_content", "by_file", "in_idle_time", "burning_children"]
DISTURBING = ["spinning_pool", "holds_others_back"]


# Blocks enough that every slot of the ring is met again.
MANY = ["by_slot", "kept_softmax", "unwritten_slots"]


def gate(greenfast, name, *more):
    if name in MANY:
        greenfast.work.mkdir(exist_ok=True)
        policy = (ROOT / "policies" / "gate.toml").read_text()
        (greenfast.work / "many.toml").write_text(re.sub(r"min_blocks = \d+", "min_blocks = 60", policy))
        more = (*more, "--gate-policy", "many.toml")
    return greenfast("gate", "--plugin", CHEATS / f"{name}.c", "--plugin", HONEST, "--candidate", f"plugin:{name}", *GATE,
                     "--json", *more)


@pytest.mark.parametrize("name, code, reason, words", REJECTED, ids=lambda v: v if isinstance(v, str) and " " not in v else "")
def test_what_is_timed_is_judged(greenfast, name, code, reason, words):
    result = gate(greenfast, name)
    assert result.code in (code if isinstance(code, tuple) else (code,)), result.err
    validate(result.json)
    (seen,) = result.json["verdict"]["reasons"]
    assert seen["code"] in (reason if isinstance(reason, tuple) else (reason,))
    assert words in seen["detail"]


@pytest.mark.parametrize("name", OF_NO_USE + DISTURBING)
def test_what_was_kept_or_done_elsewhere_is_of_no_use(greenfast, name):
    # Each of them had far more; what noise may give on a busy machine has not.
    result = gate(greenfast, name, "--gate", "5")
    assert result.json["verdict"]["decision"] != "PROMOTE", result.json["headline"]
    # A crash would be a verdict on something else.
    assert result.code in (10, 20, 21, 22, 23), result.json["headline"]
    assert not (greenfast.work / "kept_by_the_plugin").exists()


def test_every_cheat_is_tested():
    assert {p.stem for p in CHEATS.glob("*.c")} == {r[0] for r in REJECTED} | set(OF_NO_USE) | set(DISTURBING)


@pytest.mark.parametrize("command", ["run", "bench"])
def test_run_and_bench_judge_what_they_time(greenfast, command):
    result = greenfast(command, "--plugin", CHEATS / "fewer_keys.c", "--shapes", SHAPE, "--dtype", "fp32", "--iters", "6", "--json")
    assert result.code == 20
    assert result.json["rows"][0]["verdict"] == "RED" and "before timing" in result.json["rows"][0]["reason"]


def test_compare_judges_what_it_times(greenfast):
    result = greenfast("compare", "plugin:honest", "plugin:fewer_keys", "--plugin", HONEST, "--plugin",
                       CHEATS / "fewer_keys.c", "--shapes", SHAPE, "--dtype", "fp32", "--iters", "12", "--json")
    assert result.code == 20, result.err
    assert "before timing" in result.json["skipped"][0]


def test_a_plugin_writes_no_file_and_starts_no_process(greenfast):
    greenfast.work.mkdir()
    (greenfast.work / "tries.c").write_text(r'''
#include <stdio.h>
#include <stdlib.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>
#include <pthread.h>
#include "%s"
static void* nothing(void* unused) { return unused; }
static gf_status launch(const gf_plugin_call* call) {
  pthread_t thread;
  int could = 0;
  if (fopen("made", "w") != NULL) could |= 1;
  if (fork() >= 0) could |= 2;
  if (system("true") == 0) could |= 4;
  if (setpriority(PRIO_PROCESS, (id_t)getppid(), 19) == 0) could |= 8;
  if (kill(getppid(), 0) == 0) could |= 16;
  if (setsid() >= 0) could |= 32;
  if (pthread_create(&thread, NULL, nothing, NULL) != 0 || pthread_join(thread, NULL) != 0) could |= 64;
  /* Whoever reads the command's memory knows what will be looked at; whoever takes pages away slows who comes next. */
  char name[64];
  snprintf(name, sizeof name, "/proc/%%d/mem", (int)getppid());
  if (open(name, O_RDONLY) >= 0) could |= 128;
  char byte;
  struct iovec here = {&byte, 1}, there = {(void*)launch, 1};
  if (process_vm_readv(getppid(), &here, 1, &there, 1, 0) >= 0) could |= 256;
  struct rlimit limit = {1, 1};
  if (prlimit(getppid(), RLIMIT_CORE, &limit, NULL) == 0) could |= 512;
  char* page = (char*)((uintptr_t)call->tensors->q & ~(uintptr_t)4095);
  if (madvise(page, 4096, 9 /* MADV_REMOVE */) == 0 || madvise(page, 4096, 21 /* MADV_PAGEOUT */) == 0) could |= 1024;
  /* Its own limits and advice stay its own. */
  if (getrlimit(RLIMIT_CORE, &limit) != 0 || madvise(page, 4096, MADV_WILLNEED) != 0) could |= 2048;
  example_attend(call);
  if (could == 0) return GF_OK;
  snprintf(call->error, call->error_capacity, "could %%d", could);
  return GF_INTERNAL;
}
EXAMPLE_PLUGIN("tries", "what it may not do", launch)
''' % (ROOT / "examples" / "plugins" / "attention.h"))
    result = greenfast("check", "tries.c", "--plugin-flags=-D_GNU_SOURCE -include signal.h", "--shapes", SHAPE, "--dtype", "fp32", "--json")
    record = result.json
    validate(record)
    confined = record["plugins"][0]["confined"]
    if len(confined) < 3:
        pytest.skip(f"this system confines less: {confined}")
    assert result.code == 0, record["rows"][0]["reason"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("step", ["GREEN", "FAST"])
def test_an_interrupt_is_no_verdict(greenfast, number, step):
    greenfast.work.mkdir()
    gate = subprocess.Popen([greenfast.program, "gate", "--plugin", HONEST, "--baseline", "cpu.naive", "--candidate",
                             "plugin:honest", "--primary", "1x4x256x64" if step == "GREEN" else SHAPE, "--guards", "none",
                             "--dtype", "fp32", "--seeds", "0,1,2", "--processes", "1", "--budget", "5"],
                            cwd=greenfast.work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            start_new_session=True)
    steps = {"GREEN": "build.json", "FAST": "green.0.json"}[step]
    deadline = time.monotonic() + 120
    while not list(greenfast.work.glob(f"results/*/steps/{steps}")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)
    os.killpg(gate.pid, number)  # as a terminal does: everybody in the group
    out, err = gate.communicate(timeout=60)
    assert gate.returncode == 130, (out, err)
    assert "--resume" in err
    (directory,) = greenfast.work.glob("results/*")
    assert not (directory / "gate.json").exists()
    resumed = greenfast("gate", "--resume", directory, "--json")
    assert resumed.code in (0, 10, 23), resumed.err
    assert resumed.json["verdict"]["reasons"] == [] or resumed.json["verdict"]["reasons"][0]["code"] not in ("CRASH", "TIMEOUT")


def test_an_interrupted_run_condemns_nobody(greenfast):
    greenfast.work.mkdir()
    run = subprocess.Popen([greenfast.program, "run", HONEST, "--shapes", "1x4x1024x64", "--dtype", "fp32", "--json", "--out", "o"],
                           cwd=greenfast.work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           start_new_session=True)
    time.sleep(2)
    os.killpg(run.pid, signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    if out:
        assert all(row["verdict"] != "RED" for row in json.loads(out)["rows"])


def test_steps_that_somebody_else_wrote_are_not_taken(greenfast):
    first = gate(greenfast, "by_content")
    (directory,) = (greenfast.work / "results").glob("*")
    step = directory / "steps" / "fast.0.0.json"
    forged = json.loads(step.read_text())
    for block in forged["samples"]["shapes"][0]["blocks"]:
        block["seconds"] = [s / 2 if side == 1 else s for side, s in zip(block["order"], block["seconds"])]
    step.write_text(json.dumps(forged))
    (directory / "gate.json").unlink()
    # It keeps what it computed: RESOURCES, unless it was too slow to keep much.
    assert first.code in (10, 22, 23), first.json["headline"]
    resumed = greenfast("gate", "--resume", directory)
    assert resumed.code == 2 and "fast.0.0.json: this job saved something else" in resumed.err


def test_hostile_text_stays_text(greenfast):
    greenfast.work.mkdir()
    (greenfast.work / "hostile.c").write_text(r'''
#include <stdio.h>
#include <greenfast/plugin.h>
static gf_status launch(const gf_plugin_call* call) {
  printf("printed by the kernel\n");
  fflush(stdout);
  snprintf(call->error, call->error_capacity, "\033[2J\033[1;1Hnot \xff\xfe text\r");
  return GF_INTERNAL;
}
static const gf_plugin_kernel kKernels[] = {
    {sizeof(gf_plugin_kernel), GF_CPU, "hostile", "\033]0;idea\a \xc3", NULL, NULL, NULL, launch}};
static const gf_plugin kPlugin = GF_PLUGIN_INIT("\xff hostile", kKernels);
GF_PLUGIN_EXPORT const gf_plugin* gf_plugin_get(void) { return &kPlugin; }
''')
    result = greenfast("check", "hostile.c", "--shapes", SHAPE, "--dtype", "fp32", "--json")
    assert result.code == 24
    validate(result.json)
    assert "\x1b" not in result.out and "�" in result.json["rows"][0]["reason"]
    assert "printed by the kernel" in result.err
    table = greenfast("check", "hostile.c", "--shapes", SHAPE, "--dtype", "fp32", "--quiet")
    assert "\x1b" not in table.out


def test_a_kernel_that_refuses_midway_is_not_green(greenfast):
    greenfast.work.mkdir()
    (greenfast.work / "picky.c").write_text(r'''
#include "%s"
static int asked;
static int picky(const gf_problem* p, char* why, size_t capacity) {
  if (++asked > 4) { snprintf(why, capacity, "has seen enough"); return 0; }
  return example_supports(p, why, capacity);
}
static gf_status launch(const gf_plugin_call* call) { example_attend(call); return GF_OK; }
static const gf_plugin_kernel kKernels[] = {
    {sizeof(gf_plugin_kernel), GF_CPU, "picky", "", picky, example_workspace, NULL, launch}};
static const gf_plugin kPlugin = GF_PLUGIN_INIT("picky", kKernels);
GF_PLUGIN_EXPORT const gf_plugin* gf_plugin_get(void) { return &kPlugin; }
''' % (ROOT / "examples" / "plugins" / "attention.h"))
    result = greenfast("check", "picky.c", "--shapes", SHAPE, "--dtype", "fp32", "--json")
    (row,) = result.json["rows"]
    assert row["verdict"] == "SKIPPED" and "has seen enough" in row["reason"]
    assert result.code == 10 and re.search(r"took \d+ of \d+ cases", row["reason"])


def test_new_writes_a_kernel_that_is_green(greenfast):
    made = greenfast("new", "mine.c")
    assert made.code == 0, made.err
    text = (greenfast.work / "mine.c").read_text()
    assert "greenfast check mine.c" in text and "example" not in text.lower()
    result = greenfast("check", "mine.c", "--shapes", "1x2x33x16", "--json")
    assert result.code == 0, result.err
    assert result.json["rows"][0]["variant"] == "plugin:mine" and result.json["rows"][0]["verdict"] == "GREEN"
    greenfast("new", "mine.c").refused(2, "mine.c", "exists already")
    greenfast("new", "mine.py").refused(2, ".c (CPU) or .cu")
    assert greenfast("new", "mine.cu").code == 0
    greenfast("check", "nonsense", "--shapes", SHAPE).refused(2, "nonsense", "--variants")
    assert "is not used" in greenfast("check", "mine.c", "--variants", "cpu.naive", "--shapes", "1x1x8x16", "--dtype", "fp32").err
