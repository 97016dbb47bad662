"""tools/gpu/streams where there is no GPU: what it says and how it ends, and what it makes of runs on a stand-in for the device."""
import contextlib
import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import types

import pytest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "gpu" / "streams"


def streams(*arguments):
    return subprocess.run([sys.executable, TOOL, *arguments], text=True, capture_output=True, check=False,
                          env={"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"}, timeout=120)


def test_without_a_gpu_it_says_so_and_leaves_no_record(tmp_path):
    done = streams("--out", tmp_path / "streams.json")
    assert done.returncode == 3 and done.stderr.startswith("streams: ") and not list(tmp_path.iterdir())


def test_a_record_that_cannot_be_kept_is_refused_before_anything_runs(tmp_path):
    done = streams("--out", tmp_path / "absent" / "streams.json")
    assert done.returncode == 2 and "there is no folder" in done.stderr


def test_an_impossible_number_of_repeats_is_refused():
    done = streams("--repeats", "0")
    assert done.returncode == 2 and "--repeats must be positive" in done.stderr


class Device:
    """Streams whose work takes no time but a call's; a host that takes `host` cycles to queue everything."""

    def __init__(self, host):
        self.host, self.slept = host, []

    def module(self):
        device = self

        class Event:
            def __init__(self, **_):
                self.at = None

            def record(self, stream):
                self.at = stream.now

            def query(self):
                return device.host >= device.slept[-1]

            def elapsed_time(self, other):
                return other.at - self.at

        cuda = types.SimpleNamespace(Event=Event, stream=lambda stream: contextlib.nullcontext(), synchronize=lambda: None,
                                     _sleep=device.slept.append)
        return types.SimpleNamespace(cuda=cuda, int16="int16", equal=lambda a, b: a == b)


class Stream:
    def __init__(self):
        self.now = 0.0

    def wait_event(self, event):
        self.now = max(self.now, event.at)


class Result(int):
    def view(self, _):
        return self

    def clone(self):
        return self


class Chain:
    def __init__(self, wrong_from=10**9):
        self.calls, self.wrong_from, self.idle = 0, wrong_from, True

    def reset(self):
        self.idle = True

    def launch(self, mixed, after):
        after()

    def bound(self, stream):
        def call():
            self.calls, self.idle, stream.now = self.calls + 1, False, stream.now + 1.0
        return [call] * 6

    def result(self):
        return Result(self.idle or self.calls < self.wrong_from)


@pytest.fixture
def tool(monkeypatch):
    loader = importlib.machinery.SourceFileLoader("gpu_streams", str(TOOL))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_streams", loader))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", list(sys.path))
    loader.exec_module(module)
    return module


def test_streams_that_are_let_go_at_one_moment_overlap(tool, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", Device(host=1000).module())
    found = tool.held([Chain(), Chain()], 5, [Stream(), Stream(), Stream()])
    assert found == {"wrong": 0, "queued": 5, "overlapped": 5}
    assert not tool.intersect([(0.0, 1.0), (1.0, 2.0)]) and tool.intersect([(0.0, 2.0), (1.0, 3.0)])


def test_a_wrong_run_is_counted_and_a_slow_host_gets_a_longer_hold(tool, monkeypatch):
    device = Device(host=3 * tool.HOLD)
    monkeypatch.setitem(sys.modules, "torch", device.module())
    found = tool.held([Chain(wrong_from=13)], 5, [Stream(), Stream()])
    # Wrong is wrong whether or not it was queued in time; what was not is no run of that way.
    assert found == {"wrong": 3, "queued": 3, "overlapped": 0}
    assert device.slept == [tool.HOLD, 2 * tool.HOLD] + 3 * [4 * tool.HOLD]
