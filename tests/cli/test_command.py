"""Subcommands, options and exit codes."""
import json
import re
import subprocess

import pytest

from cli_paths import GREENFAST, ROOT
from schemas import validate

COMMANDS = ["run", "check", "bench", "list", "selftest", "compare", "gate", "resources", "phases", "profile", "history", "report",
            "evidence", "doctor"]


def test_version_names_a_version_and_a_commit(greenfast):
    result = greenfast("--version")
    assert result.code == 0
    assert re.fullmatch(r"greenfast \d+\.\d+\.\d+( \([0-9a-f]{8}(, dirty)?\))?\n", result.out)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_lists_the_exit_codes(greenfast, command):
    result = greenfast(command, "--help")
    assert result.code == 0
    assert f"Usage: greenfast {command}" in result.out
    for code in (2, 3, 4, 10, 20, 21, 22, 23, 24, 30, 130):
        assert re.search(rf"\b{code} [a-zA-Z]", result.out), code
    assert greenfast("--help").out.count(f"\n  {command} ") == 1


@pytest.mark.parametrize("arguments, words", [
    ([], ["a command is needed"]),
    (["rnu"], ["unknown command 'rnu'", "possible are", "selftest", "did you mean 'run'"]),
    (["run", "--shapez", "small"], ["unknown option '--shapez'", "did you mean '--shapes'"]),
    (["run", "small"], ["'small': is no plugin"]),
    (["run", "--shapes", "small,1x1x8x16,1x1x8x16"], ["1x1x8x16: named twice"]),
    (["run", "--shapes"], ["--shapes"]),
    (["run", "--shapes", "smal"], ["smal", "small, mission, long"]),
    (["run", "--shapes", "1x8x512"], ["1x8x512", "BxHxSxD"]),
    (["run", "--shapes", "1x8x512x9"], ["9", "8 to 256"]),
    (["run", "--shapes", "1x8x512x264"], ["264", "8 to 256"]),
    (["run", "--shapes", "1x8/3x512x64"], ["8", "3"]),
    (["run", "--shapes", "99999999999999999999x1x1x64"], ["99999999999999999999"]),
    (["run", "--shapes", "1000000x1000000x1000000x256"], ["1000000"]),
    (["check", "--shapes", "64x64x65536x256"], ["GiB", "choose a smaller shape"]),
    (["run", "--shapes", ""], ["--shapes", "is empty", "leave the option out"]),
    (["run", "--variants", "cpu.flesh"], ["cpu.flesh", "cpu.flash", "mutant.NAME"]),
    (["run", "--variants", "mutant.zer"], ["mutant.zer", "mutant.zeros"]),
    (["run", "--variants", "cuda.v2c.v8", "--device", "cpu"], ["cuda.v2c.v8", "--device cuda"]),
    (["run", "--dtype", "fp12"], ["--dtype fp12", "fp32, fp16, bf16, e4m3"]),
    (["run", "--out-dtype", "e4m3"], ["--out-dtype e4m3", "fp32, fp16, bf16"]),
    (["run", "--device", "tpu"], ["--device tpu", "auto, cpu, cuda"]),
    (["run", "--policy", "lenient"], ["lenient", "strict", "legacy.v2c"]),
    (["run", "--layout", "sbhd"], ["--layout sbhd", "bhsd, bshd"]),
    (["run", "--causal=middle"], ["--causal=middle", "top-left", "bottom-right"]),
    (["run", "--window", "a"], ["--window a", "L or L,R"]),
    (["run", "--window", "1,2,3"], ["--window 1,2,3"]),
    (["run", "--window", "4,4", "--causal"], ["--window 4,4", "--causal"]),
    (["run", "--scale", "nan"], ["scale", "nan"]),
    (["run", "--scale", "half"], ["--scale", "'half' is not a number"]),
    (["run", "--softcap", "-1"], ["softcap", "-1"]),
    (["run", "--seeds", "0,x"], ["--seeds 0,x"]),
    (["run", "--seeds", "-1"], ["--seeds -1"]),
    (["run", "--seeds", ","], ["--seeds"]),
    (["run", "--seeds", "0,,1"], ["--seeds 0,,1", "''"]),
    (["check", "--seeds", "0,"], ["--seeds 0,", "''"]),
    (["run", "--iters", "0"], ["--iters 0"]),
    (["run", "--iters", "many"], ["--iters", "'many' is not a whole number"]),
    (["run", "--iters", "99999999999"], ["--iters", "'99999999999'", "at most 2147483647"]),
    (["run", "--warmup", "-2"], ["--warmup -2"]),
    (["run", "--budget", "0"], ["--budget 0"]),
    (["run", "--budget", "nan"], ["--budget nan"]),
    (["check", "--iters", "3"], ["unknown option '--iters'"]),
    (["run", "--set", "USE_WMMA_PV"], ["--set USE_WMMA_PV", "NAME=VALUE"]),
    (["run", "--set", "USE_WMMA_VP=1"], ["no variant has a toggle USE_WMMA_VP", "did you mean 'USE_WMMA_PV'"]),
    (["run", "--set", "USE_WMMA_PV=7"], ["USE_WMMA_PV=7", "0, 1"]),
    (["run", "--variants", "cuda.stage_c.stage2", "--set", "USE_PERSISTENT_CTA=1", "--set", "USE_XOR_SWIZZLE=1"],
     ["no such kernel", "nearest is cuda.stage_c."]),
    (["run", "--variants", "cuda.stage_c.three_stage", "--set", "USE_CP_ASYNC=0"],
     ["USE_THREE_STAGE_PIPE=1 needs USE_CP_ASYNC=1"]),
    (["run", "--variants", "cuda.stage_c.stage3b", "--set", "USE_WMMA_PV=0"],
     ["USE_FUSED_SOFTMAX_PV=2 needs USE_WMMA_PV=1"]),
    (["phases", "--variants", "cuda.stage_c.scalar"], ["cuda.stage_c.scalar", "no instrumented twin", "cuda.stage_c.stage2"]),
    (["phases", "--launches", "0"], ["--launches 0"]),
    (["bench", "--variants", "cuda.stage_c.stage2_phases"], ["clocks in it", "cuda.stage_c.stage2, or", "greenfast phases"]),
    (["selftest", "--device", "tpu"], ["--device tpu", "cpu, cuda"]),
    (["list", "--names", "colours"], ["--names colours", "variants, shapes"]),
    (["list", "--why", "small", "--model", "abacus"], ["abacus", "h200"]),
    (["compare", "cpu.naive", "cpu.flash", "--seeds", "0,,1"], ["--seeds 0,,1", "''"]),
    (["compare", "cpu.naive", "cpu.flash", "--warmup", "-5"], ["--warmup -5", "at least 0"]),
    (["compare", "cpu.naive", "cpu.flash", "--json-out", "nowhere/c.json"], ["--json-out nowhere/c.json", "no directory nowhere"]),
    (["compare", "cpu.naive", "cpu.flash", "--md-out", "."], ["--md-out .", "is a directory"]),
    (["compare"], ["Two variants", "--samples FILE"]),
    (["compare", "cpu.naive", "cpu.flash", "--between"], ["--between", "no launch to hide"]),
    (["compare", "cpu.naive", "cpu.flash", "--way", "gemm:hot"], ["--way gemm:hot", "are timed now"]),
    (["bench", "--device", "cpu", "--between"], ["--between", "no launch to hide"]),
    (["compare", "cpu.naive", "cpu.flsh"], ["'cpu.flsh'", "Known: cpu.naive", "peers are peer:torch-cpu (cpu)"]),
    (["list", "--model", "h200"], ["--model", "add --why"]),
    (["selftest", "--policy", "/nonexistent.toml"], ["/nonexistent.toml"]),
])
def test_bad_usage_is_one_line_that_says_what_is_possible(greenfast, arguments, words):
    greenfast(*arguments).refused(2, *words)
    assert greenfast.files() == []


