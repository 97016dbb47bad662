"""tools/readme_tables.py, and that the tables of this repository are those of its records."""
import json
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


def test_an_unfinished_block_is_refused(page):
    page.write_text("text\n<!-- greenfast:end -->\n")
    assert tool(page).returncode == 2
