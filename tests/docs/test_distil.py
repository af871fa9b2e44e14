"""The table of docs/distil.md is that of the measured runs, and their commands are commands."""

from __future__ import annotations

import csv
import shlex
from pathlib import Path

from tests.docs.test_code_blocks import parse

DOCS = Path(__file__).parents[2] / "docs"


def measured() -> list[dict[str, str]]:
    with (DOCS / "measured" / "distil.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_table_is_that_of_the_runs() -> None:
    lines = (DOCS / "distil.md").read_text("utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    shown = {cells[0].partition(", 400")[0]: cells[2:] for cells in rows if len(cells) == 5}
    runs = measured()
    assert len(runs) >= 4
    for run in runs:
        interval = f"{run['low']} to {run['high']}"
        assert shown[run["run"]] == [run["recall@1"], interval, run["untrained"]]


def test_the_commands_are_parsed() -> None:
    for run in measured():
        parse(shlex.split(run["arguments"]))
