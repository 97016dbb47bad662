"""profile as its users run it: counters from a file of ncu's, what it says where there are none, its record."""
import json

import pytest

from cli_paths import ROOT
from schemas import validate

STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


def ncu_csv(path, **values):
    """The layout of ncu --csv --page raw; numbers made up."""
    metrics = {"gpu__time_duration.sum": ("nsecond", values["time"]),
               "smsp__inst_executed_pipe_tensor.sum": ("inst", values["tensor"]),
               "sm__pipe_tensor_active.avg.pct_of_peak_sustained_active": ("%", values["active"]),
               "smsp__issue_active.avg.pct_of_peak_sustained_active": ("%", 30),
               "dram__bytes_read.sum": ("byte", 1_572_864), STALL.format("long_scoreboard"): ("inst", 3.0),
               STALL.format("selected"): ("inst", 1.0)}
    rows = [["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", *metrics],
            ["", "", "", "", "", *(unit for unit, _ in metrics.values())],
            ["0", "1", "greenfast", "host", "void kernel<64>(Params)", *(f"{value:,}" for _, value in metrics.values())]]
    path.write_text("".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows))
    return path


@pytest.fixture
def two(tmp_path):
    return (ncu_csv(tmp_path / "one.csv", time=57_090, tensor=65_536, active=4.1),
            ncu_csv(tmp_path / "two.csv", time=17_950, tensor=131_072, active=14.2))


STAGES = ["cuda.stage_c.stage1", "cuda.stage_c.stage2", "--dtype", "e4m3"]


def gate_of(folder, baseline, candidate):
    """A recorded gate as if it were of these two, in a folder of its own."""
    gate = json.loads((ROOT / "evidence" / "verdicts" / "promote" / "gate.json").read_text())
    gate["options"].update(baseline=baseline, candidate=candidate)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gate.json").write_text(json.dumps(gate))


def as_of_the_gate(folder):
    """The folder's profile as if it were of the gate's device, commit and problem, which counters from a file do not say."""
    gate, profile = (json.loads((folder / f"{name}.json").read_text()) for name in ("gate", "profile"))
    profile.update(device=gate["device"], problem=gate["fast"][0]["problem"])
    profile["build"]["git"]["sha"] = gate["build"]["git_sha"]
    (folder / "profile.json").write_text(json.dumps(profile))


def test_two_profiles_are_set_beside_the_prediction(greenfast, two):
    result = greenfast("profile", *STAGES, "--csv", f"{two[0]},{two[1]}", "--out", "folder")
    assert result.code == 0, result.err
    record = json.loads((greenfast.work / "folder" / "profile.json").read_text())
    validate(record)
    moved = {d["metric"]: d for d in record["directions"]}
    assert (moved["time"]["seen"], moved["time"]["status"]) == ("down", "as predicted")
    assert (moved["tensor_inst"]["seen"], moved["tensor_inst"]["status"]) == ("up", "as predicted")
    assert (moved["dram_read"]["seen"], moved["dram_read"]["status"]) == ("equal", "as predicted")
    assert moved["l2_device_sectors"]["status"] == "missing"
    assert "Predicted because P·V moves from scalar FMAs to WMMA" in result.out
    assert "warps wait 75% of their time for data from L1, L2 or memory" in result.out
    assert [a["file"] for a in record["artifacts"]] == ["one.csv", "two.csv"]
    assert greenfast("report", "folder", "--md", "-").code == 0


def test_a_profile_in_a_gates_folder_is_its_evidence(greenfast, two, tmp_path):
    gate_of(greenfast.work / "folder", *STAGES[:2])
    before = greenfast("report", "folder", "--md", "-").out
    assert "no profile in this folder" in before and "| deferred |" in before
    assert greenfast("profile", *STAGES, "--csv", f"{two[0]},{two[1]}", "--out", "folder").code == 0
    unknown = greenfast("report", "folder", "--md", "-").out
    assert "not here: counters from a file, and the gate's is AMD EPYC" in unknown and "| deferred |" in unknown
    as_of_the_gate(greenfast.work / "folder")
    after = greenfast("report", "folder", "--md", "-").out
    assert "| deferred |" not in after and "- [x] profiles of both sides kept" in after
    assert "Root-cause split of the warps' time" in after and "load earlier" in after
    # Another file in a raw profile's place is refused; without it the report goes on, and says and ticks so.
    (greenfast.work / "folder" / "one.csv").write_text("other")
    greenfast("report", "folder").refused(2, "folder/one.csv", "SHA-256")
    (greenfast.work / "folder" / "one.csv").unlink()
    without = greenfast("report", "folder", "--md", "-")
    assert without.code == 0, without.err
    assert "left out: one.csv: not beside profile.json" in without.out
    assert "- [ ] profiles of both sides kept (1 raw files are elsewhere)" in without.out
    assert greenfast("report", "folder", "--bundle", "b.tar.gz").code == 0


