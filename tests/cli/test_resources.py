"""greenfast resources: compiled kernels read without a GPU or a CUDA toolkit, and the limits they are held to."""
import pytest

from cli_paths import ROOT

CUBIN = ROOT / "fuzz" / "seeds" / "device_code" / "sm_90a.cubin"
HOST = ROOT / "fuzz" / "seeds" / "device_code" / "host.o"


def limits(tmp_path, **row):
    file = tmp_path / "limits.toml"
    row = {"kernel": "scale", "reason": "a test", **row}
    file.write_text("[[limit]]\n" + "".join(f"{k} = {v!r}\n" for k, v in row.items()))
    return file


def test_what_the_compiler_gave_a_kernel(greenfast):
    result = greenfast("resources", "--binary", CUBIN, "--json")
    assert result.code == 0, result.err
    [kernel] = result.json["kernels"]
    assert (kernel["kernel"], kernel["arch"], kernel["registers"]) == ("scale", "sm_90a", 16)
    assert (kernel["static_shared_bytes"], kernel["spill_bytes"], len(kernel["code_sha256"])) == (128, 0, 64)
    assert kernel["compiler"].startswith("13.0")
    assert result.json["within_limits"]


def test_a_broken_limit_names_itself_and_is_22(greenfast, tmp_path):
    result = greenfast("resources", "--binary", HOST, "--limits", limits(tmp_path, registers=15))
    assert result.code == 22
    assert "scale on sm_80: registers 16 > 15 (a test)" in result.out
    assert greenfast("resources", "--binary", HOST, "--limits", limits(tmp_path, registers=16)).code == 0
    known = greenfast("resources", "--binary", HOST, "--limits", limits(tmp_path, static_shared=1, known="not yet"))
    assert known.code == 22 and "known: not yet" in known.out


def test_bad_input_is_said(greenfast, tmp_path):
    greenfast("resources", "--binary", CUBIN, "--arch", "sm_70").refused(2, "sm_70", "sm_90a")
    greenfast("resources", "--binary", tmp_path / "none").refused(2, "none", "cannot be read")
    greenfast("resources", "--binary", __file__).refused(2, "not an ELF file")
    greenfast("resources", "--binary", CUBIN, "--limits", limits(tmp_path, wishes=1)).refused(2, "wishes: unknown key")
    greenfast("resources", "--binary", CUBIN, "--variants", "cpu.flash").refused(2, "no CUDA variant")
    half = tmp_path / "half.cubin"
    half.write_bytes(CUBIN.read_bytes()[: CUBIN.stat().st_size // 2])
    greenfast("resources", "--binary", half).refused(2, "half.cubin", "damaged")


def test_this_build(greenfast):
    result = greenfast("resources", "--json")
    if result.code == 3:
        assert "GREENFAST_CUDA=on" in result.err
        pytest.skip("this build has no CUDA kernels")
    rows = result.json["kernels"]
    assert result.code == (22 if any(row["broken"] for row in rows) else 0)
    for row in rows:
        for limit in row["broken"]:
            assert limit["known"], (row["kernel"], row["arch"], limit["what"])
    mission = [row for row in rows if row["variant"] == "cuda.v2c.v7"]
    assert mission and all(row["occupancy"]["blocks"] >= 1 and row["dynamic_shared_bytes"] > 0 for row in mission)
    one = greenfast("resources", "--variants", "cuda.v2c.v7", "--codes")
    assert one.code == 0 and "v2c::kernel<" in one.out and "cuda.v2c.v5" not in one.out
