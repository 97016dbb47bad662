"""Plugins that try to bend a verdict, each by another means, and texts, signals and files that try the same."""
import ctypes
import hashlib
import json
import os
import pathlib
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
NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
GATE = ["--baseline", "plugin:honest", "--primary", SHAPE, "--guards", "none", "--dtype", "fp32", "--seeds", "0",
        "--processes", "1", "--budget", "0.5", "--plugin-timeout", "10"]

pytestmark = pytest.mark.skipif(not (shutil.which("cc") and shutil.which("c++")), reason="no host compiler")

KEPT = ("it keeps memory from call to call", "bytes of its own, limit")
# What is wrong is rejected, and named. What is only of no use is an honest kernel, and as fast as one.
REJECTED = [
    ("fewer_keys", 20, "NUMERICS", "before timing"),
    ("some_rows", (20, 21), ("NUMERICS", "INTEGRITY"), "max_row"),
    # Wrong answers, or what they were kept in, whichever is seen first.
    *((name, (21, 22), ("INTEGRITY", "RESOURCES"), ("a timed call went wrong", *KEPT))
      for name in ("by_slot", "kept_softmax")),
    ("unwritten_slots", 21, "INTEGRITY", "a timed call went wrong"),
    ("changes_inputs_when_timed", 21, "INTEGRITY", "input Q was modified at byte 3"),
    # What they keep may be seen as growth, or as too much at once.
    *((name, 22, "RESOURCES", KEPT) for name in
      ("keeps_in_shared_memory", "keeps_beside_tensors", "keeps_in_pipes", "keeps_in_a_threads_files")),
    ("large_when_loaded", 22, "RESOURCES", "bytes of its own, limit"),
    ("prints_early", 21, "INTEGRITY", "a timed call went wrong"),
    ("stops_late", 21, "INTEGRITY", ("a timed call went wrong", "from its answers until it was stopped", "threads in its timed calls")),
]
# An answer before its time is INTEGRITY where the command sees it at once, and costs its time where it does not.
OF_NO_USE = ["answers_early", "by_content", "by_file", "in_idle_time", "burning_children", "spoils_inputs", "repeats"]
DISTURBING = ["spinning_pool", "holds_others_back"]
# By tests of their own.
APART = ["another_cpu"]


# Blocks enough that every slot of the ring is met again.
MANY = ["by_slot", "kept_softmax", "unwritten_slots", "keeps_in_shared_memory", "keeps_beside_tensors", "keeps_in_pipes",
        "keeps_in_a_threads_files"]


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
    for _ in range(4):
        result = gate(greenfast, name)
        if result.code != 10:  # DEFER: a busy machine's noise decided, which promotes nothing
            break
    else:
        pytest.skip("a busy machine: noise decided four times")
    assert result.code in (code if isinstance(code, tuple) else (code,)), result.err
    validate(result.json)
    (seen,) = result.json["verdict"]["reasons"]
    assert seen["code"] in (reason if isinstance(reason, tuple) else (reason,))
    assert any(said in seen["detail"] for said in (words if isinstance(words, tuple) else (words,))), seen["detail"]


@pytest.mark.parametrize("name", OF_NO_USE + DISTURBING)
def test_what_was_kept_or_done_elsewhere_is_of_no_use(greenfast, name):
    # Each of them had far more; what noise may give on a busy machine has not.
    result = gate(greenfast, name, "--gate", "5")
    assert result.json["verdict"]["decision"] != "PROMOTE", result.json["headline"]
    # A crash would be a verdict on something else.
    assert result.code in (10, 20, 21, 22, 23), result.json["headline"]
    assert not (greenfast.work / "kept_by_the_plugin").exists()


