#!/usr/bin/env python3
"""readme_tables.py [--check] [FILE.md...]: writes the tables of Markdown files from records, so that no number is typed.

A table stands between two comments at the beginning of a line, the first of which says what it is made of:

    <!-- greenfast:run evidence/cpu.json -->        every variant and shape of a run.json
    <!-- greenfast:selftest evidence/selftest.json -->   planted kernels and what caught them
    <!-- greenfast:selftest-summary evidence/a.json evidence/b.json -->   one line for each record
    <!-- greenfast:ladder evidence/run.json [evidence/gates.json] -->   rungs beside predecessor and ceiling
    <!-- greenfast:acceptance evidence/run.json -->      rungs at a policy's acceptance problems: error and time
    <!-- greenfast:rung-peers evidence/ladder/peers.json -->   rungs beside engines that take the same values in 16 bits
    <!-- greenfast:numerics evidence/numerics.json -->   every engine's error at the ends of the range
    <!-- greenfast:history evidence/run.json -->         version, idea, time and cumulative speedup of each rung at mission
    <!-- greenfast:predictions policies/predictions.toml evidence/gates.json... -->   each step's prediction, and what its gates found
    <!-- greenfast:ladder-checks evidence/checks.json -->   each rung's verdict by shape, and the bits it shares with its predecessor
    <!-- greenfast:phases evidence/phases.json -->       where a rung's time goes
    <!-- greenfast:sanitizer evidence/sanitizer.json -->   findings by tool and variant
    <!-- greenfast:peers docs/results/peers.json -->   Greenfast beside its peers, as `greenfast compare` judges (tools/peer_table)
    <!-- greenfast:peers-ways docs/results/peers.json -->   a run in several ways (ab --between): each row back to back and behind neighbours
    <!-- greenfast:serving docs/results/decode.json -->  the same of a suite of serving, where peers take some rows alone
    <!-- greenfast:serving-summary docs/results/decode.json... -->   a line a suite and kernel
    <!-- greenfast:headline docs/results/peers.json... -->   a line a record, type and way: ahead of the best peer, slower, by how much
    <!-- greenfast:quantized evidence/quantized.json -->   16 bits in and out through e4m3, end to end, beside this library in fp16
    <!-- greenfast:cpu-peers docs/results/cpu-peers.json -->   a run of tools/cpu_peers, by type, with the peers that take a row
    <!-- greenfast:end -->

Without FILE: every Markdown file of the repository. --check changes nothing and exits 1 when a table is out of date.
Which rung is compared with which is what `greenfast list --json` says, of GREENFAST_BUILD or one of build/*.
"""
import argparse
import hashlib
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^(?P<open><!-- greenfast:(?P<kind>[a-z-]+)(?P<files>(?: [^ >]+)+) -->\n)(?P<body>.*?)^(?P<close><!-- greenfast:end -->)",
                   re.DOTALL | re.MULTILINE)


class Unusable(Exception):
    pass


def load(path, schema):
    try:
        record = json.loads((ROOT / path).read_text())
    except (OSError, ValueError) as error:
        raise Unusable(f"{path}: {error}") from error
    if record.get("schema") != schema:
        raise Unusable(f"{path}: schema {record.get('schema')!r}, expected {schema!r}")
    return record


