"""report: what folders it takes and refuses, its Markdown, its page in a real browser, pull request, bundle, tables."""
import base64
import hashlib
import json
import re
import shutil
import struct
import subprocess
import tarfile
import zlib

import pytest

import chromium
from cli_paths import ROOT

GATE = ROOT / "evidence" / "verdicts" / "promote"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>|`**"


@pytest.fixture
def folder(tmp_path):
    """A result folder with a gate, a run on each kind of device and a peer's samples."""
    results = tmp_path / "results"
    results.mkdir()
    shutil.copy(GATE / "gate.json", results)
    shutil.copy(ROOT / "evidence" / "cpu.json", results / "run.json")
    shutil.copy(ROOT / "evidence" / "ladder-h200.json", results / "ladder-h200.json")
    shutil.copy(ROOT / "evidence" / "mission-h200.json", results / "peers.json")
    return results


def edited(path, change):
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


# ---- what it takes and refuses


def test_a_folder_becomes_markdown_and_a_page_beside_its_records(greenfast, folder):
    result = greenfast("report", folder)
    assert result.code == 0, result.err
    assert {"report.md", "report.html"} <= {p.name for p in folder.iterdir()}
    text = (folder / "report.md").read_text()
    for heading in ("# Validation report", "### TFLOP/s by shape, NVIDIA H200", "### Ladder at mission, NVIDIA H200",
                    "### Roofline, AMD EPYC", "### Error by distribution", "### Speedup with its 95% interval",
                    "### Checklist", "### Resources", "### Correctness by shape and seed", "### Recommended next steps",
                    "### Lessons", "### Merge checklist", "### Commit message and tag", "## Text of the pull request",
                    "## Artifacts", "## To reproduce"):
        assert f"\n{heading}" in f"\n{text}", heading
    headline = json.loads((folder / "gate.json").read_text())["headline"]
    assert all(f"> {line}" in text for line in headline)
    # Every number of a chart stands in its table: µs of a rung, × its predecessor, × the first.
    p50 = {row["variant"]: row["time"]["p50_seconds"] * 1e6
           for row in json.loads((folder / "ladder-h200.json").read_text())["rows"]
           if row["problem"] == "mission fp16" and row["time"]}
    v8, v7, v3 = (p50[f"cuda.v2c.{rung}"] for rung in ("v8", "v7", "v3"))
    found = re.search(r"^\| cuda.v2c.v8 \| mma.sync.* \| ([0-9.]+) µs \| .* \| ([0-9.]+)× \| ([0-9.]+)× \|$", text, re.M)
    assert [float(x) for x in found.groups()] == pytest.approx([v8, v7 / v8, v3 / v8], rel=1e-3)
    assert str(folder) not in text  # where the records lay on this machine is nobody's business


def test_peers_at_the_same_problem_stand_under_the_same_name(greenfast, folder):
    text = greenfast("report", folder, "--md", "-").out
    assert re.search(r"^\| peer:fa3 \| mission fp16 hot \| hot \| ", text, re.M)


def test_notes_of_the_folder_are_in_the_report(greenfast, folder):
    (folder / "notes.md").write_text("## What we learned\n\n- the buffer was never the bottleneck\n")
    text = greenfast("report", folder, "--md", "-").out
    assert "## Notes" in text and "- the buffer was never the bottleneck" in text


@pytest.mark.parametrize("arguments, words", [
    ([], ["what?", "result folder"]),
    (["/nonexistent"], ["/nonexistent", "no such file or folder"]),
    (["--check"], ["--readme"]),
    ([ROOT / "docs" / "schema"], ["holds no record", "greenfast.run/1"]),
    ([ROOT / "docs" / "schema" / "run.schema.json"], ["run.schema.json", "no schema"]),
    ([ROOT / "evidence" / "cpu.json", "--pr"], ["--pr", "gate.json"]),
    ([GATE, "--bundle", "x.zip"], ["--bundle x.zip", ".tar.gz"]),
])
def test_bad_usage(greenfast, arguments, words):
    greenfast("report", *arguments).refused(2, *words)
    assert greenfast.files() == []


def test_a_truncated_record_is_refused_by_name(greenfast, folder):
    text = (folder / "gate.json").read_text()
    (folder / "gate.json").write_text(text[: len(text) // 2])
    greenfast("report", folder).refused(2, str(folder / "gate.json"), "truncated")


def test_a_job_that_is_none_is_refused_by_name(greenfast, folder):
    (folder / "gate.json").unlink()
    (folder / "job.json").write_text("{}")
    greenfast("report", folder).refused(2, str(folder), "job.json is of schema missing", "directory that a gate made")


@pytest.mark.parametrize("file, change, words", [
    ("gate.json", {"schema": "greenfast.gate/2"}, ["greenfast.gate/2", "greenfast.gate/1"]),
    ("gate.json", {"checklist": None}, ["'checklist'", "not a whole"]),
    ("run.json", {"device": []}, ["'device'", "not an object"]),
    ("run.json", {"rows": [{"verdict": 3}]}, ["$.rows[0]", "missing"]),
    ("run.json", {"cases": [{"metrics": {}}]}, ["$.cases[0]", "missing"]),
    ("gate.json", {"fast": [{"shape": "mission", "primary": True}]}, ["fast[].baseline is missing"]),
    ("gate.json", {"verdict": {}}, ["$.verdict.", "missing"]),
    ("gate.json", {"build": {}}, ["build.version is missing"]),
])
def test_another_schema_or_a_piece_of_one_is_refused_by_name(greenfast, folder, file, change, words):
    edited(folder / file, lambda record: record.update(change))
    greenfast("report", folder).refused(2, file, *words)


def test_a_foreign_file_of_a_folder_is_left_out_and_said_so(greenfast, folder):
    (folder / "package.json").write_text("{}")
    (folder / "other.json").write_text('{"schema": "greenfast.doctor/1"}')
    text = greenfast("report", folder, "--md", "-").out
    assert "left out" in text and "package.json: no record" in text and "greenfast.doctor/1" in text


# ---- the page


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if chromium.find() is None:
        pytest.skip("no chromium here (tools/setup test installs it on Debian)")
    one = chromium.Browser(tmp_path_factory.mktemp("chromium"))
    yield one
    one.close()


def pixels(png):
    """Rows of RGB(A) bytes of a PNG whose rows are not interlaced."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, data = 8, b""
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", png[at + 8 : at + 18])
        elif kind == b"IDAT":
            data += png[at + 8 : at + 8 + size]
        at += 12 + size
    assert depth == 8
    return width, height, {2: 3, 6: 4}[colour], zlib.decompress(data)


# For each canvas: does anything stand on it, how many colours, is it in view of a screen reader?
DRAWN = """[...document.querySelectorAll('canvas')].map((canvas) => {
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Set();
  let inked = 0;
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 0) { ++inked; colours.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]); }
  return {id: canvas.id, width: canvas.clientWidth, height: canvas.clientHeight, inked: inked / (data.length / 4),
          colours: colours.size, rows: canvas.closest('figure').querySelectorAll('tbody tr').length};
})"""


@pytest.mark.parametrize("width, scheme", [(1200, "light"), (390, "dark")])
def test_a_browser_draws_every_chart_without_a_complaint(greenfast, folder, browser, width, scheme):
    assert greenfast("report", folder).code == 0
    page = browser.open((folder / "report.html").as_uri(), width=width, scheme=scheme)
    canvases = page.evaluate(DRAWN)
    assert page.said == []
    kinds = {c["id"].removeprefix("chart-").rstrip("0123456789").rstrip("-") for c in canvases}
    assert {"throughput", "ladder", "roofline", "speedups", "errors"} <= kinds
    for canvas in canvases:
        assert canvas["inked"] > 0.005 and canvas["colours"] > 3, canvas
        assert 250 < canvas["width"] <= width and canvas["height"] > 150, canvas
        assert canvas["rows"] > 0, canvas
    assert page.evaluate("document.documentElement.dataset.charts") == str(len(canvases))
    # Readable on a phone: the page does not scroll sideways, wide tables do within themselves.
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(13, 17, 23)") == (scheme == "dark"), background
    # Marks of data, as a viewer sees them: the palette's first colour covers part of the picture.
    page.evaluate("document.querySelector('canvas').scrollIntoView()")
    _, _, size, data = pixels(base64.b64decode(page.call("Page.captureScreenshot", format="png")["data"]))
    assert size in (3, 4) and len(set(data)) > 10


# Of each chart: whiskers that leave the plot, entries of its legend that leave the page, and its narrowest bar.
CUT = """Object.values(Chart.instances).map((chart) => {
  const across = chart.options.indexAxis === 'y', axis = across ? chart.scales.x : chart.scales.y, area = chart.chartArea;
  const [low, high] = across ? [area.left, area.right] : [area.top, area.bottom];
  let outside = 0, bars = [];
  chart.data.datasets.forEach((set, index) => {
    (set.intervals || []).forEach((interval) => { if (interval) interval.forEach((value) => {
      const at = axis.getPixelForValue(value);
      if (!(at >= low - 1 && at <= high + 1)) ++outside;
    }); });
    if (chart.config.type === 'bar') chart.getDatasetMeta(index).data.forEach((bar, at) => {
      if (set.data[at] !== null) bars.push(across ? bar.height : bar.width);
    });
  });
  const entries = [...chart.canvas.closest('figure').querySelectorAll('.legend li')].map((item) => item.getBoundingClientRect());
  return {id: chart.canvas.id, outside, narrowest: Math.min(...bars, 99), entries: entries.length, series: chart.data.datasets.length,
          cut: entries.filter((box) => box.left < 0 || box.right > window.innerWidth || box.height === 0).length};
})"""


@pytest.fixture
def everything(tmp_path):
    """All evidence of the repository, as one report shows it."""
    folder = tmp_path / "everything"
    folder.mkdir()
    for record in (ROOT / "evidence").glob("*.json"):
        if record.name != "ledger.json":
            shutil.copy(record, folder)
    return folder


@pytest.mark.parametrize("width", [1200, 390])
def test_no_chart_cuts_what_it_shows(greenfast, folder, everything, browser, width):
    for records in (folder, everything):
        assert greenfast("report", records).code == 0
        page = browser.open((records / "report.html").as_uri(), width=width)
        assert page.said == []
        charts = page.evaluate(CUT)
        assert len(charts) > 4
        for chart in charts:
            assert chart["outside"] == 0 and chart["cut"] == 0, chart
            assert chart["narrowest"] >= 2, chart
            assert chart["entries"] == (chart["series"] if chart["series"] > 1 else 0), chart
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_legend_hides_and_shows_its_series(greenfast, folder, browser):
    assert greenfast("report", folder).code == 0
    page = browser.open((folder / "report.html").as_uri())
    shown = "Object.values(Chart.instances).find((c) => c.data.datasets.length > 1).isDatasetVisible(0)"
    press = "document.querySelector('.legend button').click(); document.querySelector('.legend button').getAttribute('aria-pressed')"
    assert page.evaluate(press) == "false" and page.evaluate(shown) is False
    assert page.evaluate(press) == "true" and page.evaluate(shown) is True


def test_a_screen_reader_finds_a_name_a_description_and_a_table_for_each_chart(greenfast, folder, browser):
    assert greenfast("report", folder).code == 0
    page = browser.open((folder / "report.html").as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    nodes = [n for n in page.call("Accessibility.getFullAXTree")["nodes"] if not n.get("ignored")]

    def of(role):
        return [n for n in nodes if n.get("role", {}).get("value") in role]

    images = of(("image", "img"))
    assert len(images) == page.evaluate("document.querySelectorAll('canvas').length") > 4
    assert all(n["name"]["value"] and n["description"]["value"] for n in images)
    assert len(of(("table",))) >= len(images)
    assert len(of(("heading",))) > 10 and len(of(("columnheader",))) > 20
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.said == []


def test_hostile_names_stay_text(greenfast, folder, browser):
    def poison(value):
        if isinstance(value, dict):
            return {k: poison(v) for k, v in value.items()}
        if isinstance(value, list):
            return [poison(v) for v in value]
        return value + HOSTILE if value in ("cpu.flash", "mission", "normal", "AMD EPYC", "Every check passed.") else value

    for name in ("gate.json", "run.json"):
        record = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(poison(record)))
    (folder / "notes.md").write_text(f"# {HOSTILE}\n\n{HOSTILE}\n\n| a | {HOSTILE} |\n| --- | --- |\n| 1 | 2 |\n```\n{HOSTILE}\n```\n")
    result = greenfast("report", folder)
    assert result.code == 0, result.err
    page = browser.open((folder / "report.html").as_uri())
    assert page.said == []
    assert page.evaluate("document.scripts.length") == 3
    assert page.evaluate("document.images.length") == 0
    assert page.evaluate("document.querySelectorAll('[onerror],[onload],iframe,object').length") == 0
    assert page.evaluate("document.body.textContent.includes('</script><script>alert(1)</script>')")
    canvases = page.evaluate(DRAWN)
    assert len(canvases) > 4 and all(c["inked"] > 0.005 for c in canvases)


def test_the_page_needs_nothing_else(greenfast, folder):
    assert greenfast("report", folder).code == 0
    text = (folder / "report.html").read_text()
    assert "Content-Security-Policy" in text and "default-src 'none'" in text
    assert not re.search(r"<(?:script|img|link|iframe)[^>]*(?:src|href)=[\"'](?!data:|#)", text)
    assert "Released under the MIT License" in text  # Chart.js keeps its notice
    assert len(text) < 2_000_000


@pytest.mark.parametrize("arguments", [[], ["--pr"], ["--md", "-"]])
def test_the_folder_that_a_gate_wrote_is_taken_as_it_is(greenfast, arguments):
    made = greenfast("gate", "--baseline", "cpu.naive", "--candidate", "cpu.flash", "--primary", "1x2x33x16", "--guards", "none",
                     "--seeds", "0", "--processes", "1", "--budget", "0.1", "--out", "gates")
    folder = next((greenfast.work / "gates").glob("*-gate"))
    assert (folder / "job.json").exists() and (folder / "gate.json").exists(), made.err
    result = greenfast("report", folder, *arguments)
    assert result.code == 0, result.err


# ---- pull request, bundle, tables


def test_pull_request_text(greenfast):
    result = greenfast("report", GATE, "--pr")
    assert result.code == 0
    gate = json.loads((GATE / "gate.json").read_text())
    speedup = next(shape["speedup"]["value"] for shape in gate["fast"] if shape["primary"])
    assert result.out.startswith(f"# PROMOTE: cpu.flash against cpu.naive, {speedup:.3f}x")
    for heading in ("Summary", "Results", "Artifacts", "Toggle and rollback", "Risk", "Next steps", "Merge checklist"):
        assert f"\n## {heading}\n" in result.out
    ticked = {text: mark == "x" for mark, text in re.findall(r"^- \[([x ])\] (.*)", result.out, re.M)}
    open_boxes = {re.split(r"[,(]", text)[0].strip() for text, done in ticked.items() if not done}
    assert len(ticked) == 9
    assert open_boxes == {"both sides build", "profiles of both sides kept", "directions as predicted", "evidence"} | (
        {"built from a clean commit"} if gate["build"]["git_dirty"] else set())
    assert "both sides build, with no warning (the record holds no compiler log)" in ticked
    assert "GREENFAST_VARIANT=cpu.naive" in result.out


@pytest.mark.parametrize("complaints, line", [
    ([], "- [x] both sides build, with no warning (57 compiler logs)"),
    (["a.o: ptxas warning : spilled"], "- [ ] both sides build, with no warning (1 warnings)"),
])
def test_no_warning_is_ticked_by_the_logs_alone(greenfast, folder, complaints, line):
    edited(folder / "gate.json", lambda gate: gate["build"].update(compiler_logs={"logs": 57, "complaints": complaints}))
    assert line in greenfast("report", folder, "--pr").out


def ticks(text):
    return {re.split(r"[,(]", line)[0].strip(): mark == "x" for mark, line in re.findall(r"^- \[([x ])\] (.*)", text, re.M)}


def test_ticks_follow_what_a_check_is_about_and_not_its_words(greenfast, folder):
    """A record of today says the kind of each line; in one of before the names tell."""
    kinds = {"build": "build", "GREEN": "green", "GREEN of the baseline": "green_baseline", "resources": "resources", "A/A": "noise",
             "FAST": "fast", "guard": "guard", "speed": "light"}
    before = ticks(greenfast("report", folder, "--pr").out)

    def in_other_words(gate):
        for number, row in enumerate(gate["checklist"]):
            kind = max((begin for begin in kinds if row["gate"].startswith(begin)), key=len)
            row.update(kind=kinds[kind], gate=f"line {number}")

    edited(folder / "gate.json", in_other_words)
    assert ticks(greenfast("report", folder, "--pr").out) == before
    assert before["GREEN on every distribution"] and before["no guard shape slower"]

    def slower(gate):
        next(row for row in gate["checklist"] if row["kind"] == "guard")["status"] = "FAIL"

    edited(folder / "gate.json", slower)
    after = ticks(greenfast("report", folder, "--pr").out)
    assert {line for line in before if before[line] != after[line]} == {"no guard shape slower"}


def test_a_profile_that_was_skipped_is_none_whatever_its_reason_ends_with(greenfast, folder):
    side = {"kernels": [], "metrics": [], "missing": [], "stalls": [], "findings": [], "advice": [], "skipped": "the machine tells no metrics"}
    source = json.loads((ROOT / "evidence" / "verdicts" / "cuda-promote" / "profile.json").read_text())
    gate = json.loads((folder / "gate.json").read_text())
    source.update(sides=[{**side, "variant": variant} for variant in ("cpu.naive", "cpu.flash")], artifacts=[], directions=[],
                  device=gate["device"], problem=gate["fast"][0]["problem"])
    source["build"]["git"]["sha"] = gate["build"]["git_sha"]
    (folder / "profile.json").write_text(json.dumps(source))
    out = greenfast("report", folder, "--pr").out
    assert "SKIPPED: the machine tells no metrics" in out and not ticks(out)["profiles of both sides kept"]


@pytest.fixture
def promoted(tmp_path):
    """A gate on a GPU with the profile of its two sides, raw profiles beside it."""
    folder = tmp_path / "promoted"
    shutil.copytree(ROOT / "evidence" / "verdicts" / "cuda-promote", folder)
    edited(folder / "profile.json", lambda profile: profile.update(artifacts=[]))
    return folder


@pytest.mark.parametrize("change, words", [
    (lambda p: p["device"].update(name="NVIDIA L4"), "GPU or CPU NVIDIA L4, and the gate's is NVIDIA H100 80GB HBM3"),
    (lambda p: p["build"]["git"].update(sha="0123456789abcdef0123456789abcdef01234567"), "commit 0123456789, and the gate's is cefade197b"),
    (lambda p: p.update(shape="long", problem="1x8x2048x64 e4m3 scales(per-head)"),
     "problem 1x8x2048x64 e4m3 scales(per-head), and the gate's is 1x8x512x64 e4m3 scales(per-head)"),
])
def test_a_profile_of_something_else_ticks_nothing(greenfast, promoted, change, words):
    own = greenfast("report", promoted, "--pr").out
    assert ticks(own)["profiles of both sides kept"] and "no profile of both sides" not in own
    edited(promoted / "profile.json", change)
    out = greenfast("report", promoted, "--pr").out
    assert not ticks(out)["profiles of both sides kept"] and not ticks(out)["directions as predicted"]
    assert f"its profile here is another's: {words}" in out and "directions as predicted (no profile of both sides)" in out
    assert "greenfast profile cuda.stage_c.stage1 cuda.stage_c.stage2" in out, "what would be this gate's is a next step"


def test_a_profile_that_names_no_commit_is_not_foreign_for_it(greenfast, promoted):
    edited(promoted / "profile.json", lambda profile: profile["build"]["git"].update(sha=""))
    assert ticks(greenfast("report", promoted, "--pr").out)["profiles of both sides kept"]


def test_the_ladder_divides_no_time_of_one_record_by_one_of_another(greenfast, tmp_path):
    """cpu.naive is timed in one record and cold, cpu.flash in another and hot."""
    folder = tmp_path / "apart"
    folder.mkdir()
    record = json.loads((ROOT / "evidence" / "cpu.json").read_text())
    for name, variant, mode, p50 in (("a", "cpu.naive", "cold", 34.5e-3), ("b", "cpu.flash", "hot", 1.484e-3)):
        one = json.loads(json.dumps(record))
        one["rows"] = [row for row in one["rows"] if row["problem"] == "mission" and row["variant"] == variant]
        one["rows"][0]["time"] |= {"mode": mode, "p50_seconds": p50, "p50_ci_seconds": [p50, p50]}
        one["run_id"] = name
        (folder / f"{name}.json").write_text(json.dumps(one))
    text = greenfast("report", folder, "--md", "-").out
    assert "1.484 ms" in text and "34.50 ms" in text
    assert "### Ladder" not in text and "23.2" not in text
    shutil.copy(ROOT / "evidence" / "cpu.json", folder / "c.json")
    text = greenfast("report", folder, "--md", "-").out
    p50 = {row["variant"]: row["time"]["p50_seconds"] for row in record["rows"] if row["problem"] == "mission"}
    [note] = re.findall(r"cpu.flash is ([0-9.]+) times as fast .*of one record, apart/c.json, caches cold", text)
    assert float(note) == pytest.approx(p50["cpu.naive"] / p50["cpu.flash"], rel=1e-2)


def test_what_is_waived_is_inside_by_name(greenfast, folder):
    def waive(gate):
        row = next(row for row in gate["checklist"] if row["gate"].startswith("resources"))
        row["status"] = "WAIVED"

    edited(folder / "gate.json", waive)
    assert "- [x] resources inside their limits or waived (resources: " in greenfast("report", folder, "--pr").out


def test_the_commands_of_the_documentation_run(greenfast, tmp_path):
    text = (ROOT / "docs" / "report.md").read_text()
    [command] = re.findall(r"^greenfast (report evidence .*?)\s+#", text, re.M)
    result = subprocess.run([greenfast.program, *command.replace("all.html", str(tmp_path / "all.html")).split()],
                            cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "all.html").stat().st_size > 100_000


def test_pull_request_of_a_rejected_candidate_ticks_nothing_it_did_not_pass(greenfast):
    result = greenfast("report", ROOT / "evidence" / "verdicts" / "mutant", "--pr")
    assert result.code == 0
    assert "- [ ] GREEN on every distribution" in result.out and "- [ ] FAST" in result.out
    assert "nothing that users call may change" in result.out


def test_a_bundle_holds_what_reproduces_the_report_and_is_the_same_twice(greenfast, folder, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        result = greenfast("report", folder, "--bundle", tmp_path / name / "walk.tar.gz")
        assert result.code == 0, result.err
    first = (tmp_path / "a" / "walk.tar.gz").read_bytes()
    assert first == (tmp_path / "b" / "walk.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "a" / "walk.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(tmp_path)
    top = tmp_path / "walk"
    sums = dict(reversed(line.split("  ", 1)) for line in (top / "SHA256SUMS").read_text().splitlines())
    files = {str(p.relative_to(top)) for p in top.rglob("*") if p.is_file()}
    assert files == {*sums, "SHA256SUMS"}
    assert all(hashlib.sha256((top / name).read_bytes()).hexdigest() == digest for name, digest in sums.items())
    assert {"report.md", "report.html", "pull-request.md", "REPRODUCE.md", "policies/strict.toml"} <= files
    policies = {f"policies/{file.name}" for file in (ROOT / "policies").glob("*.toml")}
    assert policies == {name for name in files if name.startswith("policies/")}
    assert all((top / name).read_text() == (ROOT / name).read_text() for name in policies)
    gate = next(top.glob("records/*/gate.json"))
    assert gate.read_bytes() == (folder / "gate.json").read_bytes()
    reproduce = (top / "REPRODUCE.md").read_text()
    sha = json.loads(gate.read_text())["build"]["git_sha"]
    assert f"git checkout {sha}" in reproduce and "greenfast gate --baseline cpu.naive --candidate cpu.flash" in reproduce


def test_readme_tables_are_checked_and_rewritten_from_inside_the_repository(greenfast, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"<!-- greenfast:run {ROOT}/evidence/cpu.json -->\nstale\n<!-- greenfast:end -->\n")
    command = [greenfast.program, "report", "--readme"]
    stale = subprocess.run([*command, "--check", page], cwd=ROOT / "docs", capture_output=True, text=True, check=False)
    assert stale.returncode == 30 and "does not show its records" in stale.stderr
    assert subprocess.run([*command, page], cwd=ROOT / "docs", check=False).returncode == 0
    assert "| `cpu.flash` | mission |" in page.read_text()
    assert subprocess.run([*command, "--check", page], cwd=ROOT, check=False).returncode == 0


def test_readme_tables_outside_a_repository_are_refused(greenfast):
    greenfast("report", "--readme").refused(2, "--readme", "inside a Greenfast repository")


def test_a_control_experiment_is_not_recommended(greenfast, tmp_path):
    """The swizzle permutes tiles that have no conflicts, whatever share of the wavefronts a profile counts elsewhere, and though a
    gate of old names it."""
    denied = "none to expect, a control experiment: it permutes the raw tiles"
    for name in ("cuda-stage3a", "cuda-fp8-mma"):
        shutil.copytree(ROOT / "evidence" / "verdicts" / name, tmp_path / name)
        edited(tmp_path / name / "gate.json", lambda gate: gate["verdict"]["next"].append("try USE_XOR_SWIZZLE=1 (cuda.stage_c.swizzle)"))
        text = greenfast("report", tmp_path / name, "--md", "-").out
        rows = [line for line in text.splitlines() if line.startswith("|") and "cuda.stage_c.swizzle" in line and "gate" not in line.split("|")[2]]
        assert rows and all(line.startswith("| not: ") and denied in line for line in rows), rows
        assert "| try USE_XOR_SWIZZLE" not in text and "| gate cuda.stage_c.swizzle against" not in text
    assert "| consider cuda.stage_c.stage3b" not in text, "its own baseline is no idea"


def test_a_bundle_holds_the_policies_that_a_gate_was_given(greenfast, tmp_path):
    policies = {"gate.toml": "--gate-policy", "strict.toml": "--policy"}
    for name in policies:
        text = (ROOT / "policies" / name).read_text()
        (tmp_path / f"my {name}").write_text(f"# mine\n{text}")
    words = [word for name, option in policies.items() for word in (option, tmp_path / f"my {name}")]
    made = greenfast("gate", "--baseline", "cpu.naive", "--candidate", "cpu.flash", "--primary", "1x2x33x16", "--guards", "none",
                     "--seeds", "0", "--processes", "1", "--budget", "0.1", "--out", "gates", *words)
    folder = next((greenfast.work / "gates").glob("*-gate"))
    mine = {name: (tmp_path / f"my {name}").read_bytes() for name in policies}
    for name in policies:
        (tmp_path / f"my {name}").unlink()
    result = greenfast("report", folder, "--bundle", tmp_path / "walk.tar.gz")
    assert result.code == 0, made.err + result.err
    with tarfile.open(tmp_path / "walk.tar.gz") as tar:
        texts = {member.name.removeprefix("walk/"): tar.extractfile(member).read() for member in tar if member.isfile()}
    reproduce = texts["REPRODUCE.md"].decode()
    given = {name: option for option in policies.values() for name in re.findall(rf"{option} (policies/given/\S+)", reproduce)}
    assert sorted(given.values()) == ["--gate-policy", "--policy"] and "my gate.toml" not in reproduce
    for name, option in given.items():
        [file] = [file for file, its in policies.items() if its == option]
        assert texts[name] == mine[file]
    assert texts["policies/gate.toml"] == (ROOT / "policies" / "gate.toml").read_bytes(), "and this version's own"


def test_a_gate_without_the_text_of_its_policy_says_so(greenfast, folder):
    edited(folder / "gate.json", lambda gate: gate["options"].update(gate_policy="/elsewhere/gate.toml"))
    text = greenfast("report", folder, "--md", "-").out
    assert "--gate-policy /elsewhere/gate.toml: a file of whoever ran this" in text
