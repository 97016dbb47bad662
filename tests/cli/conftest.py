"""The greenfast command as its users run it: a process, its output, its exit code, its files."""
import json
import os
import subprocess

import pytest

from cli_paths import GREENFAST



class Result:
    def __init__(self, done):
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def json(self):
        return json.loads(self.out)

    def refused(self, code, *words):
        """One line on stderr that holds these words, nothing on stdout, and the exit code."""
        assert self.code == code, (self.code, self.out, self.err)
        assert self.out == ""
        assert self.err.count("\n") == 1 and self.err.endswith("\n"), self.err
        for word in words:
            assert word in self.err, self.err
        return self


@pytest.fixture
def greenfast(tmp_path):
    """Runs the command in an empty directory; `files()` is what it left there."""

    def run(*arguments, env=None, **options):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("GREENFAST_", "USE_"))}
        environment.update(env or {})
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        return Result(subprocess.run([GREENFAST, *map(str, arguments)], cwd=work, env=environment, text=True,
                                     capture_output=True, check=False, timeout=300, **options))

    run.program = GREENFAST
    run.work = tmp_path / "work"
    run.files = lambda: sorted(str(p.relative_to(run.work)) for p in run.work.rglob("*")) if run.work.exists() else []
    return run
