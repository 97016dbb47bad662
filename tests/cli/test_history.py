"""history: performance over the commits of a repository, from the records in its evidence/."""
import json
import os
import subprocess

import pytest

import chromium
from cli_paths import ROOT


# Where CMake's lists say that cpu.flash is compiled from.
FLASH, KERNEL = "src/kernels/cpu/20_flash.cpp", "const core::Kernel cpu_flash = {};\n"


class Repository:
    """A git repository whose commits change kernels and bring records."""

    def __init__(self, path):
        self.path, self.minute = path, 0
        (path / "evidence").mkdir(parents=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *words):
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
        for who in ("AUTHOR", "COMMITTER"):
            environment |= {f"GIT_{who}_NAME": "t", f"GIT_{who}_EMAIL": "t@example.org",
                            f"GIT_{who}_DATE": f"2026-01-01T00:{self.minute:02}:00Z"}
        return subprocess.run(["git", *words], cwd=self.path, env=environment, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, file, text, subject):
        self.minute += 1
        (self.path / file).parent.mkdir(parents=True, exist_ok=True)
        (self.path / file).write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", subject)
        return self.git("rev-parse", "HEAD")

    def record(self, p50, commit=None, change=lambda record: None):
        """One variant at mission, measured at a commit (this one), with an interval of 1%."""
        record = json.loads((ROOT / "evidence" / "cpu.json").read_text())
        record["rows"] = [r for r in record["rows"] if r["problem"] == "mission" and r["variant"] == "cpu.flash"]
        record["rows"][0]["time"] |= {"p50_seconds": p50, "p50_ci_seconds": [p50 * 0.99, p50 * 1.01]}
        record["build"]["git"]["sha"] = commit or self.git("rev-parse", "HEAD")
        record["run_id"], record["utc"] = f"run-{self.minute}", f"2026-01-01T00:{self.minute:02}:30Z"
        change(record)
        return self.commit("evidence/cpu.json", json.dumps(record), f"evidence {self.minute}")


@pytest.fixture
def repository(tmp_path):
    one = Repository(tmp_path / "repository")
    one.commit(FLASH, KERNEL, "the first kernel")
    one.record(8e-3)
    one.commit(FLASH, KERNEL + "// 2", "queries in lanes")
    one.commit("src/kernels/cuda/other.cu", "1", "another device's kernel")
    one.commit("src/kernels/cpu/10_naive.cpp", "1", "a neighbour on the same device")
    one.commit("src/core/check.cpp", "1", "words of a refusal")
    one.record(4e-3)
    one.commit("README.md", "words", "words only")
    one.record(4.01e-3)
    return one


def test_each_step_has_its_ratio_its_interval_and_the_change_that_caused_it(greenfast, repository):
    result = greenfast("history", "--repo", repository.path, "--json")
    assert result.code == 0, result.err
    first, second, third = result.json["points"]
    assert [p["p50_seconds"] for p in (first, second, third)] == [8e-3, 4e-3, 4.01e-3]
    assert first["seen"] == "first record" and first["over_previous"] is None
    assert second["seen"] == "faster" and second["over_previous"] == pytest.approx(2) and second["over_first"] == pytest.approx(2)
    assert [c.split(" ", 1)[1] for c in second["changes"]] == ["queries in lanes"]  # not what other kernels or all of them use
    assert third["seen"] == "no difference" and third["changes"] == []
    assert "no commit between them touched its own sources" in third["note"]
    table = greenfast("history", "--repo", repository.path).out
    for column in ("version", "optimisation", "over its predecessor", "over the first", "95% interval"):
        assert column in table
    assert "queries in lanes" in table and "2.00×" in table