def test_a_toggle_in_the_environment_is_checked_like_one_on_the_command_line(greenfast):
    greenfast("run", "--shapes", "small", env={"USE_CP_ASYNC": "maybe"}).refused(2, "USE_CP_ASYNC=maybe", "0, 1")


def test_a_missing_gpu_is_exit_3(greenfast):
    if greenfast("doctor", "--json").json["devices"]["cuda"]["available"]:
        pytest.skip("there is a GPU here")
    greenfast("check", "--device", "cuda", "--shapes", "small").refused(3, "cuda")
    greenfast("check", "--set", "USE_WMMA_PV=0", "--shapes", "small").refused(3, "cuda")
    greenfast("selftest", "--device", "cuda").refused(3, "cuda")
    greenfast("phases").refused(3, "cuda")
    assert greenfast.files() == []


def test_check_passes_honest_kernels_and_writes_no_times(greenfast):
    result = greenfast("check", "--shapes", "small,1x4/2x17/33x40", "--causal", "--lse", "--device", "cpu")
    assert result.code == 0, result.err
    assert "p50" not in result.out
    lines = [line for line in result.out.splitlines() if line.startswith("cpu.")]
    assert len(lines) == 4 and all(" GREEN " in line for line in lines)


@pytest.mark.parametrize("mutant, code", [("mutant.zeros", 20), ("mutant.overrun", 21), ("mutant.modifies_input", 21)])
def test_a_wrong_kernel_is_red_with_the_exit_code_of_its_kind(greenfast, mutant, code):
    result = greenfast("check", "--shapes", "small", "--variants", f"{mutant},cpu.flash", "--device", "cpu")
    assert result.code == code
    assert re.search(rf"^{re.escape(mutant)} .* RED ", result.out, re.M)
    assert re.search(r"^cpu.flash .* GREEN ", result.out, re.M)
    assert f"RED {mutant} on small: " in result.out