def table(header, alignment, rows):
    """alignment: one of l, r for each column."""
    lines = [header, ["---:" if a == "r" else "---" for a in alignment], *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def seconds(value):
    for scale, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= scale:
            value /= scale
            return f"{value:.{1 if value >= 100 else 2 if value >= 10 else 3}f} {unit}"
    return f"{value * 1e9:.0f} ns"


def small(value):
    return "NaN" if value is None else "0" if value == 0 else f"{value:.1e}"


def command_of(record):
    command = " ".join(a for a in record["argv"] if a not in ("--json", "--quiet"))
    return "`greenfast " + re.sub(r" --out \S+", "", command) + "`"  # where it went does not matter


def provenance(record):
    build, host = record["build"], record["host"]
    commit = build["git"]["sha"][:8] if build["git"]["sha"] else "no commit"
    if build["git"]["dirty"]:
        commit += " with changes"
    device = record.get("device", {})
    where = device.get("name") or host["cpu"]
    # A selftest tells kind and name alone.
    details = [f"{device['multiprocessors']} threads", device["isa"]] if "multiprocessors" in device else []
    if device.get("kind") == "cuda":
        details = [f"driver {device['driver']}"] if device.get("driver") else []
    busy = f" Other work ran beside it (load {host['load']:.1f} on {host['cpus']} CPUs)." if host["load"] > host["cpus"] / 4 else ""
    return f"{command_of(record)} on {', '.join([where, *filter(None, details)])}, {record['utc'][:10]}, commit {commit}.{busy}"


def run(path):
    record = load(path, "greenfast.run/1")
    rows = []
    for row in record["rows"]:
        if row["verdict"] == "SKIPPED":
            continue
        worst, time = row["worst"], row["time"]
        cells = [f"`{row['variant']}`", row["problem"], f"{row['verdict']} ({row['cases']})"]
        cells += [small(worst["max_err"]), small(worst["mean_err"]), f"{worst['percent_bad'] or 0:.3g}", small(worst["rel_fro"])]
        if time:
            cells += [seconds(time["p50_seconds"]), seconds(time["p90_seconds"]), seconds(time["std_seconds"]),
                      f"{time['flops'] * 1e-12:.3f}", f"{time['percent_of_peak']:.1f}", f"{time['times_fastest']:.2f}"]
        elif record["settings"]["timed"]:
            cells += ["-"] * 6
        rows.append(cells)
    header = ["variant", "shape", "verdict (cases)", "max_err", "mean_err", "%bad", "rel_err"]
    if record["settings"]["timed"]:
        header += ["p50", "p90", "std", "TFLOP/s", "%peak", "×fastest"]
    peaks = sorted({f"{p['flops'] * 1e-12:.3f} TFLOP/s" for p in record["peaks"]})
    notes = [provenance(record)]
    if peaks:
        notes.append(f"Measured peak {peaks[0]}{' to ' + peaks[-1] if len(peaks) > 1 else ''} ({record['peaks'][0]['method']}); "
                     f"timed {record['settings']['mode']}.")
    return table(header, "lll" + "r" * (len(header) - 3), rows) + "\n" + " ".join(notes) + "\n"


def selftest(path):
    record = load(path, "greenfast.selftest/1")
    rows = []
    for row in record["rows"]:
        name = f"`{row['subject']}`"
        if row["honest"]:
            rows.append([name, row["models"], "RED" if row["red_cases"] else "GREEN", "-", f"{row['cases']} cases"])
        else:
            rows.append([name, row["models"], "RED" if row["caught"] else "GREEN", row["metric"] or "-", row["where"] or "-"])
    return (table(["planted kernel", "what it models", "verdict", "caught by", "on"], "lllll", rows) +
            f"\n{summary_line(record)} {provenance(record)}\n")


def summary_line(record):
    return (f"{record['mutants_caught']} of {record['mutants']} wrong kernels caught, {record['honest_green']} of "
            f"{record['honest']} honest ones passed.")


def selftest_summary(*paths):
    records = [load(path, "greenfast.selftest/1") for path in paths]
    rows = [[f"`{r['policy']['name']}`", f"{r['mutants_caught']} of {r['mutants']}", f"{r['honest_green']} of {r['honest']}",
             ", ".join(f"`{row['subject'].removeprefix('mutant.')}`" for row in r["rows"] if not row["honest"] and not row["caught"]) or "none"]
            for r in records]
    return table(["policy", "wrong kernels caught", "honest kernels passed", "let through"], "lrrl", rows)


def judged(path):
    """A record of tools/peer_table, and that its samples are those it was made from."""
    record = load(path, "greenfast.peers/1")
    try:
        digest = hashlib.sha256((ROOT / record["source"]).read_bytes()).hexdigest()
    except OSError as error:
        raise Unusable(f"{path}: {error}") from error
    if digest != record["source_sha256"] or "standings" not in record:
        raise Unusable(f"{path}: {record['source']} or tools/peer_table has changed since: run tools/peer_table {record['source']} {path}")
    return record


def best_peer(shape):
    """The peer that compare says is the best there, and what it says of Greenfast beside it."""
    name = shape["best"]
    if name is None:
        raise Unusable(f"{shape['problem']}: no peer was right")
    return name, shape["peers"][name]


def ratio(interval, digits):
    """As a table has it: the value with its 95% interval."""
    return f"{interval['value']:.{digits}f} [{interval['lo']:.{digits}f}, {interval['hi']:.{digits}f}]"


def peer_name(peer):
    return {"torch-cudnn": "cuDNN", "torch-efficient": "PyTorch's efficient kernel",
            "cudnn-graph": "cuDNN (its frontend)", "cudnn-fp8": "cuDNN fp8", "fa3": "FlashAttention-3",
            "fa3-vllm": "FlashAttention-3 (vLLM's)", "fa3-vllm-plan": "FlashAttention-3 (vLLM's, planned)", "fa3-fp8": "FlashAttention-3 fp8",
            "fa3-fp16": "FlashAttention-3 fp16", "cudnn-fp16": "cuDNN fp16",
            "varlen": "PyTorch's varlen", "fa4": "FlashAttention-4", "torch-cpu": "PyTorch", "onnxruntime": "ONNX Runtime",
            "openvino": "OpenVINO"}.get(peer.removeprefix("peer:"), peer.removeprefix("peer:"))


def shape_and_mask(problem):
    """"2x8x2048x64 fp16 causal(top-left)" -> ("2,8,2048,64", "causal")"""
    words = problem.split()
    return words[0].replace("x", ","), "causal" if any(word.startswith("causal") for word in words) else "full"


def peers(path):
    record = judged(path)
    def timed(row, flops):
        return "–" if row is None else f"{row['p50_seconds'] * 1e6:.2f} ({flops / row['p50_seconds'] * 1e-12:.0f})" if row["green"] == "GREEN" else "RED"

    rows = []
    for shape in record["shapes"]:
        name, best = best_peer(shape)
        rows.append([*shape_and_mask(shape["problem"]), timed(shape["greenfast"], shape["flops"]),
                     *(timed(shape["peers"].get(peer), shape["flops"]) for peer in record["peers"]), peer_name(name),
                     ratio(best["speedup_p50"], 3), ratio(best["speedup_p90"], 3),
                     f"{shape['rel_fro']:.2e}", f"`{shape['variant']}`"])
    header = ["B,H,S,D", "mask", "greenfast", *map(peer_name, record["peers"]), "best peer", "× p50", "× p90", "error", "variant"]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    # A variant in place of the automatic choice (peer_table --ours) is asked for by name.
    sides = f" --sides {','.join([*record['peers'], record['ours']])}" if "ours" in record else ""
    return (table(header, "ll" + "r" * (1 + len(record["peers"])) + "lrrrl", rows) +
            f"\nµs a call (TFLOP/s); × is best peer / greenfast with its 95% interval, from `greenfast compare {record['source']} --best{sides}`. Samples: `python -m greenfast_bench.ab {' '.join(record['argv'])}` on {record['device']}, {record['utc'][:10]}, "
            f"{versions}.\n")


def peers_ways(path):
    """Each row in each way: our time and how many times faster than the best peer of that way."""
    record = judged(path)
    parts = [record, *record.get("ways", [])]
    if len(parts) == 1:
        raise Unusable(f"{path}: was timed in one way; `ab --between` times in several")
    problems = list(dict.fromkeys(shape["problem"] for part in parts for shape in part["shapes"]))
    columns = [{shape["problem"]: shape for shape in part["shapes"]} for part in parts]
    rows = []
    for problem in problems:
        cells = []
        for column in columns:
            if problem not in column:
                cells.append("–")
                continue
            own = f"{column[problem]['greenfast']['p50_seconds'] * 1e6:.2f}"
            try:
                name, best = best_peer(column[problem])
            except Unusable:
                cells.append(own)
                continue
            cells.append(f"{own}, {ratio(best['speedup_p50'], 2)} {peer_name(name)}")
        rows.append([*shape_and_mask(problem), *cells])
    standings = [part["standings"]["all"] for part in parts]
    rows.append(["geometric mean", "", *(ratio(of["mean_p50"], 3) if of else "–" for of in standings)])
    kinds = list(dict.fromkeys(shape["neighbour"].partition(",")[0] for part in parts for shape in part["shapes"] if "neighbour" in shape
                               if not shape["neighbour"].startswith("gemm")))
    if any(shape.get("neighbour", "").startswith("gemm") for part in parts for shape in part["shapes"]):
        kinds.append("gemm: the queries' projection of the row's own size")
    return (table(["B,H,S,D", "mask", *(part["way"] for part in parts)], "ll" + "r" * len(parts), rows) +
            f"\nµs of Greenfast, and × the best peer of that way with its 95% interval, from `greenfast compare {record['source']} --best "
            f"--way WAY`. Neighbours: {'; '.join(kinds)}. –: no time, since a difference was noise or the inputs do not fit. Samples: "
            f"`python -m greenfast_bench.ab {' '.join(record['argv'])}` on {record['device']}, {record['utc'][:10]}.\n")


def cpu_peers(path):
    record = judged(path)
    peaked, paused = any("ceiling" in shape for shape in record["shapes"]), any("pause_seconds" in shape for shape in record["shapes"])

    def rate(row, flops):
        if row is None or row["green"] != "GREEN":
            return "–" if row is None else "RED"
        share = f" ({row['share_of_peak']:.0%})" if "share_of_peak" in row else ""
        return f"{flops / row['p50_seconds'] * 1e-9:.0f}{share}"

    rows, cut = [], {}
    for shape in record["shapes"]:
        name, best = best_peer(shape)
        text = shape_and_mask(shape["problem"])
        if "cut" in shape:
            cut.setdefault(shape["cut"], []).append(" ".join((*text, shape["problem"].split()[1])))
        call = [f"after {shape['pause_seconds'] * 1e3:g} ms" if "pause_seconds" in shape else "back to back"] * paused
        peak = [f"{shape['ceiling']['flops'] * 1e-9:.0f} {shape['ceiling']['isa']}" if "ceiling" in shape else "–"] * peaked
        rows.append([*text, shape["problem"].split()[1], *call, rate(shape["greenfast"], shape["flops"]),
                     *(rate(shape["peers"].get(peer), shape["flops"]) for peer in record["peers"]), *peak, peer_name(name),
                     ratio(best["speedup_p50"], 2)])
    header = ["B,H,S,D", "mask", "type", *["call"] * paused, "greenfast", *map(peer_name, record["peers"]), *["peak"] * peaked, "best peer", "×"]
    versions = ", ".join(dict.fromkeys(record["versions"].values()))
    shares = ", in parentheses the share of the peak that was measured beside the row" * peaked
    fewer = "".join(f" {why}: {', '.join(dict.fromkeys(where))}." for why, where in cut.items())
    cache = "hot" if "--hot" in record.get("argv", ["--hot"]) else "cold"
    return (table(header, "lll" + "l" * paused + "r" * (1 + len(record["peers"]) + peaked) + "lr", rows) +
            f"\nGFLOP/s, medians, {cache}{shares}; –: the peer does not take it. × is best peer's time / greenfast's with its 95% interval, from `greenfast "
            f"compare {record['source']} --best`.{fewer} Samples: `tools/cpu_peers` on {record['device']}, {record['utc'][:10]}, {versions}.\n")


def serving(path):
    """A suite of `ab --suite decode, varlen, paged or masks`: peers that take some rows alone."""
    record = judged(path)
    rows = []
    for shape in record["shapes"]:
        problem, _, _ = shape["problem"].rpartition(" ")
        cells = [problem, f"{shape['greenfast']['p50_seconds'] * 1e6:.2f}"]
        try:
            name, best = best_peer(shape)
            cells += [peer_name(name), f"{best['p50_seconds'] * 1e6:.2f}", ratio(best["speedup_p50"], 3)]
        except Unusable:
            cells += ["none takes it", "", ""]
        rows.append([*cells, f"`{shape['variant']}`"])
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return (table(["problem", "greenfast", "best peer", "µs", "× p50", "variant"], "lrlrrl", rows) +
            f"\nµs a call; × is best peer / greenfast with its 95% interval, from `greenfast compare {record['source']} --best`. "
            f"Samples: `python -m greenfast_bench.ab {' '.join(record['argv'])}` on {record['device']}, {record['utc'][:10]}, {versions}.\n")


def standing(of):
    """What compare says of shapes together, as the end of a row: at how many ahead, least and most ×, geometric mean."""
    return of["faster"], of["slower"], f"{of['least']:.2f}", f"{of['most']:.2f}", ratio(of["mean_p50"], 2)


def serving_summary(*paths):
    """One line a suite and kernel of ours: how its rows stand beside the best peer of each."""
    rows = []
    for path in paths:
        record = judged(path)
        argv = record["argv"]
        suite = argv[argv.index("--suite") + 1] + (", e4m3" if "e4m3" in argv else "")
        for of in record["standings"]["variants"]:
            ahead, _, least, most, mean = standing(of)
            rows.append([suite, f"`{of['variant']}`", of["shapes"], ahead, least, most, mean])
    return table(["suite", "variant", "rows", "ahead", "least ×", "most ×", "geometric mean"], "llrrrrr", rows)


def headline(*paths):
    """A line a record and type: at how many rows Greenfast is ahead of the fastest peer that was right. Of a record in several ways
    the first, and of the others the one whose mean flatters least."""
    rows = []
    for path in paths:
        record = judged(path)
        argv = record.get("argv", [])
        rows_of = ", rows of published models" if "--suite" in argv and argv[argv.index("--suite") + 1] == "models" else ""
        ours = record.get("ours", "greenfast")  # another side than what selection chooses
        rows_of += (", fast accuracy" if "fp8_fast" in ours else "") + (", V transposed" if ours.endswith(":transposed") else "")
        lines = []
        for part in [record, *record.get("ways", [])]:
            way, _, cache = part.get("way", "").partition(":")
            between = f", {'behind ' if any('neighbour' in shape for shape in part['shapes']) else ''}{way}, {cache} caches" if way else ""
            for of in part["standings"]["types"]:
                if of["metric"] != "back_to_back":
                    continue
                ahead, slower, least, most, mean = standing(of)
                lines.append((part is record, of["mean_p50"]["value"], [
                    f"{record['device']}, {record['utc'][:10]}", of["type"] + rows_of + between, ", ".join(map(peer_name, record["peers"])),
                    f"{ahead} of {of['shapes']}", slower, f"{least} to {most}", mean]))
        others = sorted(line for line in lines if not line[0])
        rows += [cells for _, _, cells in [*(line for line in lines if line[0]), *others[:1]]]
    return table(["machine", "inputs", "beside", "ahead", "slower", "×", "geometric mean"], "lllrrrr", rows)


def program(asked=None):
    """The greenfast that is asked for, GREENFAST_BUILD's, or one of build/*."""
    if asked:
        return asked
    folders = [pathlib.Path(os.environ["GREENFAST_BUILD"])] if "GREENFAST_BUILD" in os.environ else [
        ROOT / "build" / preset for preset in ("release", "ci", "cpu")]
    for folder in folders:
        if (folder / "bin" / "greenfast").exists():
            return folder / "bin" / "greenfast"
    raise Unusable(f"no greenfast in {' or '.join(map(str, folders))}: build one (tools/build cpu)")


def told(member, *command):
    """The JSON object with this member that the program prints; a comparison that finds somebody slower prints it as well."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        record = json.loads(ended.stdout)
    except ValueError:
        record = {}
    if member not in record:
        raise Unusable(f"{' '.join(map(str, command))} ended with {ended.returncode}: {ended.stderr.strip()}")
    return record


def listed_variants():
    """What the program tells of every variant, in ladder order."""
    return told("variants", program(), "list", "--json")["variants"]


def compared_with():
    """Rung -> the one it is compared with: its predecessor, or the rung that it is derived from."""
    return {v["id"]: v["predecessor"] or v["derived_from"] or None for v in listed_variants()}


def history(path, shape="mission"):
    """The ladder as versions: each rung's time at mission, over its predecessor and over the first of its family."""
    record, every = load(path, "greenfast.run/1"), listed_variants()
    followed = {v["predecessor"] for v in every if v["predecessor"]}
    times = {row["variant"]: row["time"] for row in record["rows"]
             if row["time"] and row["problem"].split()[0] == shape and row["verdict"] == "GREEN"}
    rows, first = [], {}
    for variant in every:
        name = variant["id"]
        if name not in times or not (variant["predecessor"] or name in followed):
            continue
        time, before = times[name], times.get(variant["predecessor"])
        base = first.setdefault(name.rsplit(".", 1)[0], time)
        low, high = (value * 1e6 for value in time["p50_ci_seconds"])
        rows.append([f"`{name.removeprefix('cuda.')}`", variant["idea"], f"{time['p50_seconds'] * 1e6:.2f} [{low:.2f}, {high:.2f}]",
                     f"{before['p50_seconds'] / time['p50_seconds']:.2f}" if before else "-", f"{base['p50_seconds'] / time['p50_seconds']:.2f}"])
    if not rows:
        raise Unusable(f"{path}: no rung of the ladder was timed at {shape} and GREEN")
    return (table(["version", "idea", "p50, µs", "× predecessor", "cumulative ×"], "llrrr", rows) +
            f"\nCumulative: over the first version of its family. {provenance(record)}\n")


def ladder_rows(run_path, gates_path=None):
    """One dictionary for each rung and shape of a run, in ladder order: its time beside predecessor and floor. Peers are not
    among them: they were timed by another program, on another day, and a quotient of such times says nothing."""
    record = load(run_path, "greenfast.run/1")
    steps = {step["candidate"]: step for step in load(gates_path, "greenfast.ladder_gates/1")["steps"]} if gates_path else {}
    before = compared_with()
    times = {(row["variant"], row["problem"]): row["time"] for row in record["rows"] if row["time"]}
    for (variant, problem), time in times.items():
        name, step = problem.split()[0], steps.get(variant)
        base = times.get((before.get(variant), problem))
        yield {"variant": variant, "shape": name, "seconds": time["p50_seconds"], "percent": time["percent_of_peak"],
               "floor": time["floor_seconds"], "step": step,
               "ratio": base["p50_seconds"] / time["p50_seconds"] if base else None,
               "fast": next((f for f in step["fast"] if f["shape"] == name), None) if step else None}


def status_of_check(step, shape):
    """What the gate itself said of the p50 at a shape: its line of the checklist."""
    for row in step["checklist"]:
        if "kind" in row:
            if row["kind"] in ("fast", "guard") and (row.get("shape"), row.get("statistic")) == (shape, "p50"):
                return row["status"]
        elif row["gate"] in (f"FAST {shape} p50", f"guard {shape} p50"):  # a record from before 2026-11-25
            return row["status"]
    return None


def speedup_cell(row):
    if row["fast"] is None or "speedup" not in row["fast"]:
        return f"{row['ratio']:.2f}" if row["ratio"] else "-"
    verdict, status = row["step"]["verdict"], status_of_check(row["step"], row["shape"])
    least = verdict["gate"] if row["fast"]["primary"] else verdict["guard"]
    return ratio(row["fast"]["speedup"], 3) + (f", {status} at {least:.2f}" if status else "")


def ladder(run_path, gates_path=None):
    shapes = ("mission", "long")
    every = list(ladder_rows(run_path, gates_path))
    rows = []
    for variant in dict.fromkeys(row["variant"] for row in every):
        cells, verdict = [f"`{variant.removeprefix('cuda.')}`"], "-"
        for shape in shapes:
            row = next((r for r in every if r["variant"] == variant and r["shape"] == shape), None)
            if row is None:
                cells += ["-"] * 3
                continue
            cells += [seconds(row["seconds"]), speedup_cell(row), f"{row['percent']:.2f}"]
            if row["step"]:
                reasons = ", ".join(r["code"] for r in row["step"]["verdict"]["reasons"])
                verdict = row["step"]["verdict"]["decision"] + (f" ({reasons})" if reasons else "")
        rows.append(cells + ([verdict] if gates_path else []))
    record = load(run_path, "greenfast.run/1")
    header = ["rung", *(f"{shape}{title}" for shape in shapes for title in (", p50", ", × predecessor", ", % of ceiling"))]
    notes = f"{provenance(record)} Ceiling: the matrix product measured beside the rungs."
    if gates_path:
        gates = load(gates_path, "greenfast.ladder_gates/1")
        notes += (f" Intervals and verdicts: {command_of(gates)}, {gates['utc'][:10]}; beside an interval what the gate says of its lower "
                  "bound, at its threshold for the primary shape or for a guard: FAIL is slower, DEFER neither.")
    return table(header + (["verdict"] if gates_path else []), "l" + "r" * 6 + ("l" if gates_path else ""), rows) + f"\n{notes}\n"


def outcome(gate, predicted, shape, measured):
    """What the gate said came of this prediction."""
    said = gate["verdict"].get("predicted")
    if said and said["outcome"] and (said["speedup"], said["shape"]) == (list(predicted), shape):
        return said["outcome"]
    return outcome_of_old_record(predicted, measured)


def outcome_of_old_record(predicted, measured):
    """A gate from before 2026-11-22 did not look at the prediction, and none can have looked at one that was written since: what a gate
    of today would say of its interval, in the words of workbench/verdict/predictions.cpp."""
    least, most = predicted
    return "more than predicted" if measured["lo"] > most else "less than predicted" if measured["hi"] < least else "as predicted"


def predictions(table_path, *gates_paths):
    try:
        changes = tomllib.loads((ROOT / table_path).read_text())["change"]
    except (OSError, ValueError, KeyError) as error:
        raise Unusable(f"{table_path}: {error}") from error
    written = {(change["baseline"], change["candidate"]): change for change in changes}
    walks = [load(path, "greenfast.ladder_gates/1") for path in gates_paths]
    if not walks:
        raise Unusable(f"{table_path}: a table of predictions needs a record of gates")
    found = {}
    for gate in (gate for walk in walks for gate in walk["steps"]):
        times = {fast["shape"]: (gate, fast["speedup"]) for fast in gate["fast"] if "speedup" in fast}
        found.setdefault((gate["baseline"], gate["candidate"]), {}).update(times)
    devices = {candidate.split(".")[0] for _, candidate in found}
    rows = []
    for variant in listed_variants():
        step = variant["predecessor"], variant["id"]
        if not variant["predecessor"] or step[1].split(".")[0] not in devices:
            continue
        if step not in written:
            raise Unusable(f"{table_path}: no prediction for {step[1]} after {step[0]}")
        change = written[step]
        least, most = change["speedup"]
        shape, times = change.get("shape", "mission"), found.get(step, {})
        cells = [ratio(times[at][1], 3) if at in times else "-" for at in ("mission", "long")]
        said = "not timed"
        if shape in times:
            gate, measured = times[shape]
            said = outcome(gate, (least, most), shape, measured)
            if shape not in ("mission", "long"):
                said += f": {ratio(measured, 3)}"
        rows.append([f"`{step[1].removeprefix('cuda.')}`", variant["idea"], f"{least:.2f} to {most:.2f} at {shape}", change["because"], *cells, said])
    return (table(["rung", "idea", "predicted ×", "because", "found at mission", "found at long", "outcome"], "llllrrl", rows) +
            f"\nPredictions: {table_path}, which says by whom and when each was written. Found: "
            + "; ".join(f"{command_of(walk)}, {walk['utc'][:10]}" for walk in walks) + ".\n")


# As they follow each other in a step; a JSON object keeps no order.
PHASES = ("loads", "wait for consumers", "decode", "Vᵀ", "wait for producers", "Q·Kᵀ", "softmax", "P·V", "epilogue")


def phases(path):
    record = load(path, "greenfast.phases/1")
    measured = [r for r in record["rows"] if not r["skipped"]]
    if unknown := {name for r in measured for name in r["shares"]} - set(PHASES):
        raise Unusable(f"{path}: no place for the phases {', '.join(sorted(unknown))}; name them in PHASES")
    names = [name for name in PHASES if any(name in r["shares"] for r in measured)]

    def percent(of, name, digits):
        return "-" if of.get(name) is None else f"{100 * of[name]:.{digits}f}%"

    rows = [[f"`{r['variant'].removeprefix('cuda.')}`", r["problem"], *(percent(r["shares"], n, 1) for n in names), f"{r['cycles_per_warp']:.0f}",
             "yes" if r["same_output_as_rung"] else "no"] for r in measured]
    estimate = {name: value for r in measured for name, value in r["original_estimate"].items()}
    rows.append(["originals' estimate, stage 3 on an L4", "mission", *(percent(estimate, n, 0) for n in names), "-", "-"])
    return (table(["instrumented twin of", "shape", *names, "cycles a warp", "same bits"], "ll" + "r" * (len(names) + 1) + "l", rows) +
            f"\n{command_of(record)} on {record['device']['name']}, {record['utc'][:10]}, commit {record['build']['git']['sha'][:8]}.\n")


def sanitizer(path):
    record = load(path, "greenfast.sanitizer/1")
    tools = list(dict.fromkeys(row["tool"] for row in record["rows"]))
    found = {(row["variant"], row["tool"]): row for row in record["rows"]}
    rows, notes = [], []
    for variant in dict.fromkeys(row["variant"] for row in record["rows"]):
        cells = [f"`{variant}`", found[variant, tools[0]]["cases"]]
        for tool in tools:
            row = found[variant, tool]
            cells.append({"clean": "0", "findings": str(row["findings"]), "explained": "0*"}.get(row["status"], row["status"]))
            if row["status"] == "explained":
                notes.append(f"\\* {variant} under {tool}: {row['explained']}.")
        rows.append(cells)
    return (table(["variant", "cases", *tools], "lr" + "r" * len(tools), rows) + "".join(f"\n{note}\n" for note in dict.fromkeys(notes)) +
            f"\n`tools/gpu/sanitize` with compute-sanitizer {record['compute_sanitizer']} on {record['device']}, driver {record['driver']}, "
            f"{record['utc'][:10]}, {record['greenfast']}; shapes {record['shapes']}.\n")


def share_of(case, mode):
    """What attention has of a case's time with PyTorch's SDPA, in percent; "" where a record does not say it."""
    shares = case.get({"eager": "attention_share", "compiled": "compiled_attention_share"}[mode])
    return f"{100 * shares['sdpa']:.0f}%" if shares else ""


def static_caches(records):
    """A sentence on the compiled steps of decoding of these records, where there are any."""
    cases = [case["static_cache"] for record in records for case in record["models"].values() if case["median_ms"].get("compiled") and "static_cache" in case]
    if not cases:
        return ""
    sizes = ", ".join(dict.fromkeys(f"{case['filled']} of {case['length']}" for case in cases))
    without = "; ".join(dict.fromkeys(case["why"] for case in cases if not case["cuda_graph"]))
    return (f" A compiled step of decoding has a static cache ({sizes} tokens are there), whose mask is an array, "
            + (f"and no CUDA graph hides the host ({without})." if without else "and is a CUDA graph."))


def whole_models(*paths):
    records = [load(path, "greenfast.python/1") for path in paths]
    sides = {"sdpa": "PyTorch's SDPA", "fa3": "FlashAttention-3", "greenfast": "Greenfast"}
    rows, said = [], []
    for record in records:
        if record["tiny"]:
            raise Unusable("a record of tiny models: such times mean nothing")
        for name, case in record["models"].items():
            if case["failed"]:
                raise Unusable(f"{name}: {', '.join(case['failed'])} failed")
            for mode in ("eager", "compiled"):
                medians = case["median_ms"].get(mode)
                if not medians:
                    continue
                cells = [name, mode, share_of(case, mode)]
                for side in sides:
                    over = case["speedup_over_sdpa"][mode].get(side)
                    cells.append("-" if side not in medians else f"{medians[side]:.1f} ms" + (f", {over:.2f}×" if over else ""))
                rows.append(cells)
        said.append(f"{record['device']}, PyTorch {record['versions']['torch'].split('+')[0]}, transformers {record['versions']['transformers']}, {record['utc'][:10]}")
    return (table(["model", "", "attention's share with SDPA", *sides.values()], "llrrrr", rows) +
            f"\nMedians of rounds in which the sides took turns, × is SDPA's time over theirs in the same round: `tools/gpu/python`, {'; '.join(dict.fromkeys(said))}.{static_caches(records)}\n")


def whole_models_summary(*paths):
    rows, devices = [], []
    records = [load(path, "greenfast.python/1") for path in paths]
    for record in records:
        for name, case in record["models"].items():
            over = {mode: case["speedup_over_sdpa"].get(mode, {}).get("greenfast") for mode in ("eager", "compiled")}
            compiled = share_of(case, "compiled")
            rows.append([name, share_of(case, "eager") + (f", compiled {compiled}" if compiled else ""), *(f"{over[mode]:.2f}" if over[mode] else "not timed" for mode in over)])
        devices.append(f"{record['device']}, {record['utc'][:10]}")
    return (table(["whole model, random weights", "attention's share", "×, eager", "×, compiled"], "lrrr", rows) +
            f"\n× is the time with PyTorch's SDPA over that with Greenfast in the same round. {'; '.join(dict.fromkeys(devices))}.{static_caches(records)}\n")


def ladder_checks(path):
    record = load(path, "greenfast.ladder_checks/1")
    problems = list(dict.fromkeys(row["problem"].split()[0] for row in record["rows"]))
    few = len(problems) <= 8
    rows = []
    for variant in dict.fromkeys(row["variant"] for row in record["rows"]):
        own = [row for row in record["rows"] if row["variant"] == variant]
        cells = [f"`{variant.removeprefix('cuda.')}`"]
        if few:
            by_shape = {row["problem"].split()[0]: row for row in own}
            cells += [f"{by_shape[p]['verdict']} ({by_shape[p]['cases']})" if p in by_shape else "-" for p in problems]
        else:
            green = sum(row["verdict"] == "GREEN" for row in own)
            cells.append(f"{green} of {len(own)} problems GREEN, {sum(row['cases'] for row in own)} cases")
        same, compared = sum(row["same_bits"] for row in own), sum(row["compared"] for row in own)
        base = next((row["compared_with"] for row in own if row["compared_with"]), "")
        cells += [small(max(row["rel_fro"] for row in own)),
                  "-" if not compared else f"{'all' if same == compared else same} of {compared} ({base.removeprefix('cuda.').split('.')[-1]})"]
        rows.append(cells)
    header = ["variant", *(problems if few else ["odd lengths"]), "largest rel_err", "same bits as"]
    commands = list(dict.fromkeys("`greenfast " + " ".join(a for a in source["argv"] if a not in ("--json", "--quiet")) + "`" for source in record["sources"]))
    commits = ", ".join(dict.fromkeys(source["commit"][:8] for source in record["sources"]))
    source = record["sources"][0]
    return (table(header, "l" * (len(header) - 2) + "rl", rows) + f"\n{'; '.join(commands)} on {source['device']['name']}, {source['utc'][:10]}, "
            f"commit {commits}, policy {source['policy']}.\n")


def acceptance(path):
    """The originals' acceptance of a family: what each rung is off by, and its time, at each of the problems."""
    record = load(path, "greenfast.run/1")
    problems = list(dict.fromkeys(row["problem"] for row in record["rows"]))
    rows = []
    for variant in dict.fromkeys(row["variant"] for row in record["rows"]):
        by_problem = {row["problem"]: row for row in record["rows"] if row["variant"] == variant}
        cells = [f"`{variant.removeprefix('cuda.')}`"]
        for problem in problems:
            row = by_problem[problem]
            cells.append(f"{row['verdict']}, {small(row['worst']['max_err'])}, {seconds(row['time']['p50_seconds'])}" if row["time"] else row["verdict"])
        rows.append(cells)
    return table(["rung", *(f"{problem}: max error, p50" for problem in problems)], "l" * (1 + len(problems)), rows) + f"\n{provenance(record)}\n"


def rung_peers(path):
    """Rungs beside engines on the same values in 16 bits, each way and problem with the best of them, as `greenfast compare` judges."""
    record, command = load(path, "greenfast.samples/1"), program()
    sides = list(dict.fromkeys(side["id"] for shape in record["shapes"] for side in shape["sides"]))
    peers, rungs = ([side for side in sides if side.startswith(kind)] for kind in ("peer:", "cuda.stage_c."))
    rungs = [rung for rung in rungs if ":" not in rung]  # not what was asked of one beside (V transposed)
    problems = list(dict.fromkeys(shape["problem"] for shape in record["shapes"]))
    ways = list(dict.fromkeys(shape["way"] for shape in record["shapes"]))
    rows = []
    for rung, way in itertools.product(rungs, ways):
        asked = [command, "compare", ROOT / path, "--best", "--sides", ",".join([*peers, rung]), "--way", way, "--json"]
        run = subprocess.run(asked, capture_output=True, text=True, check=False)
        if not run.stdout:
            raise Unusable(f"{' '.join(map(str, asked))} ended with {run.returncode}: {run.stderr.strip()}")
        said = json.loads(run.stdout)
        times = {row["problem"]: row["b"]["p50_seconds"] for beside in said["beside"] for row in beside["shapes"]}
        best = {row["problem"]: row for row in said["shapes"]}
        rows.append([f"`{rung.removeprefix('cuda.')}`", way.removeprefix("back-to-back:"),
                     *(f"{seconds(times[problem])}, {ratio(best[problem]['ratio_p50'], 2)} {peer_name(best[problem]['best'])}"
                       if problem in best else "–" for problem in problems)])
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return (table(["rung", "inputs", *problems], "ll" + "r" * len(problems), rows) +
            f"\nTime of a call, and × the fastest peer with its 95% interval (below 1: the rung is slower), from `greenfast compare {path} --best --way WAY`. Hot: each "
            f"call on the same inputs; cold: on sets that are twice the L2 cache, in turn. `python -m greenfast_bench.ab {' '.join(kept_words(record['argv']))}` on "
            f"{record['device']}, {record['utc'][:10]}, {versions}.\n")


def kept_words(argv):
    """Without the files that it wrote."""
    files = ("--json", "--md", "--plot")
    return [word for i, word in enumerate(argv) if word not in files and (i == 0 or argv[i - 1] not in files)]


def numerics(path):
    """Errors of tools/gpu/numerics; of engines that no row has a value of there is no column."""
    record = load(path, "greenfast.numerics/1")
    engines = sorted({name for row in record["rows"] for name in row["engines"]}, key=lambda name: (name in ("fa2", "cudnn", "fa3"), " before" in name, name))
    cell = lambda value: "–" if value is None else "NaN" if value == "nan" else value if isinstance(value, str) else f"{value:.2g}"  # noqa: E731
    rows = [[row["group"], row["what"], f"{row['dtype']}, {row['head_dim']}", metric,
             *(cell(row["engines"].get(name, {}).get(metric)) for name in engines)] for row in record["rows"] for metric in row["promise"]]
    command = "tools/gpu/numerics --json FILE" + (" --before LIBRARY" if "--before" in record["argv"] else "")
    return table(["", "case", "type, D", "of", *engines], "llll" + "r" * len(engines), rows) + f"\n`{command}` on {record['device']}, PyTorch {record['torch']}.\n"


def quantized(path):
    """attention_quantized in both accuracies over this library's fp16, as `greenfast compare` judges two sides of the record."""
    base, accuracies = "greenfast:fp16", {"exact": "greenfast:from-fp16", "fast": "cuda.sm90.fp8_fast:from-fp16"}
    rows, record = {}, load(path, "greenfast.samples/1")
    for accuracy, side in accuracies.items():
        for shape in told("shapes", program(), "compare", ROOT / path, "--sides", f"{base},{side}", "--json")["shapes"]:
            row = rows.setdefault(shape_and_mask(shape["problem"]), {"fp16": f"{shape['a']['p50_seconds'] * 1e6:.0f}"})
            row[accuracy] = f"{shape['b']['p50_seconds'] * 1e6:.0f}, {ratio(shape['ratio_p50'], 2)}" if shape["b"]["green"] == "GREEN" else "RED"
    return (table(["B,H,S,D", "mask", "fp16", *accuracies], "llrrr", [[*where, *row.values()] for where, row in rows.items()]) +
            f"\nµs end to end, and times as fast as fp16 with the 95% interval, from `greenfast compare {path} --sides {base},{accuracies['exact']}` (`{accuracies['fast']}`). {record['device']}, {record['utc'][:10]}.\n")


KINDS = {"acceptance": acceptance, "quantized": quantized, "rung-peers": rung_peers, "numerics": numerics, "predictions": predictions, "history": history, "peers": peers, "peers-ways": peers_ways, "cpu-peers": cpu_peers, "serving": serving, "serving-summary": serving_summary, "headline": headline, "ladder": ladder, "ladder-checks": ladder_checks, "phases": phases, "whole-models": whole_models, "whole-models-summary": whole_models_summary, "sanitizer": sanitizer, "run": run, "selftest": selftest, "selftest-summary": selftest_summary}


def rewrite(text):
    def replace(match):
        if match["kind"] not in KINDS:
            raise Unusable(f"no table is called {match['kind']!r}; there are {', '.join(KINDS)}")
        return f"{match['open']}{KINDS[match['kind']](*match['files'].split())}{match['close']}"

    if len(re.findall(r"^<!-- greenfast:", text, re.MULTILINE)) != 2 * len(BLOCK.findall(text)):
        raise Unusable("a <!-- greenfast:... --> block lacks its beginning or its <!-- greenfast:end -->")
    return BLOCK.sub(replace, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 when a table is out of date")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    files = args.files or [ROOT / name for name in subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()]
    stale = False
    for path in files:
        try:
            text = path.read_text()
            new = rewrite(text)
        except (Unusable, OSError) as error:
            print(f"readme_tables: {path}: {error}", file=sys.stderr)
            return 2
        if new == text:
            continue
        stale = True
        if args.check:
            print(f"readme_tables: {path} does not show its records: run tools/readme_tables.py", file=sys.stderr)
        else:
            path.write_text(new)
            print(f"readme_tables: wrote {path}")
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
