#!/usr/bin/env python3
"""readme_tables.py [--check] [FILE.md...]: writes the tables of Markdown files from records, so that no number is typed.

A table stands between two comments at the beginning of a line, the first of which says what it is made of:

    <!-- greenfast:run evidence/cpu.json -->        every variant and shape of a run.json
    <!-- greenfast:selftest evidence/selftest.json -->   planted kernels and what caught them
    <!-- greenfast:selftest-summary evidence/a.json evidence/b.json -->   one line for each record
    <!-- greenfast:ladder evidence/run.json evidence/gates.json evidence/peers.json -->   rungs beside predecessor, peer, ceiling
    <!-- greenfast:phases evidence/phases.json -->       where a rung's time goes
    <!-- greenfast:sanitizer evidence/sanitizer.json -->   findings by tool and variant
    <!-- greenfast:ab evidence/peers.json -->      Greenfast beside its peers, from python -m greenfast.ab --json
    <!-- greenfast:end -->

Without FILE: every Markdown file of the repository. --check changes nothing and exits 1 when a table is out of date.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys

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
    details = [f"{device['multiprocessors']} threads", device["isa"]] if device.get("kind") == "cpu" else []
    if device.get("kind") == "cuda":
        details = [f"driver {device['driver']}"]
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


def ab(path):
    sys.path.insert(0, str(ROOT / "python"))
    from greenfast import ab as harness  # needs no PyTorch to print a table

    record = load(path, "greenfast.samples/1")
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    argv = re.sub(r" --(json|md|plot) \S+", "", " " + " ".join(record["argv"]))  # where it went does not matter
    return (harness.table(harness.rows_of(record), markdown=True) +
            f"\n\n`python -m greenfast.ab{argv}` on {record['device']}, {record['utc'][:10]}, {versions}.\n")


def peers_of(record):
    """The best peer of each shape without a mask: problem text -> (name, seconds)."""
    best = {}
    for shape in record["shapes"]:
        row = shape["ab"]
        if not row["causal"] and row.get("best_peer"):
            best[row["shape"]] = (row["best_peer"], row["engines"][row["best_peer"]]["p50_us"] * 1e-6)
    return best


def ladder_rows(run_path, gates_path, peers_path):
    """One dictionary for each rung and shape that the gates judged, in ladder order."""
    record, gates = load(run_path, "greenfast.run/1"), load(gates_path, "greenfast.ladder_gates/1")
    peers = peers_of(load(peers_path, "greenfast.samples/1"))
    steps = {step["candidate"]: step for step in gates["steps"]}
    shapes = {p["name"]: p["problem"].split()[0] for p in record["problems"]}
    digests = {}
    for case in record["cases"]:
        digests[case["variant"], case["problem"], case["distribution"], case["seed"]] = case["output_sha256"]
    for row in record["rows"]:
        if not row["time"]:
            continue
        step = steps.get(row["variant"])
        name = row["problem"].split()[0]
        fast = next((f for f in step["fast"] if f["shape"] == name), None) if step else None
        own = [key for key in digests if key[0] == row["variant"] and key[1] == row["problem"]]
        before = [(step["baseline"], *key[1:]) for key in own] if step else []
        peer = peers.get(shapes[row["problem"]])
        yield {"variant": row["variant"], "shape": name, "cases": row["cases"], "verdict": row["verdict"],
               "seconds": row["time"]["p50_seconds"], "percent": row["time"]["percent_of_peak"], "peer": peer,
               "step": step, "fast": fast, "floor": row["time"]["floor_seconds"],
               "same": sum(digests[a] == digests[b] for a, b in zip(own, before) if b in digests),
               "compared": sum(b in digests for b in before)}


def met(step, fast):
    """How the interval lies to the rung's gate."""
    gate, interval = step["verdict"]["gate"], fast["speedup"]
    where = "reached" if interval["lo"] >= gate else "missed" if interval["hi"] < gate else "open"
    return f"{gate:.2f} {where}"


def ladder(run_path, gates_path, peers_path):
    rows = []
    for row in ladder_rows(run_path, gates_path, peers_path):
        if row["shape"] not in ("mission", "long"):
            continue
        fast, step, peer = row["fast"], row["step"], row["peer"]
        interval = f"{fast['speedup']['value']:.3f} [{fast['speedup']['lo']:.3f}, {fast['speedup']['hi']:.3f}]" if fast else "the base"
        verdict = "-"
        if step:
            reasons = ", ".join(r["code"] for r in step["verdict"]["reasons"])
            verdict = step["verdict"]["decision"] + (f" ({reasons})" if reasons else "")
        bits = "-"
        if row["compared"]:
            bits = "all" if row["same"] == row["compared"] else f"{row['same']} of {row['compared']}"
        rows.append([f"`{row['variant'].removeprefix('cuda.')}`", row["shape"], f"{row['verdict']} ({row['cases']})", seconds(row["seconds"]),
                     interval, met(step, fast) if fast else "-", verdict, bits,
                     f"{row['seconds'] / peer[1]:.2f}" if peer else "-", f"{row['percent']:.2f}"])
    record, gates, peers = load(run_path, "greenfast.run/1"), load(gates_path, "greenfast.ladder_gates/1"), load(peers_path, "greenfast.samples/1")
    named = sorted({f"{name} {seconds(value)} at {shape}" for shape, (name, value) in peers_of(peers).items()
                    if shape in ("1x8x512x64", "1x8x2048x64")})
    header = ["rung", "shape", "GREEN (cases)", "p50", "speedup over predecessor", "gate", "verdict at mission", "bits of predecessor",
              "× best peer", "% of ceiling"]
    return (table(header, "lllrlllrrr", rows) + f"\n{provenance(record)} Gates: {command_of(gates)}, {gates['utc'][:10]}. "
            f"Best peer, fp16 also beside e4m3 rungs: {', '.join(named) or 'none recorded'} (`python -m greenfast.ab`, {peers['utc'][:10]}). "
            f"Ceiling: the matrix product measured beside each run.\n")


def phases(path):
    record = load(path, "greenfast.phases/1")
    names = record["rows"][0]["phases"]
    rows = [[f"`{r['variant'].removeprefix('cuda.')}`", r["problem"], *(f"{100 * r['shares'][n]:.1f}%" for n in names), f"{r['cycles_per_warp']:.0f}",
             "yes" if r["same_output_as_rung"] else "no"] for r in record["rows"] if not r["skipped"]]
    estimate = record["rows"][0]["original_estimate"]
    rows.append(["originals' estimate, stage 3 on an L4", "mission",
                 *(f"{100 * estimate[n]:.0f}%" if estimate[n] is not None else "-" for n in names), "-", "-"])
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
            f"\n`tools/sanitize_gpu` with compute-sanitizer {record['compute_sanitizer']} on {record['device']}, driver {record['driver']}, "
            f"{record['utc'][:10]}, {record['greenfast']}; shapes {record['shapes']}.\n")


KINDS = {"ab": ab, "ladder": ladder, "phases": phases, "sanitizer": sanitizer, "run": run, "selftest": selftest, "selftest-summary": selftest_summary}


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