@pytest.mark.parametrize("mode, shape", [([], "1x1x64x64"), (["--hot"], SHAPE)])
def test_a_call_never_finds_its_answer_where_it_was_before(greenfast, mode, shape):
    """It was 4.3 times as fast where a sample had more calls than there are sets of inputs, and 38 where caches were hot."""
    result = gate(greenfast, "repeats", *mode, "--primary", shape, "--gate", "2.5", "--budget", "2")
    assert result.json["verdict"]["decision"] != "PROMOTE", result.json["headline"]
    assert result.code in (10, 23), result.json["headline"]


def test_what_confines_a_plugin_is_not_its_own_word(greenfast):
    greenfast.work.mkdir()
    source = (CHEATS / "repeats.c").read_text().replace('"cheat.h"', f'"{CHEATS}/cheat.h"')
    (greenfast.work / "forges.c").write_text(source + """
__attribute__((constructor)) static void forge(void) {
  char* end;
  char* block = cheat_mapped("greenfast-plugin-control", &end);
  /* Whatever the command reads behind the request. */
  if (block != NULL) memset(block + sizeof(cheat_control), 0, (size_t)(end - block) - sizeof(cheat_control));
}
""")
    honest = greenfast("check", HONEST, "--shapes", "1x1x16x16", "--dtype", "fp32", "--json").json["plugins"][0]["confined"]
    assert greenfast("check", "forges.c", "--shapes", "1x1x16x16", "--dtype", "fp32", "--json").json["plugins"][0]["confined"] == honest


def test_every_cheat_is_tested():
    assert {p.stem for p in CHEATS.glob("*.c")} == {r[0] for r in REJECTED} | set(OF_NO_USE) | set(DISTURBING) | set(APART)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="has one CPU alone")
def test_a_thread_on_another_cpu_is_of_no_use(greenfast):
    """It took an eighth of the rows there, 1.143 threads of 1, and gained 1.149x."""
    greenfast.work.mkdir()
    result = greenfast("gate", "--plugin", CHEATS / "another_cpu.c", "--plugin", HONEST, "--candidate", "plugin:another_cpu", *GATE,
                       "--json", env={"GREENFAST_THREADS": "1"})
    seen = result.json
    used = seen["samples"]["shapes"][0]["sides"][1]["cpu"]["threads"]
    if used >= 1.03 and len(seen.get("plugins", [{"confined": [1, 2]}])[0]["confined"]) < 2:
        pytest.skip(f"this system confines less: {seen['plugins'][0]['confined']}")
    assert used < 1.03, seen["headline"]


@pytest.mark.parametrize("command", ["run", "bench"])
def test_run_and_bench_judge_what_they_time(greenfast, command):
    result = greenfast(command, "--plugin", CHEATS / "fewer_keys.c", "--shapes", SHAPE, "--dtype", "fp32", "--iters", "6", "--json")
    assert result.code == 20
    assert result.json["rows"][0]["verdict"] == "RED" and "before timing" in result.json["rows"][0]["reason"]


def test_compare_judges_what_it_times(greenfast):
    result = greenfast("compare", "plugin:honest", "plugin:fewer_keys", "--plugin", HONEST, "--plugin",
                       CHEATS / "fewer_keys.c", "--shapes", SHAPE, "--dtype", "fp32", "--iters", "12", "--json")
    assert result.code == 20, result.err
    skipped = result.json["skipped"][0]
    assert skipped["reason"] == "failed" and "before timing" in skipped["detail"]


def test_what_one_kernel_spoils_is_not_held_against_another(greenfast):
    result = greenfast("run", CHEATS / "spoils_inputs.c", HONEST, "--variants", "cpu.naive,plugin:honest,plugin:spoils_inputs",
                       "--shapes", SHAPE, "--dtype", "fp32", "--iters", "200", "--json")
    seen = {row["variant"]: row for row in result.json["rows"]}
    assert seen["cpu.naive"]["verdict"] == "GREEN", seen["cpu.naive"]["reason"]
    assert seen["plugin:honest"]["verdict"] == "GREEN", seen["plugin:honest"]["reason"]
    # It is caught where its own sample meets what it spoiled.
    assert result.code in (0, 21)


