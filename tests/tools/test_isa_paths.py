"""tools/isa_paths: what is walked, what is lacking, and that a wrong path is not passed over. The programs are stand-ins."""
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GREENFAST = """#!/bin/sh
case "$GREENFAST_ISA" in
avx512bf16|avx512amx) echo "greenfast check: environment variable GREENFAST_ISA='$GREENFAST_ISA': this machine has portable, avx2" >&2; exit 2;;
esac
case "$*" in
*--json*) echo "{\\"device\\": {\\"isa\\": \\"${USED:-$GREENFAST_ISA}\\"}}";;
*) echo "$1 $GREENFAST_ISA" >> LOG; echo fine;;
esac
"""
FUZZ = """#!/bin/sh
echo "$(basename "$0") $GREENFAST_ISA" >> LOG
[ "$BROKEN" = "$GREENFAST_ISA" ] && { echo "1 with failures"; exit 20; }
echo "0 with failures, asked $*"
"""
TILES = """#!/bin/sh
echo "test_cpu_amx" >> LOG
"""


@pytest.fixture
def walk(tmp_path):
    """Runs the tool over stand-ins, which write down that they were called."""
    for name, text in (("greenfast", GREENFAST), ("fuzz_library", FUZZ), ("fuzz_serving", FUZZ), ("tests/test_cpu_amx", TILES)):
        program = tmp_path / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text.replace("LOG", str(tmp_path / "log")))
        program.chmod(0o755)

    def run(*arguments, **environment):
        (tmp_path / "log").write_text("")
        done = subprocess.run([sys.executable, ROOT / "tools" / "isa_paths", *arguments], capture_output=True, text=True, check=False,
                              env={**os.environ, "GREENFAST_BUILD": str(tmp_path), **environment})
        return done, (tmp_path / "log").read_text().splitlines()

    run.folder = tmp_path
    return run


def test_every_set_that_is_here_is_walked_and_the_others_are_named(walk):
    done, log = walk("--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    for isa in ("portable", "avx2", "avx512"):
        assert [line.split()[0] for line in log if line.endswith(f" {isa}")] == ["check", "fuzz_library", "fuzz_library", "fuzz_serving"]
    assert "avx512amx: not here: this machine has portable, avx2" in done.stdout
    assert "walked portable, avx2, avx512; lacking here: avx512bf16, avx512amx; 0 wrong" in done.stdout
    done, log = walk("--seconds", "1")
    assert "--seconds 1" in done.stdout  # a whole number, as the fuzzers take it
    assert sum(line.startswith("selftest ") for line in log) == 3


def test_tiles_in_software_stand_in_where_the_rest_of_that_code_can_run(walk):
    _, log = walk("--quick")
    assert "test_cpu_amx" not in log  # without AVX512-BF16 they cannot
    program = walk.folder / "bin" / "greenfast"
    program.write_text(program.read_text().replace("avx512bf16|", ""))
    done, log = walk("--quick")
    assert done.returncode == 0 and log.count("test_cpu_amx") == 1 and "in software" in done.stdout


def test_one_wrong_set_is_enough(walk):
    done, _ = walk("--quick", BROKEN="avx2")
    assert done.returncode == 20 and "3 wrong" in done.stdout and "WRONG, exit 20" in done.stdout
    done, _ = walk("--quick", USED="portable")  # forced in vain
    assert done.returncode == 20 and "2 wrong" in done.stdout


def test_what_is_not_built_is_named(walk):
    (walk.folder / "bin" / "fuzz_serving").unlink()
    done, _ = walk()
    assert done.returncode == 3 and "fuzz_serving" in done.stderr and "tools/build cpu" in done.stderr
