"""The ptxas gate on logs written by nvcc 13.0 -Xptxas=-v,-warn-spills, and the launcher that keeps them."""
import pathlib
import subprocess

import pytest

TOOLS = pathlib.Path(__file__).parents[2] / "tools"
V8 = "_ZN9greenfast11cuda_v2c_v86kernelILi64EEEvPf"  # void greenfast::cuda_v2c_v8::kernel<64>(float*)


def entry(symbol=V8, arch="sm_89", registers=64, stack=0, stores=0, loads=0, shared=1024):
    return f"""\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{symbol}' for '{arch}'
ptxas info    : Function properties for {symbol}
    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers, {shared} bytes smem, 360 bytes cmem[0]
ptxas info    : Compile time = 56.855 ms
"""


def gate(tmp_path, logs, spills=""):
    """logs: object name -> text, or None for an object without a log. spills: the table of kernels that may."""
    for name, text in logs.items():
        if text is not None:
            (tmp_path / f"{name}.ptxas").write_text(text)
    (tmp_path / "ptxas_objects.txt").write_text("\n".join(str(tmp_path / name) for name in logs) + "\n")
    table = tmp_path / "spills.toml"
    table.write_text(spills)
    return subprocess.run([TOOLS / "ptxas_gate", tmp_path, "--spills", table], capture_output=True, text=True, check=False)


def test_clean_build_passes(tmp_path):
    result = gate(tmp_path, {"a.o": entry() + entry(arch="sm_90a"), "b.o": entry(arch="sm_80")})
    assert result.returncode == 0, result.stdout
    assert "1 for sm_80, 1 for sm_89, 1 for sm_90a; 0 complaints" in result.stdout


@pytest.mark.parametrize(
    "log, complaint",
    [
        (entry(stack=8, stores=4), "sm_89 void greenfast::cuda_v2c_v8::kernel<64>(float*): spills 4 bytes"),
        (entry(stack=8, loads=8), "spills 8 bytes"),
        (entry() + "ptxas info    : (C7520) Potential Performance Loss: wgmma.mma_async instructions are serialized\n",
         "C7520"),
        ("ptxas warning : Value of threads per SM for entry x is out of range\n" + entry(), "out of range"),
        (entry() + "ptxas info    : Function properties for helper\n"
                   "    16 bytes stack frame, 12 bytes spill stores, 12 bytes spill loads\n", "not inlined"),
        (entry().replace("Used 64 registers", "used registers"), "no register count"),
        ("", "ptxas -v said nothing"),
        (None, "no log of its compilation"),
    ],
)
def test_what_no_table_allows(tmp_path, log, complaint):
    result = gate(tmp_path, {"good.o": entry(arch="sm_80"), "a.o": log})
    assert result.returncode == 1
    assert complaint in result.stdout


def spill_row(kernel="cuda_v2c_v8::kernel<64>", most=8, arch='arch = "sm_89"'):
    return f'[[spill]]\nkernel = "{kernel}"\n{arch}\nbytes = {most}\nreason = "seen"\n'


def test_a_row_allows_what_it_names_and_no_more(tmp_path):
    logs = {"a.o": entry(stack=8, stores=4, loads=4)}
    assert gate(tmp_path, logs, spill_row()).returncode == 0
    assert gate(tmp_path, logs, spill_row(arch="")).returncode == 0
    for row in (spill_row(most=7), spill_row(kernel="cuda_v2c_v8::kernel<128>"), spill_row(arch='arch = "sm_90a"')):
        result = gate(tmp_path, logs, row)
        assert result.returncode == 1 and "spills 8 bytes" in result.stdout


def test_a_row_that_nothing_needs_is_an_error(tmp_path):
    result = gate(tmp_path, {"a.o": entry()}, spill_row())
    assert result.returncode == 1 and "nothing needs the row of 'cuda_v2c_v8::kernel<64>'" in result.stdout
    # Of an architecture that was not built nobody knows.
    assert gate(tmp_path, {"a.o": entry()}, spill_row(arch='arch = "sm_90a"')).returncode == 0


@pytest.mark.parametrize("table, named", [("[[spill]]\nbytes = 8\n", "KeyError"), (spill_row(kernel="("), "error"), (spill_row(most=0), "above 0"),
                                          ("spill", "Expected"), ("spill = [1]", "AttributeError"), ("spill = 3", "AttributeError"),
                                          (spill_row(kernel=""), "a row has"), (spill_row(arch='arch = "sm_90"'), "sm_90a")])
def test_a_table_that_cannot_be_read_is_named(tmp_path, table, named):
    result = gate(tmp_path, {"a.o": entry()}, table)
    assert result.returncode == 2 and named in result.stderr


def test_file_without_kernels_is_fine_beside_one_with(tmp_path):
    host_only = "ptxas info    : 0 bytes gmem\n"
    assert gate(tmp_path, {"a.o": entry(), "host.o": host_only}).returncode == 0
    assert gate(tmp_path, {"host.o": host_only}).returncode == 1


def test_nothing_built_is_no_pass(tmp_path):
    assert gate(tmp_path, {}).returncode == 1


def test_launcher_keeps_the_log_and_shows_what_matters(tmp_path):
    text = entry() + "ptxas info    : (C7510) Potential Performance Loss\n"
    script = tmp_path / "compiler"
    script.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}END\nexit 7\n")
    script.chmod(0o755)
    result = subprocess.run([TOOLS / "ptxas_log", script, "-c", "x.cu", "-o", tmp_path / "x.o"],
                            capture_output=True, text=True, check=False)
    assert result.returncode == 7
    assert result.stderr == "ptxas info    : (C7510) Potential Performance Loss\n"
    assert (tmp_path / "x.o.ptxas").read_text() == text