def test_a_thread_left_at_work_is_not_held_against_another(greenfast):
    """It waits until its own call is looked at, then writes to where outputs and inputs lay."""
    greenfast.work.mkdir()
    (greenfast.work / "late.c").write_text(r"""
#include <pthread.h>
#include <unistd.h>
#include "%s"
static float* volatile target;
static volatile int calls;
static void* spoil(void* unused) {
  for (;;) {
    const int now = calls;
    usleep(31000);  /* as long as it is looked at */
    for (int i = 0; i < 20000 && now == calls && target != NULL; ++i) {
      for (int k = 0; k < 256; ++k) target[k] = 7;
      usleep(20);
    }
  }
  return unused;
}
static gf_status launch(const gf_plugin_call* call) {
  static int started;
  pthread_t thread;
  ++calls;
  target = NULL;
  example_attend(call);
  target = (float*)call->tensors->o;
  if (!started++) pthread_create(&thread, NULL, spoil, NULL);
  return GF_OK;
}
EXAMPLE_PLUGIN("late", "not done when it is done", launch)
""" % (ROOT / "examples" / "plugins" / "attention.h"))
    result = greenfast("check", "late.c", "--variants", "plugin:late,cpu.naive", "--shapes", "1x4x512x64", "--dtype", "fp32", "--json",
                       "--plugin-flags=-D_GNU_SOURCE")
    seen = {row["variant"]: row for row in result.json["rows"]}
    assert seen["cpu.naive"]["verdict"] == "GREEN", seen["cpu.naive"]["reason"]


# What would reach beyond its process; `could` says that it did.
BEYOND = {
    "set the machine's clock": "struct timex t = {.modes = ADJ_TICK, .tick = 10000}; could = adjtimex(&t) >= 0;",
    "move the command's threads": """
  snprintf(name, sizeof name, "/proc/%d/task", (int)getppid());
  DIR* threads = opendir(name);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(0, &one);
  for (struct dirent* e; threads != NULL && (e = readdir(threads)) != NULL;)
    could |= atoi(e->d_name) > 0 && sched_setaffinity(atoi(e->d_name), sizeof one, &one) == 0;""",
    "be continued by a timer while it is stopped": """
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGCONT};
  timer_t timer;
  could = timer_create(CLOCK_MONOTONIC, &event, &timer) == 0;""",
    "have timers that run out while it is stopped": """
  struct itimerval soon = {{0, 1000}, {0, 1000}};
  long queue = 0;
  could = timerfd_create(CLOCK_MONOTONIC, 0) >= 0 || setitimer(ITIMER_PROF, &soon, NULL) == 0;
  could |= syscall(SYS_io_setup, 1, &queue) == 0;""",
    "have a table of files of a thread's own": "could = syscall(436, 900u, 901u, 2u) == 0 || syscall(436, 900u, 901u, 6u) == 0;",
    "put pages into a pipe": """
  int ends[2];
  static char page[4096];
  struct iovec one = {page, sizeof page};
  could = pipe(ends) == 0 && (vmsplice(ends[1], &one, 1, 0) > 0 || splice(ends[0], NULL, ends[1], NULL, 1, 0) >= 0);""",
    "be continued by a file while it is stopped": "could = fcntl(0, F_SETSIG, SIGCONT) == 0;",
    "reach a helper": "could = socket(AF_UNIX, SOCK_STREAM, 0) >= 0;",
    "keep memory on its way": "int pair[2]; could = socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0;",
    "have a thread that cannot be stopped": """
  static char stack[65536];
  int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
  could = clone(nothing, stack + sizeof stack, flags | CLONE_VFORK, NULL) >= 0;""",
    "have files that nobody counts": """
  static char stack[65536];
  int flags = CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
  could = clone(nothing, stack + sizeof stack, flags, NULL) >= 0;""",
    "leave memory to the next process": "could = shmget(0x67667031, 4096, IPC_CREAT | 0600) >= 0;",
    "gain rights": "could = unshare(CLONE_NEWUSER) == 0;",
    "outlive the command": "could = prctl(PR_SET_PDEATHSIG, 0) == 0;",
    "type into the terminal": 'could = ioctl(2, TIOCSTI, "x") == 0 || errno != EPERM;',
    "signal another process": "could = syscall(SYS_tgkill, getppid(), getppid(), 0) == 0 || kill(0, 0) == 0;",
    "write into memory that others share": "could = open(SHARED, O_RDWR) >= 0;",
    "change the mode of a file": "could = chmod(SHARED, 0600) == 0 || fchmodat(AT_FDCWD, SHARED, 0600, 0) == 0;",
    "leave an attribute to the next process": 'could = setxattr(SHARED, "user.kept", "x", 1, 0) == 0 || errno != EPERM;',
    "leave a time to the next process": "could = utimensat(AT_FDCWD, SHARED, NULL, 0) == 0;",
    "send its files' signals to the command": "could = fcntl(0, F_SETOWN, getppid()) == 0;",
    "hold a thread by mapping gigabytes at once": """
  size_t large = (size_t)1 << 26;
  char* pages = mmap(NULL, large, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  for (int advice = 22; advice <= 23; ++advice) {
    could |= madvise(pages, large, advice) == 0 || errno != EINVAL;
    could |= madvise(pages, (4 << 20) + 4096, advice) == 0;
    could |= madvise(pages, 1 << 20, advice) != 0; /* what an allocator asks for it gets */
  }
  munmap(pages, large);""",
    "hold a thread where nothing stops it": """
  could = syscall(SYS_seccomp, 2, 0, NULL) == 0 || errno != EPERM;
  could |= prctl(PR_SET_SECCOMP, 2, NULL) == 0 || errno != EPERM;""",
}