def test_of_two_failures_integrity_decides_the_exit_code(greenfast):
    assert greenfast("check", "--shapes", "small", "--variants", "mutant.zeros,mutant.overrun").code == 21


def test_nothing_is_timed_that_is_not_right(greenfast):
    result = greenfast("run", "--shapes", "small", "--variants", "cpu.flash,mutant.gain", "--iters", "4", "--json")
    assert result.code == 20
    rows = {row["variant"]: row for row in result.json["rows"]}
    assert rows["cpu.flash"]["time"]["samples"] > 0
    assert rows["mutant.gain"]["time"] is None


def test_a_run_in_which_everything_was_skipped_is_exit_3(greenfast):
    result = greenfast("check", "--shapes", "small", "--variants", "mutant.softcap_ignored")
    assert result.code == 3
    assert "SKIPPED mutant.softcap_ignored on small (needs a softcap)" in result.out


def test_a_run_makes_a_table_and_a_record_in_a_directory_of_its_own(greenfast):
    for _ in range(2):
        result = greenfast("run", "--shapes", "small", "--variants", "cpu.flash", "--iters", "4")
        assert result.code == 0, result.err
        header = result.out.splitlines()[0].split()
        assert header == ["variant", "shape", "verdict", "max_err", "mean_err", "%bad", "rel_err", "p50", "p90", "std",
                          "TFLOP/s", "%peak", "×fastest"]
        record = re.search(r"^Record: (results/\d{8}T\d{6}Z(-\d+)?/run\.json)$", result.out, re.M).group(1)
        assert json.loads((greenfast.work / record).read_text())["status"] == "complete"
    assert len([f for f in greenfast.files() if f.endswith("run.json")]) == 2
    assert not [f for f in greenfast.files() if "tmp" in f]


def test_bench_checks_quickly_then_times(greenfast):
    record = greenfast("bench", "--shapes", "small", "--variants", "cpu.flash", "--iters", "4", "--json").json
    assert record["settings"]["quick_check"] is True
    assert 1 <= len(record["cases"]) <= 2
    assert record["rows"][0]["time"]["p50_seconds"] > 0


