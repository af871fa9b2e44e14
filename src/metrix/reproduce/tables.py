"""Tables that show the measured numbers beside those printed in the paper."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from metrix.errors import MetrixError
from metrix.evaluate.seeds import SeedDifferences
from metrix.messages import count
from metrix.report.leaders import find_leaders
from metrix.report.page import Column, Table, Value
from metrix.report.page.blocks import Cell
from metrix.reproduce.datasets import ReproductionData
from metrix.reproduce.differences import describe_differences
from metrix.reproduce.grid import SEEDS_TO_TELL, Experiment, Grid, Spread
from metrix.reproduce.measures import measure_pixels_once
from metrix.reproduce.paper import DATASETS, PaperRow, PaperTable

GAIN = "gain"  # in Recall@1
INDENT = "\u2003"


@dataclass(frozen=True)
class TableLine:
    """A row of a table: its labels, then measured and printed values by column."""

    words: tuple[str, ...]
    measured: Mapping[str, Spread]
    paper: Mapping[str, str]
    note: str | None = None
    study: str = ""  # the heading above the row
    over: str = ""  # the row that its gain is measured over
    floor: bool = False  # what is reached without training, which is never marked


@dataclass(frozen=True)
class ShownColumn:
    """A column of a table: the key and source of its values, its heading and its number format."""

    key: str
    source: Literal["measured", "paper"]
    name: str
    group: str
    best: Literal["max", "min"] | None = None
    digits: int = 1
    sign: bool = False


@dataclass(frozen=True)
class ReproducedTable:
    """A table of measured numbers beside those of the paper."""

    name: str
    title: str
    headings: tuple[str, ...]
    columns: tuple[ShownColumn, ...]
    lines: tuple[TableLine, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "rows": [
                {
                    **({"study": line.study} if line.study else {}),
                    **dict(zip(self.headings, line.words, strict=True)),
                    "measured": {name: spread.to_dict() for name, spread in line.measured.items()},
                    "paper": dict(line.paper),
                    "note": line.note,
                }
                for line in self.lines
            ],
            "notes": list(self.notes),
        }

    def to_block(self) -> Table:
        """Build the table for a page; values that were not measured are empty, and footnotes say why."""
        columns = [Column(name, text=True) for name in self.headings]
        columns += [Column(one.name, one.group) for one in self.columns]
        marks: dict[str, str] = {}
        rows: list[list[Cell] | str] = []
        places: dict[int, TableLine] = {}
        study = ""
        for line in self.lines:
            if line.study != study:
                study = line.study
                rows.append(study)
            name, *words = line.words
            if line.note:
                mark = marks.setdefault(line.note, str(len(marks) + 1))
                name += f" [{mark}]"
            places[len(rows)] = line
            rows.append([name, *words, *(self._cell(line, one) for one in self.columns)])
        footnotes = [*self.notes, *(f"[{mark}] {note}" for note, mark in marks.items())]
        return Table(columns, rows, self.title, footnotes, self.name, self._find_best(places))

    def _find_best(self, lines: Mapping[int, TableLine]) -> set[tuple[int, int]]:
        """(row, column) of the best measured values, and of those that the seeds cannot tell from them.

        A column is left unmarked unless each of its rows has three seeds and the best is above what needs no training.
        """
        found: set[tuple[int, int]] = set()
        floors = [line for line in lines.values() if line.floor]
        trained = {row: line for row, line in lines.items() if not line.floor}
        for column, one in enumerate(self.columns, len(self.headings)):
            if one.source == "measured" and one.best:
                spreads = {row: line.measured.get(one.key, Spread()) for row, line in trained.items()}
                means = {row: spread.mean for row, spread in spreads.items() if spread.mean is not None}
                below = [line.measured.get(one.key, Spread()).mean or 0.0 for line in floors]
                if any(len(spreads[row].values) < SEEDS_TO_TELL for row in means):
                    continue
                if below and means and max(means.values()) <= max(below):  # floors are of Recall@K
                    continue
                leaders = find_leaders(means, lambda a, b, of=spreads: of[a].differs_from(of[b]), one.best == "max")  # type: ignore[misc]
                found |= {(row, column) for row in leaders}
        return found

    def _cell(self, line: TableLine, one: ShownColumn) -> Cell:
        if one.source == "paper":
            return line.paper.get(one.key, "")
        spread = line.measured.get(one.key, Spread())
        if spread.mean is None:
            return ""
        return Value(spread.mean, spread.deviation, digits=one.digits, sign=one.sign)


def experiments_of(table: PaperTable, data: ReproductionData) -> Iterator[Experiment]:
    """The experiments that the rows of a table need on a dataset."""
    for row in table.rows:
        if row.recipe is not None:
            yield Experiment(row.recipe, data, int(table.setup["dim"]))


def build_recall_table(grid: Grid, table: PaperTable, data: ReproductionData) -> ReproducedTable:
    """Build a table of Recall@K on a dataset.

    On a dataset of the paper, each value stands beside the printed one. On other data, the paper's Recall@1 on its own
    datasets stands beside the measured columns.
    """
    beside = data.name in table.columns
    ks = table.columns[data.name] if beside else next(iter(table.columns.values()))
    columns: list[ShownColumn] = []
    for key in (*(f"R@{k}" for k in ks), GAIN):
        best: Literal["max"] | None = None if key == GAIN else "max"
        if beside:
            columns.append(ShownColumn(key, "measured", "here", key, best, sign=key == GAIN))
            columns.append(ShownColumn(key, "paper", "paper", key))
        else:
            columns.append(ShownColumn(key, "measured", key, f"measured on {data.title}", best, sign=key == GAIN))
    if not beside:
        columns += [ShownColumn(name, "paper", DATASETS[name], "paper, R@1 and its gain") for name in table.columns]
    headings = table.label_columns if table.studies else ("method", *table.label_columns)
    lines = (
        *_floors(grid, table, data, ks, len(headings)),
        *(_recall_line(grid, table, row, data, ks, beside) for row in table.rows),
    )
    return ReproducedTable(
        f"{table.name}-{data.name}",
        f"{table.title}: {data.title}",
        headings,
        tuple(columns),
        lines,
        (*_recall_notes(grid, table, data), *conclude_from_seeds(lines)),
    )


def _floors(
    grid: Grid, table: PaperTable, data: ReproductionData, ks: tuple[int, ...], headings: int
) -> Iterator[TableLine]:
    """What needs no training: nearest neighbours in pixels, and by the networks as they were before training."""
    finished = [one for one in experiments_of(table, data) if grid.recall(one)]
    if not finished:
        return
    blank = ("",) * (headings - 1)
    try:
        pixels, note = measure_pixels_once(grid, data, ks), "Cosine of pixels; photos at 16 x 16."
    except MetrixError as error:
        pixels, note = {}, f"Not measured: {error}"
    yield TableLine(("pixels", *blank), {f"R@{k}": pixels.get(k, Spread()) for k in ks}, {}, note, floor=True)
    before = next((found for one in finished if (found := grid.untrained_recall(one))), {})
    if before:
        measured = {f"R@{k}": before.get(k, Spread()) for k in ks}
        yield TableLine(("untrained network", *blank), measured, {}, floor=True)


def _recall_line(
    grid: Grid, table: PaperTable, row: PaperRow, data: ReproductionData, ks: tuple[int, ...], beside: bool
) -> TableLine:
    words = tuple(row.labels.get(name, "") for name in table.label_columns)
    if not table.studies:
        words = (INDENT + row.method if row.over else row.method, *words)
    elif not row.labels:
        words = (row.method, *words[1:])
    study = row.method if table.studies and row.labels else ""
    if beside:
        paper = {f"R@{k}": _number(v) for k, v in zip(ks, row.recall[data.name], strict=True)}
        gain = paper_gain(table, row, data.name)
        paper[GAIN] = "" if gain is None else f"{gain:+.1f}"
    else:
        paper = {name: _with_gain(table, row, name) for name in table.columns}
    if row.recipe is None:
        return TableLine(words, {}, paper, "Not run: the paper quotes the number of the method's authors.")
    experiment = Experiment(row.recipe, data, int(table.setup["dim"]))
    recall = grid.recall(experiment)
    measured = {f"R@{k}": recall.get(k, Spread()) for k in ks}
    if row.over is not None:
        base = table.row(row.over).recipe
        assert base is not None
        measured[GAIN] = grid.gain(experiment, Experiment(base, data, experiment.dim))
    note = grid.missing(experiment)
    if note is None and not any(value is not None for values in row.recall.values() for value in values):
        note = "Not in the paper."
    if note is None and row.reported:
        note = "The paper quotes the number of the method's authors."
    return TableLine(words, measured, paper, note, study, "" if table.studies else row.over or "")


def paper_gain(table: PaperTable, row: PaperRow, dataset: str) -> float | None:
    """The gain in Recall@1 as printed in the paper, or computed from its numbers if it is not printed."""
    if row.over is None:
        return None
    if dataset in row.gain:
        return row.gain[dataset][0]
    value, before = row.recall[dataset][0], table.row(row.over).recall[dataset][0]
    return None if value is None or before is None else round(value - before, 1)


def _with_gain(table: PaperTable, row: PaperRow, dataset: str) -> str:
    gain = paper_gain(table, row, dataset)
    return _number(row.recall[dataset][0]) + ("" if gain is None else f" ({gain:+.1f})")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _recall_notes(grid: Grid, table: PaperTable, data: ReproductionData) -> Iterator[str]:
    yield (
        f"Recall@K in percent on the unseen classes of {data.title} after the last epoch, mean ± standard deviation "
        f"over {len(grid.seeds)} seed{'s' if len(grid.seeds) > 1 else ''}; gains are between runs with the same seed."
    )
    scaled = "k" in table.label_columns
    yield describe_differences(grid, table.setup, data, experiments_of(table, data), scaled)
    if len(grid.seeds) >= SEEDS_TO_TELL:
        yield (
            "Marked in a column: the best value, all that the seeds cannot tell from it (95 % interval of paired "
            "differences, not corrected for the number of comparisons) and all above these; none where no value can be "
            "told from the best, or where training does not beat the untrained network or pixels."
        )


def conclude_from_seeds(lines: Sequence[TableLine]) -> Iterator[str]:
    """Say which gains the number of seeds supports: those whose 95 % interval excludes zero."""
    gains = {_name(line): line.measured[GAIN].values for line in lines if line.measured.get(GAIN, Spread()).values}
    if not gains:
        return
    most = max(map(len, gains.values()))
    if most < SEEDS_TO_TELL:
        yield f"Gains are of {count(most, 'seed')}, from which nothing can be concluded; three or more are needed."
        return
    found = {name: SeedDifferences(values) for name, values in gains.items() if len(values) >= SEEDS_TO_TELL}
    up, down = (
        [
            f"{name} ({one.mean:+.1f}, {one.mean - one.margin:+.1f} to {one.mean + one.margin:+.1f})"
            for name, one in found.items()
            if one.decided and (one.mean > 0) == above
        ]
        for above in (True, False)
    )
    text = (
        "By the 95 % interval of paired differences (in brackets; Student's t, not corrected for the number of "
        f"comparisons), gains above zero: {', '.join(up) or 'none'}"
    )
    text += f"; below zero: {', '.join(down) or 'none'}"
    open_ones = [one for one in found.values() if not one.decided]
    if open_ones:
        smallest = statistics.median(one.detectable() for one in open_ones)
        text += (
            f". {len(open_ones)} of {len(gains)} cannot be told from zero; with this many seeds, a difference of about "
            f"{smallest:.1f} points would be found four times out of five"
        )
    yield text + "."


def _name(line: TableLine) -> str:
    return " ".join(word.strip() for word in (line.study, line.over, *line.words) if word.strip())
