"""tools/setup, tools/cuda_toolchain and tools/test: what they say when something is missing or wrong."""
import importlib.machinery
import importlib.util
import os
import pathlib
import subprocess

import pytest

TOOLS = pathlib.Path(__file__).parents[2] / "tools"


def shims(tmp_path, **scripts):
    """A PATH whose first folder holds these commands."""
    for name, text in scripts.items():
        path = tmp_path / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CUDA_HOME": "/nonexistent"}


def run(*command, env=None):
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_without_root_setup_names_what_is_missing_and_how_to_get_it(tmp_path):
    env = shims(tmp_path, dpkg_query='for last; do :; done; [ "$last" = ninja-build ] || echo installed', id="echo 1000",
                apt_get="echo apt-get must not run >&2; exit 99")
    result = run(TOOLS / "setup", "build", env=env)
    assert result.returncode == 3
    assert "missing packages: ninja-build\n" in result.stderr
    assert "sudo apt-get update && sudo apt-get install -y --no-install-recommends ninja-build\n" in result.stderr


def test_setup_does_nothing_when_all_is_there(tmp_path):
    env = shims(tmp_path, dpkg_query="echo installed", apt_get="exit 99")
    result = run(TOOLS / "setup", "build", "test", "format", "docs", env=env)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_setup_shows_why_apt_failed(tmp_path):
    env = shims(tmp_path, dpkg_query="exit 1", id="echo 0", apt_get="echo no route to host; exit 100")
    result = run(TOOLS / "setup", "format", env=env)
    assert result.returncode == 4
    assert "no route to host" in result.stderr
    assert "could not install clang-format-14" in result.stderr


def test_setup_refuses_an_unknown_group():
    result = run(TOOLS / "setup", "nosuch")
    assert result.returncode == 2
    assert "nosuch" in result.stderr and "docs" in result.stderr


def nvcc(release):
    return f"echo 'Cuda compilation tools, release {release}, V{release}.1'"


def test_toolchain_takes_the_nvcc_on_path(tmp_path):
    for mode in ("auto", "on"):
        result = run(TOOLS / "cuda_toolchain", mode, env=shims(tmp_path, nvcc=nvcc("13.1")))
        assert (result.returncode, result.stdout.strip()) == (0, str(tmp_path / "nvcc"))
        assert "nvcc 13.1" in result.stderr


def test_toolchain_off_is_cpu_only(tmp_path):
    result = run(TOOLS / "cuda_toolchain", "off", env=shims(tmp_path, nvcc=nvcc("13.1")))
    assert (result.returncode, result.stdout) == (0, "")
    assert "CPU-only" in result.stderr


def test_toolchain_passes_over_an_old_nvcc(tmp_path):
    result = run(TOOLS / "cuda_toolchain", "auto", env=shims(tmp_path, nvcc=nvcc("12.4")))
    assert "passing over nvcc 12.4" in result.stderr
    assert result.stdout.strip() != str(tmp_path / "nvcc")


def test_toolchain_refuses_another_word():
    result = run(TOOLS / "cuda_toolchain", "maybe")
    assert result.returncode == 2
    assert "CUDA=maybe: expected auto, on or off" in result.stderr


@pytest.fixture(scope="module")
def runner():
    loader = importlib.machinery.SourceFileLoader("greenfast_runner", str(TOOLS / "test"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_runner_counts_googletest_and_pytest_cases(runner, tmp_path):
    report = tmp_path / "report.xml"
    report.write_text("""<testsuites><testsuite>
        <testcase name="a" classname="S" status="run" result="completed"/>
        <testcase name="b" classname="S" status="run" result="completed"><failure message="x"/></testcase>
        <testcase name="c" classname="S" status="run" result="skipped"><skipped message="file:1&#x0A;no GPU"/></testcase>
        <testcase name="d" classname="S" status="notrun" result="suppressed"/>
        <testcase name="e" classname="S"><error message="x"/></testcase>
        <testcase name="f" classname="S"/>
        </testsuite></testsuites>""")
    outcome = runner.junit(report)
    assert (outcome.passed, outcome.failed, outcome.skipped) == (2, 2, ["S.c: no GPU"])


def test_runner_fails_with_a_failing_part_and_says_so_last(runner, monkeypatch, capsys, tmp_path):
    def left_out():
        raise runner.NotHere("no compiler")

    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(runner, "PARTS", {"good": lambda: runner.Outcome(passed=3), "none": left_out,
                                          "bad": lambda: runner.Outcome(passed=1, failed=2)})
    monkeypatch.setattr(runner.sys, "argv", ["test"])
    assert runner.main() == 1
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == "4 passed, 2 failed"
    assert "left out" in output and "no compiler" in output

    monkeypatch.setattr(runner.sys, "argv", ["test", "good"])
    assert runner.main() == 0
    monkeypatch.setattr(runner.sys, "argv", ["test", "none"])
    assert runner.main() == 1  # nothing passed, so nothing was shown


def test_runner_refuses_an_unknown_part():
    result = run(TOOLS / "test", "nosuch")
    assert result.returncode == 2
    assert "no part 'nosuch'" in result.stderr and "sanitize" in result.stderr


def test_runner_begins_a_later_part_beside_an_earlier_one_and_waits_for_it(runner, monkeypatch, capsys, tmp_path):
    there, never = tmp_path / "there", tmp_path / "never"
    seen = []
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(runner, "AHEAD", [runner.Ahead("first", "second", ["sh", "-c", f"sleep 0.3; touch {there}"]),
                                          runner.Ahead("first", "third", ["sh", "-c", f"sleep 60; touch {never}"])])
    monkeypatch.setattr(runner, "PARTS", {"first": lambda: seen.append(there.exists()) or runner.Outcome(passed=1),
                                          "second": lambda: seen.append(there.exists()) or runner.Outcome(passed=1),
                                          "third": lambda: runner.Outcome(passed=1)})
    monkeypatch.setattr(runner.sys, "argv", ["test", "first", "second"])
    assert runner.main() == 0 and seen == [False, True]
    assert capsys.readouterr().out.splitlines()[-1] == "2 passed, 0 failed"
    assert runner.AHEAD[1].process is None  # who wants it was not asked for

    def broken():
        raise RuntimeError("a part that breaks")

    monkeypatch.setitem(runner.PARTS, "second", broken)
    monkeypatch.setattr(runner.sys, "argv", ["test", "first", "second", "third"])
    with pytest.raises(RuntimeError):
        runner.main()
    assert runner.AHEAD[1].process.poll() is not None and not never.exists()  # nothing is left running