def test_a_change_of_what_kernels_share_is_none_of_its_own_sources_and_names_the_file(greenfast, repository):
    shared, own = "src/kernels/cpu/rows.hpp", 'const core::Kernel cpu_{} = {{}};\n#include "kernels/cpu/rows.hpp"\n'
    repository.commit("src/kernels/cpu/10_naive.cpp", own.format("naive"), "a neighbour includes")
    repository.commit(FLASH, own.format("flash"), "rows are included")
    repository.commit(shared, "// 1", "rows")
    repository.record(2e-3)
    repository.commit(shared, "// 2", "rows by halves")
    repository.record(1e-3)
    repository.commit("src/kernels/cpu/10_naive.cpp", KERNEL.replace("flash", "naive"), "a neighbour lets go")
    before, last = greenfast("history", "--repo", repository.path, "--json").json["points"][-2:]
    # Nobody else is compiled from it now.
    assert [c.split(" ", 1)[1] for c in before["changes"]] == ["rows", "rows are included"]
    assert [c.split(" ", 1)[1] for c in last["changes"]] == ["rows by halves"] and last["note"] == ""
    repository.commit("src/kernels/cpu/10_naive.cpp", own.format("naive"), "a neighbour includes again")
    before, last = greenfast("history", "--repo", repository.path, "--json").json["points"][-2:]
    only = "(only in cpu/rows.hpp, which other kernels share)"
    assert [c.split(" ", 1)[1] for c in before["changes"]] == ["rows are included", f"rows {only}"]
    assert [c.split(" ", 1)[1] for c in last["changes"]] == [f"rows by halves {only}"]
    assert "no commit between them touched its own sources" in last["note"]
    assert only in greenfast("history", "--repo", repository.path).out


def test_a_merge_is_a_change_where_it_changed_something_itself(greenfast, repository):
    def merge(name, own=""):
        repository.git("checkout", "-q", "-b", name)
        repository.commit(FLASH, f"{KERNEL}// {name}", f"on {name}")
        repository.git("checkout", "-q", "main")
        repository.commit("README.md", name, f"beside {name}")
        environment = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        repository.git(*environment, "merge", "-q", "--no-ff", "--no-commit", name)
        if own:
            (repository.path / FLASH).write_text(f"{KERNEL}// {own}")
        repository.git("add", "-A")
        repository.git("commit", "-q", "-m", f"merge {name}")

    merge("plain")
    repository.record(2e-3)
    merge("torn", own="neither side's")
    repository.record(1e-3)
    plain, torn = greenfast("history", "--repo", repository.path, "--json").json["points"][-2:]
    assert [c.split(" ", 1)[1] for c in plain["changes"]] == ["on plain"]
    assert [c.split(" ", 1)[1] for c in torn["changes"]] == ["merge torn", "on torn"]


def test_a_commit_that_was_lost_is_said_to_be(greenfast, repository):
    repository.record(2e-3, commit="0123456789abcdef0123456789abcdef01234567")
    last = greenfast("history", "--repo", repository.path, "--json").json["points"][-1]
    assert last["seen"] == "faster" and "0123456789 is not in this repository" in last["note"]


def test_a_record_without_a_commit_is_said_to_have_none(greenfast, repository):
    def nameless(record):
        record["build"]["git"]["sha"] = ""

    brought = [repository.record(2e-3, change=nameless), repository.record(1e-3, change=nameless)]
    last = repository.record(1e-3)
    points = greenfast("history", "--repo", repository.path, "--json").json["points"][-3:]
    assert [p["commit"] for p in points[:2]] == ["", ""] and [p["evidence_commit"] for p in points] == [c[:10] for c in (*brought, last)]
    one, two, three = (p["note"] for p in points)
    assert one == "this record names no commit; taken from the commits that brought the records"
    assert two == "neither record names the commit it was built from; taken from the commits that brought the records"
    assert three == "the record before it names no commit; taken from the commits that brought the records"
    table = greenfast("history", "--repo", repository.path).out
    assert f"recorded in {brought[0][:10]} 2026-01-01" in table and "commit  is" not in table


def test_a_record_that_tells_no_time_is_no_older_for_it(greenfast, repository):
    brought = repository.record(2e-3, change=lambda record: record.update(utc=""))
    points = greenfast("history", "--repo", repository.path, "--json").json["points"]
    assert [p["p50_seconds"] for p in points] == [8e-3, 4e-3, 4.01e-3, 2e-3]
    assert points[-1]["evidence_commit"] == brought[:10] and points[-1]["utc"] == f"2026-01-01T00:{repository.minute:02}:00Z"


