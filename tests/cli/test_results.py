"""`metrix results` and `metrix report --leaderboard`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..runs.test_leaderboard import draw_row, write


@pytest.fixture(scope="module")
def board(run: Path, metrix, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("board") / "board.jsonl"
    outcome = metrix("results", run, "--export", path, "--bootstrap", 20, "--source", "us")
    assert outcome.code == 0, outcome.err
    assert "over classes" in outcome.out
    return path


def test_rows_are_appended_once_and_checked(board: Path, run: Path, metrix) -> None:
    again = metrix("results", run, "--export", board, "--bootstrap", 20)
    assert "1 of 1 rows are in" in again.err
    found = metrix("results", "--check", board, "--json").json
    assert [row["source"] for row in found["rows"]] == ["us"]
    assert found["written"] is None


def test_mistakes(board: Path, run: Path, refused, tmp_path: Path) -> None:
    refused("results", words="expected folders of runs, or --check FILE, got neither")
    refused("results", run, "--check", board, words="--check: expected nothing else, got RUNS")
    refused("results", run, "--export", tmp_path / "a.csv", words="expected a file NAME.jsonl, got a.csv")
    refused("results", run, "--names", "a,b", words="expected one for each of 1 runs, got 2")
    broken = write(tmp_path / "b.jsonl", draw_row(dim=0))
    refused("results", run, "--export", broken, words="line 1: dim: ")
    refused("report", run, "-o", tmp_path / "r.html", "--leaderboard", broken, words="line 1: dim: ")
    refused("results", "--check", tmp_path / "none.jsonl", words="cannot be read")


def test_a_report_shows_rows_beside_runs_on_the_same_data(board: Path, run: Path, metrix, tmp_path: Path) -> None:
    (own,) = (json.loads(line) for line in board.read_text().splitlines())
    theirs = {**own, "name": "theirs <b>", "models": [], "measures": {"recall@1": {"value": 0.999}}}
    elsewhere = draw_row(name="elsewhere", measures={"recall@1": {"value": 0.987}})
    other = write(tmp_path / "other.jsonl", theirs, elsewhere)
    page = tmp_path / "r.html"
    outcome = metrix(
        *("report", run, "-o", page, "--test-only", "--bootstrap", 20),
        *("--leaderboard", board, "--leaderboard", other, "--json"),
    )
    assert outcome.code == 0, outcome.err
    rows = outcome.json["leaderboard"]
    assert [row["name"] for row in rows] == [run.name, "theirs <b>", "elsewhere"]  # the run itself only once
    text = page.with_suffix(".md").read_text()
    table = text[text.index("Leaderboard") :]
    assert table.index("Recall@1 ") < table.index("Recall@8")
    assert table.index("99.90") < table.index("(this report)")  # sorted
    assert "No row is marked as the best" in table
    assert "98.7" not in table  # nothing to compare it with
    assert "other test data (birds" in table
    assert "theirs <b>" not in page.read_text()
