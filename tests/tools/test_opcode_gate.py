"""The opcode gate, with machine code and a disassembler that are what a test wants."""
import os
import pathlib
import struct
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# Places in here are opcodes, the 12 lowest bits of an instruction; -b is asked of a file of instructions, -c of a cubin.
NAMES = ["LDC", "HMMA", "UTMALDG", "QMMA", "EXIT"]
DISASSEMBLER = f"""#!{sys.executable}
import sys
names, data = {NAMES!r}, open(sys.argv[-1], "rb").read()
if "-b" in sys.argv:
    assert sys.argv[sys.argv.index("-b") + 1] == "SM90a", sys.argv
    for at in range(0, len(data), 16):
        bits = int.from_bytes(data[at:at + 16], "little")
        name = "QMMA" if bits >> 76 & 1 else names[bits & 0xfff]
        print(f"        /*{{at:04x}}*/      " + "@!P0 " * (at % 32 == 0) + name + ".16816.F32 R4, R4, R8, RZ ;")
else:
    print("\t.target\tsm_90a")
"""


def cubin(instructions, kernel="_ZN1k5scaleEv"):
    """An ELF file of CUDA code with one kernel of these: names, or (name, modifiers)."""
    words = [name if isinstance(name, tuple) else (name, 0) for name in instructions]
    text = b"".join((NAMES.index(name) | 7 << 12 | modifiers << 72).to_bytes(16, "little") for name, modifiers in words)
    names = b"\0.text." + kernel.encode() + b"\0.shstrtab\0"
    where, size = 64 + len(text) + len(names), 64
    header = b"\x7fELF\x02\x01\x01\x41\x08" + bytes(7) + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, where, 0x6005a04, 64, 56, 0, size, 3, 2)
    section = lambda name, kind, at, length: struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, at, length, 0, 0, 1, 0)
    return (header + text + names + section(0, 0, 0, 0) + section(1, 1, 64, len(text)) +
            section(names.index(b".shstrtab"), 3, 64 + len(text), len(names)))


CODE = cubin(["LDC", "HMMA", "UTMALDG", "EXIT"])


def gate(tmp_path, row, *options, code=CODE, target="sm_90a", environment=None):
    program, file = tmp_path / "nvdisasm", tmp_path / "code.cubin"
    program.write_text(DISASSEMBLER.replace("sm_90a", target).replace("SM90a", target.upper().replace("_", "").replace("A", "a")))
    program.chmod(0o755)
    file.write_bytes(code)
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
    host = b"\x7fELF, but not of CUDA" + CODE + bytes(64) + cubin(["QMMA"], "_ZN1k5otherEv")
    result = gate(tmp_path, row(must=["HMMA"]) + row(must=["QMMA"], must_not=["LDC"], kernel="k::other"), code=host)
    assert result.returncode == 0 and "2 kernels, 2 rows, 0 complaints" in result.stdout
    assert gate(tmp_path, row(must=["HMMA"]), code=b"nothing").returncode == 1


def test_instructions_that_their_lowest_bits_do_not_tell_apart_are_no_pass(tmp_path):
    result = gate(tmp_path, row(must=["HMMA"]), code=cubin([("HMMA", 0), ("HMMA", 1), ("HMMA", 16)]))
    assert result.returncode != 0 and "HMMA and QMMA" in result.stderr


@pytest.mark.parametrize("left", [100, len(CODE) - 100])
def test_damaged_code_is_named(tmp_path, left):
    result = gate(tmp_path, row(must=["HMMA"]), code=CODE[:left])
    assert result.returncode == 2 and "code.cubin: damaged device code" in result.stderr


def test_a_kernel_without_an_instruction_holds_none(tmp_path):
    result = gate(tmp_path, row(must=["HMMA"]), code=cubin([]))
    assert result.returncode == 1 and "sm_90a k::scale(): holds no HMMA" in result.stdout


def test_the_table_of_this_repository_is_one(tmp_path):
    text = (ROOT / "policies" / "opcodes.toml").read_text()
    result = gate(tmp_path, text, target="sm_70")  # which no row names
    rows = text.count("\n[[kernel]]\n")
    assert rows > 5 and result.returncode == 0 and f"{rows} rows, 0 complaints" in result.stdout