@pytest.mark.parametrize("what", BEYOND)
def test_a_plugin_reaches_nothing_beyond_its_process(greenfast, what):
    shared = pathlib.Path("/dev/shm") / f"greenfast-test-{os.getpid()}"
    shared.write_text("others'")
    greenfast.work.mkdir()
    (greenfast.work / "tries.c").write_text(f"""
#define _GNU_SOURCE
#define SHARED "{shared}"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>
#include "{ROOT}/examples/plugins/attention.h"
int nothing(void* unused) {{
  (void)unused;
  for (;;) pause();
}}
static gf_status launch(const gf_plugin_call* call) {{
  char name[64] = "";
  int could = 0;
  {BEYOND[what]}
  (void)name;
  example_attend(call);
  if (!could) return GF_OK;
  snprintf(call->error, call->error_capacity, "could {what}");
  return GF_INTERNAL;
}}
EXAMPLE_PLUGIN("tries", "what it may not do", launch)
""")
    try:
        record = greenfast("check", "tries.c", "--shapes", "1x1x16x16", "--dtype", "fp32", "--json",
                           "--plugin-flags=-D_GNU_SOURCE").json
    finally:
        shared.unlink()
    if len(record["plugins"][0]["confined"]) < 2:
        pytest.skip(f"this system confines less: {record['plugins'][0]['confined']}")
    assert record["rows"][0]["verdict"] == "GREEN", record["rows"][0]["reason"]


