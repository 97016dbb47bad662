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


def test_a_waiver_lets_pass_by_name_up_to_its_own_figure(greenfast, tmp_path):
    file = limits(tmp_path, registers=15)
    row = "[[waiver]]\nname = 'small'\nkernel = 'scale'\nregisters = {}\nreason = 'tried'\n"
    text = file.read_text()
    file.write_text(text + row.format(16))
    waived = greenfast("resources", "--binary", HOST, "--limits", file)
    assert waived.code == 0 and "registers 16 > 15 (a test); waiver 'small': tried" in waived.out
    data = greenfast("resources", "--binary", HOST, "--limits", file, "--json").json
    kinds = [limit["status"] for kernel in data["kernels"] for limit in kernel["limits"]]
    assert set(kinds) == {"WAIVED"} and data["within_limits"]
    file.write_text(text + row.format(15))
    assert greenfast("resources", "--binary", HOST, "--limits", file).code == 22
    file.write_text(text + row.format(16).replace("reason = 'tried'\n", ""))
    greenfast("resources", "--binary", HOST, "--limits", file).refused(2, "limits.toml", "line 5: waiver: needs a reason")


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
    assert result.code == 0 and result.json["within_limits"] and not result.json["unneeded_waivers"]
    waived = {limit["waiver"]["name"] for row in rows for limit in row["limits"] if limit["status"] == "WAIVED"}
    assert "a third stage of K and V" in waived
    mission = [row for row in rows if row["variant"] == "cuda.v2c.v7"]
    assert mission and all(row["occupancy"]["blocks"] >= 1 and row["dynamic_shared_bytes"] > 0 for row in mission)
    one = greenfast("resources", "--variants", "cuda.v2c.v7", "--codes")
    assert one.code == 0 and "v2c::kernel<" in one.out and "cuda.v2c.v5" not in one.out


def test_limits_that_name_no_kernel_are_refused_with_the_line(greenfast, tmp_path):
    if greenfast("resources", "--json").code == 3:
        pytest.skip("this build has no CUDA kernels")
    row = limits(tmp_path, kernel="v9::", registers=1)
    greenfast("resources", "--limits", row).refused(2, "line 1", "kernel 'v9::'", "no kernel of this build")
