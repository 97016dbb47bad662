"""The opcode gate, with a disassembler that says what a test wants."""
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
CUBIN = ROOT / "fuzz" / "seeds" / "device_code" / "sm_90a.cubin"
HOST = ROOT / "fuzz" / "seeds" / "device_code" / "host.o"
SASS = """\
	.target	sm_90a
	.section	.text._ZN1k5scaleEv,"ax",@progbits
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 HMMA.16816.F32 R4, R4, R8, RZ ;
        /*0020*/               @P1 UTMALDG.4D [UR8], [UR4] ;
"""


def gate(tmp_path, row, *options, file=CUBIN, sass=SASS, environment=None):
    program = tmp_path / "nvdisasm"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{sass}END\n")
    program.chmod(0o755)
    table = tmp_path / "opcodes.toml"
    table.write_text(row)
    return subprocess.run([ROOT / "tools" / "opcode_gate", file, "--table", table, *options], capture_output=True, text=True, check=False,
                          env={**os.environ, "NVDISASM": str(program), **(environment or {})})


def row(**keys):
    keys = {"kernel": "k::scale", "arch": "sm_90a", "because": "a test", **keys}
    return "[[kernel]]\n" + "".join(f"{key} = {value!r}\n" for key, value in keys.items())


def test_what_is_asked_for_is_there(tmp_path):
    result = gate(tmp_path, row(must=["HMMA", "UTMALDG"], must_not=["QMMA"]))
    assert result.returncode == 0 and "1 kernels, 1 rows, 0 complaints" in result.stdout


@pytest.mark.parametrize("keys, complaint", [
    ({"must": ["QMMA"]}, "sm_90a k::scale(): holds no QMMA (line 1: a test)"),
    ({"must_not": ["HMMA"]}, "sm_90a k::scale(): holds HMMA (line 1: a test)"),
    ({"must": ["HMMA"], "kernel": "k::other"}, "line 1: 'k::other' names no kernel for sm_90a"),
])
def test_what_differs_is_named(tmp_path, keys, complaint):
    result = gate(tmp_path, row(**keys))
    assert result.returncode == 1 and complaint in result.stdout


def test_a_row_for_an_architecture_that_is_not_built_says_nothing(tmp_path):
    assert gate(tmp_path, row(must=["QMMA"], arch="sm_89")).returncode == 0


def test_a_kernel_without_a_row_is_an_error_where_every_kernel_has_one(tmp_path):
    every = "every = 'k::'\n"
    assert gate(tmp_path, every + row(must=["HMMA"])).returncode == 0
    result = gate(tmp_path, every + row(must=["HMMA"], arch="sm_80"))
    assert result.returncode == 1 and "sm_90a k::scale(): no row says what its code must hold" in result.stdout
    assert gate(tmp_path, "every = 'other::'\n" + row(must=["HMMA"], arch="sm_80")).returncode == 0
    assert gate(tmp_path, "evry = 'k::'\n" + row(must=["HMMA"])).returncode == 2


def test_a_row_of_several_architectures_asks_each(tmp_path):
    assert gate(tmp_path, row(must=["HMMA"], arch=["sm_80", "sm_90a"])).returncode == 0
    assert gate(tmp_path, row(must=["QMMA"], arch=["sm_80", "sm_90a"])).returncode == 1


def test_a_part_of_a_build_is_held_to_its_rows(tmp_path):
    rows = row(must=["HMMA"]) + row(must=["HMMA"], kernel="prefill") + row(must=["HMMA"], kernel="k::slim") + "experimental = true\n"
    assert gate(tmp_path, rows).returncode == 1
    assert gate(tmp_path, rows, "--rows", "k::").returncode == 0
    result = gate(tmp_path, rows, "--rows", "k::", "--experimental")
    assert result.returncode == 1 and "'k::slim' names no kernel for sm_90a" in result.stdout


def test_a_row_of_an_experimental_kernel_binds_where_there_is_one(tmp_path):
    mark = "experimental = true\n"
    assert gate(tmp_path, row(must=["QMMA"], kernel="k::other") + mark).returncode == 0
    assert gate(tmp_path, row(must=["QMMA"]) + mark).returncode == 1


@pytest.mark.parametrize("text, words", [(row(), "line 1"), (row(musst=["HMMA"], must=["HMMA"]), "musst"), ("", "no [[kernel]]")])
def test_rows_that_ask_for_nothing_are_refused(tmp_path, text, words):
    result = gate(tmp_path, text)
    assert result.returncode == 2 and words in result.stderr


def test_without_a_disassembler_it_is_left_out_and_no_pass(tmp_path):
    result = gate(tmp_path, row(must=["HMMA"]), environment={"NVDISASM": "/nonexistent", "PATH": "/usr/bin:/bin"})
    if (pathlib.Path("/usr/local/cuda/bin/nvdisasm")).exists() or any(
            (ROOT / "build" / folder / "nvidia" / "cu13" / "bin" / "nvdisasm").exists() for folder in ("cuda-13.0", "nvdisasm")):
        pytest.skip("this machine has a disassembler of its own")
    assert result.returncode == 3 and "left out, nothing was checked" in result.stderr


def test_code_inside_a_host_file_is_found_and_a_file_without_is_no_pass(tmp_path):
    assert gate(tmp_path, row(must=["HMMA"]), file=HOST).returncode == 0
    plain = tmp_path / "plain"
    plain.write_bytes(b"nothing")
    assert gate(tmp_path, row(must=["HMMA"]), file=plain).returncode == 1


def test_the_table_of_this_repository_is_one(tmp_path):
    text = (ROOT / "policies" / "opcodes.toml").read_text()
    result = gate(tmp_path, text, sass=SASS.replace("sm_90a", "sm_70"))
    rows = text.count("\n[[kernel]]\n")
    assert rows > 5 and result.returncode == 0 and f"{rows} rows, 0 complaints" in result.stdout
