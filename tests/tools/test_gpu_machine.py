"""tools/gpu/machine with lanes that only play their parts: side by side, timeouts, failures, an interrupt, the table, the tar."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "gpu" / "machine"


def shell(text):
    return ["bash", "-c", text]


def step(name, command, seconds=60, **more):
    return {"name": name, "command": command, "seconds": seconds, **more}


@pytest.fixture
def machine(tmp_path):
    def start(lanes=(), timings=(), *options):
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps({"lanes": list(lanes), "timings": list(timings)}))
        return subprocess.Popen([sys.executable, TOOL, tmp_path / "build", tmp_path / "out", "--no-build", "--plan", plan, *options], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(*arguments):
        process = start(*arguments)
        text = process.communicate(timeout=120)[0]
        record = tmp_path / "out" / "machine.json"
        rows = {row["name"]: row for row in json.loads(record.read_text())["rows"]} if record.exists() else {}
        return process.returncode, text, rows

    run.start, run.out = start, tmp_path / "out"
    return run


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_lanes_run_beside_each_other_and_timings_alone_after_them(machine, tmp_path):
    # Each of the lanes waits for the other; each timing refuses to run beside anything else.
    meet = [shell(f"touch {tmp_path}/{own}; until [ -e {tmp_path}/{other} ]; do sleep 0.05; done; sleep 0.2; touch {tmp_path}/{own}.done")
            for own, other in (("a", "b"), ("b", "a"))]
    alone = shell(f"[ -e {tmp_path}/a.done ] && [ -e {tmp_path}/b.done ] && mkdir {tmp_path}/busy && sleep 0.3 && rmdir {tmp_path}/busy && echo 1.5 us")
    code, text, rows = machine([step("a", meet[0]), step("b", meet[1])], [step("first", alone), step("second", alone)])
    assert code == 0, text
    assert [row["state"] for row in rows.values()] == ["ok"] * 4
    table = text.rpartition("last line\n")[2].splitlines()
    assert [line.split()[:3] for line in table[:4]] == [[name, "ok", "0"] for name in ("a", "b", "first", "second")]
    assert table[2].endswith("1.5 us")


def test_a_lane_that_fails_is_shown_and_stops_only_what_asks_for_it(machine):
    code, text, rows = machine(
        [step("wrong", shell("echo 'RED: row 7'; exit 20")), step("right", shell("exit 0")), step("absent", ["/no/such/program"])],
        [step("of-wrong", shell("exit 0"), after=["wrong"]), step("of-right", shell("exit 0"), after=["right"])])
    assert code == 1
    assert (rows["wrong"]["state"], rows["wrong"]["exit"], rows["wrong"]["said"]) == ("failed", 20, "RED: row 7")
    assert rows["absent"]["exit"] == 127 and "/no/such/program" in rows["absent"]["said"]
    assert rows["of-wrong"]["state"] == "left out" and "wrong is not as it should be" in rows["of-wrong"]["said"]
    assert rows["right"]["state"] == rows["of-right"]["state"] == "ok"
    assert "RED: row 7" in (machine.out / "wrong.log").read_text()


def test_what_a_step_says_of_itself_is_no_success(machine):
    code, _, rows = machine([step("skipped", shell("exit 3")), step("short", shell("exit 125")), step("late", shell("exit 124"))])
    assert code == 1
    assert [rows[name]["state"] for name in ("skipped", "short", "late")] == ["nothing ran", "incomplete", "timeout"]


def test_a_lane_that_does_not_end_is_ended_with_all_that_it_started(machine, tmp_path):
    # One that writes what it has when it is asked to stop; one that does not listen, with a child in a session of its own.
    polite = shell(f"trap 'echo partial >{tmp_path}/partial; exit 1' TERM; while :; do sleep 0.1; done")
    deaf = shell(f"trap '' TERM; setsid sleep 300 & echo $! >{tmp_path}/child; sleep 300")
    code, _, rows = machine([step("polite", polite, 1), step("deaf", deaf, 1), step("quick", shell("echo fine"))])
    assert code == 1
    assert rows["polite"]["state"] == rows["deaf"]["state"] == "timeout" and rows["quick"]["state"] == "ok"
    assert (tmp_path / "partial").exists()
    assert not alive(int((tmp_path / "child").read_text()))


def test_what_a_lane_leaves_running_does_not_disturb_the_timings(machine, tmp_path):
    leaves = shell(f"sleep 300 & echo $! >{tmp_path}/child")
    code, _, _ = machine([step("leaves", leaves)])
    assert code == 0 and not alive(int((tmp_path / "child").read_text()))


def test_what_the_budget_has_no_time_for_is_named(machine):
    code, text, rows = machine([step("long", shell("sleep 60"), 60)], [step("after", shell("exit 0"))], "--budget", "16")
    assert code == 1
    assert rows["long"]["state"] == "timeout" and rows["long"]["limit"] <= 16
    assert rows["after"]["state"] == "left out" and "of the budget are left" in rows["after"]["said"]
    assert "after: left out" in text


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_ends_its_lanes_and_keeps_what_they_found(machine, tmp_path, which):
    process = machine.start([step("done", shell("echo found >{out}/found")),
                             step("going", shell(f"echo $$ >{tmp_path}/pid; sleep 300"))], [step("later", shell("exit 0"))])
    record = machine.out / "machine.json"
    wait_for(lambda: (tmp_path / "pid").exists() and record.exists())
    process.send_signal(which)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 130
    rows = {row["name"]: row for row in json.loads(record.read_text())["rows"]}
    assert [rows[name]["state"] for name in ("done", "going", "later")] == ["ok", "interrupted", "left out"]
    assert not alive(int((tmp_path / "pid").read_text()))
    assert "interrupted" in text.rpartition("last line\n")[2]
    with tarfile.open(machine.out / "machine.tar.gz") as archive:
        assert {"out/done/found", "out/going.log", "out/machine.json"} <= set(archive.getnames())


@pytest.mark.parametrize("lanes, named", [
    ([1], "a step has"), ([step("a", "echo hi")], "a list of words"), ([step("a", ["true"], "x")], "seconds"),
    ([step("a", ["true"], after=["zz"])], "no step 'zz'")])
def test_a_plan_that_says_nonsense_is_named(machine, lanes, named):
    code, text, rows = machine(lanes)
    assert code == 2 and named in text and not rows


def test_a_step_that_cannot_begin_is_no_success(machine):
    machine.out.mkdir()
    (machine.out / "blocked").write_text("a file where its folder would be")
    code, text, rows = machine([step("blocked", shell("exit 0")), step("later", shell("exit 0"))])
    assert code == 1 and "FileExistsError" in rows["steps"]["said"] and "no further step" in text


def test_the_tar_holds_logs_and_results_but_no_package(machine):
    write = shell("mkdir -p {out}/site/pkg && echo 1 >{out}/result.json && echo 2 >{out}/site/pkg/module.py")
    code, text, _ = machine([step("writes", write)])
    assert code == 0
    with tarfile.open(machine.out / "machine.tar.gz") as archive:
        assert sorted(archive.getnames()) == ["out/machine.json", "out/writes.log", "out/writes/result.json"]
    assert "machine.tar.gz: " in text.splitlines()[-1]


def test_commands_know_where_they_are_and_how_long_they_have(machine, tmp_path):
    say = ["bash", "-c", "echo {root} {build} {out} {seconds} ${GREENFAST_BUILD}"]
    _, _, rows = machine([step("says", say, 40)])
    build = str(tmp_path / "build")
    assert rows["says"]["said"].split() == [str(ROOT), build, str(machine.out / "says"), "32", build]
    code, _, rows = machine([step("wants", ["echo", "{package}"])])
    assert code == 1 and "no Python package" in rows["wants"]["said"]
    (tmp_path / "site").mkdir()
    code, _, rows = machine([step("wants", ["echo", "{package}"])], [], "--package", tmp_path / "site")
    assert code == 0 and rows["wants"]["said"] == str(tmp_path / "site")


def test_lanes_can_be_chosen_and_unknown_ones_are_named(machine):
    lanes, timings = [step("a", shell("exit 0")), step("b", shell("exit 0"))], [step("c", shell("exit 0"))]
    _, _, rows = machine(lanes, timings, "--lanes", "b", "--timings", "")
    assert list(rows) == ["b"]
    code, text, _ = machine(lanes, timings, "--lanes", "d")
    assert code == 2 and "no 'd'; there are: a, b" in text
    code, text, _ = machine([step("a", shell("exit 0")), step("a", shell("exit 0"))])
    assert code == 2 and "'a': a name is its own" in text


def test_the_plan_that_comes_with_it_is_of_tools_that_are_there():
    done = subprocess.run([sys.executable, TOOL, "--list"], capture_output=True, text=True, check=True)
    commands = [line.split()[4:] for line in done.stdout.splitlines()]
    tools = {word.removeprefix("{root}/") for words in commands for word in words if word.startswith("{root}/")}
    assert len(commands) >= 10 and "tools/gpu/packed" in tools
    assert all(os.access(ROOT / tool, os.X_OK) for tool in tools)


def test_debs_that_are_not_there_are_refused_before_anything_is_built(tmp_path):
    done = subprocess.run([sys.executable, TOOL, tmp_path / "build", tmp_path / "out", "--debs", tmp_path / "debs"], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 2 and "--debs" in done.stderr and not (tmp_path / "build").exists()


# Plays cmake: says what it was asked for, and makes what a build makes, unless a target is to fail.
CMAKE = """#!/bin/bash
echo "cmake $*" >>"$CALLS"
case "$*" in *"$FAILS"*) echo "x.cpp:1: error: broken"; exit 1 ;; esac
if [ "$1" = --build ]; then mkdir -p "$2/bin" "$2/python"; touch "$2/bin/fuzz_library"; printf '#!/bin/sh\\n' >"$2/bin/greenfast"; chmod +x "$2/bin/greenfast"; fi
"""


@pytest.fixture
def builder(tmp_path):
    shims = tmp_path / "shims"
    shims.mkdir()
    for name, text in (("cmake", CMAKE), ("nvcc", "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")):
        (shims / name).write_text(text)
        (shims / name).chmod(0o755)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"lanes": [step("a", ["test", "-x", "{build}/bin/greenfast"])]}))

    def run(*options, fails="no such word"):
        done = subprocess.run([sys.executable, TOOL, tmp_path / "build", tmp_path / "out", "--plan", plan, *options], capture_output=True, text=True,
                              check=False, env={**os.environ, "PATH": f"{shims}:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls"), "FAILS": fails})
        rows = {row["name"]: row["state"] for row in json.loads((tmp_path / "out" / "machine.json").read_text())["rows"]} if done.returncode != 2 else {}
        return done, rows, (tmp_path / "calls").read_text() if (tmp_path / "calls").exists() else ""

    return run


def test_it_builds_for_hopper_with_what_it_is_told(builder, tmp_path):
    done, rows, calls = builder("--cmake=-DGREENFAST_EXPERIMENTAL=ON", "--jobs", "3")
    assert done.returncode == 0 and rows == {"build": "ok", "a": "ok"}, done.stdout + done.stderr
    configure = calls.splitlines()[0]
    assert f"-B {tmp_path}/build" in configure and "-DGREENFAST_CUDA_ARCHS=90a" in configure and "-DGREENFAST_EXPERIMENTAL=ON" in configure
    assert "--parallel 3 --target greenfast greenfast_cli" in calls


def test_a_build_that_fails_runs_nothing(builder):
    done, rows, _ = builder(fails="greenfast_cli")
    assert done.returncode == 4 and rows == {"build": "failed"} and "x.cpp:1: error: broken" in done.stdout


def test_a_fuzzer_that_does_not_compile_is_told_and_no_old_one_is_run(builder, tmp_path):
    (tmp_path / "build" / "bin").mkdir(parents=True)
    (tmp_path / "build" / "bin" / "fuzz_serving").touch()
    done, rows, _ = builder(fails="fuzz_serving")
    assert done.returncode == 1 and rows == {"build": "failed", "a": "ok"}
    assert not list((tmp_path / "build" / "bin").glob("fuzz_*"))


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="makes a .deb with dpkg-deb")
def test_debs_are_unpacked_beside_the_build(builder, tmp_path):
    tree, debs = tmp_path / "tree", tmp_path / "debs"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text("Package: thing\nVersion: 1\nArchitecture: all\nMaintainer: nobody <n@example.org>\nDescription: thing\n")
    (tree / "usr" / "include").mkdir(parents=True)
    (tree / "usr" / "include" / "thing.h").touch()
    debs.mkdir()
    done, _, _ = builder("--debs", debs)
    assert done.returncode == 2 and "no .deb file there" in done.stderr
    subprocess.run(["dpkg-deb", "--build", tree, debs / "thing.deb"], check=True, capture_output=True)
    done, _, calls = builder("--debs", debs)
    assert done.returncode == 0 and f"-DCMAKE_PREFIX_PATH={tmp_path}/build/debs/usr" in calls
    assert (tmp_path / "build" / "debs" / "usr" / "include" / "thing.h").exists()
