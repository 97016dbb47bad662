"""tools/readme_tables.py, and that the tables of this repository are those of its records."""
import hashlib
import json
import os
import re
import subprocess
import sys

import pytest

from cli_paths import ROOT

TOOL = [sys.executable, ROOT / "tools" / "readme_tables.py"]


def tool(*arguments):
    return subprocess.run([*TOOL, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_every_markdown_table_of_the_repository_shows_its_record():
    result = tool("--check")
    assert result.returncode == 0, result.stderr


@pytest.fixture
def page(greenfast, tmp_path):
    record = greenfast("run", "--shapes", "small", "--variants", "cpu.flash", "--iters", "2", "--json")
    (tmp_path / "run.json").write_text(record.out)
    path = tmp_path / "page.md"
    path.write_text(f"before\n<!-- greenfast:run {tmp_path}/run.json -->\nstale text\n<!-- greenfast:end -->\nafter\n")
    return path


def test_tables_are_written_between_their_marks_and_found_stale(page, tmp_path):
    assert tool("--check", page).returncode == 1
    assert "stale text" in page.read_text()
    assert tool(page).returncode == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- greenfast:run ") and text.endswith("<!-- greenfast:end -->\nafter\n")
    assert "| `cpu.flash` | small | GREEN (" in text and "stale text" not in text
    assert tool("--check", page).returncode == 0

    record = json.loads((tmp_path / "run.json").read_text())
    record["rows"][0]["time"]["p50_seconds"] *= 2
    (tmp_path / "run.json").write_text(json.dumps(record))
    assert tool("--check", page).returncode == 1


@pytest.mark.parametrize("mark, words", [
    ("run /nonexistent.json", "/nonexistent.json"),
    ("chart a.json", "no table is called 'chart'"),
])
def test_a_table_that_cannot_be_made(page, mark, words):
    page.write_text(f"<!-- greenfast:{mark} -->\n<!-- greenfast:end -->\n")
    result = tool(page)
    assert result.returncode == 2 and words in result.stderr


def test_a_truncated_record_is_refused(page, tmp_path):
    text = (tmp_path / "run.json").read_text()
    (tmp_path / "run.json").write_text(text[: len(text) // 2])
    result = tool(page)
    assert result.returncode == 2 and "run.json" in result.stderr


def test_who_is_compared_with_whom_is_asked_of_the_command(tmp_path):
    mark = "ladder evidence/ladder-h100.json"
    page = tmp_path / "page.md"
    page.write_text(f"<!-- greenfast:{mark} -->\n<!-- greenfast:end -->\n")
    (tmp_path / "bin").mkdir()

    def listed(script):
        command = tmp_path / "bin" / "greenfast"
        command.write_text("#!/bin/sh\n" + script)
        command.chmod(0o755)
        return subprocess.run([*TOOL, page], capture_output=True, text=True, check=False,
                              env={**os.environ, "GREENFAST_BUILD": str(tmp_path)})

    row = '{"id": "cuda.v2c.v5", "predecessor": "%s", "derived_from": "%s"}'
    assert listed(f"echo '{{\"variants\": [{row % ('cuda.v2c.v3', '')}]}}'\n").returncode == 0
    beside = page.read_text()
    assert listed(f"echo '{{\"variants\": [{row % ('', 'cuda.v2c.v3')}]}}'\n").returncode == 0
    assert page.read_text() == beside
    assert listed(f"echo '{{\"variants\": [{row % ('', '')}]}}'\n").returncode == 0
    assert page.read_text() != beside
    result = listed("echo broken >&2; exit 4\n")
    assert result.returncode == 2 and "ended with 4: broken" in result.stderr


def test_an_unfinished_block_is_refused(page):
    page.write_text("text\n<!-- greenfast:end -->\n")
    assert tool(page).returncode == 2


# ---- Whole models. ----

def models_record(**decode):
    """As tools/gpu/python writes it: a prefill and a step of decoding."""
    def case(eager, compiled, **more):
        medians = {"eager": eager} | ({"compiled": compiled} if compiled else {})
        return {"failed": {}, "median_ms": medians, "attention_share": {side: 0.25 for side in eager},
                "speedup_over_sdpa": {mode: {side: of["sdpa"] / ms for side, ms in of.items() if side not in ("sdpa", "nothing")}
                                      for mode, of in medians.items()}} | more

    return {"schema": "greenfast.python/1", "tiny": False, "device": "NVIDIA H100", "utc": "2026-11-27T10:00:00", "versions": {
        "torch": "2.11.0+cu130", "transformers": "5.17.0"}, "models": {
            "prefill": case({"sdpa": 40.0, "greenfast": 32.0, "fa3": 36.0}, {"sdpa": 30.0, "greenfast": 25.0, "fa3": 24.0}),
            "decode": case({"sdpa": 60.0, "greenfast": 60.0, "nothing": 50.0}, **{"compiled": None} | decode)}}


STEPS = {"compiled": {"sdpa": 9.0, "greenfast": 7.5, "nothing": 6.0}, "compiled_attention_share": {"sdpa": 1 / 3, "greenfast": 0.2},
         "static_cache": {"batch": 1, "filled": 4096, "length": 4223, "cuda_graph": True}}


def rendered(tmp_path, kind, record):
    (tmp_path / "models.json").write_text(json.dumps(record))
    page = tmp_path / "page.md"
    page.write_text(f"<!-- greenfast:{kind} {tmp_path}/models.json -->\n<!-- greenfast:end -->\n")
    result = tool(page)
    assert result.returncode == 0, result.stderr
    return page.read_text()


def test_a_step_of_decoding_that_was_not_timed_compiled_is_said_and_has_no_row(tmp_path):
    assert "| decode | 25% | 1.00 | not timed |" in (short := rendered(tmp_path, "whole-models-summary", models_record()))
    long = rendered(tmp_path, "whole-models", models_record())
    assert "| decode | eager | 25% | 60.0 ms | - | 60.0 ms, 1.00× |" in long and "| decode | compiled |" not in long
    assert "static cache" not in short + long


def test_a_step_of_decoding_that_was_timed_compiled_has_its_row_its_share_and_its_cache(tmp_path):
    record = models_record(**STEPS)
    words = "A compiled step of decoding has a static cache (4096 of 4223 tokens are there), whose mask is an array, and is a CUDA graph."
    short = rendered(tmp_path, "whole-models-summary", record)
    assert "| decode | 25%, compiled 33% | 1.00 | 1.20 |" in short and "| prefill | 25% | 1.25 | 1.20 |" in short and words in short
    long = rendered(tmp_path, "whole-models", record)
    assert "| decode | compiled | 33% | 9.0 ms | - | 7.5 ms, 1.20× |" in long and words in long
    assert "| prefill | compiled |  | 30.0 ms | 24.0 ms, 1.25× | 25.0 ms, 1.20× |" in long


def test_steps_that_no_graph_was_made_of_are_not_called_one(tmp_path):
    steps = {**STEPS, "static_cache": {**STEPS["static_cache"], "cuda_graph": False, "why": "sdpa: RuntimeError: not permitted"}}
    for kind in ("whole-models", "whole-models-summary"):
        text = rendered(tmp_path, kind, models_record(**steps))
        assert "and no CUDA graph hides the host (sdpa: RuntimeError: not permitted)." in text and "is a CUDA graph" not in text


# ---- Beside peers: the harness writes samples, greenfast compare judges them, tables and chart show that. ----

PEERS = ROOT / "docs" / "results" / "peers-h200.json"


def run_tool(name, *arguments):
    return subprocess.run([sys.executable, ROOT / "tools" / name, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_what_the_readme_says_of_peers_is_what_compare_says_of_the_samples(greenfast):
    result = run_tool("peer_table", "--check", "--greenfast", greenfast.program, ROOT / "evidence" / "peers-h200.json", PEERS)
    assert result.returncode == 0, result.stderr
    result = run_tool("peer_chart", "--check", PEERS, ROOT / "docs" / "results" / "peers.svg")
    assert result.returncode == 0, result.stderr


@pytest.fixture
def samples(tmp_path):
    """Two shapes of the recorded run as it was timed back to back, beside two of its peers, in a file of their own."""
    record = json.loads((ROOT / "evidence" / "peers-h200.json").read_text())
    record["shapes"] = [shape for shape in record["shapes"] if shape.pop("way") == "back-to-back:hot"][-2:]
    for shape in record["shapes"]:
        del shape["ab"]["way"]
        for peer in set(shape["ab"]["engines"]) - {"greenfast", "cudnn", "fa3"}:
            del shape["ab"]["engines"][peer]
            left_out = [side["id"] for side in shape["sides"]].index(f"peer:{peer}")
            assert left_out == len(shape["sides"]) - 1  # or the numbers of those behind it would change
            del shape["sides"][left_out]
            for block in shape["blocks"]:
                at = block["order"].index(left_out)
                del block["order"][at], block["seconds"][at]
    path = tmp_path / "samples.json"
    path.write_text(json.dumps(record))
    return path


def test_a_slower_greenfast_is_shown_as_slower(greenfast, samples, tmp_path):
    record = json.loads(samples.read_text())
    for shape in record["shapes"]:
        ours = [side["id"] for side in shape["sides"]].index("greenfast")
        for block in shape["blocks"]:
            block["seconds"][block["order"].index(ours)] *= 1.5
    samples.write_text(json.dumps(record))
    peers = tmp_path / "peers.json"
    result = run_tool("peer_table", "--greenfast", greenfast.program, samples, peers)
    assert result.returncode == 0, result.stderr
    page = tmp_path / "page.md"
    page.write_text(f"<!-- greenfast:headline {peers} -->\n<!-- greenfast:end -->\n")
    assert tool(page).returncode == 0
    assert re.search(r"\| fp16 \| [^|]*FlashAttention-3[^|]* \| 0 of 2 \| [12] \| 0\.\d+ to ", page.read_text())
    # Other samples under the same name: what was judged is no longer what stands there.
    samples.write_text(json.dumps(record) + "\n")
    result = tool("--check", page)
    assert result.returncode == 2 and "run tools/peer_table" in result.stderr


def in_ways(samples):
    """The same run once more behind a neighbour of 5 µs, everybody 1 µs slower, FlashAttention-3 lost in noise at the last shape."""
    record = json.loads(samples.read_text())
    behind = json.loads(json.dumps(record["shapes"]))
    for shape in record["shapes"]:
        shape["way"] = "back-to-back:hot"
    for shape in behind:
        shape.update(name=shape["name"] + ", elementwise:hot", way="elementwise:hot", neighbour="elementwise: x += 1 of 4 MiB in fp32")
        del shape["ab"]["engines"]["fa3"]
        fa3 = [side["id"] for side in shape["sides"]].index("peer:fa3")
        for block in shape["blocks"]:
            if shape is behind[-1]:
                at = block["order"].index(fa3)
                del block["order"][at], block["seconds"][at]
            block["seconds"] = [seconds + 1e-6 for seconds in block["seconds"]]
            block["neighbour_alone"] = [5e-6] * len(block["seconds"])
            block["with_neighbour"] = [seconds + 5e-6 for seconds in block["seconds"]]
    behind[-1]["sides"][fa3]["refused"] = "noise: less the neighbours alone it took no time in 1 of 15 rounds"
    record["shapes"] += behind
    samples.write_text(json.dumps(record))


def test_a_run_in_several_ways_shows_each_and_mixes_none(greenfast, samples, tmp_path):
    peers, page = tmp_path / "peers.json", tmp_path / "page.md"
    run_tool("peer_table", "--greenfast", greenfast.program, samples, peers)
    alone = json.loads(peers.read_text())
    in_ways(samples)
    result = run_tool("peer_table", "--greenfast", greenfast.program, samples, peers)
    assert result.returncode == 0, result.stderr
    both = json.loads(peers.read_text())
    # The first way is the table as it was; the other stands beside it with means of its own.
    assert both["shapes"] == alone["shapes"] and both["overall_p50"] == alone["overall_p50"] and both["way"] == "back-to-back:hot"
    (behind,) = both["ways"]
    assert behind["way"] == "elementwise:hot" and [set(shape["peers"]) for shape in behind["shapes"]] == [
        {"peer:torch-cudnn", "peer:fa3"}, {"peer:torch-cudnn"}]
    page.write_text("".join(f"<!-- greenfast:{kind} {peers} -->\n<!-- greenfast:end -->\n" for kind in ("peers-ways", "headline", "peers")))
    result = tool(page)
    assert result.returncode == 0, result.stderr
    text = page.read_text()
    assert "| B,H,S,D | mask | back-to-back:hot | elementwise:hot |" in text and "elementwise: x += 1 of 4 MiB in fp32" in text
    assert re.search(r"\| fp16, behind elementwise, hot caches \| [^|]* \| \d of 2 \| \d \| [^|]* \| 1\.\d+ \[1\.\d+, 1\.\d+\] \|", text)
    assert "--way WAY" in text and text.count("\n| geometric mean |") == 1


def test_a_run_in_one_way_has_no_table_of_ways(greenfast, samples, tmp_path):
    peers, page = tmp_path / "peers.json", tmp_path / "page.md"
    run_tool("peer_table", "--greenfast", greenfast.program, samples, peers)
    page.write_text(f"<!-- greenfast:peers-ways {peers} -->\n<!-- greenfast:end -->\n")
    result = tool(page)
    assert result.returncode == 2 and "was timed in one way" in result.stderr


def test_the_best_peer_and_the_means_are_copied_and_judged_by_nobody_else(greenfast, samples, tmp_path):
    peers, page = tmp_path / "peers.json", tmp_path / "page.md"
    run_tool("peer_table", "--greenfast", greenfast.program, samples, peers)
    record = json.loads(peers.read_text())
    compared = greenfast("compare", samples, "--best", "--sides", ",".join([*record["peers"], "greenfast"]), "--json").json
    assert [shape["best"] for shape in record["shapes"]] == [shape["best"] for shape in compared["shapes"]]
    assert record["standings"] == compared["standings"] and record["standings"]["all"]["shapes"] == 2
    # Who would choose or average here again would come to something else than what stands there.
    (of,) = record["standings"]["types"]
    of.update(faster=1, slower=1, least=0.25, most=7.5, mean_p50={"value": 3.125, "lo": 2.5, "hi": 4.0})
    for shape in record["shapes"]:
        shape["best"] = max(record["peers"], key=lambda peer: shape["peers"][peer]["p50_seconds"])
    peers.write_text(json.dumps(record))
    page.write_text("".join(f"<!-- greenfast:{kind} {peers} -->\n<!-- greenfast:end -->\n" for kind in ("headline", "peers")))
    result = tool(page)
    assert result.returncode == 0, result.stderr
    text = page.read_text()
    assert "| 1 of 2 | 1 | 0.25 to 7.50 | 3.12 [2.50, 4.00] |" in text
    slowest = record["shapes"][0]["peers"][record["shapes"][0]["best"]]["speedup_p50"]["value"]
    assert f"| {slowest:.3f} [" in text
    # A table that an earlier peer_table made says nothing of the best.
    del record["standings"]
    peers.write_text(json.dumps(record))
    result = tool(page)
    assert result.returncode == 2 and "run tools/peer_table" in result.stderr


def test_a_wrong_peer_is_no_best_peer(greenfast, samples, tmp_path):
    record = json.loads(samples.read_text())
    for shape in record["shapes"]:
        for side in shape["sides"]:
            if side["id"] in ("peer:fa3", "peer:fa4"):
                side["verdict"] = "RED"
    samples.write_text(json.dumps(record))
    peers, page = tmp_path / "peers.json", tmp_path / "page.md"
    run_tool("peer_table", "--greenfast", greenfast.program, samples, peers)
    page.write_text(f"<!-- greenfast:peers {peers} -->\n<!-- greenfast:end -->\n")
    result = tool(page)
    assert result.returncode == 0, result.stderr
    rows = [line for line in page.read_text().splitlines() if line.startswith("| 2,")]
    assert len(rows) == 2 and all("| RED | cuDNN |" in row for row in rows)


def test_samples_without_a_peer_and_charts_of_nothing_are_refused(greenfast, samples, tmp_path):
    peers = tmp_path / "peers.json"
    run_tool("peer_table", "--greenfast", greenfast.program, samples, peers)
    result = run_tool("peer_chart", peers, tmp_path / "chart.svg")
    assert result.returncode == 2 and "no shape has 16384 tokens" in result.stderr
    record = json.loads(samples.read_text())
    for shape in record["shapes"]:
        shape["sides"] = [side for side in shape["sides"] if side["id"] == "greenfast"]
    samples.write_text(json.dumps(record))
    result = run_tool("peer_table", "--greenfast", greenfast.program, samples, peers)
    assert result.returncode == 2 and "has no peer" in result.stderr


def test_the_history_of_the_ladder_is_arithmetic_on_its_record(greenfast, tmp_path):
    record = json.loads((ROOT / "evidence" / "ladder-h100.json").read_text())
    times = {row["variant"]: row["time"] for row in record["rows"] if row["time"] and row["problem"].split()[0] == "mission"}
    page = tmp_path / "page.md"
    page.write_text("<!-- greenfast:history evidence/ladder-h100.json -->\n<!-- greenfast:end -->\n")
    environment = {**os.environ, "GREENFAST_BUILD": str(greenfast.program.parent.parent)}
    assert subprocess.run([*TOOL, str(page)], env=environment, check=False).returncode == 0
    rows = {cells[1].strip("` "): cells for cells in (line.split(" | ") for line in page.read_text().splitlines())
            if len(cells) == 5 for cells in [["", cells[0].removeprefix("| "), *cells[1:]]]}
    for version, before, first in (("v2c.v8", "v2c.v7", "v2c.v3"), ("stage_c.swizzle", "stage_c.stage3a", "stage_c.scalar")):
        p50 = {name: times[f"cuda.{name}"]["p50_seconds"] for name in (version, before, first)}
        cells = rows[version]
        assert cells[3].startswith(f"{p50[version] * 1e6:.2f} [")
        assert cells[4].strip() == f"{p50[before] / p50[version]:.2f}"
        assert cells[5].strip(" |") == f"{p50[first] / p50[version]:.2f}"
    # A rung that was not GREEN has no place in it.
    for row in record["rows"]:
        if row["variant"] == "cuda.v2c.v8":
            row["verdict"] = "RED"
    (tmp_path / "red.json").write_text(json.dumps(record))
    page.write_text(f"<!-- greenfast:history {tmp_path}/red.json -->\n<!-- greenfast:end -->\n")
    assert subprocess.run([*TOOL, str(page)], env=environment, check=False).returncode == 0
    assert "`v2c.v7`" in page.read_text() and "`v2c.v8`" not in page.read_text()


def test_a_step_without_a_prediction_has_no_table(greenfast, tmp_path):
    text = (ROOT / "policies" / "predictions.toml").read_text()
    first, *others = text.split("\n[[change]]\n")
    (tmp_path / "some.toml").write_text(first + "".join("\n[[change]]\n" + row for row in others[1:]))
    page = tmp_path / "page.md"
    gates = "evidence/ladder/gates-h100.json"
    page.write_text(f"<!-- greenfast:predictions {tmp_path}/some.toml {gates} -->\n<!-- greenfast:end -->\n")
    environment = {**os.environ, "GREENFAST_BUILD": str(greenfast.program.parent.parent)}
    result = subprocess.run([*TOOL, str(page)], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and "no prediction for cuda.v2c.v5 after cuda.v2c.v3" in result.stderr
    page.write_text(page.read_text().replace(str(tmp_path / "some.toml"), "policies/predictions.toml"))
    assert subprocess.run([*TOOL, str(page)], env=environment, check=False).returncode == 0
    rows = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| `")]
    steps = {row[0]: row[-1] for row in rows}
    built = [row for row in others if "cuda." in row and "experimental = true" not in row]
    assert len(rows) == len(built) and steps["| `stage_c.swizzle`"] == "less than predicted |" and steps["| `v2c.v8`"] == "more than predicted |"
    assert steps["| `stage_c.persistent`"] == "not timed |"
    # A second record of gates brings the shape that the prediction is about.
    walk = json.loads((ROOT / gates).read_text())
    step = next(step for step in walk["steps"] if step["candidate"] == "cuda.stage_c.persistent")
    walk["steps"] = [{**step, "fast": [{"shape": "17x8x512x64", "speedup": {"value": 1.12, "lo": 1.11, "hi": 1.13}}]}]
    (tmp_path / "persistence.json").write_text(json.dumps(walk))
    page.write_text(page.read_text().replace(gates, f"{gates} {tmp_path}/persistence.json", 1))
    assert subprocess.run([*TOOL, str(page)], env=environment, check=False).returncode == 0
    assert "as predicted: 1.120 [1.110, 1.130] |" in page.read_text()
    # Where a gate says what came of this prediction, nobody asks its interval again; of another prediction it says nothing here.
    predicted = {"speedup": [1.1, 1.15], "shape": "17x8x512x64", "because": "", "written": "", "outcome": "less than predicted"}
    for said, outcome in ((predicted, "less than predicted"), ({**predicted, "speedup": [2, 3]}, "as predicted"),
                          ({**predicted, "shape": "mission"}, "as predicted")):
        walk["steps"][0]["verdict"] = {**step["verdict"], "predicted": said}
        (tmp_path / "persistence.json").write_text(json.dumps(walk))
        assert subprocess.run([*TOOL, str(page)], env=environment, check=False).returncode == 0
        assert f"| {outcome}: 1.120 [1.110, 1.130] |" in page.read_text()


def test_beside_an_interval_stands_what_the_gate_said_of_it(greenfast, tmp_path):
    """By the kind, shape and statistic of the checklist's line, or its name in a record from before there were kinds."""
    walk = json.loads((ROOT / "evidence" / "ladder" / "gates-h100.json").read_text())
    step = next(step for step in walk["steps"] if step["candidate"] == "cuda.v2c.v8")
    page, gates = tmp_path / "page.md", tmp_path / "gates.json"
    page.write_text(f"<!-- greenfast:ladder evidence/ladder-h100.json {gates} -->\n<!-- greenfast:end -->\n")
    environment = {**os.environ, "GREENFAST_BUILD": str(greenfast.program.parent.parent)}

    def row():
        gates.write_text(json.dumps(walk))
        assert subprocess.run([*TOOL, str(page)], env=environment, check=False).returncode == 0
        return next(line for line in page.read_text().splitlines() if line.startswith("| `v2c.v8`"))

    mission, long = (f"{speedup['value']:.3f} [{speedup['lo']:.3f}, {speedup['hi']:.3f}]" for speedup in (
        next(fast["speedup"] for fast in step["fast"] if fast["shape"] == shape) for shape in ("mission", "long")))
    for check in step["checklist"]:
        for key in ("kind", "shape", "statistic"):
            check.pop(key, None)
    assert f"{mission}, PASS at 1.10" in row() and f"{long}, PASS at 0.98" in row()
    for check in step["checklist"]:
        role, shape, statistic = [*check["gate"].split(), "", ""][:3]
        if role in ("FAST", "guard"):
            check.update(kind=role.lower(), shape=shape, statistic=statistic, gate="in other words")
            check["status"] = "DEFER" if (role, statistic) == ("FAST", "p50") else check["status"]
        else:
            check["kind"] = "build"
    assert f"{mission}, DEFER at 1.10" in row() and f"{long}, PASS at 0.98" in row()


def test_twins_of_other_phases_share_a_table(greenfast, tmp_path):
    record = json.loads((ROOT / "evidence" / "ladder" / "phases-h100.json").read_text())
    row = next(row for row in record["rows"] if not row["skipped"])
    record["rows"] = [row, {**row, "variant": "cuda.v2c.v6", "dtype": "fp16", "shares": {"loads": 0.25, "P·V": 0.75},
                            "original_estimate": {"loads": 0.12, "P·V": 0.3}},
                      {**row, "variant": "cuda.v2c.v5", "skipped": "in fp16: takes D 64 or 128", "shares": {}}]
    (tmp_path / "phases.json").write_text(json.dumps(record))
    page = tmp_path / "page.md"
    page.write_text(f"<!-- greenfast:phases {tmp_path}/phases.json -->\n<!-- greenfast:end -->\n")
    environment = {**os.environ, "GREENFAST_BUILD": str(greenfast.program.parent.parent)}
    assert subprocess.run([*TOOL, str(page)], env=environment, check=False).returncode == 0
    lines = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    assert lines[0].split(" | ")[2:8] == ["loads", "decode", "Q·Kᵀ", "softmax", "P·V", "epilogue"]
    assert any(line.startswith("| `v2c.v6` | mission | 25.0% | - | - | - | 75.0% | - |") for line in lines)
    assert not any("v2c.v5" in line for line in lines)
    record["rows"][1]["shares"] = {"tea": 1}
    (tmp_path / "phases.json").write_text(json.dumps(record))
    refused = subprocess.run([*TOOL, str(page)], env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "no place for the phases tea" in refused.stderr


def test_a_cpus_peers_stand_by_type_and_who_refused_is_seen(greenfast, tmp_path):
    side = lambda seconds, green="GREEN": {"p50_seconds": seconds, "p90_seconds": seconds, "green": green}  # noqa: E731
    ratio = lambda value: {"value": value, "lo": 0.9 * value, "hi": 1.1 * value}  # noqa: E731
    peer = lambda seconds, value, green="GREEN": {**side(seconds, green), "speedup_p50": ratio(value)}  # noqa: E731
    standing = lambda dtype, value, faster: {"type": dtype, "metric": "back_to_back", "shapes": 1, "faster": faster, "slower": 1 - faster,  # noqa: E731
                                             "least": value, "most": value, "mean_p50": ratio(value), "mean_p90": ratio(value)}
    paused = {**standing("fp32", 9.0, 1), "metric": "after_pause"}
    shapes = [{"problem": "1x8x512x64 fp32", "flops": 1e9, "greenfast": side(0.5), "best": "peer:zentorch",
               "peers": {"peer:zentorch": peer(1.0, 2.0), "peer:onnxruntime": peer(0.4, 0.8, "RED")}},
              {"problem": "1x8x512x64 bf16 causal(top-left)", "flops": 1e9, "greenfast": side(1.0), "best": "peer:zentorch",
               "peers": {"peer:zentorch": peer(0.5, 0.5)}}]
    (tmp_path / "samples.json").write_text("{}")
    record = {"schema": "greenfast.peers/1", "source": str(tmp_path / "samples.json"), "source_sha256": hashlib.sha256(b"{}").hexdigest(), "device": "A CPU, 2 threads",
              "utc": "2026-11-22T00:00:00Z", "versions": {"peer:zentorch": "zentorch 1"}, "ours": "cpu.flash",
              "peers": ["peer:zentorch", "peer:onnxruntime"], "shapes": shapes,
              "standings": {"all": None, "types": [standing("fp32", 2.0, 1), standing("bf16", 0.5, 0), paused], "variants": []}}
    (tmp_path / "peers.json").write_text(json.dumps(record))
    page = tmp_path / "page.md"
    page.write_text("".join(f"<!-- greenfast:{kind} {tmp_path}/peers.json -->\n<!-- greenfast:end -->\n" for kind in ("cpu-peers", "headline")))
    environment = {**os.environ, "GREENFAST_BUILD": str(greenfast.program.parent.parent)}
    subprocess.run([*TOOL, str(page)], env=environment, check=True)
    text = page.read_text()
    assert "| 1,8,512,64 | full | fp32 | 2 | 1 | RED | zentorch | 2.00 [1.80, 2.20] |" in text
    assert "| 1,8,512,64 | causal | bf16 | 1 | 2 | – | zentorch | 0.50 [0.45, 0.55] |" in text
    assert "| A CPU, 2 threads, 2026-11-22 | fp32 | zentorch, ONNX Runtime | 1 of 1 | 0 | 2.00 to 2.00 | 2.00 [1.80, 2.20] |" in text
    assert "| A CPU, 2 threads, 2026-11-22 | bf16 | zentorch, ONNX Runtime | 0 of 1 | 1 | 0.50 to 0.50 | 0.50 [0.45, 0.55] |" in text
    assert "9.00" not in text


def test_quantising_end_to_end_is_shown_as_compare_judges_it(greenfast, tmp_path):
    record = json.loads((ROOT / "evidence" / "quantized-h200.json").read_text())
    record["shapes"] = record["shapes"][:2]
    sides = [side["id"] for side in record["shapes"][0]["sides"]]
    for block in record["shapes"][0]["blocks"]:
        block["seconds"] = [2e-4 if sides[side] == "greenfast:fp16" else 1e-4 for side in block["order"]]
    record["shapes"][1]["sides"][sides.index("cuda.sm90.fp8_fast:from-fp16")]["errors"]["rel_fro"] = 5.0
    path, page = tmp_path / "samples.json", tmp_path / "page.md"
    path.write_text(json.dumps(record))
    page.write_text(f"<!-- greenfast:quantized {path} -->\n<!-- greenfast:end -->\n")
    result = tool(page)
    assert result.returncode == 0, result.stderr
    rows = [line for line in page.read_text().splitlines() if line.startswith("| 8,16,2048,128 ")]
    assert rows[0] == "| 8,16,2048,128 | full | 200 | 100, 2.00 [2.00, 2.00] | 100, 2.00 [2.00, 2.00] |"
    assert rows[1].endswith("| RED |") and "| causal |" in rows[1]