def test_directions_are_ticked_by_what_was_seen(greenfast, two):
    folder = greenfast.work / "folder"
    gate_of(folder, *STAGES[:2])
    assert greenfast("profile", *STAGES, "--csv", f"{two[0]},{two[1]}", "--out", "folder").code == 0
    as_of_the_gate(folder)
    record = json.loads((folder / "profile.json").read_text())

    def box(change):
        for direction in record["directions"]:
            change(direction)
        (folder / "profile.json").write_text(json.dumps(record))
        [line] = {line for line in greenfast("report", "folder", "--pr").out.splitlines() if "directions as predicted" in line}
        return line

    def as_predicted(direction):
        if direction["predicted"] != "-":
            direction["status"] = "as predicted"

    def one_against(direction):
        if direction["metric"] == "dram_read":
            direction["status"] = "against the prediction"

    def none_predicted(direction):
        direction.update(predicted="-", status="not predicted")

    assert "not seen: " in box(lambda direction: None) and "- [ ]" in box(lambda direction: None)
    assert box(as_predicted).startswith("- [x] directions as predicted (")
    against = box(one_against)
    assert against.startswith("- [ ]") and "against: " in against
    assert box(none_predicted) == "- [ ] directions as predicted (nothing was predicted)"


def test_without_counters_it_is_skipped_with_the_reason_and_the_evidence_deferred(greenfast):
    result = greenfast("profile", "cpu.naive", "cpu.flash", "--shape", "small", "--out", "folder", env={"PATH": "/nonexistent"})
    assert result.code == 3
    assert result.out.count("SKIPPED: perf is not installed") == 2
    record = json.loads((greenfast.work / "folder" / "profile.json").read_text())
    assert record["exit_code"] == 3 and record["directions"] == []
    gate_of(greenfast.work / "folder", "cpu.naive", "cpu.flash")
    as_of_the_gate(greenfast.work / "folder")
    text = greenfast("report", "folder", "--md", "-").out
    assert "cpu.flash: SKIPPED: perf is not installed (linux-perf) | deferred |" in text


def test_the_profiler_runs_nothing_but_launches(greenfast):
    result = greenfast("profile", "cpu.flash", "--shape", "small", "--dtype", "bf16", "--launch-calls", "3")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert greenfast.files() == []


@pytest.mark.parametrize("arguments, words", [
    ([], ["VARIANT"]),
    (["cpu.flesh"], ["cpu.flesh", "cpu.flash"]),
    (["all"], ["one by one"]),
    (["cpu.flash", "cuda.sm80.mma"], ["cpu.flash runs on cpu", "cuda.sm80.mma"]),
    (["cpu.flash", "--shape", "small,mission"], ["--shape small,mission", "one"]),
    (["cpu.flash", "--plan", "/nonexistent.toml"], ["/nonexistent.toml"]),
    (["cpu.flash", "--csv", "x.csv"], ["--csv", "CUDA"]),
    (["cuda.sm80.mma", "--csv", "a.csv,b.csv"], ["--csv a.csv,b.csv", "2 files for 1"]),
    (["cuda.sm80.mma", "--csv", "/nonexistent.csv", "--json"], ["/nonexistent.csv"]),
    (["cuda.sm80.mma", "--json", "--csv", ROOT / "README.md"], ["ncu --csv --page raw"]),
])
def test_bad_usage(greenfast, arguments, words):
    greenfast("profile", *arguments).refused(2, *words)
    assert greenfast.files() == []