def test_a_plugin_cannot_read_what_steps_are_signed_with(greenfast):
    """Nor anything of the job's head; what lies beside it and elsewhere it reads as before."""
    greenfast.work.mkdir()
    (greenfast.work / "beside.txt").write_text("beside")
    (greenfast.work / "reads.c").write_text(r"""
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include "%s"
static int seen, beside;
static void look(void) {
  DIR* folder = opendir("results");
  for (struct dirent* e; folder != NULL && (e = readdir(folder)) != NULL;) {
    char name[600];
    snprintf(name, sizeof name, "results/%%s/job.json", e->d_name);
    FILE* file = fopen(name, "r");
    if (file != NULL) seen = 1;
    if (file != NULL) fclose(file);
  }
  if (folder != NULL) closedir(folder);
  for (int i = 0; i < 3; ++i) {
    FILE* file = fopen(i == 0 ? "beside.txt" : i == 1 ? "/etc/passwd" : "/proc/self/maps", "r");
    beside += file != NULL;
    if (file != NULL) fclose(file);
  }
}
__attribute__((constructor)) static void early(void) { look(); }
static gf_status launch(const gf_plugin_call* call) {
  beside = 0;
  look();
  example_attend(call);
  if (!seen && beside == 3) return GF_OK;
  snprintf(call->error, call->error_capacity, seen ? "read the secret" : "could not read what it may");
  return GF_INTERNAL;
}
EXAMPLE_PLUGIN("reads", "looks for the job's secret", launch)
""" % (ROOT / "examples" / "plugins" / "attention.h"))
    confined = greenfast("check", "reads.c", "--shapes", "1x1x16x16", "--dtype", "fp32", "--json").json["plugins"][0]["confined"]
    if len(confined) < 3:
        pytest.skip(f"this system confines less: {confined}")
    result = greenfast("gate", "--plugin", "reads.c", "--plugin", HONEST, "--candidate", "plugin:reads", *GATE, "--json")
    assert not [r for r in result.json["verdict"]["reasons"] if r["code"] == "CRASH"], result.json["verdict"]["reasons"]
    # It is hidden from what a resume loads, too.
    [folder] = (greenfast.work / "results").iterdir()
    for name in ("gate.json", "steps/green.0.json", "steps/fast.0.0.json"):
        (folder / name).unlink(missing_ok=True)
    again = greenfast("gate", "--resume", folder, "--json")
    assert not [r for r in again.json["verdict"]["reasons"] if r["code"] == "CRASH"], again.json["verdict"]["reasons"]


