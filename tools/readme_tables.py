#!/usr/bin/env python3
"""readme_tables.py [--check] [FILE.md...]: writes the tables of Markdown files from records, so that no number is typed.

A table stands between two comments at the beginning of a line, the first of which says what it is made of:

    <!-- greenfast:run evidence/cpu.json -->        every variant and shape of a run.json
    <!-- greenfast:selftest evidence/selftest.json -->   planted kernels and what caught them
    <!-- greenfast:selftest-summary evidence/a.json evidence/b.json -->   one line for each record
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


KINDS = {"ab": ab, "run": run, "selftest": selftest, "selftest-summary": selftest_summary}


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