def test_several_dtypes_are_several_problems(greenfast):
    record = greenfast("check", "--shapes", "small", "--variants", "cpu.naive", "--dtype", "fp16,bf16,e4m3",
                       "--out-dtype", "fp32", "--json").json
    assert [p["name"] for p in record["problems"]] == ["small fp16", "small bf16", "small e4m3"]
    assert {p["out_dtype"] for p in record["problems"]} == {"fp32"}
    assert record["exit_code"] == 0


@pytest.mark.parametrize("option, mask", [
    ("--causal", {"left": -1, "right": 0, "alignment": "top-left"}),
    ("--causal=bottom-right", {"left": -1, "right": 0, "alignment": "bottom-right"}),
    ("--window=7", {"left": 7, "right": 0, "alignment": "top-left"}),
    ("--window=7,3", {"left": 7, "right": 3, "alignment": "top-left"}),
])
def test_mask_options(greenfast, option, mask):
    record = greenfast("check", "--shapes", "1x2x20/30x64", "--variants", "cpu.naive", option, "--json").json
    assert record["problems"][0]["mask"] == mask
    assert record["rows"][0]["verdict"] == "GREEN"


def test_list_shows_every_variant_and_why(greenfast):
    names = greenfast("list", "--names", "variants").out.split()
    assert {"cpu.naive", "cpu.flash"} <= set(names)
    table = greenfast("list").out
    rows = greenfast("list", "--json").json["variants"]
    assert names == [row["id"] for row in rows]
    # Made from rungs: counted, not listed.
    assert all((f"\n{row['id']} " in table) == (row["derived_from"] == "") for row in rows)
    assert f"And {sum(row['derived_from'] != '' for row in rows)} made from rungs" in table
    validate(greenfast("list", "--json").json)
    # What a variant does not take, selection refuses by that name.
    e4m3 = greenfast("list", "--why", "small", "--dtype", "e4m3", "--device", "cpu", "--json").json["problems"][0]["candidates"]
    reasons = {candidate["variant"]: candidate["reason"] for candidate in e4m3}
    for row in rows:
        assert "fp32 inputs" in row["takes"] or row["device"] == "cuda", row
        if row["device"] == "cpu" and "e4m3 inputs" not in row["takes"]:
            assert "e4m3 inputs" in reasons[row["id"]]

    why = greenfast("list", "--why", "mission", "long", "--device", "cpu", "--json").json
    assert [p["chosen"] for p in why["problems"]] == ["cpu.flash", "cpu.flash"]
    assert {c["variant"] for c in why["problems"][0]["candidates"]} == set(names)
    assert all(c["reason"] for c in why["problems"][0]["candidates"])
    forced = greenfast("list", "--why", "mission", "--device", "cpu", "--json", env={"GREENFAST_VARIANT": "cpu.naive"})
    assert (forced.json["problems"][0]["chosen"], forced.json["problems"][0]["forced"]) == ("cpu.naive", True)
    greenfast("list", "--why", "mission", env={"GREENFAST_VARIANT": "cpu.flesh"}).refused(2, "cpu.flesh", "cpu.flash")
    unfit = greenfast("list", "--why", "mission", "--device", "cpu", env={"GREENFAST_VARIANT": "cuda.sm80.mma"})
    assert unfit.code == 3 and "cuda.sm80.mma cannot take" in unfit.out


def test_why_on_a_gpu_without_cuda_kernels_says_so_and_what_to_do(greenfast):
    why = greenfast("list", "--why", "mission", "small", "--model", "h200", "--dtype", "fp16")
    if any(row["built"] for row in greenfast("list", "--json").json["variants"] if row["device"] == "cuda"):
        assert why.code == 0 and "-> " in why.out and "no CUDA kernels" not in why.out
        return
    assert why.code == 3
    lines = why.out.splitlines()
    assert len(lines) == 3 and all("on NVIDIA H200: nothing fits" in line for line in lines[:2]), why.out
    assert "This build has no CUDA kernels" in lines[2] and "GREENFAST_CUDA=on" in lines[2] and "make build CUDA=on" in lines[2]
    record = greenfast("list", "--why", "mission", "--model", "h200", "--json")
    assert record.code == 3 and "this build has no CUDA kernels" in record.json["problems"][0]["refusal"]


