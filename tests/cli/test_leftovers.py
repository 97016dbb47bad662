"""Searches that are ended by a signal: no process, no folder and no half-built library stays."""
import os
import shutil
import signal
import subprocess
import time

import pytest

from cli_paths import ROOT

HONEST = ROOT / "examples" / "plugins" / "honest.c"

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no host compiler")


def nothing_is_left(work):
    """Processes that work in a folder, and what compilers left half-built there."""
    deadline = time.monotonic() + 20
    while True:
        running = []
        for process in os.listdir("/proc"):
            try:
                if process.isdigit() and os.readlink(f"/proc/{process}/cwd").startswith(str(work)):
                    running.append(open(f"/proc/{process}/cmdline").read().replace("\0", " "))
            except OSError:
                pass
        halves = [str(p) for p in work.rglob("*.tmp*")]
        if not running and not halves:
            return
        assert time.monotonic() < deadline, (running, halves)
        time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL])
@pytest.mark.parametrize("stage", ["compiling", "timing"])
def test_a_search_leaves_nothing_behind(greenfast, number, stage, tmp_path):
    greenfast.work.mkdir()
    shutil.copy(ROOT / "examples" / "plugins" / "attention.h", greenfast.work)
    (greenfast.work / "work.c").write_text("""
// tune: WORK = *1 2 3 4
#include "attention.h"
static gf_status launch(const gf_plugin_call* call) { for (int i = 0; i < WORK; ++i) example_attend(call); return GF_OK; }
EXAMPLE_PLUGIN("work", "repeats itself", launch)
""")
    environment = dict(os.environ)
    if stage == "compiling":
        # A compiler whose own child does the work, takes its time and has begun to write.
        wrapper = tmp_path / "bin" / "cc"
        wrapper.parent.mkdir()
        wrapper.write_text('#!/bin/sh\ncase "$*" in *--version*) echo slow 1; exit 0;; esac\n'
                           'while [ "$1" != -o ]; do shift; done\nprintf half > "$2"\ntouch started\n(sleep 600; true)\n')
        wrapper.chmod(0o755)
        environment["PATH"] = f"{wrapper.parent}:{environment['PATH']}"
    search = subprocess.Popen([greenfast.program, "tune", "work.c", "--primary", "1x2x64x32", "--held-out", "none", "--dtype", "fp32",
                               "--strategy", "exhaustive", "--jobs", "2"], cwd=greenfast.work, env=environment,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                              # Tests that run under nohup hand SIGHUP on ignored, which the command heeds.
                              preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    cache = greenfast.work / "results" / "tune-work" / "cache.jsonl"

    def there():
        return (greenfast.work / "started").exists() if stage == "compiling" else cache.exists() and '"case"' in cache.read_text()

    deadline = time.monotonic() + 120
    while not there() and search.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert there()
    os.kill(search.pid, number)
    search.wait(timeout=60)
    if number != signal.SIGKILL:
        assert search.returncode in (130, 0)
    (greenfast.work / "started").unlink(missing_ok=True)
    nothing_is_left(greenfast.work)
    if number == signal.SIGKILL and stage == "timing":
        assert not [p for p in greenfast.work.rglob("*") if p.is_dir() and p.name.startswith("greenfast-")]


@pytest.mark.parametrize("command", [["check"], ["bench"], ["compare", "cpu.naive", "plugin:honest"],
                                     ["gate", "--baseline", "cpu.naive", "--candidate", "plugin:honest"]], ids=lambda c: c[0])
def test_an_interrupted_compiler_leaves_no_folder(greenfast, command, tmp_path):
    wrapper, scratch = tmp_path / "bin" / "cc", tmp_path / "scratch"
    wrapper.parent.mkdir()
    scratch.mkdir()
    greenfast.work.mkdir()
    wrapper.write_text('#!/bin/sh\ncase "$*" in *--version*) echo slow 1; exit 0;; esac\n'
                       'while [ "$1" != -o ]; do shift; done\nprintf half > "$2"\ntouch started\n(sleep 600; true)\n')
    wrapper.chmod(0o755)
    running = subprocess.Popen([greenfast.program, *command, "--plugin", HONEST], cwd=greenfast.work, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               text=True, env={**os.environ, "PATH": f"{wrapper.parent}:{os.environ['PATH']}", "TMPDIR": str(scratch)})
    deadline = time.monotonic() + 60
    while not (greenfast.work / "started").exists() and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(scratch.iterdir())
    running.send_signal(signal.SIGINT)
    said = running.communicate(timeout=60)[1]
    assert running.returncode == 130 and "interrupted" in said, said
    assert not list(scratch.iterdir())
    nothing_is_left(greenfast.work)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_proposer_ends_with_the_search(greenfast, number):
    greenfast.work.mkdir()
    shutil.copy(ROOT / "examples" / "plugins" / "attention.h", greenfast.work)
    shutil.copy(HONEST, greenfast.work / "honest.c")
    (greenfast.work / "deaf.sh").write_text("trap '' TERM\ntouch started\nsleep 600 &\nwait\nsleep 600\n")
    search = subprocess.Popen([greenfast.program, "evolve", "honest.c", "--proposer", "sh deaf.sh", "--primary", "1x2x33x16", "--held-out",
                               "none", "--dtype", "fp32"], cwd=greenfast.work, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              start_new_session=True)
    deadline = time.monotonic() + 120
    while not (greenfast.work / "started").exists() and search.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (greenfast.work / "started").exists(), search.stderr.read()
    os.kill(search.pid, number)
    search.wait(timeout=60)
    nothing_is_left(greenfast.work)


def test_nohup_keeps_a_search_running(greenfast):
    greenfast.work.mkdir()
    shutil.copy(ROOT / "examples" / "plugins" / "attention.h", greenfast.work)
    shutil.copy(HONEST, greenfast.work / "honest.c")
    # What nohup leaves to its command; nohup itself would die of a signal that comes before it has said so.
    run = subprocess.Popen([greenfast.program, "check", "honest.c", "--shapes", "1x2x64x32", "--dtype", "fp32", "--seeds", "0", "--json"],
                           cwd=greenfast.work, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                           preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    while run.poll() is None:
        os.kill(run.pid, signal.SIGHUP)
        time.sleep(0.05)
    assert run.returncode == 0 and '"complete"' in run.stdout.read()
