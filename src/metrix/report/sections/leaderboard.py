"""Leaderboard: rows of files that others appended to, beside the runs, where data and protocol are the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from metrix.evaluate.metrics import metric_name, sort_keys
from metrix.messages import count
from metrix.report.page import Block, Cell, Column, Section, Table, Text, Value
from metrix.report.reported_runs import ReportedRun, measured_runs
from metrix.runs.leaderboard import LeaderboardRow, read_leaderboard
from metrix.runs.leaderboard_rows import build_row, merge_seeds

SHOWN = ("recall@1", "recall@2", "recall@4", "recall@8", "recall@10", "map@r", "r_precision")
UNPAIRED = (
    "Sorted by the first measure. Below each number: its 95 % interval, over what the column “interval over” says. No "
    "row is marked as the best: rows of a file have no answers to single queries, with which differences could be "
    "tested; intervals that overlap decide nothing, and settings that were chosen on the test classes look better "
    "than they are."
)


def build_leaderboard_section(
    runs: Sequence[ReportedRun], files: Sequence[Path]
) -> tuple[Section, list[LeaderboardRow]]:
    """The runs among the rows of the files, one table for each data set and protocol, and what cannot be compared.

    Raises:
        InvalidInput: a file is no leaderboard.
    """
    listed = {row.identity: row for path in files for row in read_leaderboard(path)}
    measured = measured_runs(runs)
    own = merge_seeds([build_row(one.model, one.evaluation, one.name) for one in measured])
    known = {row.identity for row in own}
    others = [row for row in listed.values() if row.identity not in known]
    blocks: list[Block] = []
    placed: set[str] = set()
    for n, row in enumerate(own):
        if any(not row.explain_difference(before) for before in own[:n]):
            continue
        mine = [one for one in own if not row.explain_difference(one)]
        beside = [one for one in others if not row.explain_difference(one)]
        placed |= {one.identity for one in beside}
        blocks.append(_build_table(mine, beside))
    apart = [row for row in others if row.identity not in placed]
    if apart:
        blocks.append(_list_apart(apart, own))
    if not listed:
        blocks.append(Text("The files have no rows.", "note"))
    return Section("Leaderboard", blocks), [*own, *others]


def _build_table(own: Sequence[LeaderboardRow], others: Sequence[LeaderboardRow]) -> Table:
    rows = [*own, *others]
    there = list(dict.fromkeys(key for row in rows for key in row.measures))  # cut-offs in the order of the runs
    shown = [key for key in sort_keys(there) if key in SHOWN] or sort_keys(there)[:5]
    lead = shown[0]
    rows.sort(key=lambda row: -row.measures[lead].value if lead in row.measures else 1.0)
    data = own[0].dataset
    lines: list[list[Cell]] = []
    for row in rows:
        over = sorted({one.over for one in row.measures.values() if one.over is not None})
        cells: list[Cell] = [row.name + (" (this report)" if row in own else ""), row.loss, row.mixup, row.backbone]
        cells += [", ".join(map(str, row.seeds)) or None, ", ".join(over) or None]
        lines.append([*cells, *(_cell(row, key) for key in shown)])
    heads = [Column(name, text=True) for name in ("result", "loss", "mixup", "backbone", "seeds", "interval over")]
    caption = (
        f"{data.name}: {count(data.queries, 'query')} of {count(data.classes, 'class')}, {data.gallery:,} images to "
        f"find, digest {data.digest[:12]}, %"
    )
    return Table([*heads, *(Column(metric_name(key)) for key in shown)], lines, caption, [UNPAIRED], "leaderboard")


def _cell(row: LeaderboardRow, key: str) -> Cell:
    found = row.measures.get(key)
    if found is None:
        return None
    bounds = None if found.low is None or found.high is None else (100 * found.low, 100 * found.high)
    return Value(100 * found.value, interval=bounds)


def _list_apart(rows: Sequence[LeaderboardRow], own: Sequence[LeaderboardRow]) -> Table:
    """The rows that are shown nowhere, without their numbers, which nothing could be compared with."""
    lines: list[list[Cell]] = [
        [
            row.name,
            row.dataset.name,
            "; ".join(dict.fromkeys(one.explain_difference(row) for one in own)) or "no run here",
        ]
        for row in rows
    ]
    columns = [Column(name, text=True) for name in ("result", "data", "why it cannot be compared")]
    return Table(columns, lines, "Rows that cannot be compared with these runs", (), "leaderboard-apart")