def test_doctor_describes_this_machine(greenfast):
    record = greenfast("doctor", "--json").json
    cpu = record["devices"]["cpu"]
    assert cpu["available"] and cpu["tick_seconds"] > 0 and cpu["peaks"]["fp32"]["flops"] > 1e8
    assert record["environment"] == {}
    text = greenfast("doctor", env={"GREENFAST_THREADS": "1"})
    assert text.code == 0 and "GREENFAST_THREADS" in text.out


def test_output_that_cannot_be_written_is_exit_4():
    with open("/dev/full", "w") as full:
        for command in (["list"], ["check", "--shapes", "1x1x8x8", "--device", "cpu", "--quiet", "--json"]):
            done = subprocess.run([GREENFAST, *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
            assert done.returncode == 4
            assert done.stderr == "greenfast: could not write to standard output\n"


def test_completion_loads_and_completes_names_of_this_build():
    script = f"""
        set -u
        source {ROOT}/completions/greenfast.bash
        greenfast() {{ {GREENFAST} "$@"; }}
        complete_line() {{
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _greenfast 2>/dev/null; echo "${{COMPREPLY[*]}}"
        }}
        complete_line greenfast ""
        complete_line greenfast run --shapes small,mi
        complete_line greenfast run --variants cpu.f
        complete_line greenfast run --pol
        complete_line greenfast check --policy legacy.v
        complete_line greenfast run --causal = bot
        complete_line greenfast run --set USE_WMMA
    """
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert set(COMMANDS) <= set(lines[0].split())
    assert lines[1:] == ["small,mission", "cpu.flash", "--policy", "legacy.v2c", "bottom-right", "USE_WMMA_PV="]


def one_toggle_set_back(variant):
    """Its toggles, each in turn set to 0."""
    for name, value in variant["toggles"].items():
        if value:
            yield {**variant["toggles"], name: 0}


def test_every_rung_is_built_with_each_of_its_toggles_set_back(greenfast):
    variants = [v for v in greenfast("list", "--json").json["variants"] if v["id"].startswith("cuda.stage_c.")]
    on = lambda toggles: {name: value for name, value in toggles.items() if value}
    known = [on(v["toggles"]) for v in variants if v["toggles"]]
    rungs = [v for v in variants if v["toggles"] and not v["derived_from"]]
    assert len(rungs) == 9
    for rung in rungs:
        for toggles in one_toggle_set_back(rung):
            meaningless = toggles.get("USE_THREE_STAGE_PIPE") and not toggles["USE_CP_ASYNC"] \
                or toggles.get("USE_FUSED_SOFTMAX_PV") == 2 and not toggles["USE_WMMA_PV"]
            assert (on(toggles) in known) != bool(meaningless), (rung["id"], toggles)
    for v in variants:
        # persistent_capped is no step back: the same code on three CTAs, for checks.
        if v["derived_from"] and v["toggles"] and "USE_THREE_CTAS" not in v["toggles"]:
            origin = next(r for r in rungs if r["id"] == v["derived_from"])
            assert on(v["toggles"]) in [on(t) for t in one_toggle_set_back(origin)], v["id"]


def test_a_toggle_that_changes_nothing_is_a_no_op(greenfast):
    if not greenfast("doctor", "--json").json["devices"]["cuda"]["available"]:
        pytest.skip("no GPU here: a variant is selected for a device that is there")
    small = ["--shapes", "small", "--dtype", "e4m3"]
    same = greenfast("check", "--variants", "cuda.stage_c.stage2", "--set", "USE_WMMA_PV=1", *small)
    assert same.code == 0 and "NO_OP: USE_WMMA_PV=1 changes nothing in cuda.stage_c.stage2" in same.err
    both = greenfast("check", "--variants", "cuda.stage_c.stage2,cuda.stage_c.stage1", "--set", "USE_WMMA_PV=0", *small)
    assert both.code == 0 and "which runs already: one subject" in both.err
    assert both.out.count("cuda.stage_c.stage1 ") == 1