@pytest.mark.parametrize("how", ["renamed over it", "written over it"])
def test_what_is_built_anew_during_its_gate_is_not_what_it_judges(greenfast, how):
    """GREEN of one file and FAST of another, every line PASS; or a CRASH that was nobody's."""
    greenfast.work.mkdir()
    for name, code in (("first", "example_attend(call);"), ("second", "*(volatile int*)0 = (int)call->struct_size;")):
        (greenfast.work / f"{name}.c").write_text(f"""
#include "{ROOT}/examples/plugins/attention.h"
static gf_status launch(const gf_plugin_call* call) {{ {code} return GF_OK; }}
EXAMPLE_PLUGIN("mine", "{name}", launch)
""")
        subprocess.run(["cc", "-std=c11", "-O2", "-fPIC", "-shared", f"-I{ROOT}/include", f"{name}.c", "-o", f"{name}.so", "-lm"],
                       cwd=greenfast.work, check=True)
    mine = greenfast.work / "mine.so"
    shutil.copy(greenfast.work / "first.so", mine)
    digest = hashlib.sha256(mine.read_bytes()).hexdigest()
    job = subprocess.Popen([greenfast.program, "gate", "--plugin", "mine.so", "--plugin", HONEST, "--candidate", "plugin:mine", *GATE,
                            "--json"], cwd=greenfast.work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(greenfast.work.glob("results/*/steps/green.0.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    if how == "renamed over it":
        os.rename(greenfast.work / "second.so", mine)
    else:
        shutil.copyfile(greenfast.work / "second.so", mine)
    out, err = job.communicate(timeout=200)
    seen = json.loads(out)
    validate(seen)
    assert not [r for r in seen["verdict"]["reasons"] if r["code"] == "CRASH"], (seen["headline"], err)
    assert "fast" in seen
    assert [p["sha256"] for p in seen["plugins"] if p["file"] == "mine.so"] == [digest]


def test_a_plugin_is_called_what_it_may_be_called(greenfast):
    """Its own code answers for the process that holds it to the rules."""
    greenfast.work.mkdir()
    (greenfast.work / "forges.cpp").write_text(rf"""
#include <cstdio>
#include <cstring>
#include <unistd.h>
#include <sys/syscall.h>
#include <linux/futex.h>
#include "workbench/subjects/plugin/channel.hpp"
extern "C" {{
#include "examples/plugins/attention.h"
}}
static gf_status launch(const gf_plugin_call* call) {{ example_attend(call); return GF_OK; }}
static const gf_plugin_kernel kKernels[] = {{
    {{sizeof(gf_plugin_kernel), GF_CPU, "forges", "", example_supports, example_workspace, nullptr, launch}}}};
static const gf_plugin kPlugin = {{1, sizeof(gf_plugin), "forges", kKernels, 1}};
GF_PLUGIN_EXPORT const gf_plugin* gf_plugin_get(void) {{
  using greenfast::workbench::channel::Control;
  FILE* maps = std::fopen("/proc/self/maps", "r");
  char line[512];
  unsigned long from = 0, to = 0;
  Control* control = nullptr;
  while (std::fgets(line, sizeof line, maps))
    if (std::strstr(line, "greenfast-plugin-control") && std::sscanf(line, "%lx-%lx", &from, &to) == 2)
      control = reinterpret_cast<Control*>(from);
  std::strcpy(control->description, "me\ncpu\t../../evil x GREEN\tidea\n");
  control->status = 0;
  control->answered.store(control->asked.load());
  syscall(SYS_futex, &control->answered, FUTEX_WAKE, 1, 0, 0, 0);
  usleep(300000);
  return &kPlugin;
}}
""")
    result = greenfast("check", "forges.cpp", f"--plugin-flags=-I{ROOT} -I{ROOT}/include", "--shapes", "1x1x16x16", "--dtype", "fp32")
    assert result.code == 2 and "says what no plugin may" in result.err, (result.out, result.err)


def prints(greenfast, code):
    """Checks a plugin that also does this in every call."""
    greenfast.work.mkdir()
    (greenfast.work / "prints.c").write_text('#include <stdio.h>\n#include "%s"\n' % (ROOT / "examples" / "plugins" / "attention.h") +
                                             "static gf_status launch(const gf_plugin_call* call) {\n  static int called;\n"
                                             "  example_attend(call);\n  " + code + "\n  ++called;\n  return GF_OK;\n}\n"
                                             'EXAMPLE_PLUGIN("prints", "and computes", launch)\n')
    result = greenfast("check", "prints.c", "--shapes", "1x1x16x16", "--dtype", "fp32", "--plugin-timeout", "30")
    assert result.code == 0, result.err[-300:]
    return result


def test_what_a_plugin_prints_moves_no_cursor(greenfast):
    """A terminal that obeys shows whatever verdict the plugin likes."""
    result = prints(greenfast, r'printf("\033[2J\033[HPROMOTE: it is fast\n"); fprintf(stderr, "\033]0;title\a without an end");')
    assert "PROMOTE: it is fast" in result.err and "without an end" in result.err
    assert "\x1b" not in result.err + result.out and "\a" not in result.err


def test_a_plugin_that_prints_much_is_not_held_up(greenfast):
    result = prints(greenfast, r'for (int i = 0; called == 0 && i < 40000; ++i) '
                               r'printf("a line of some sixty characters that nobody reads, number %d\n", i);')
    assert "number 39999\n" in result.err


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_comparison_ends_soon_and_leaves_nothing(greenfast, number):
    """It took 11 to 18 s, for an oracle's rows or a sample."""
    greenfast.work.mkdir()
    scratch = greenfast.work / "scratch"
    scratch.mkdir()
    compare = subprocess.Popen([greenfast.program, "compare", "plugin:honest", "cpu.naive", "--plugin", HONEST, "--shapes", "1x8x2048x64",
                                "--dtype", "fp32"], cwd=greenfast.work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True, env={**os.environ, "TMPDIR": str(scratch)})
    time.sleep(3)
    os.killpg(compare.pid, number)
    begin = time.monotonic()
    out, err = compare.communicate(timeout=60)
    assert time.monotonic() - begin < 4, "a second, and what a busy machine adds"
    assert compare.returncode == 130 and out == "", (out, err)
    assert "nothing of a comparison is kept" in err and "greenfast gate" in err
    assert not list(scratch.iterdir())


def test_an_interrupted_selftest_says_that_it_begins_anew(greenfast):
    selftest = subprocess.Popen([greenfast.program, "selftest", "--quiet"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                start_new_session=True)
    time.sleep(2)
    os.killpg(selftest.pid, signal.SIGINT)
    _, err = selftest.communicate(timeout=10)
    assert selftest.returncode == 130 and "begins it anew" in err, err


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
  snprintf(call->error, call->error_capacity, "\033[2J\033[1;1Hnot \xff\xfe text\r\nplugin:other 1x1x8x16 GREEN");
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
    # Nothing of the plugin's begins a line, which could be read as the command's.
    assert not re.search(r"^(plugin:other|printed by)", result.err + table.out + table.err, re.M)
    assert "plugin:other" in table.out and "plugin| printed by the kernel" in table.err


def test_names_and_paths_move_no_cursor(greenfast):
    environment = {**os.environb, b"GREENFAST_THREADS": b"2", b"GREENFAST_\x1b[2J": b"\x1b]0;title\a \xff"}
    for options in ([], ["--json"]):
        done = subprocess.run([greenfast.program, "doctor", *options], env=environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert b"\x1b" not in done.stdout + done.stderr
        done.stdout.decode()
        if options:
            assert json.loads(done.stdout)["environment"]["GREENFAST_THREADS"] == "2"
    result = greenfast("check", "--shapes", "1x1x8x16", "--variants", "cpu.naive", "--dtype", "fp32", "--out", "a\x1b[2Jb")
    assert result.code == 0 and "\x1b" not in result.out and "Record: a?[2Jb" in result.out
    (greenfast.work / "x\x1b[2Jy").mkdir()
    for command in (["new", "x\x1b[2Jy/mine.c"], ["report", "a\x1b[2Jb", "--out", "r\x1b[2J"],
                    ["report", "a\x1b[2Jb", "--bundle", "b\x1b[2J.tar.gz"],
                    ["history", "--repository", ROOT, "--html", "h\x1b[2J.html"]):
        said = greenfast(*command)
        assert "\x1b" not in said.out + said.err, command
        assert said.code == 0 or command[0] == "history", (command, said.err)


def test_what_new_prints_is_a_command_that_runs(greenfast):
    greenfast.work.mkdir()
    (greenfast.work / "a b").mkdir()
    for asked in (["a b/mine.c"], ["--", "-q.c"]):
        told = greenfast("new", *asked)
        assert told.code == 0, told.err
        command = told.out.split("Next: greenfast ")[1].strip()
        done = subprocess.run(["/bin/sh", "-c", f"{greenfast.program} {command} --shapes 1x1x8x16 --dtype fp32"], cwd=greenfast.work,
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stderr)


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


@pytest.mark.skipif(not NVCC, reason="no CUDA compiler")
def test_new_writes_a_kernel_that_nvcc_takes_without_a_word(greenfast):
    """Whether it is GREEN too needs a GPU."""
    assert greenfast("new", "mine.cu").code == 0
    made = subprocess.run([NVCC, "-std=c++17", *(f"-gencode=arch=compute_{a},code=sm_{a}" for a in ("80", "89", "90a")),
                           "-Werror", "all-warnings", "-Xcompiler=-fPIC,-Wall,-Werror", "-shared", "-I", ROOT / "include", "mine.cu",
                           "-o", "mine.so"], cwd=greenfast.work, capture_output=True, text=True, check=False)
    assert made.returncode == 0 and made.stderr == "", made.stderr
    assert ctypes.CDLL(str(greenfast.work / "mine.so")).gf_plugin_get


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