def test_without_an_interval_nothing_is_called_faster(greenfast, repository):
    def bare(record):
        record["rows"][0]["time"]["p50_ci_seconds"] = [None, None]

    repository.record(2e-3, change=bare)
    repository.record(1e-3)
    points = greenfast("history", "--repo", repository.path, "--json").json["points"]
    assert [p["seen"] for p in points[-2:]] == ["no interval", "no interval"]
    assert points[-1]["over_previous"] == pytest.approx(2)


def test_a_variant_whose_sources_are_not_known_is_said_to_be(greenfast, repository):
    def other(record):
        record["rows"][0]["variant"] = "cpu.gone"

    repository.record(8e-3, change=other)
    repository.commit("src/kernels/cpu/10_naive.cpp", "2", "a neighbour again")
    repository.record(4e-3, change=other)
    last = [p for p in greenfast("history", "--repo", repository.path, "--json").json["points"] if p["variant"] == "cpu.gone"][-1]
    assert "not known here" in last["note"] and len(last["changes"]) == 1


def test_a_hostile_commit_is_no_option_of_git(greenfast, repository):
    repository.record(2e-3, commit="--output=/tmp/owned")
    result = greenfast("history", "--repo", repository.path, "--json")
    assert result.code == 0 and "not in this repository" in result.json["points"][-1]["note"]


def test_the_same_run_counts_once_and_other_files_are_left_out(greenfast, repository):
    text = (repository.path / "evidence" / "cpu.json").read_text()
    repository.commit("evidence/copy.json", text, "the same again")
    repository.commit("evidence/torn.json", text[:1000], "torn")
    repository.commit("evidence/new.json", '{"schema": "greenfast.run/2"}', "another schema")
    result = greenfast("history", "--repo", repository.path)
    assert result.code == 0 and len(greenfast("history", "--repo", repository.path, "--json").json["points"]) == 3
    assert "torn.json" in result.err and "no record" in result.err
    assert "greenfast.run/2" in result.err


@pytest.mark.parametrize("arguments, words", [
    (["--repo", "/nonexistent"], ["/nonexistent", "no such folder"]),
    ([], ["not in a git repository", "evidence/"]),
])
def test_outside_a_repository_it_says_so(greenfast, arguments, words):
    greenfast("history", *arguments).refused(2, *words)


def test_a_repository_without_records_or_without_the_shape(greenfast, repository, tmp_path):
    empty = Repository(tmp_path / "empty")
    empty.commit("README.md", "words", "words")
    greenfast("history", "--repo", empty.path).refused(2, "no commit holds a record in evidence/")
    greenfast("history", "--repo", repository.path, "--shape", "long").refused(2, "shape long", "recorded are", "mission")
    greenfast("history", "--repo", repository.path, "--variants", "cpu.naive").refused(2, "of what was asked for")


def test_the_plot_is_drawn_alone_and_in_a_report(greenfast, repository, tmp_path):
    if chromium.find() is None:
        pytest.skip("no chromium here (tools/setup test installs it on Debian)")
    assert greenfast("history", "--repo", repository.path, "--html", "alone.html").code == 0
    result = greenfast("report", ROOT / "evidence" / "verdicts" / "promote", "--html", "report.html", f"--history={repository.path}")
    assert result.code == 0, result.err
    browser = chromium.Browser(tmp_path / "profile")
    try:
        for name in ("alone.html", "report.html"):
            page = browser.open((greenfast.work / name).as_uri())
            figure = "document.getElementById('chart-history-0')"
            inked = page.evaluate(f"(() => {{ const c = {figure}, d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
                                  "let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n / (c.width * c.height); })()")
            assert inked > 0.005 and page.said == []
            assert page.evaluate(f"{figure}.closest('figure').querySelectorAll('tbody tr').length") == 3
    finally:
        browser.close()
